// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package exact

import (
	"context"

	"github.com/conch-serving/conch/plugins/policy"
)

// host answers a policy by what plans carry.
type host struct {
	w     *World
	asked Load
	// validate says what is wrong with a plan.
	validate func(*policy.Plan) []string
}

// Host answers Evaluate for a snapshot of the world with the rates that it has now: not by traffic but by the predicate. What is not carried is
// bad. Partitions say how much of their time they are busy. A plan that validate finds something wrong with has that as its violations; nil: nothing is.
func (w *World) Host(s *policy.Snapshot, validate func(*policy.Plan) []string) (policy.Host, error) {
	rates := make(map[string]float64)
	for _, m := range s.GetModels() {
		rates[m.GetName()] = max(m.GetRate(), m.GetRowRate())
	}
	asked, err := w.Load(rates)
	if err != nil {
		return nil, err
	}
	return &host{w, asked, validate}, nil
}

// Evaluate implements policy.Host.
func (h *host) Evaluate(ctx context.Context, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	all := make([]*policy.Outcome, len(plans))
	for i, p := range plans {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		all[i] = &policy.Outcome{}
		if h.validate != nil {
			if all[i].Violations = h.validate(p); len(all[i].Violations) > 0 {
				continue
			}
		}
		c, err := h.w.Carry(p, h.asked)
		if err != nil {
			return nil, err
		}
		h.outcome(all[i], p, c)
	}
	return all, nil
}

// EvaluateDraw implements policy.Host: the predicate is about rates, which every draw has alike.
func (h *host) EvaluateDraw(ctx context.Context, _ uint32, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	return h.Evaluate(ctx, plans...)
}

func (h *host) outcome(o *policy.Outcome, p *policy.Plan, c Carried) {
	total := 0.0
	for i, m := range h.w.models {
		asked, carried := float64(h.asked.Of(i))*m.unit, float64(c.Load.Of(i))*m.unit
		if asked > 0 {
			bad := 1 - carried/asked
			o.Models = append(o.Models, &policy.ModelOutcome{Model: m.name, Goodput: carried, BadRate: bad, DropRate: bad})
		}
		total += asked
		o.Goodput += carried
	}
	if total > 0 {
		o.BadRate = 1 - o.Goodput/total
	}
	for i, parts := range c.Schedule {
		for j, part := range parts {
			if part.Round > 0 {
				o.Partitions = append(o.Partitions, &policy.PartitionOutcome{Partition: c.Partitions[i][j].GetId(), BusyShare: h.w.busy(part)})
			}
		}
	}
	used := make(map[*policy.GPU]bool)
	for _, part := range p.GetPartitions() {
		if g := h.w.x.GPUOf(part); g != nil && !used[g] {
			used[g] = true
			o.Gpus++
			o.CostPerHour += g.GetCostPerHour()
		}
	}
}

// busy is the part of its time that a partition needs for what it carries.
func (w *World) busy(p Part) (share float64) {
	for _, t := range p.Turns {
		l, _ := w.upper(t.Model, t.Batch, p.Size)
		share += t.Rate * l / float64(t.Batch) / 1e6
	}
	return min(share, 1)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/advice"
	"github.com/conch-serving/conch/sidecar/observe"
)

// GPUAdvice is how many GPUs the load wants, and what that rests on.
type GPUAdvice struct {
	// Advice is nil while there is nothing to judge by.
	*policy.Advice
	// Serving are the GPUs of the last window, by rank, Spare those that have no
	// partition.
	Serving []advice.GPU
	Spare   []string
	// OutOfReach are models that were left out, since they take longer than their
	// SLO even alone: no number of GPUs makes their requests good.
	OutOfReach []string
}

// GPUAdvice is what the last windows say.
func (c *Control) GPUAdvice() GPUAdvice {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.advice
}

// weigh judges one more window of the load, once in a window's length. A window in
// which another plan came to serve is left out: partitions that start and drain are
// idle for no want of load.
func (c *Control) weigh(t *triggers, now time.Time) {
	if now.Sub(t.weighed) < observe.Window {
		return
	}
	t.weighed = now
	s := c.current()
	if s.Revision != t.weighedPlan {
		t.weighedPlan = s.Revision
		return
	}
	w := advice.Window{Seconds: observe.Window.Seconds()}
	out := c.outOfReach(s)
	for _, name := range c.Names() {
		if slices.Contains(out, name) {
			continue
		}
		all, bad := c.recorder.Judged(name, now)
		w.Requests, w.Bad = w.Requests+all, w.Bad+bad
	}
	up := map[string]bool{}
	for _, p := range c.partitions() {
		up[p.ID] = p.Up
	}
	measured := make([]*policy.PartitionStatistics, 0, len(s.GetPartitions()))
	for _, p := range s.GetPartitions() {
		statistics := c.recorder.PartitionStatistics(p.GetId(), now)
		statistics.Up = up[p.GetId()]
		measured = append(measured, statistics)
	}
	nodes := c.nodes()
	w.GPUs, w.Spare = advice.GPUs(nodes, s.Plan.Plan, measured)
	rule := advice.Rule{BadRate: c.settings().Triggers.BadRate}
	var next *policy.Advice
	t.size, next = rule.Next(t.size, w)
	wanted := advice.Wanted(next, nodes, w)
	c.metrics.Advice(next, wanted)
	if c.wantGPUs != nil {
		c.wantGPUs(wanted)
	}
	slices.SortStableFunc(w.GPUs, advice.ByRank)
	c.mu.Lock()
	c.advice = GPUAdvice{Advice: next, Serving: w.GPUs, Spare: w.Spare, OutOfReach: out}
	c.mu.Unlock()
}

// outOfReach names the models whose SLO is shorter than a request alone takes, by
// the fastest of their profiles.
func (c *Control) outOfReach(s serving) (names []string) {
	alone := map[string]float64{}
	for _, p := range c.recorder.Profiles() {
		for _, q := range p.GetPoints() {
			if took := q.GetLatencyUs().GetValue(); q.GetBatch() == 1 && took > 0 {
				if best, known := alone[p.GetModel()]; !known || took < best {
					alone[p.GetModel()] = took
				}
			}
		}
	}
	for _, m := range s.snapshot.GetModels() {
		if m.GetSloUs() > 0 && alone[m.GetName()] > float64(m.GetSloUs()) {
			names = append(names, m.GetName())
		}
	}
	return names
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch

import (
	"cmp"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
)

// bill is what counts under min-cost of a plan that holds the load: the rent of its GPUs over the horizon, and what it loads on the way from the plan in force. Both
// are in the unit of a GPU's cost per hour, or in GPU-hours where GPUs have no cost.
func (s *search) bill(c *candidate) float64 {
	rent := c.outcome.GetCostPerHour()
	if rent == 0 {
		rent = float64(c.outcome.GetGpus())
	}
	return rent*s.set.horizon/3600 + s.loading(c)
}

// loading is the price of what the way from the plan in force to a plan loads: the seconds of each load at the rent of the GPU that loads, times the price of a second.
func (s *search) loading(c *candidate) float64 {
	if c.loading < 0 || s.set.price == 0 {
		return 0
	}
	if c.loading == 0 {
		c.loading = -1 // nothing, unless something is found
		cost, total := s.w.s.GetChangeCost(), 0.0
		s.w.loads(s.w.s.GetCurrent(), c.plan, func(p *policy.Partition, m *policy.Model, fresh bool) {
			seconds := cmp.Or(m.GetChangeCost().GetSeconds(), m.GetLoadSeconds(), cost.GetDefaultLoadSeconds())
			if fresh {
				seconds += cost.GetPartitionStartSeconds()
			}
			rent := 1.0
			if g := s.w.x.GPUOf(p); c.outcome.GetCostPerHour() > 0 {
				rent = g.GetCostPerHour()
			}
			total += s.set.price * seconds * rent / 3600
		})
		if total > 0 && len(s.w.s.GetCurrent().GetPartitions()) > 0 {
			c.loading = total
		}
	}
	return max(0, c.loading)
}

// loads calls visit for every model that one plan has in a place where the other has it not. A partition is fresh where its process has to start.
func (w *world) loads(from, to *policy.Plan, visit func(p *policy.Partition, m *policy.Model, fresh bool)) {
	held := make(map[[2]string]bool)
	shares := make(map[string]uint32)
	for _, p := range from.GetPartitions() {
		shares[p.GetId()] = p.GetThreadPercentage()
		for _, in := range p.GetInstances() {
			held[[2]string{p.GetId(), in.GetModel()}] = true
		}
	}
	for _, p := range to.GetPartitions() {
		fresh := shares[p.GetId()] != p.GetThreadPercentage()
		for _, in := range p.GetInstances() {
			if fresh || !held[[2]string{p.GetId(), in.GetModel()}] {
				visit(p, w.x.Model(in.GetModel()), fresh)
			}
		}
	}
}

// grown is the plan in force on more GPUs: on each that it does not use, what the GPU has whose models had the most load per place. What is there already stays.
func (w *world) grown(now *layout) *layout {
	if len(now.parts) == 0 {
		return nil
	}
	next := now.clone()
	places := make(map[string]float64)
	for _, p := range now.parts {
		for _, name := range p.models {
			places[name]++
		}
	}
	// busy is what a partition's models ask of a GPU, where each of their places takes as much as the others.
	busy := func(p part) (sum float64) {
		for _, name := range p.models {
			if _, load, ok := w.blocks(w.x.Model(name)); ok {
				sum += load / places[name]
			}
		}
		return sum
	}
	for i, h := range w.empty.Hosts {
		if h.OnCPU() || next.free(i) < 100 || len(h.Parts) > 0 {
			continue
		}
		like := slices.MaxFunc(now.parts, func(a, b part) int { return cmp.Compare(busy(a), busy(b)) })
		for _, name := range like.models {
			places[name]++
		}
		for _, p := range now.parts {
			if p.host == like.host {
				next.parts = append(next.parts, part{host: i, share: p.share, models: slices.Clone(p.models)})
			}
		}
	}
	if len(next.parts) == len(now.parts) {
		return nil
	}
	return next
}

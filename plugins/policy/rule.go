// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import "slices"

// Rule is what the operator's constraints say about one model, those on every
// model ([AnyModel]) included: all of them hold together.
type Rule struct {
	// MinInstances and MaxInstances bound the number of partitions that hold the
	// model; MaxInstances 0: no limit.
	MinInstances, MaxInstances uint32
	// Exclusive: alone on its partitions.
	Exclusive bool
	// Pinned: stays on the partitions where it is.
	Pinned bool
	// MinShare and MaxShare bound the thread percentage of its partitions; 0: no
	// bound.
	MinShare, MaxShare uint32
	// NeverMerge: in no merge group.
	NeverMerge bool

	restricted bool
	gpus       map[string]bool
}

// AllowsGPU reports whether the model may be on the GPU.
func (r *Rule) AllowsGPU(id string) bool { return !r.restricted || r.gpus[id] }

// AllowsShare reports whether the model may be in a partition of the thread
// percentage.
func (r *Rule) AllowsShare(share uint32) bool {
	return share >= r.MinShare && (r.MaxShare == 0 || share <= r.MaxShare)
}

// Rule of a model; one that allows everything where no constraint names it.
func (x *Index) Rule(model string) *Rule {
	if r, ok := x.rules[model]; ok {
		return r
	}
	return x.anyModel
}

func (x *Index) readRules(constraints []*Constraint) {
	x.anyModel = &Rule{}
	for _, c := range constraints {
		if c.GetModel() == AnyModel {
			x.anyModel.add(c)
		}
	}
	for _, c := range constraints {
		if c.GetModel() == AnyModel {
			continue
		}
		r, ok := x.rules[c.GetModel()]
		if !ok {
			r = &Rule{}
			for _, every := range constraints {
				if every.GetModel() == AnyModel {
					r.add(every)
				}
			}
			x.rules[c.GetModel()] = r
		}
		r.add(c)
	}
}

func (r *Rule) add(c *Constraint) {
	r.MinInstances = max(r.MinInstances, c.GetMinInstances())
	r.MaxInstances = tighter(r.MaxInstances, c.GetMaxInstances())
	r.MinShare = max(r.MinShare, c.GetMinThreadPercentage())
	r.MaxShare = tighter(r.MaxShare, c.GetMaxThreadPercentage())
	r.Exclusive = r.Exclusive || c.GetExclusive()
	r.Pinned = r.Pinned || c.GetPinned()
	r.NeverMerge = r.NeverMerge || c.GetNeverMerge()
	if len(c.GetGpus()) == 0 {
		return
	}
	allowed := make(map[string]bool, len(c.GetGpus()))
	for _, id := range c.GetGpus() {
		allowed[id] = !r.restricted || r.gpus[id]
	}
	r.restricted, r.gpus = true, allowed
}

// tighter is the smaller of two upper bounds of which 0 is none.
func tighter(a, b uint32) uint32 {
	if a == 0 || (b != 0 && b < a) {
		return b
	}
	return a
}

// GPUs are the ids of those that the model may be on, sorted; restricted is
// false where it may be on any.
func (r *Rule) GPUs() (ids []string, restricted bool) {
	for id, allowed := range r.gpus {
		if allowed {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, r.restricted
}

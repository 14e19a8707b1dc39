// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"github.com/conch-serving/conch/plugins/policy"
)

// Refuse says why the model, with what it calls, may not go into the partition with the batch (0: its own maximum); empty where it may. The
// words are the causes of policy.Refusal. A latency is judged by the profile's upper quantile of a single row, alone on the GPU: what a policy
// thinks of batches and co-runners is its own affair.
func (f *Floor) Refuse(p *Part, model string, batch uint32) string {
	return f.refuse(p.Host, p, p.Share, model, batch)
}

// RefuseNew says why the model may not go into a new partition of the share on the host; empty where it may.
func (f *Floor) RefuseNew(h *Host, share uint32, model string, batch uint32) string {
	if share == 0 || share > h.FreeShare() {
		return policy.CauseShare
	}
	return f.refuse(h, nil, share, model, batch)
}

func (f *Floor) refuse(h *Host, p *Part, share uint32, model string, batch uint32) string {
	var weights, working, limit uint64
	if p != nil {
		weights, working, limit = p.weights, p.working, p.limit
	}
	var before uint64
	if p != nil {
		before = p.bytes
	}
	for _, m := range f.needs(model) {
		if p != nil && p.Holds(m) {
			if m == model {
				return policy.CauseConstraint
			}
			continue
		}
		if cause := f.refuseOne(h, p, share, m, model); cause != "" {
			return cause
		}
		own := uint32(0)
		if m == model {
			own = batch
		}
		w, a := f.InstanceBytes(f.recipes, &policy.Instance{Model: m, MaxBatch: f.batch(m, own)})
		weights, working = add(weights, w), max(working, a)
	}
	after := add(weights, working)
	if limit > 0 && after > limit || h.Memory > 0 && add(h.bytes-before, add(after, h.Context)) > h.Memory {
		return policy.CauseMemory
	}
	return ""
}

// needs are the model and those that it calls; a derived model alone.
func (f *Floor) needs(model string) []string {
	if m := f.Model(model); m == nil || len(m.GetDependsOn()) == 0 {
		return []string{model}
	}
	required := f.Requires(model)
	names := make([]string, len(required))
	for i, m := range required {
		names[i] = m.GetName()
	}
	return names
}

func (f *Floor) refuseOne(h *Host, p *Part, share uint32, model, together string) string {
	names := []string{model}
	recipe := f.recipes.Recipe(model)
	if recipe != nil {
		names = recipe.GetMembers()
	}
	for _, name := range names {
		rule, pins := f.Rule(name), f.pins[name]
		switch {
		case recipe != nil && rule.NeverMerge, h.OnCPU() && !f.allowsCPU(rule), !h.OnCPU() && !rule.AllowsGPU(h.GPU),
			pins != nil && (p == nil || !pins[p.id]),
			rule.MaxInstances > 0 && f.served(name) >= int(rule.MaxInstances),
			!f.mayJoin(p, name, together):
			return policy.CauseConstraint
		case !rule.AllowsShare(share):
			return policy.CauseShare
		case pins == nil && !f.makesIt(name, h.Type, share):
			return policy.CauseLatency
		}
	}
	return ""
}

// served counts the partitions that serve a model, itself or in a derived model.
func (f *Floor) served(model string) int {
	n := f.counts[model]
	for _, r := range f.recipes.GetRecipes() {
		for _, member := range r.GetMembers() {
			if member == model {
				n += f.counts[r.GetName()]
			}
		}
	}
	return n
}

// allowsCPU: an operator who names GPUs does not mean CPUs.
func (f *Floor) allowsCPU(r *policy.Rule) bool {
	_, restricted := r.GPUs()
	return !restricted
}

// mayJoin reports whether no exclusive model forbids the model in the partition, next to what it comes with.
func (f *Floor) mayJoin(p *Part, model, together string) bool {
	if !f.exclusive {
		return true
	}
	if !f.MayShare(model, together) {
		return false
	}
	if p == nil {
		return true
	}
	for _, in := range p.Instances {
		for _, other := range f.recipes.ModelsOf(in) {
			if !f.MayShare(model, other) {
				return false
			}
		}
	}
	return true
}

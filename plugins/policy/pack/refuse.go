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
	var weights, working, limit, before uint64
	if p != nil {
		weights, working, limit, before = p.weights, p.working, p.limit, p.bytes
	}
	asked := f.known(model)
	for _, k := range asked.needs {
		if p != nil && p.Holds(k.name) {
			if k == asked {
				return policy.CauseConstraint
			}
			continue
		}
		if cause := f.refuseOne(h, p, share, k, asked); cause != "" {
			return cause
		}
		w, a := k.weights, k.working
		if k == asked {
			w, a = f.bytesOf(k, k.batch(batch))
		}
		weights, working = add(weights, w), max(working, a)
	}
	after := add(weights, working)
	if limit > 0 && after > limit || h.Memory > 0 && add(h.bytes-before, add(after, h.Context)) > h.Memory {
		return policy.CauseMemory
	}
	return ""
}

// refuseOne says what but memory forbids a model, or a member of a derived one.
func (f *Floor) refuseOne(h *Host, p *Part, share uint32, k, together *known) string {
	if !k.derived {
		return f.refuseModel(h, p, share, k, together)
	}
	for _, member := range k.members {
		if member.rule.NeverMerge {
			return policy.CauseConstraint
		}
		if cause := f.refuseModel(h, p, share, member, together); cause != "" {
			return cause
		}
	}
	return ""
}

func (f *Floor) refuseModel(h *Host, p *Part, share uint32, k, together *known) string {
	var pins map[string]bool
	if len(f.pins) > 0 {
		pins = f.pins[k.name]
	}
	switch {
	case h.OnCPU() && !k.onCPU, !h.OnCPU() && !k.rule.AllowsGPU(h.GPU),
		pins != nil && (p == nil || !pins[p.id]),
		k.rule.MaxInstances > 0 && f.served(k.name) >= int(k.rule.MaxInstances),
		!f.mayJoin(p, k.name, together):
		return policy.CauseConstraint
	case !k.rule.AllowsShare(share):
		return policy.CauseShare
	case pins == nil && !f.makesIt(k, h, share):
		return policy.CauseLatency
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

// mayJoin reports whether no exclusive model forbids the model in the partition, next to those that come with it.
func (f *Floor) mayJoin(p *Part, model string, together *known) bool {
	if !f.exclusive {
		return true
	}
	for _, other := range together.needs {
		if !f.MayShare(model, other.name) {
			return false
		}
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

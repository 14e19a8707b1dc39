// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package static

import (
	"strconv"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// slot is a partition while it is filled.
type slot struct {
	partition *policy.Partition
	gpu       policy.NodeGPU
	// part is nil on an unavailable GPU: such a slot is there to be counted, not to be used.
	part *pack.Part
}

// holds reports whether a model is in the slot.
func (s *slot) holds(model string) bool { return s.part != nil && s.part.Holds(model) }

// floor is all the partitions there are, in GPU order, and what lies on them.
type floor struct {
	*pack.Floor
	set   *settings
	slots []*slot
	// now are the partitions on which a model that loads on demand lies, by model.
	now map[string]map[string]bool
	// demanded: some model loads on demand, and finds a server where there is room.
	demanded bool
}

func newFloor(x *policy.Index, set *settings) *floor {
	f := &floor{Floor: pack.Empty(x), set: set, now: loadedNow(x)}
	kept := f.pinned()
	for _, m := range x.Snapshot().GetModels() {
		f.demanded = f.demanded || m.GetOnDemand()
	}
	count := make(map[string]int)
	for _, g := range x.GPUs() {
		count[g.GetId()]++
	}
	taken := make(map[string]bool)
	for _, parts := range kept {
		for _, part := range parts {
			taken[part.GetId()] = true
		}
	}
	hosts := f.Hosts
	for _, g := range x.GPUs() {
		stay := kept[[2]string{g.Node, g.GetId()}]
		for _, part := range f.layout(g, stay, count[g.GetId()] > 1) {
			for len(stay) == 0 && taken[part.Id] {
				part.Id += "x"
			}
			taken[part.Id] = true
			part.Rank = uint32(len(f.slots))
			s := &slot{partition: part, gpu: g}
			if !g.GetUnavailable() {
				s.part = f.Keep(hosts[0], part)
			}
			f.slots = append(f.slots, s)
		}
		if !g.GetUnavailable() {
			hosts = hosts[1:]
		}
	}
	return f
}

// loadedNow are the partitions in which the models that load on demand lie, by
// model.
func loadedNow(x *policy.Index) map[string]map[string]bool {
	now := make(map[string]map[string]bool)
	for _, part := range x.Snapshot().GetCurrent().GetPartitions() {
		for _, in := range part.GetInstances() {
			if !x.Model(in.GetModel()).GetOnDemand() {
				continue
			}
			if now[in.GetModel()] == nil {
				now[in.GetModel()] = make(map[string]bool)
			}
			now[in.GetModel()][part.GetId()] = true
		}
	}
	return now
}

// pinned notes where pinned models lie and returns the partitions of the GPUs
// that have to keep theirs because of it.
func (f *floor) pinned() map[[2]string][]*policy.Partition {
	current := f.Snapshot().GetCurrent()
	kept := make(map[[2]string][]*policy.Partition)
	for _, m := range f.Snapshot().GetModels() {
		if !f.Rule(m.GetName()).Pinned {
			continue
		}
		for _, part := range current.PartitionsOf(m.GetName()) {
			if g := f.GPU(part.GetNode(), part.GPU()); g == nil || g.GetUnavailable() {
				continue
			}
			f.Pin(m.GetName(), part.GetId())
			kept[[2]string{part.GetNode(), part.GPU()}] = nil
		}
	}
	for _, part := range current.GetPartitions() {
		key := [2]string{part.GetNode(), part.GPU()}
		if list, keep := kept[key]; keep {
			kept[key] = append(list, part)
		}
	}
	return kept
}

// layout returns the empty partitions of a GPU.
func (f *floor) layout(g policy.NodeGPU, kept []*policy.Partition, ambiguous bool) []*policy.Partition {
	var parts []*policy.Partition
	for _, old := range kept {
		parts = append(parts, &policy.Partition{
			Id: old.GetId(), Node: g.Node, Gpus: []string{g.GetId()},
			ThreadPercentage: old.GetThreadPercentage(), MemoryLimitBytes: old.GetMemoryLimitBytes(),
		})
	}
	if len(parts) > 0 {
		return parts
	}
	shares, ok := f.set.shares[g.GetId()]
	if !ok {
		shares, ok = f.set.shares[everyGPU]
	}
	if !ok {
		shares = []uint32{100}
	}
	base := g.GetId()
	if ambiguous {
		base = g.Node + "." + base
	}
	base = pack.FileName(base, maxBase)
	for i, share := range shares {
		id := base
		if len(shares) > 1 {
			id = base + "." + strconv.Itoa(i)
		}
		parts = append(parts, &policy.Partition{Id: id, Node: g.Node, Gpus: []string{g.GetId()}, ThreadPercentage: share})
	}
	return parts
}

// everyGPU in the parameter partitions is every GPU that it does not name.
const everyGPU = "*"

// maxBase leaves room for a number within the 63 characters of an id.
const maxBase = 56

// refuse says why the model cannot be added to the slot; empty where it can.
func (f *floor) refuse(s *slot, model string) string {
	if s.part == nil {
		return policy.CauseUnavailable
	}
	return f.Refuse(s.part, model, 0)
}

// put adds the model and what it needs to the slot.
func (f *floor) put(s *slot, model string) { f.Put(s.part, model, 0, 0) }

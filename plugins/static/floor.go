// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package static

import (
	"math"
	"strconv"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// gpu is a GPU while it is filled.
type gpu struct {
	policy.NodeGPU
	// bytes that its partitions need so far.
	bytes uint64
	used  bool
}

// slot is a partition while it is filled. That of an unavailable GPU is there to
// be counted, not to be used.
type slot struct {
	partition *policy.Partition
	gpu       *gpu
	// weights of its models, and the largest working memory among them.
	weights, working uint64
	holds            map[string]bool
	// kind is the number of its type of GPU and share.
	kind int
}

// floor is all the partitions there are, in GPU order, and what lies on them.
type floor struct {
	x     *policy.Index
	set   *settings
	gpus  []*gpu
	slots []*slot
	// current are the partitions on which a pinned model lies, by model.
	current map[string]map[string]bool
	// now are the partitions on which a model that loads on demand lies, by model.
	now map[string]map[string]bool
	// demanded: some model loads on demand, and finds a server where there is room.
	demanded bool
	// exclusive: some model wants its partitions for itself.
	exclusive bool
	// instances counts the places of each placed model.
	instances map[string]int
	// known is what was asked about models, kinds how many kinds of slots there are.
	known map[string]*known
	kinds int
}

// known is what is asked about a model for every slot, and does not change while the floor is filled.
type known struct {
	name string
	rule *policy.Rule
	// pin are the partitions that a pinned model lies on; nil: it may lie anywhere.
	pin map[string]bool
	// needs are the model and those that it calls, requires the same as models.
	needs    []*known
	requires []*policy.Model
	// weights and working are what an instance of its largest batch takes.
	weights, working uint64
	// late is, by kind of slot, whether a row would miss its SLO there and would make it elsewhere.
	late []answer
}

// answer is a fact that is found out when it is asked for.
type answer uint8

const (
	notAsked answer = iota
	yes
	no
)

// of is what is known of a model.
func (f *floor) of(model string) *known {
	if k := f.known[model]; k != nil {
		return k
	}
	k := &known{name: model, rule: f.x.Rule(model), pin: f.current[model], requires: f.x.Requires(model), late: make([]answer, f.kinds)}
	k.weights, k.working = f.x.InstanceBytes(nil, policy.ModelInstance(model, f.x.Model(model).GetMaxBatchSize()))
	f.known[model] = k
	for _, m := range k.requires {
		k.needs = append(k.needs, f.of(m.GetName()))
	}
	return k
}

// isLate reports whether a row of the model would miss its SLO in the slot, though it would make it elsewhere.
func (f *floor) isLate(k *known, s *slot) bool {
	at := &k.late[s.kind]
	if *at == notAsked {
		*at = no
		if !f.x.Meets(k.name, s.gpu.GetType(), s.partition.GetThreadPercentage()) && !f.x.Hopeless(k.name) {
			*at = yes
		}
	}
	return *at == yes
}

func newFloor(x *policy.Index, set *settings) *floor {
	f := &floor{x: x, set: set, current: make(map[string]map[string]bool), instances: make(map[string]int), known: make(map[string]*known)}
	f.now = loadedNow(x)
	kept := f.pinned()
	for _, m := range x.Snapshot().GetModels() {
		f.demanded = f.demanded || m.GetOnDemand()
		f.exclusive = f.exclusive || x.Rule(m.GetName()).Exclusive
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
	type kind struct {
		gpuType string
		share   uint32
	}
	kinds := make(map[kind]int)
	for _, g := range x.GPUs() {
		on := &gpu{NodeGPU: g}
		f.gpus = append(f.gpus, on)
		stay := kept[[2]string{g.Node, g.GetId()}]
		for _, part := range f.layout(g, stay, count[g.GetId()] > 1) {
			for len(stay) == 0 && taken[part.Id] {
				part.Id += "x"
			}
			taken[part.Id] = true
			part.Rank = uint32(len(f.slots))
			as := kind{g.GetType(), part.GetThreadPercentage()}
			if _, found := kinds[as]; !found {
				kinds[as] = len(kinds)
			}
			f.slots = append(f.slots, &slot{partition: part, gpu: on, holds: make(map[string]bool), kind: kinds[as]})
		}
	}
	f.kinds = len(kinds)
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
	current := f.x.Snapshot().GetCurrent()
	kept := make(map[[2]string][]*policy.Partition)
	for _, m := range f.x.Snapshot().GetModels() {
		if !f.x.Rule(m.GetName()).Pinned {
			continue
		}
		for _, part := range current.PartitionsOf(m.GetName()) {
			if g := f.x.GPU(part.GetNode(), part.GPU()); g == nil || g.GetUnavailable() {
				continue
			}
			if f.current[m.GetName()] == nil {
				f.current[m.GetName()] = make(map[string]bool)
			}
			f.current[m.GetName()][part.GetId()] = true
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
	if s.gpu.GetUnavailable() {
		return policy.CauseUnavailable
	}
	weights, working := s.weights, s.working
	asked := f.of(model)
	for _, k := range asked.needs {
		if s.holds[k.name] {
			continue
		}
		if cause := f.refuseOne(s, k, asked.requires); cause != "" {
			return cause
		}
		weights, working = add(weights, k.weights), max(working, k.working)
	}
	after := add(weights, working)
	others := s.gpu.bytes - s.bytes()
	limit, memory := s.partition.GetMemoryLimitBytes(), s.gpu.GetMemoryBytes()
	if limit > 0 && after > limit || memory > 0 && add(others, add(after, s.gpu.GetContextBytes())) > memory {
		return policy.CauseMemory
	}
	return ""
}

// refuseOne says what but memory forbids the model in the slot.
func (f *floor) refuseOne(s *slot, k *known, together []*policy.Model) string {
	switch {
	case k.pin != nil && !k.pin[s.partition.GetId()],
		!k.rule.AllowsGPU(s.gpu.GetId()),
		!f.mayJoin(s, k.name, together),
		k.rule.MaxInstances > 0 && f.instances[k.name] >= int(k.rule.MaxInstances):
		return policy.CauseConstraint
	case !k.rule.AllowsShare(s.partition.GetThreadPercentage()):
		return policy.CauseShare
	case k.pin == nil && f.isLate(k, s):
		return policy.CauseLatency
	}
	return ""
}

// mayJoin reports whether no exclusive model forbids the model in the slot,
// next to those that come with it.
func (f *floor) mayJoin(s *slot, model string, together []*policy.Model) bool {
	if !f.exclusive {
		return true
	}
	for other := range s.holds {
		if !f.x.MayShare(model, other) {
			return false
		}
	}
	for _, other := range together {
		if !f.x.MayShare(model, other.GetName()) {
			return false
		}
	}
	return true
}

// put adds the model and what it needs to the slot.
func (f *floor) put(s *slot, model string) {
	before := s.bytes()
	for i, k := range f.of(model).needs {
		if s.holds[k.name] {
			continue
		}
		s.weights, s.working = add(s.weights, k.weights), max(s.working, k.working)
		s.holds[k.name] = true
		s.partition.Instances = append(s.partition.Instances, policy.ModelInstance(k.name, f.of(model).requires[i].GetMaxBatchSize()))
		f.instances[k.name]++
	}
	s.gpu.bytes = add(s.gpu.bytes-before, s.bytes())
	s.gpu.used = true
}

// bytes that the slot takes of its GPU: with the context of its process, if it holds anything.
func (s *slot) bytes() uint64 {
	if len(s.holds) == 0 {
		return 0
	}
	return add(s.gpu.GetContextBytes(), add(s.weights, s.working))
}

// free is the memory left on the slot's GPU; unknown is the most there can be.
func (s *slot) free() uint64 {
	if s.gpu.GetMemoryBytes() == 0 {
		return math.MaxUint64
	}
	return s.gpu.GetMemoryBytes() - min(s.gpu.GetMemoryBytes(), s.gpu.bytes)
}

// add does not wrap, for sizes are what others declare.
func add(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

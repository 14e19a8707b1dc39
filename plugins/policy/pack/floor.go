// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
)

// Floor is the state of a packing. Make one with [New]; [Floor.Clone] gives a copy to try something on. It is not safe for concurrent use.
type Floor struct {
	// Index is of the snapshot that is planned for.
	*policy.Index
	// Hosts are in GPU order, then the CPUs of nodes by name. Unavailable GPUs are not among them.
	Hosts []*Host

	counts map[string]int
	// pins are the ids of partitions on which a pinned model has to stay, by model.
	pins map[string]map[string]bool
	// exclusive: some model wants its partitions for itself.
	exclusive bool
	recipes   *policy.Plan
	reasons   []*policy.Reason
	causes    map[string][]string
	// types of hosts, whose numbers hosts have.
	types []string
	// models and derived models that were asked about; clones share those of models.
	models, derived map[string]*known
}

// Host is a GPU, or the CPUs of a node.
type Host struct {
	Node string
	// GPU is the id; empty for CPUs.
	GPU string
	// Type is what profiles and interference call it.
	Type string
	// Memory in bytes; 0 is unknown, and never full.
	Memory uint64
	// Context is what the process of each partition takes before it loads a model.
	Context uint64
	// CostPerHour; 0 is unknown.
	CostPerHour float64
	// Parts are the partitions on it.
	Parts []*Part

	index int
	// kind is the number of its type.
	kind  int
	bytes uint64
}

// Part is a partition that is being planned.
type Part struct {
	Host  *Host
	Share uint32
	// Instances in the order in which they were put there.
	Instances []*policy.Instance

	// id and limit of a partition that the plan in force has and that has to stay; empty otherwise.
	id               string
	limit            uint64
	weights, working uint64
	// bytes that it takes of its host.
	bytes uint64
	// held finds instances by model where they are many; nil: it is not made yet.
	held map[string]*policy.Instance
}

// New reads the snapshot. Partitions of the plan in force on which pinned models lie are there from the start, with those models.
func New(s *policy.Snapshot) *Floor {
	f := Empty(policy.NewIndex(s))
	f.keepPinned()
	return f
}

// Empty is New without partitions: nothing is pinned but what [Floor.Pin] says.
func Empty(x *policy.Index) *Floor {
	s := x.Snapshot()
	f := &Floor{
		Index: x, counts: make(map[string]int), pins: make(map[string]map[string]bool),
		recipes: &policy.Plan{}, causes: make(map[string][]string), models: make(map[string]*known, len(s.GetModels())),
	}
	for _, g := range f.GPUs() {
		if g.GetUnavailable() {
			continue
		}
		f.Hosts = append(f.Hosts, &Host{
			Node: g.Node, GPU: g.GetId(), Type: g.GetType(), Memory: g.GetMemoryBytes(), Context: g.GetContextBytes(), CostPerHour: g.GetCostPerHour(), index: len(f.Hosts),
		})
	}
	nodes := slices.Clone(s.GetNodes())
	slices.SortStableFunc(nodes, func(a, b *policy.Node) int { return cmp.Compare(a.GetName(), b.GetName()) })
	for _, n := range nodes {
		if cpu := n.GetCpu(); cpu != nil {
			f.Hosts = append(f.Hosts, &Host{
				Node: n.GetName(), Type: cpu.GetType(), Memory: cpu.GetMemoryBytes(), CostPerHour: cpu.GetCostPerHour(), index: len(f.Hosts),
			})
		}
	}
	kinds := make(map[string]int)
	for _, h := range f.Hosts {
		if _, found := kinds[h.Type]; !found {
			kinds[h.Type], f.types = len(f.types), append(f.types, h.Type)
		}
		h.kind = kinds[h.Type]
	}
	for _, m := range s.GetModels() {
		f.exclusive = f.exclusive || f.Rule(m.GetName()).Exclusive
	}
	return f
}

// keepPinned opens the partitions on which pinned models lie. Their shares and limits stay, and so do the other partitions of the same
// host, empty: a pinned model must not find its GPU cut otherwise.
func (f *Floor) keepPinned() {
	current := f.Snapshot().GetCurrent()
	hosts := make(map[[2]string]*Host, len(f.Hosts))
	for _, h := range f.Hosts {
		hosts[[2]string{h.Node, h.GPU}] = h
	}
	parts := make(map[string]*Part)
	var pinned []*policy.Model
	for _, m := range f.Snapshot().GetModels() {
		if !f.Rule(m.GetName()).Pinned {
			continue
		}
		for _, part := range current.PartitionsOf(m.GetName()) {
			h := hosts[[2]string{part.GetNode(), part.GPU()}]
			if h == nil || len(part.GetGpus()) > 1 {
				continue
			}
			if f.pins[m.GetName()] == nil {
				pinned = append(pinned, m)
			}
			f.Pin(m.GetName(), part.GetId())
			if parts[part.GetId()] == nil && h.FreeShare() >= part.GetThreadPercentage() && part.GetThreadPercentage() > 0 {
				parts[part.GetId()] = f.Keep(h, part)
			}
		}
	}
	for _, m := range pinned {
		for _, part := range current.GetPartitions() {
			if p := parts[part.GetId()]; p != nil && f.pins[m.GetName()][p.id] && f.Refuse(p, m.GetName(), 0) == "" {
				f.Put(p, m.GetName(), 0, 0)
			}
		}
	}
}

// Pin has a model stay in the partition of an id, and in others that it is pinned to.
func (f *Floor) Pin(model, partition string) {
	if f.pins[model] == nil {
		f.pins[model] = make(map[string]bool)
	}
	f.pins[model][partition] = true
}

// Pins are the ids of the partitions that a model is pinned to; nil: it is to none.
func (f *Floor) Pins(model string) map[string]bool { return f.pins[model] }

// Keep is Open for a partition whose id and limit are known.
func (f *Floor) Keep(h *Host, part *policy.Partition) *Part {
	p := f.Open(h, part.GetThreadPercentage())
	p.id, p.limit = part.GetId(), part.GetMemoryLimitBytes()
	return p
}

// Without is the partition, and its host, as they would be without some models. Neither is on the floor.
func (f *Floor) Without(p *Part, out map[string]bool) *Part {
	less, on := *p, *p.Host
	less.Host, less.held = &on, nil
	less.Instances = slices.DeleteFunc(slices.Clone(p.Instances), func(in *policy.Instance) bool { return out[in.GetModel()] })
	f.weigh(&less)
	return &less
}

// Remove takes models out of a partition.
func (f *Floor) Remove(p *Part, out map[string]bool) {
	for model := range out {
		f.counts[model]--
	}
	p.held, p.Instances = nil, slices.DeleteFunc(p.Instances, func(in *policy.Instance) bool { return out[in.GetModel()] })
	f.weigh(p)
}

// Clone is a copy whose changes leave this floor alone.
func (f *Floor) Clone() *Floor {
	c := *f
	c.counts = make(map[string]int, len(f.counts))
	for name, n := range f.counts {
		c.counts[name] = n
	}
	c.recipes, c.derived = &policy.Plan{Recipes: slices.Clone(f.recipes.Recipes)}, maps.Clone(f.derived)
	c.reasons = slices.Clone(f.reasons)
	c.causes = make(map[string][]string, len(f.causes))
	for name, causes := range f.causes {
		c.causes[name] = slices.Clone(causes)
	}
	c.Hosts = make([]*Host, len(f.Hosts))
	copies := make([]Host, len(f.Hosts))
	for i, h := range f.Hosts {
		host := &copies[i]
		*host = *h
		host.Parts = make([]*Part, len(h.Parts))
		for j, p := range h.Parts {
			part := *p
			part.Host, part.held = host, nil
			part.Instances = make([]*policy.Instance, len(p.Instances))
			for k, in := range p.Instances {
				part.Instances[k] = &policy.Instance{
					Model: in.Model, MaxBatch: in.MaxBatch, Rate: in.Rate, ThreadPercentage: in.ThreadPercentage,
				}
			}
			host.Parts[j] = &part
		}
		c.Hosts[i] = host
	}
	return &c
}

// FreeShare is what is left of the host, in percent.
func (h *Host) FreeShare() uint32 {
	free := uint32(100)
	for _, p := range h.Parts {
		free -= min(free, p.Share)
	}
	return free
}

// FreeBytes of the host; the most there can be where its memory is unknown.
func (h *Host) FreeBytes() uint64 {
	if h.Memory == 0 {
		return math.MaxUint64
	}
	return h.Memory - min(h.Memory, h.bytes)
}

// Index of the host in [Floor.Hosts].
func (h *Host) Index() int { return h.index }

// OnCPU reports that the host is the CPUs of a node.
func (h *Host) OnCPU() bool { return h.GPU == "" }

// Used reports that something lies on the host.
func (h *Host) Used() bool {
	return slices.ContainsFunc(h.Parts, func(p *Part) bool { return len(p.Instances) > 0 })
}

// Pinned reports that the partition has to stay as it is because of a pinned model.
func (p *Part) Pinned() bool { return p.id != "" }

// Holds reports whether the model is in the partition.
func (p *Part) Holds(model string) bool { return p.Instance(model) != nil }

// Instance of the model in the partition; nil where there is none.
func (p *Part) Instance(model string) *policy.Instance {
	if len(p.Instances) >= manyInstances {
		if p.held == nil {
			p.held = make(map[string]*policy.Instance, 2*len(p.Instances))
			for _, in := range p.Instances {
				p.held[in.GetModel()] = in
			}
		}
		return p.held[model]
	}
	for _, in := range p.Instances {
		if in.GetModel() == model {
			return in
		}
	}
	return nil
}

// manyInstances is from where a look-up beats a walk.
const manyInstances = 12

// Count is how many partitions hold the model.
func (f *Floor) Count(model string) int { return f.counts[model] }

// Open makes an empty partition. The caller has seen that so much is free.
func (f *Floor) Open(h *Host, share uint32) *Part {
	p := &Part{Host: h, Share: share}
	h.Parts = append(h.Parts, p)
	return p
}

// Close takes a partition away with everything in it.
func (f *Floor) Close(p *Part) {
	for _, in := range p.Instances {
		f.counts[in.GetModel()]--
	}
	p.Instances, p.held = nil, nil
	f.weigh(p)
	p.Host.Parts = slices.DeleteFunc(p.Host.Parts, func(q *Part) bool { return q == p })
}

// Want adds a derived model that the plan is to have. It may then be placed by the name of its recipe.
func (f *Floor) Want(r *policy.Recipe) {
	f.recipes.Recipes = append(f.recipes.Recipes, r)
	k := f.read(r.GetName())
	k.derived, k.needs = true, []*known{k}
	for _, member := range r.GetMembers() {
		k.members = append(k.members, f.known(member))
	}
	if f.derived == nil {
		f.derived = make(map[string]*known)
	}
	f.derived[r.GetName()] = k
}

// Put adds the model to the partition, with the models that it calls where they are not there yet. Batch 0 is the model's own maximum; rate
// is the rows per second that the policy counts on there.
func (f *Floor) Put(p *Part, model string, batch uint32, rate float64) {
	k := f.known(model)
	f.add(p, k, &policy.Instance{Model: model, MaxBatch: k.batch(batch), Rate: rate})
	for _, m := range k.needs {
		if m != k && !p.Holds(m.name) {
			f.add(p, m, &policy.Instance{Model: m.name, MaxBatch: m.limit})
		}
	}
}

// maxBatch of a model, or of the members of a derived model.
func (f *Floor) maxBatch(model string) uint32 {
	if m := f.Model(model); m != nil {
		return max(1, m.GetMaxBatchSize())
	}
	limit := uint32(math.MaxUint32)
	for _, name := range f.recipes.Recipe(model).GetMembers() {
		limit = min(limit, max(1, f.Model(name).GetMaxBatchSize()))
	}
	return limit
}

func (f *Floor) add(p *Part, k *known, in *policy.Instance) {
	p.Instances = append(p.Instances, in)
	f.counts[in.Model]++
	if p.held != nil {
		p.held[in.Model] = in
	}
	p.Host.bytes -= p.bytes
	w, a := f.bytesOf(k, in.MaxBatch)
	p.weights, p.working = add(p.weights, w), max(p.working, a)
	p.settle()
}

// weigh brings the memory of a partition and its host up to date.
func (f *Floor) weigh(p *Part) {
	p.Host.bytes -= p.bytes
	p.weights, p.working = 0, 0
	for _, in := range p.Instances {
		w, a := f.bytesOf(f.known(in.GetModel()), in.GetMaxBatch())
		p.weights, p.working = add(p.weights, w), max(p.working, a)
	}
	p.settle()
}

// settle adds what the partition takes to its host.
func (p *Part) settle() {
	p.bytes = add(p.weights, p.working)
	if len(p.Instances) > 0 {
		p.bytes = add(p.bytes, p.Host.Context)
	}
	p.Host.bytes = add(p.Host.bytes, p.bytes)
}

// add does not wrap, for sizes are what others declare.
func add(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

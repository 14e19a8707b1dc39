// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"
)

// Index answers look-ups in one snapshot without a walk through its lists. It
// must not outlive a change of the snapshot (which never changes).
type Index struct {
	snapshot *Snapshot
	models   map[string]*Model
	profiles map[profileKey]*Profile
	gpus     []NodeGPU
	cpus     map[string]*CPU
	// types of the available GPUs, each once.
	types    []string
	byID     map[gpuKey]*GPU
	derived  map[string]*DerivedModel
	rules    map[string]*Rule
	anyModel *Rule
	// ends are the SLOs of pipelines, by the models that only they ask for: the longest.
	ends map[string]int64
}

type profileKey struct{ model, gpuType string }

type gpuKey struct{ node, id string }

// NodeGPU is a GPU and the node it is in.
type NodeGPU struct {
	Node string
	*GPU
}

// NewIndex reads the snapshot once. Where a name occurs twice the first wins.
func NewIndex(s *Snapshot) *Index {
	x := &Index{
		snapshot: s,
		models:   make(map[string]*Model, len(s.GetModels())),
		profiles: make(map[profileKey]*Profile, len(s.GetProfiles())),
		cpus:     make(map[string]*CPU),
		byID:     make(map[gpuKey]*GPU),
		derived:  make(map[string]*DerivedModel),
		rules:    make(map[string]*Rule),
		ends:     make(map[string]int64),
	}
	for _, p := range s.GetPipelines() {
		for _, step := range p.GetSteps() {
			x.ends[step.GetModel()] = max(x.ends[step.GetModel()], p.GetSloUs())
		}
	}
	for _, d := range s.GetDerived() {
		name := d.GetRecipe().GetName()
		if _, twice := x.derived[name]; !twice {
			x.derived[name] = d
		}
	}
	for _, m := range s.GetModels() {
		if _, twice := x.models[m.GetName()]; !twice {
			x.models[m.GetName()] = m
		}
		if x.ends[m.GetName()] > 0 && s.DirectRate(m) > 0 {
			delete(x.ends, m.GetName())
		}
	}
	for _, p := range s.GetProfiles() {
		key := profileKey{p.GetModel(), p.GetGpuType()}
		if _, twice := x.profiles[key]; !twice {
			x.profiles[key] = p
		}
	}
	kinds := make(map[string]bool)
	for _, n := range s.GetNodes() {
		if _, twice := x.cpus[n.GetName()]; !twice {
			x.cpus[n.GetName()] = n.GetCpu()
		}
		for _, g := range n.GetGpus() {
			x.gpus = append(x.gpus, NodeGPU{Node: n.GetName(), GPU: g})
			key := gpuKey{n.GetName(), g.GetId()}
			if _, twice := x.byID[key]; !twice {
				x.byID[key] = g
			}
			if !g.GetUnavailable() && !kinds[g.GetType()] {
				kinds[g.GetType()], x.types = true, append(x.types, g.GetType())
			}
		}
	}
	slices.SortStableFunc(x.gpus, func(a, b NodeGPU) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.GetIndex(), b.GetIndex()), cmp.Compare(a.GetId(), b.GetId()))
	})
	x.readRules(s.GetConstraints())
	return x
}

// Snapshot is what the index was made of.
func (x *Index) Snapshot() *Snapshot { return x.snapshot }

// Model by name; nil where there is none.
func (x *Index) Model(name string) *Model { return x.models[name] }

// Derived is the derived model that exists or is on offer under the name; nil
// where there is none.
func (x *Index) Derived(name string) *DerivedModel { return x.derived[name] }

// CPU of a node; nil where it may run no models.
func (x *Index) CPU(node string) *CPU { return x.cpus[node] }

// GPUOf is the GPU that a partition has a share of; nil where it has none,
// several, or one that the snapshot does not have.
func (x *Index) GPUOf(part *Partition) *GPU { return x.GPU(part.GetNode(), part.GPU()) }

// TypeOf is what profiles call the place of a partition: the type of its GPU, or
// of its node's CPUs; empty where the snapshot does not have it.
func (x *Index) TypeOf(part *Partition) string {
	if part.OnCPU() {
		return x.CPU(part.GetNode()).GetType()
	}
	return x.GPUOf(part).GetType()
}

// GPUs of all nodes, unavailable ones included, sorted by node, then by index,
// then by id: GPU order.
func (x *Index) GPUs() []NodeGPU { return x.gpus }

// GPU by node and id; nil where there is none.
func (x *Index) GPU(node, id string) *GPU { return x.byID[gpuKey{node, id}] }

// Profile of a model on a GPU type; nil where there is none.
func (x *Index) Profile(model, gpuType string) *Profile {
	return x.profiles[profileKey{model, gpuType}]
}

// UsableProfile is [Index.Profile], nil while it is still being learnt.
func (x *Index) UsableProfile(model, gpuType string) *Profile {
	if p := x.Profile(model, gpuType); p.GetUsable() && len(p.GetPoints()) > 0 {
		return p
	}
	return nil
}

// Meets reports whether a single row of the model meets its SLO at the share of
// a GPU of the type, by the upper quantile of a usable profile. Without an SLO
// or without a usable profile nothing says that it does not. How a pipeline's SLO is
// divided is up to the policy: a model that only pipelines ask for meets it within
// the whole of theirs.
func (x *Index) Meets(model, gpuType string, share uint32) bool {
	slo := max(x.Model(model).GetSloUs(), x.ends[model])
	p := x.UsableProfile(model, gpuType)
	if slo <= 0 || p == nil {
		return true
	}
	l, ok := p.Upper(1, share)
	return !ok || l <= float64(slo)
}

// Hopeless reports that no available GPU of the snapshot that the operator
// allows would let the model meet its SLO, not even at the largest share
// allowed. Moving such a model does not help, so that its place cannot be wrong for
// its latency: it is served as well as can be.
func (x *Index) Hopeless(model string) bool {
	rule := x.Rule(model)
	share := uint32(100)
	if rule.MaxShare > 0 {
		share = min(share, rule.MaxShare)
	}
	if !rule.restricted {
		return len(x.types) > 0 && !slices.ContainsFunc(x.types, func(gpuType string) bool { return x.Meets(model, gpuType, share) })
	}
	somewhere := false
	for _, g := range x.gpus {
		if g.GetUnavailable() || !rule.AllowsGPU(g.GetId()) {
			continue
		}
		somewhere = true
		if x.Meets(model, g.GetType(), share) {
			return false
		}
	}
	return somewhere
}

// Requires returns the model and, for an ensemble, every model that its steps
// call, directly or not: they have to be loaded in the same server. Names that
// the snapshot does not have are left out.
func (x *Index) Requires(model string) []*Model {
	var list []*Model
	seen := make(map[string]bool)
	var walk func(string)
	walk = func(name string) {
		m := x.models[name]
		if m == nil || seen[name] {
			return
		}
		seen[name] = true
		list = append(list, m)
		for _, d := range m.GetDependsOn() {
			walk(d)
		}
	}
	walk(model)
	return list
}

// MayShare reports whether the operator's rules let two models lie in one
// partition. An exclusive model shares only with an ensemble that calls it and
// with models that it calls.
func (x *Index) MayShare(a, b string) bool {
	if a == b || !x.Rule(a).Exclusive && !x.Rule(b).Exclusive {
		return true
	}
	return x.requires(a, b) || x.requires(b, a)
}

func (x *Index) requires(a, b string) bool {
	for _, m := range x.Requires(a) {
		if m.GetName() == b {
			return true
		}
	}
	return false
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strings"
)

// ModelInstance is an instance of a model; maxBatch 0 means the model's own
// maximum.
func ModelInstance(model string, maxBatch uint32) *Instance {
	return &Instance{Model: model, MaxBatch: maxBatch}
}

// GPU is the id of the one GPU that the partition has a share of; empty for a
// partition on its node's CPUs, and for one on several GPUs.
func (x *Partition) GPU() string {
	if len(x.GetGpus()) == 1 {
		return x.GetGpus()[0]
	}
	return ""
}

// OnCPU reports that the partition has a share of its node's CPUs and of no GPU.
func (x *Partition) OnCPU() bool { return len(x.GetGpus()) == 0 }

// Hosts is what the partition has a share of, as a person reads it: its GPUs, or "cpu".
func (x *Partition) Hosts() string {
	if x.OnCPU() {
		return "cpu"
	}
	return strings.Join(x.GetGpus(), "+")
}

// Has reports whether an instance of the model lies on the partition.
func (x *Partition) Has(model string) bool {
	return slices.ContainsFunc(x.GetInstances(), func(in *Instance) bool { return in.GetModel() == model })
}

// On reports whether the partition has a share of the GPU of the node.
func (x *Partition) On(node, gpu string) bool {
	if x.GetNode() != node {
		return false
	}
	for _, id := range x.GetGpus() {
		if id == gpu {
			return true
		}
	}
	return false
}

// Recipe by the name of the model that it makes; nil where the plan wants no
// such model.
func (x *Plan) Recipe(name string) *Recipe {
	for _, r := range x.GetRecipes() {
		if r.GetName() == name {
			return r
		}
	}
	return nil
}

// ModelsOf returns the models that clients know and that an instance of the plan
// serves: those that its recipe makes it from, or itself.
func (x *Plan) ModelsOf(in *Instance) []string {
	if in.GetModel() == "" {
		return nil
	}
	if r := x.Recipe(in.GetModel()); r != nil {
		return r.GetMembers()
	}
	return []string{in.GetModel()}
}

// PartitionsOf returns the partitions of the plan that serve the model, itself
// or in a derived model, in the plan's order. Who asks of many models asks [Plan.Places].
func (x *Plan) PartitionsOf(model string) []*Partition {
	var as []string // what it is called in partitions that serve it
	if model != "" && x.Recipe(model) == nil {
		as = append(as, model)
	}
	for _, r := range x.GetRecipes() {
		if r.GetName() != "" && slices.Contains(r.GetMembers(), model) && x.Recipe(r.GetName()) == r {
			as = append(as, r.GetName())
		}
	}
	var found []*Partition
	for _, part := range x.GetPartitions() {
		if slices.ContainsFunc(part.GetInstances(), func(in *Instance) bool { return slices.Contains(as, in.GetModel()) }) {
			found = append(found, part)
		}
	}
	return found
}

// Places are [Plan.PartitionsOf] for every model that the plan serves.
func (x *Plan) Places() map[string][]*Partition {
	places := make(map[string][]*Partition)
	add := func(model string, part *Partition) {
		if all := places[model]; len(all) == 0 || all[len(all)-1] != part {
			places[model] = append(all, part)
		}
	}
	recipes := make(map[string]*Recipe, len(x.GetRecipes()))
	for _, r := range slices.Backward(x.GetRecipes()) {
		recipes[r.GetName()] = r
	}
	for _, part := range x.GetPartitions() {
		for _, in := range part.GetInstances() {
			r, derived := recipes[in.GetModel()]
			switch {
			case in.GetModel() == "":
			case derived:
				for _, member := range r.GetMembers() {
					add(member, part)
				}
			default:
				add(in.GetModel(), part)
			}
		}
	}
	return places
}

// OwnRate is the requests per second for the model by its own name: its rate without what came to it by the names of apps.
func (x *Model) OwnRate() float64 {
	routed, rows := x.GetRoutedRowRate(), x.GetRowRate()
	switch {
	case !(routed > 0) || !(rows > 0):
		return x.GetRate()
	case rows-routed <= 1e-6*rows: // rates are counted in slots: what is left of equal ones is a rounding
		return 0
	}
	return x.GetRate() * (rows - routed) / rows
}

// MostExecutions is how many batches a partition may run at once, at most (GPU.executions).
const MostExecutions = 64

// AtOnce is how many batches a partition runs at once: those of its GPU, if it has all of that.
func (x *Index) AtOnce(part *Partition) int {
	if part.GetThreadPercentage() < 100 {
		return 1
	}
	return int(min(max(1, x.GPUOf(part).GetExecutions()), MostExecutions))
}

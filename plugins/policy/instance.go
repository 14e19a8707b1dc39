// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

// Key names what an instance holds: "model:resnet50", "merge_group:g1" or
// "segment:s1"; empty where it holds nothing.
func (x *Instance) Key() string {
	switch what := x.GetWhat().(type) {
	case *Instance_Model:
		return "model:" + what.Model
	case *Instance_MergeGroup:
		return "merge_group:" + what.MergeGroup
	case *Instance_Segment:
		return "segment:" + what.Segment
	}
	return ""
}

// Label is what an instance holds as a person reads it.
func (x *Instance) Label() string {
	switch what := x.GetWhat().(type) {
	case *Instance_Model:
		return what.Model
	case *Instance_MergeGroup:
		return what.MergeGroup + " (merge group)"
	case *Instance_Segment:
		return what.Segment + " (segment)"
	}
	return "nothing"
}

// ModelInstance is an instance of a model; maxBatch 0 means the model's own
// maximum.
func ModelInstance(model string, maxBatch uint32) *Instance {
	return &Instance{What: &Instance_Model{Model: model}, MaxBatch: maxBatch}
}

// ModelsOf returns the models that an instance of the plan serves: itself, the
// members of its merge group, or the model that its segment is of.
func (x *Plan) ModelsOf(in *Instance) []string {
	switch what := in.GetWhat().(type) {
	case *Instance_Model:
		return []string{what.Model}
	case *Instance_MergeGroup:
		for _, g := range x.GetMergeGroups() {
			if g.GetName() == what.MergeGroup {
				return g.GetMembers()
			}
		}
	case *Instance_Segment:
		for _, s := range x.GetSegments() {
			if s.GetName() == what.Segment {
				return []string{s.GetModel()}
			}
		}
	}
	return nil
}

// PartitionsOf returns the partitions of the plan that serve the model in
// whatever form, in the plan's order.
func (x *Plan) PartitionsOf(model string) []*Partition {
	var found []*Partition
	for _, part := range x.GetPartitions() {
		if part.serves(x, model) {
			found = append(found, part)
		}
	}
	return found
}

func (x *Partition) serves(p *Plan, model string) bool {
	for _, in := range x.GetInstances() {
		for _, name := range p.ModelsOf(in) {
			if name == model {
				return true
			}
		}
	}
	return false
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import "math"

// PartitionBytes is the memory that a partition of the plan needs: the weights
// of everything in it, and the working memory of the largest batch, once, for a
// partition runs one batch at a time. What is unknown counts 0.
func (x *Index) PartitionBytes(p *Plan, part *Partition) uint64 {
	var weights, working uint64
	for _, in := range part.GetInstances() {
		w, a := x.InstanceBytes(p, in)
		weights = addBytes(weights, w)
		working = max(working, a)
	}
	return addBytes(weights, working)
}

// InstanceBytes is the memory of one instance: its weights, and the working
// memory of its largest batch. The members of a merge group count what they
// share once (each the most that it shares with a member before it), a segment
// counts its fraction of the model. An instance of something that the snapshot
// or the plan does not have counts 0.
func (x *Index) InstanceBytes(p *Plan, in *Instance) (weights, working uint64) {
	switch what := in.GetWhat().(type) {
	case *Instance_Model:
		m := x.Model(what.Model)
		return m.GetMemoryBytes(), workingBytes(m, in.GetMaxBatch())
	case *Instance_MergeGroup:
		var members []*Model
		for _, g := range p.GetMergeGroups() {
			if g.GetName() != what.MergeGroup {
				continue
			}
			for _, name := range g.GetMembers() {
				m := x.Model(name)
				weights = addBytes(weights, m.GetMemoryBytes()-min(m.GetMemoryBytes(), mostShared(m, members)))
				working = max(working, workingBytes(m, in.GetMaxBatch()))
				members = append(members, m)
			}
			return weights, working
		}
	case *Instance_Segment:
		for _, s := range p.GetSegments() {
			if s.GetName() == what.Segment {
				m, parts := x.Model(s.GetModel()), uint64(max(1, s.GetCount()))
				return m.GetMemoryBytes() / parts, workingBytes(m, in.GetMaxBatch()) / parts
			}
		}
	}
	return 0, 0
}

func mostShared(m *Model, others []*Model) uint64 {
	var most uint64
	for _, similarity := range m.GetSimilarities() {
		for _, other := range others {
			if similarity.GetModel() == other.GetName() {
				most = max(most, similarity.GetSharedBytes())
			}
		}
	}
	return most
}

// workingBytes of a batch; 0 rows mean the model's own maximum.
func workingBytes(m *Model, rows uint32) uint64 {
	if rows == 0 {
		rows = max(1, m.GetMaxBatchSize())
	}
	per := m.GetActivationBytesPerRow()
	if per != 0 && uint64(rows) > math.MaxUint64/per {
		return math.MaxUint64
	}
	return per * uint64(rows)
}

// addBytes adds without wrapping: a policy is fed by what others declare.
func addBytes(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

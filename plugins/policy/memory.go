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

// HostBytes is what a partition takes of its GPU's memory: [Index.PartitionBytes],
// and the context of its process if it holds anything. A partition on CPUs has none.
func (x *Index) HostBytes(p *Plan, part *Partition) uint64 {
	bytes := x.PartitionBytes(p, part)
	if len(part.GetInstances()) > 0 && !part.OnCPU() {
		bytes = addBytes(bytes, x.GPUOf(part).GetContextBytes())
	}
	return bytes
}

// InstanceBytes is the memory of one instance: its weights, and the working
// memory of its largest batch. A derived model that does not exist yet counts
// what it will need where that is known, else what its members need together,
// which serve in its place until it exists: the larger of both. An instance of
// something that the snapshot or the plan does not have counts 0.
func (x *Index) InstanceBytes(p *Plan, in *Instance) (weights, working uint64) {
	if m := x.Model(in.GetModel()); m != nil {
		return m.GetMemoryBytes(), workingBytes(m, in.GetMaxBatch())
	}
	recipe := p.Recipe(in.GetModel())
	if recipe == nil {
		return 0, 0
	}
	for _, name := range recipe.GetMembers() {
		m := x.Model(name)
		weights = addBytes(weights, m.GetMemoryBytes())
		working = max(working, workingBytes(m, in.GetMaxBatch()))
	}
	return max(weights, x.Derived(in.GetModel()).GetMemoryBytes()), working
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

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"fmt"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/apply/driver"
)

// supported refuses what the contract can say and this build cannot do, before
// it is written down as desired.
func supported(d *Desired, with driver.Driver) error {
	index := policy.NewIndex(d.Snapshot)
	for _, p := range d.Plan.GetPartitions() {
		if hostOf(index, p) == nil {
			return fmt.Errorf("%w: partition %s is on %v of node %s, which is neither one GPU of the snapshot nor CPUs that it offers", ErrUnsupported, p.GetId(), p.GetGpus(), p.GetNode())
		}
		if able, is := with.(driver.Particular); is {
			if err := able.Refused(p, hostOf(index, p)); err != nil {
				return fmt.Errorf("%w: %w", ErrUnsupported, err)
			}
		}
		for _, in := range instances(d, p) {
			m := d.Revision.Model(in.GetModel())
			if m == nil {
				return fmt.Errorf("partition %s: model %q of revision %s: %w", p.GetId(), in.GetModel(), d.Revision.ID, repo.ErrNoModel)
			}
			if err := m.Err(); err != nil {
				return fmt.Errorf("partition %s: model %q: %w", p.GetId(), in.GetModel(), err)
			}
		}
	}
	return nil
}

// hostOf is the device that a partition has a share of; for CPUs it stands for all
// those of the node. Nil where the snapshot has none.
func hostOf(index *policy.Index, p *policy.Partition) *policy.GPU {
	if !p.OnCPU() {
		return index.GPUOf(p)
	}
	cpu := index.CPU(p.GetNode())
	if cpu == nil {
		return nil
	}
	return &policy.GPU{Id: "cpu", Type: cpu.GetType(), MemoryBytes: cpu.GetMemoryBytes(), CostPerHour: cpu.GetCostPerHour(), Emulated: cpu.GetEmulated()}
}

// wanted is a desired state as package decide takes it, and what servers of its
// partitions are started with.
func wanted(d *Desired, with driver.Driver) (decide.Want, map[decide.Key]driver.Spec) {
	w := decide.Want{
		Models: map[string]decide.Model{}, Memory: map[string]uint64{}, Given: d.Given, Instead: instead(d), Members: map[string]decide.Model{},
	}
	specs := map[decide.Key]driver.Spec{}
	index := policy.NewIndex(d.Snapshot)
	if able, is := with.(driver.Particular); is {
		w.Whole = map[string]int{}
		for _, n := range d.Snapshot.GetNodes() {
			for _, g := range n.GetGpus() {
				if able.Whole(g) && !g.GetUnavailable() {
					w.Whole[n.GetName()]++
				}
			}
		}
	}
	for _, p := range d.Plan.GetPartitions() {
		gpu := hostOf(index, p)
		part := decide.Partition{
			Key: decide.Key{Partition: p.GetId(), Hash: with.Hash(p, gpu)}, GPU: p.GetNode() + "/" + gpu.GetId(), Rank: int(p.GetRank()), Memory: p.GetMemoryLimitBytes(),
		}
		w.Memory[part.GPU] = gpu.GetMemoryBytes()
		if part.Memory == 0 && alone(d.Plan, p) {
			part.Room = gpu.GetMemoryBytes()
		}
		for _, in := range instances(d, p) {
			part.Instances = append(part.Instances, decide.Instance{Model: in.GetModel(), MaxBatch: int(in.GetMaxBatch())})
			m := wantedModel(d, index, in.GetModel())
			for _, member := range m.Members {
				w.Members[member] = wantedModel(d, index, member)
			}
			w.Models[in.GetModel()] = m
		}
		w.Partitions = append(w.Partitions, part)
		specs[part.Key] = driver.Spec{Partition: p, GPU: gpu, Hash: part.Hash}
	}
	return w, specs
}

// wantedModel is a model of the revision as package decide takes it.
func wantedModel(d *Desired, index *policy.Index, name string) decide.Model {
	files := d.Revision.Model(name)
	m := decide.Model{Memory: index.Model(name).GetMemoryBytes()}
	if !d.Given {
		m.Revision = files.StagedRevision()
	}
	for _, step := range files.Config.GetEnsembleScheduling().GetStep() {
		m.Calls = append(m.Calls, step.GetModelName())
	}
	if members := files.Derived.MemberNames(); len(members) > 0 {
		m.Members, m.Memory = members, index.Derived(name).GetMemoryBytes()
	}
	return m
}

// alone reports that a plan has no other partition on the GPU of p.
func alone(plan *policy.Plan, p *policy.Partition) bool {
	for _, q := range plan.GetPartitions() {
		if q.GetId() != p.GetId() && q.On(p.GetNode(), p.GPU()) {
			return false
		}
	}
	return true
}

// BreakFirst names the partitions of a plan, in its order, whose GPU has no room
// for their servers beside those that the present plan has there: the old ones go
// first, and requests for models without another place wait for the new ones.
func BreakFirst(present, next *policy.Plan, s *policy.Snapshot) []string {
	index := policy.NewIndex(s)
	var all []string
	for _, p := range next.GetPartitions() {
		gpu := hostOf(index, p)
		if gpu.GetMemoryBytes() == 0 || p.GetMemoryLimitBytes() == 0 || sameServer(present, p) {
			continue
		}
		taken := uint64(0)
		old := false
		for _, q := range present.GetPartitions() {
			if q.On(p.GetNode(), p.GPU()) {
				taken += q.GetMemoryLimitBytes()
				old = old || !sameServer(next, q)
			}
		}
		for _, q := range next.GetPartitions() {
			if q.On(p.GetNode(), p.GPU()) && !sameServer(present, q) {
				taken += q.GetMemoryLimitBytes()
			}
		}
		if old && taken > gpu.GetMemoryBytes() {
			all = append(all, p.GetId())
		}
	}
	return all
}

// sameServer reports that a plan has a partition whose server is the same.
func sameServer(in *policy.Plan, p *policy.Partition) bool {
	for _, q := range in.GetPartitions() {
		if q.GetId() == p.GetId() && q.GetNode() == p.GetNode() && q.GPU() == p.GPU() &&
			q.GetThreadPercentage() == p.GetThreadPercentage() && q.GetMemoryLimitBytes() == p.GetMemoryLimitBytes() {
			return true
		}
	}
	return false
}

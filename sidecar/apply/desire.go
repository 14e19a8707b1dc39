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
	w.Whole = whole(d.Snapshot, with)
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
		if able, is := with.(driver.Particular); is && able.Refused(p, gpu) == nil { // for one that is not to be had no server goes
			part.Claim = able.Claim(gpu)
		}
		w.Partitions = append(w.Partitions, part)
		specs[part.Key] = driver.Spec{Partition: p, GPU: gpu, Hash: part.Hash, Claim: part.Claim}
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

// whole counts the GPUs of nodes where servers take whole ones.
func whole(s *policy.Snapshot, with driver.Driver) map[string]int {
	able, is := with.(driver.Particular)
	all := map[string]int{}
	for _, n := range s.GetNodes() {
		for _, g := range n.GetGpus() {
			if is && able.Whole(g) && !g.GetUnavailable() {
				all[n.GetName()]++
			}
		}
	}
	return all
}

// BreakFirst names the partitions of a plan, in its order, whose GPU has no room
// for their servers beside those that the present plan has there, or whose node
// has no GPU left for them: the old ones go first, and requests for models without
// another place wait for the new ones.
func (r *Reconciler) BreakFirst(present, next *policy.Plan, s *policy.Snapshot) []string {
	index, gpus, begun := policy.NewIndex(s), whole(s, r.o.Driver), map[string]int{}
	var all []string
	for _, p := range next.GetPartitions() {
		if sameServer(present, p) {
			continue
		}
		first := false
		if n, is := gpus[p.GetNode()]; is {
			if first = noneLeft(present, next, p.GetNode(), n-begun[p.GetNode()]); !first {
				begun[p.GetNode()]++
			}
		} else {
			first = noRoom(present, next, p, hostOf(index, p).GetMemoryBytes())
		}
		if first {
			all = append(all, p.GetId())
		}
	}
	return all
}

// noneLeft reports that the present plan's servers have so many GPUs of a node, and that one of them goes.
func noneLeft(present, next *policy.Plan, node string, gpus int) bool {
	taken, old := 0, false
	for _, q := range present.GetPartitions() {
		if q.GetNode() == node {
			taken, old = taken+1, old || !sameServer(next, q)
		}
	}
	return old && taken >= gpus
}

// noRoom reports that the memory of a partition's GPU does not hold both plans' servers, and that one of the present plan's goes.
func noRoom(present, next *policy.Plan, p *policy.Partition, room uint64) bool {
	if room == 0 || p.GetMemoryLimitBytes() == 0 {
		return false
	}
	taken, old := uint64(0), false
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
	return old && taken > room
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

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// swap puts a plan in force, all at once, as the sidecar swaps its route table: queued requests stay queued, batches end where they are,
// partitions that the plan does not name get nothing new.
func (e *engine) swap(next *policy.Plan) {
	before := e.inUse
	e.inUse = make(map[string]*partition, len(next.GetPartitions()))
	var retired []*partition
	e.sched.Reconfigure(e.now, func() {
		for _, spec := range next.GetPartitions() {
			p := before[spec.GetId()]
			if p == nil || !p.same(spec) {
				p = e.addPartition(spec)
			}
			p.spec = spec
			e.inUse[spec.GetId()] = p
		}
		e.serve(next)
		for _, p := range e.parts { // in order, so that runs are alike
			if !p.retired && e.inUse[p.spec.GetId()] != p {
				p.retired = true
				e.fault(e.sched.DrainExecutor(e.now, p.id), p)
				retired = append(retired, p)
			}
		}
	})
	e.plans.current = next
	e.plans.size.swaps++
	for _, p := range retired {
		e.remove(p)
	}
}

func (e *engine) fault(err error, p *partition) {
	if err != nil && e.err == nil {
		e.err = fmt.Errorf("sim: partition %s: %w", p.spec.GetId(), err)
	}
}

// same reports whether a partition's process goes on under a new plan.
func (p *partition) same(spec *policy.Partition) bool {
	return p.spec.GetNode() == spec.GetNode() && p.spec.GPU() == spec.GPU() &&
		p.spec.GetThreadPercentage() == spec.GetThreadPercentage() && p.spec.GetMemoryLimitBytes() == spec.GetMemoryLimitBytes()
}

func (e *engine) addPartition(spec *policy.Partition) *partition {
	p := &partition{index: len(e.parts), spec: spec, gpu: e.gpuOf(spec), node: e.whole[spec.GetId()]}
	p.timer.partition = p
	p.counts = partitionCounts{added: e.now, removed: queue.Never, lookedAt: e.now}
	p.gpu.partitions++
	p.id = e.sched.AddExecutor(e.now, queue.ExecutorSpec{Rank: int32(spec.GetRank())})
	for int(p.id) >= len(e.byQID) {
		e.byQID = append(e.byQID, nil)
	}
	e.byQID[p.id] = p
	e.parts = append(e.parts, p)
	if p.gpu.failures > 0 {
		p.failures = p.gpu.failures
		e.fault(e.sched.SetUp(e.now, p.id, false), p)
	}
	return p
}

// serve sets in the queue which partition serves which model, with which profile, under which rules.
func (e *engine) serve(next *policy.Plan) {
	x := policy.NewIndex(e.w.Snapshot)
	byName := make(map[string]*model, len(e.models))
	for _, m := range e.models {
		m.serving = 0
		byName[m.spec.GetName()] = m
	}
	onGPU := make(map[*gpu][]*partition)
	for _, spec := range next.GetPartitions() {
		p := e.inUse[spec.GetId()]
		p.services = p.services[:0:0]
		for _, in := range spec.GetInstances() {
			m := byName[in.GetModel()]
			k, err := m.kernelFor(x, p)
			if err != nil {
				e.err = err
				return
			}
			p.services = append(p.services, service{m.id, k})
			m.serving++
		}
		slices.SortFunc(p.services, func(a, b service) int { return cmp.Compare(a.model, b.model) })
		onGPU[p.gpu] = append(onGPU[p.gpu], p)
	}
	services := make([][]queue.Service, len(next.GetPartitions()))
	for i, spec := range next.GetPartitions() {
		p := e.inUse[spec.GetId()]
		var neighbours []*kernel
		if p.gpu.model != nil && e.w.Expect != ExpectNone {
			for _, o := range onGPU[p.gpu] {
				if o != p {
					for _, s := range o.services {
						neighbours = append(neighbours, s.kernel)
					}
				}
			}
		}
		for _, in := range spec.GetInstances() {
			m := byName[in.GetModel()]
			k := p.kernelOf(m.id)
			c := m.class(class{k, expected(k, m.maxBatch(), neighbours, p.gpu.model)}, e)
			services[i] = append(services[i], queue.Service{Model: m.id, Class: c, MaxBatch: int(in.GetMaxBatch())})
		}
	}
	e.rule(next, byName)
	for _, m := range e.models {
		m.tables(e)
		if err := e.sched.SetModel(e.now, m.id, m.queue); err != nil {
			e.err = fmt.Errorf("sim: model %s: %w", m.spec.GetName(), err)
			return
		}
	}
	for i, spec := range next.GetPartitions() {
		p := e.inUse[spec.GetId()]
		e.fault(e.sched.SetExecutor(e.now, p.id, queue.ExecutorSpec{Rank: int32(spec.GetRank()), Serves: services[i]}), p)
	}
}

// rule gives each model the discipline of the plan; without an entry the queue's default.
func (e *engine) rule(next *policy.Plan, byName map[string]*model) {
	for _, m := range e.models {
		m.queue.Discipline, m.queue.Drop = nil, nil
	}
	for _, d := range next.GetDispatch() {
		if m := byName[d.GetModel()]; m != nil {
			var err error
			if m.queue.Discipline, m.queue.Drop, err = e.w.rules(d); err != nil {
				e.err = fmt.Errorf("%w: model %s: %w", ErrWorld, d.GetModel(), err)
			}
		}
	}
}

func (m *model) kernelFor(x *policy.Index, p *partition) (*kernel, error) {
	gpuType, share := p.gpu.spec.GetType(), p.spec.GetThreadPercentage()
	for _, k := range m.kernels {
		if k.gpuType == gpuType && k.share == share {
			return k, nil
		}
	}
	k, err := kernelOf(x, m.spec, gpuType, share)
	if err == nil {
		m.kernels = append(m.kernels, k)
	}
	return k, err
}

// class returns the queue's number of a profile class, a new one for a class that is new.
func (m *model) class(c class, e *engine) int32 {
	if i := slices.Index(m.classes, c); i >= 0 {
		return int32(i)
	}
	m.classes = append(m.classes, c)
	m.queue.Classes = append(slices.Clone(m.queue.Classes), c.table(e))
	return int32(len(m.classes) - 1)
}

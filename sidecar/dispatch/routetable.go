// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// Routes returns the table in force, nil before the first Swap.
func (d *Dispatcher) Routes() *router.Table {
	if t := d.routes.Load(); t != nil {
		return t.table
	}
	return nil
}

// Swap replaces the route table, all or nothing. It does not wait: requests
// that are queued stay queued and run under the new table, executions under way
// finish where they are, and partitions that it no longer names get no new
// work. Wait for Drained before unloading or stopping what it no longer names.
func (d *Dispatcher) Swap(ctx context.Context, t *router.Table) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	plans, err := d.compile(t)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.unlock()
	if d.closed {
		return fmt.Errorf("swap to route table %d: the dispatcher is closed", t.Revision)
	}
	if d.broken.Load() {
		return fmt.Errorf("swap to route table %d: the scheduler has failed; restart Conch", t.Revision)
	}
	parts, err := d.connect(t)
	if err != nil {
		return err
	}
	now := d.now()
	next := &routes{table: t, models: make(map[string]*route, len(t.Models)), partitions: make([]*partition, 0, len(t.Partitions))}
	change := func() {
		for _, spec := range t.Partitions {
			next.partitions = append(next.partitions, d.setPartition(now, parts[spec.ID], spec))
		}
		for name, spec := range t.Models {
			next.models[name] = d.setModel(now, spec, plans[name])
		}
		d.setServices(now, next)
	}
	d.sched.Reconfigure(now, change)
	// New requests find the new table before what the old one had is removed.
	d.routes.Store(next)
	d.removeOthers(now, t)
	d.checkOutages()
	d.reapLocked()
	return nil
}

// plan is what can be checked of a model before anything is changed.
type plan struct {
	discipline queue.Discipline
	drop       queue.DropPolicy
	rules      *batch.Rules
}

func (d *Dispatcher) compile(t *router.Table) (map[string]plan, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	plans := make(map[string]plan, len(t.Models))
	for name, m := range t.Models {
		p := plan{rules: batch.NewRules(m.Config, m.Versions, t.Members(m.Config)...)}
		var err error
		if p.discipline, err = queue.NewDiscipline(m.Discipline, m.Parameters); err != nil {
			return nil, fmt.Errorf("%w %d: model %q: %w", router.ErrTable, t.Revision, name, err)
		}
		if m.DropPolicy != "" {
			if p.drop, err = queue.NewDropPolicy(m.DropPolicy); err != nil {
				return nil, fmt.Errorf("%w %d: model %q: %w", router.ErrTable, t.Revision, name, err)
			}
		}
		if q, ok := p.discipline.(queue.Preempter); ok && q.Preempts(math.MaxInt32, 1) {
			d.o.Logger.Info("Triton cannot abort an execution: the discipline orders batches by size and preempts none", "model", name, "discipline", m.Discipline)
		}
		plans[name] = p
	}
	return plans, nil
}

// connect finds or makes the partitions of a table.
func (d *Dispatcher) connect(t *router.Table) (map[string]*partition, error) {
	parts := make(map[string]*partition, len(t.Partitions))
	var fresh []*partition
	for _, spec := range t.Partitions {
		if p := d.partitions[spec.ID]; p != nil && p.same(spec) {
			parts[spec.ID] = p
			continue
		}
		conn, err := forward.Dial(spec.Endpoint.GRPC, forward.Options{Connections: d.o.Connections, DialOptions: d.o.DialOptions})
		if err != nil {
			for _, p := range fresh {
				_ = p.close()
			}
			return nil, fmt.Errorf("%w %d: partition %q: %w", router.ErrTable, t.Revision, spec.ID, err)
		}
		p := &partition{spec: spec, conn: conn, memory: d.newMemory(spec.Endpoint.GRPC, conn)}
		p.up.Store(true)
		fresh = append(fresh, p)
		parts[spec.ID] = p
	}
	return parts, nil
}

func (d *Dispatcher) setPartition(now queue.Time, p *partition, spec *router.Partition) *partition {
	if old := d.partitions[spec.ID]; old != nil && old != p {
		d.retire(now, old)
	}
	p.current = spec
	d.partitions[spec.ID] = p
	if p.id == queue.NoPartition {
		p.id = d.sched.AddPartition(now, queue.PartitionSpec{Rank: int32(spec.Rank)})
		d.byQueueID[p.id] = p
		if why, down := d.down[spec.ID]; down {
			d.setDown(now, p, why, true)
		}
	}
	return p
}

// retire takes a partition out of use; reap closes it once it is idle.
func (d *Dispatcher) retire(now queue.Time, p *partition) {
	p.retired.Store(true)
	delete(d.partitions, p.spec.ID)
	d.retired = append(d.retired, p)
	if err := d.sched.DrainPartition(now, p.id); err != nil {
		d.o.Logger.Error("draining a partition", "partition", p.spec.ID, "error", err)
	}
}

func (d *Dispatcher) setModel(now queue.Time, spec *router.Model, pl plan) *route {
	m := d.models[spec.Name]
	fresh := m == nil
	if fresh {
		m = &model{name: spec.Name, stop: make(chan struct{})}
		d.models[spec.Name] = m
	}
	// Rules carry the seed of the keys that queued requests have. No request of an
	// ensemble is queued, and its rules are its members' too.
	if m.spec == nil || spec.Config.GetEnsembleScheduling() != nil || !proto.Equal(m.spec.Config, spec.Config) || !slices.Equal(m.spec.Versions, spec.Versions) {
		m.rules = pl.rules
	}
	m.spec = spec
	m.unsplittable.Store(false)
	m.unlendable.Store(false)
	backend := spec.Config.GetBackend()
	m.runs.Store(&backend)
	r := &route{model: m, spec: spec, rules: m.rules, maxBatch: spec.RowLimit(), tallies: m.setTallies(spec)}
	for _, place := range spec.Places {
		p := d.partitions[place.Partition]
		r.places = append(r.places, p.place(spec.Name))
		m.class(p)
	}
	m.last = r
	qs := d.modelSpec(m)
	qs.Discipline, qs.Drop = pl.discipline, pl.drop
	m.queueSpec = qs
	if fresh {
		m.id = d.sched.AddModel(now, qs)
		d.byID[m.id] = m
	} else if err := d.sched.SetModel(now, m.id, qs); err != nil {
		d.o.Logger.Error("updating a model's queue", "model", m.name, "error", err)
	}
	return r
}

// setServices tells the scheduler which partition serves what.
func (d *Dispatcher) setServices(now queue.Time, next *routes) {
	serves := make(map[string][]queue.Service, len(next.partitions))
	for _, r := range next.models {
		if r.maxBatch == 0 {
			continue
		}
		for _, place := range r.spec.Places {
			p := d.partitions[place.Partition]
			serves[place.Partition] = append(serves[place.Partition], queue.Service{Model: r.id, Class: r.class(p), MaxBatch: place.MaxBatch})
		}
	}
	for _, p := range next.partitions {
		s := serves[p.spec.ID]
		slices.SortFunc(s, func(a, b queue.Service) int { return int(a.Model - b.Model) })
		if err := d.sched.SetPartition(now, p.id, queue.PartitionSpec{Rank: int32(p.current.Rank), Serves: s}); err != nil {
			d.o.Logger.Error("updating a partition", "partition", p.spec.ID, "error", err)
		}
	}
}

// removeOthers takes out what the new table does not name.
func (d *Dispatcher) removeOthers(now queue.Time, t *router.Table) {
	for id, p := range d.partitions {
		if !slices.ContainsFunc(t.Partitions, func(s *router.Partition) bool { return s.ID == id }) {
			d.retire(now, p)
		}
	}
	for id := range d.down {
		if d.partitions[id] == nil {
			delete(d.down, id)
		}
	}
	for name, m := range d.models {
		if t.Models[name] != nil {
			continue
		}
		m.removed = true
		delete(d.models, name)
		delete(d.byID, m.id)
		if m.outage != nil {
			m.outage.Stop()
			m.outage = nil
		}
		// Its queued requests come back through sink.Drop and are served where the
		// model was.
		if err := d.sched.RemoveModel(now, m.id); err != nil {
			d.o.Logger.Error("removing a model's queue", "model", name, "error", err)
		}
	}
}

// Drained is closed when nothing runs for the model on the partition any more.
// Call it after the Swap that took the placement away and before unloading the
// model. An empty model means everything on processes that had this partition's
// id and are not in the table in force: wait for it before stopping one.
// Partitions that are unknown are idle.
func (d *Dispatcher) Drained(partition, model string) <-chan struct{} {
	drained := make(chan struct{})
	d.tasks.Go(func() {
		if d.awaitChange(d.background, func() bool { return d.idlePlace(partition, model) }) == nil {
			close(drained)
		}
	})
	return drained
}

func (d *Dispatcher) idlePlace(partition, model string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := slices.Clone(d.retired)
	if p := d.partitions[partition]; p != nil && model != "" {
		all = append(all, p)
	}
	for _, p := range all {
		if p.spec.ID != partition {
			continue
		}
		if model == "" && p.running.Load() > 0 {
			return false
		}
		if v, ok := p.places.Load(model); ok && v.(*placement).running.Load() > 0 {
			return false
		}
	}
	return true
}

// late is the queue's name for a policy's choice.
func late(p policy.LatePolicy) queue.Late {
	if p == policy.LatePolicy_LATE_POLICY_DROP {
		return queue.LateDrop
	}
	return queue.LateServe
}

// checkOutages starts and ends the waits for models that nothing serves.
// Guarded by mu.
func (d *Dispatcher) checkOutages() {
	for _, m := range d.models {
		up := slices.ContainsFunc(m.last.places, func(l *placement) bool { return l.partition.up.Load() })
		switch {
		case up:
			if m.outage != nil {
				m.outage.Stop()
				m.outage = nil
			}
			if m.interrupted && !d.closed && !d.broken.Load() {
				m.interrupted = false
				m.stop = make(chan struct{})
			}
		case m.outage == nil && !m.interrupted:
			var timer Timer
			timer = d.clock.After(d.o.OutageWait, func() {
				d.mu.Lock()
				defer d.unlock()
				if m.outage == timer {
					m.interrupt()
					d.broadcast()
				}
			})
			m.outage = timer
		}
	}
	d.broadcast()
}

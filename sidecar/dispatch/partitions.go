// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"slices"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// partition is a partition as the scheduler has it. Guarded by queues.mu.
type partition struct {
	process *router.Process
	id      queue.PartitionID
	// serves is what it serves by the table, without regard to the health of places; offered is what the scheduler has of that.
	serves, offered queue.PartitionSpec
	running         *attempt // nil: none
	retired         bool     // not in the table, and busy with a batch
}

// remove takes a retired partition out of the scheduler, unless it is busy with a
// batch. Guarded by mu.
func (q *queues) remove(p *partition) {
	q.do(func(s *queue.Scheduler) error {
		p.retired = true
		if s.RemovePartition(q.now(), p.id) != nil {
			return nil //nolint:nilerr // busy: completed removes it
		}
		delete(q.partitions, p.process)
		delete(q.executors, p.id)
		return nil
	})
}

// assign gives the scheduler what a process serves: what it served before, without the models in gone, and with what is added. Guarded by mu.
func (q *queues) assign(s *queue.Scheduler, now queue.Time, process *router.Process, rank int32, gone map[queue.ModelID]bool, added map[*router.Process][]queue.Service) {
	leaves := func(sv queue.Service) bool { return gone[sv.Model] }
	p, known := q.partitions[process]
	if !known {
		empty := queue.PartitionSpec{Rank: rank}
		p = &partition{process: process, id: s.AddPartition(now, empty), serves: empty, offered: empty}
		q.partitions[process], q.executors[p.id] = p, p
	} else if p.serves.Rank == rank && len(added[process]) == 0 && (len(gone) == 0 || !slices.ContainsFunc(p.serves.Serves, leaves)) {
		return
	}
	serves := append(slices.DeleteFunc(slices.Clone(p.serves.Serves), leaves), added[process]...)
	slices.SortFunc(serves, func(a, b queue.Service) int { return int(a.Model - b.Model) })
	p.serves = queue.PartitionSpec{Rank: rank, Serves: serves}
	q.check(q.offer(s, now, p)) // the table may also have made a place usable: the last one of its model
	q.check(s.SetUp(now, p.id, q.router.Up(process)))
}

// follow sets in the scheduler whether a process is up.
func (q *queues) follow(of *router.Process) {
	q.mu.Lock()
	defer q.unlock()
	if p := q.partitions[of]; p != nil {
		q.do(func(s *queue.Scheduler) error { return s.SetUp(q.now(), p.id, q.router.Up(of)) })
	}
}

// followPlace gives the scheduler the models that a process serves, without those of its places that are ejected.
func (q *queues) followPlace(of *router.Process) {
	q.mu.Lock()
	defer q.unlock()
	if p := q.partitions[of]; p != nil {
		q.do(func(s *queue.Scheduler) error { return q.offer(s, q.now(), p) })
	}
}

// offer gives the scheduler what a partition serves, without its places that are ejected, unless the scheduler has that. Guarded by mu.
func (q *queues) offer(s *queue.Scheduler, now queue.Time, p *partition) error {
	spec := q.usable(p)
	if spec.Rank == p.offered.Rank && slices.Equal(spec.Serves, p.offered.Serves) {
		return nil
	}
	p.offered = spec
	return s.SetPartition(now, p.id, spec)
}

// usable is what a partition serves by the table, without its places that are ejected. Guarded by mu.
func (q *queues) usable(p *partition) queue.PartitionSpec {
	spec := p.serves
	ejected := q.router.Ejected(p.process)
	if len(ejected) == 0 {
		return spec
	}
	list := make([]queue.Service, 0, len(spec.Serves))
	for _, sv := range spec.Serves {
		if m := q.byID[sv.Model]; m == nil || !slices.Contains(ejected, m.name) {
			list = append(list, sv)
		}
	}
	spec.Serves = list
	return spec
}

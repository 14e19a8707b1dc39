// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// executor is one of the batches that a partition may run at once. A partition has as many executors as its server runs batches at once, mostly one. The
// scheduler knows them by numbers, and knows no partitions. Guarded by queues.mu.
type executor struct {
	partition *router.Partition
	// index among the executors of the partition. Of a model that may execute less often at once than others, only some serve it: see router.Place.Executions.
	index int
	id    queue.ExecutorID
	// serves is what it serves by the table, without regard to the health of places; offered is what the scheduler has of that.
	serves, offered queue.ExecutorSpec
	running         *attempt // nil: none
	retired         bool     // not in the table, and busy with a batch
}

// server is the number that requests avoid which shall not be executed by the executor's partition again: that of the partition's first executor.
func (p *executor) server() queue.ExecutorID { return cmp.Or(p.serves.Server, p.id) }

// placed is what a table adds to a partition.
type placed struct {
	at      router.Place
	service queue.Service
}

// remove takes the executors of a retired partition out of the scheduler. One that is busy with a batch goes when that is complete. Guarded by mu.
func (q *queues) remove(of *router.Partition) {
	for _, p := range slices.Clone(q.executors[of]) {
		q.removeIdle(p)
	}
}

// removeIdle is remove for one executor. Guarded by mu.
func (q *queues) removeIdle(p *executor) {
	q.do(func(s *queue.Scheduler) error {
		p.retired = true
		if s.RemoveExecutor(q.now(), p.id) != nil {
			return nil //nolint:nilerr // busy: completed removes it
		}
		delete(q.numbered, p.id)
		if left := slices.DeleteFunc(q.executors[p.partition], func(o *executor) bool { return o == p }); len(left) > 0 {
			q.executors[p.partition] = left
		} else {
			delete(q.executors, p.partition)
		}
		return nil
	})
}

// assign gives the scheduler what a partition serves: what it served before, without the models in gone, and with what is added. Guarded by mu.
func (q *queues) assign(s *queue.Scheduler, now queue.Time, partition *router.Partition, rank int32, gone map[queue.ModelID]bool, added []placed) {
	all := q.executors[partition]
	needed := 1
	for _, in := range added {
		needed = max(needed, in.at.Needs())
	}
	for index := len(all); index < needed; index++ {
		p := &executor{partition: partition, index: index}
		first := queue.NoExecutor
		if index > 0 {
			first = all[0].id
		}
		p.serves = queue.ExecutorSpec{Rank: rankOf(rank, index), Server: first}
		p.id, p.offered = s.AddExecutor(now, p.serves), p.serves
		q.check(s.SetUp(now, p.id, q.router.Up(partition)))
		all = append(all, p)
		q.numbered[p.id] = p
	}
	q.executors[partition] = all
	leaves, altered := func(sv queue.Service) bool { return gone[sv.Model] }, false
	for _, p := range all {
		if p.serves.Rank == rankOf(rank, p.index) && len(added) == 0 && (len(gone) == 0 || !slices.ContainsFunc(p.serves.Serves, leaves)) {
			continue
		}
		spec := queue.ExecutorSpec{Rank: rankOf(rank, p.index), Server: p.serves.Server, Serves: slices.DeleteFunc(slices.Clone(p.serves.Serves), leaves)}
		for _, in := range added {
			if in.at.Runs(p.index) {
				spec.Serves = append(spec.Serves, in.service)
			}
		}
		slices.SortFunc(spec.Serves, func(a, b queue.Service) int { return int(a.Model - b.Model) })
		p.serves = spec
		altered = true
	}
	if !altered {
		return
	}
	for _, p := range all { // once it is known of each what it serves
		q.check(q.offer(s, now, p)) // the table may also have made a place usable: the last one of its model
		q.check(s.SetUp(now, p.id, q.router.Up(partition)))
	}
}

// rankOf is the scheduler's rank of an executor of a partition: that of its partition, and within it those first that serve fewer models.
func rankOf(rank int32, index int) int32 {
	return rank*policy.MostExecutions + policy.MostExecutions - 1 - int32(index) //nolint:gosec // below policy.MostExecutions
}

// follow sets in the scheduler whether a partition is up.
func (q *queues) follow(of *router.Partition) {
	q.mu.Lock()
	defer q.unlock()
	q.each(of, func(s *queue.Scheduler, p *executor) error { return s.SetUp(q.now(), p.id, q.router.Up(of)) })
	q.followUsable(of)
}

// followPlace gives the scheduler the models that a partition serves by the health of its places.
func (q *queues) followPlace(of *router.Partition) {
	q.mu.Lock()
	defer q.unlock()
	q.offerAll(of)
	q.followUsable(of)
}

// offerAll gives the scheduler what a partition serves at present. Guarded by mu.
func (q *queues) offerAll(of *router.Partition) {
	q.each(of, func(s *queue.Scheduler, p *executor) error {
		if p.retired {
			return nil // it serves nothing any more, and a change would end its drain
		}
		return q.offer(s, q.now(), p)
	})
}

// each changes all executors of a partition in the scheduler, at once. Guarded by mu.
func (q *queues) each(of *router.Partition, change func(*queue.Scheduler, *executor) error) {
	q.do(func(s *queue.Scheduler) error {
		s.Reconfigure(q.now(), func() {
			for _, p := range q.executors[of] {
				q.check(change(s, p))
			}
		})
		return nil
	})
}

// offer gives the scheduler what an executor serves at present, unless the scheduler has that. Guarded by mu.
func (q *queues) offer(s *queue.Scheduler, now queue.Time, p *executor) error {
	spec := q.usable(p)
	if spec.Rank == p.offered.Rank && slices.Equal(spec.Serves, p.offered.Serves) {
		return nil
	}
	p.offered = spec
	return s.SetExecutor(now, p.id, spec)
}

// usable is what an executor serves by the table, without places that are ejected, and without the models whose instances are all taken by batches that
// began in other executors of the partition. A place on probation is served by its first executor alone. Guarded by mu.
func (q *queues) usable(p *executor) queue.ExecutorSpec {
	spec := p.serves
	ejected, probed := q.router.Unsettled(p.partition)
	if len(ejected)+len(probed) == 0 && !q.strayed(p.partition) {
		return spec
	}
	list := make([]queue.Service, 0, len(spec.Serves))
	for _, sv := range spec.Serves {
		m := q.byID[sv.Model]
		if m == nil || !slices.Contains(ejected, m.name) && (!slices.Contains(probed, m.name) || q.first(p, sv.Model)) && !q.withheld(p, m) {
			list = append(list, sv)
		}
	}
	spec.Serves = list
	return spec
}

// A table may change which executors of a partition serve a model. A batch that then runs in an executor that serves the model no more is a stray: until it
// ends it takes an instance of the model, for which one of the model's executors waits.

// has reports whether an executor serves a model by the table.
func (p *executor) has(m queue.ModelID) bool {
	_, found := slices.BinarySearchFunc(p.serves.Serves, m, func(sv queue.Service, m queue.ModelID) int { return int(sv.Model - m) })
	return found
}

// runs reports whether an executor runs a batch of a model. One that was removed and added again is another to the queue, and has the same instances.
func (p *executor) runs(m *model) bool { return p.running != nil && p.running.model.name == m.name }

// strays reports whether the batch that an executor runs is a stray. Guarded by mu.
func (q *queues) strays(p *executor) bool {
	if p.running == nil || p.retired {
		return false
	}
	m := q.model(p.running.model.name)
	return m != nil && !p.has(m.id)
}

// strayed reports whether a partition runs strays for which others wait. Guarded by mu.
func (q *queues) strayed(partition *router.Partition) bool {
	all := q.executors[partition]
	return len(all) > 1 && slices.ContainsFunc(all, q.strays)
}

// withheld reports whether an executor waits with a model for strays: of the executors that serve the model those that run it go first. Guarded by mu.
func (q *queues) withheld(p *executor, m *model) bool {
	strays, serving, before := 0, 0, 0
	for _, o := range q.executors[p.partition] {
		switch {
		case o.has(m.id):
			serving++
			if o.runs(m) && !p.runs(m) || o.runs(m) == p.runs(m) && o.index < p.index {
				before++
			}
		case o.runs(m):
			strays++
		}
	}
	return before >= serving-strays
}

// first reports whether an executor is the first of its partition that serves a model by the table. Guarded by mu.
func (q *queues) first(p *executor, m queue.ModelID) bool {
	return !slices.ContainsFunc(q.executors[p.partition], func(o *executor) bool {
		return o.index < p.index && slices.ContainsFunc(o.serves.Serves, func(sv queue.Service) bool { return sv.Model == m })
	})
}

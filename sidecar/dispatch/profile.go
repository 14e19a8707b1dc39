// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"maps"
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// trialPause is the shortest time between two trial executions of a model. A trial checks a profile by which the model's
// requests cannot be served in time. The time grows to 8 s while the trials confirm the profile.
const trialPause = queue.Time(500 * time.Millisecond)

// profiles is what is known about l(b). Guarded by queues.mu, but for budget.
type profiles struct {
	budget *forecast.Budget
	of     map[profileKey]*policy.Profile
}

// allowPause is the least time between two changes of how long, as the queue plans, a model's requests may take.
const allowPause = queue.Time(time.Second)

type profileKey struct{ model, gpuType string }

func newProfiles() profiles {
	return profiles{budget: new(forecast.Budget), of: make(map[profileKey]*policy.Profile)}
}

// class is a profile class: partitions of one GPU type and share have the same
// l(b).
type class struct {
	gpuType string
	share   uint32
}

// class returns the queue's index for a partition's class, a new one for a
// class that is new.
func (m *model) class(p *router.PartitionSpec) int32 {
	c := class{p.GPUType, share(p)}
	if i := slices.Index(m.classes, c); i >= 0 {
		return int32(i)
	}
	m.classes = append(m.classes, c)
	return int32(len(m.classes) - 1)
}

func share(p *router.PartitionSpec) uint32 {
	if p.ThreadPercentage == 0 {
		return 100
	}
	return p.ThreadPercentage
}

// SetProfile replaces what is known about l(b) of one model on one GPU type.
// Requests that are queued are planned with it from now on. A profile that is
// not usable means that the model is still being learnt: then requests are
// forwarded at once.
func (d *Dispatcher) SetProfile(p *policy.Profile) {
	q := d.queues
	q.mu.Lock()
	defer q.unlock()
	q.profiles.of[profileKey{p.GetModel(), p.GetGpuType()}] = p
	if m := q.model(p.GetModel()); m != nil {
		q.do(func(s *queue.Scheduler) error { return q.setQueue(s, q.now(), m) })
	}
}

// learn counts the time that a batch took from the decision to the call.
func (q *queues) learn(delay time.Duration) {
	if !q.profiles.budget.Add(delay) {
		return
	}
	q.mu.Lock()
	q.profiles.budget.Current() // no other goroutine handles the same change
	all := slices.Collect(maps.Values(q.byID))
	q.unlock()
	for _, m := range all { // one by one, so that requests can be queued in between
		q.renew(m)
	}
}

// renew gives the scheduler the present tables of a model.
func (q *queues) renew(m *model) {
	q.mu.Lock()
	defer q.unlock()
	if q.model(m.name) == m {
		q.do(func(s *queue.Scheduler) error { return q.setQueue(s, q.now(), m) })
	}
}

func (q *queues) modelSpec(m *model) queue.ModelSpec {
	believed, optimistic := q.tables(m)
	return queue.ModelSpec{
		Name: m.name, Classes: believed, Optimistic: optimistic, MaxBatch: max(1, m.spec.RowLimit()),
		// A request that was queued under the table before must not wait for a
		// batch that is no longer made.
		Closed: m.spec.RowLimit() == 0 || m.spec.Membership != nil,
		SLO:    queue.Time(m.slo()), Late: late(m.spec.Late),
	}
}

// slo is what the queue plans a model's batches by, beside the deadline of each request: how long its requests may take, on average, where some are steps of
// ensembles, which may take another time than those that ask for the model by its name. Guarded by queues.mu.
func (m *model) slo() time.Duration { return m.allowed.Or(m.spec.SLO) }

// allow counts how long a request may take that is queued: its part of an ensemble's SLO, or its model's SLO. Guarded by mu.
func (q *queues) allow(m *model, c *call) {
	switch {
	case c.part > 0:
		m.allowed.Add(c.part)
	case c.within == nil && m.allowed.Known() && m.spec.SLO > 0:
		m.allowed.Add(m.spec.SLO)
	default:
		return
	}
	now := q.now()
	if m.allowedFrom != 0 && now < m.allowedFrom+allowPause {
		return // the mean wanders where steps and requests of clients come in turn
	}
	if before, mean := m.queueSpec.SLO, queue.Time(m.slo()); max(before, mean)-min(before, mean) > before/8 {
		m.allowedFrom = max(1, now)
		q.do(func(s *queue.Scheduler) error { return q.setQueue(s, now, m) })
	}
}

// tables makes one latency table for each class of a model: the upper quantile
// of the profile at the partition's share, and Conch's own time on top; and an optimistic
// one where the profile is not known well.
func (q *queues) tables(m *model) (tables, optimistic []queue.Table) {
	tables, optimistic = make([]queue.Table, len(m.classes)), make([]queue.Table, len(m.classes))
	n := max(1, m.spec.RowLimit())
	budget := queue.Time(q.profiles.budget.Current())
	for i, c := range m.classes {
		p := q.profiles.of[profileKey{m.name, c.gpuType}]
		if p.GetUsable() {
			tables[i], optimistic[i] = m.failing.burden(forecast.Table(p, c.share, n, budget)), forecast.Optimistic(p, c.share, n, budget)
		}
	}
	m.margin.Sets(tables)
	return tables, optimistic
}

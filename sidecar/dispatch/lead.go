// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// With Options.Lead the scheduler has an executor back a little before its batch ends, by a lead that is learnt for each profile class (forecast.Lead).
// The next batch is then at the server before the last one ends there, and the part of it that overlaps runs beside the last one. A server has two batches at most:
// an executor is given back early only once the batch before has ended.

// lead is what is learnt for a class, and what the scheduler knows of that.
type lead struct {
	forecast.Lead
	known queue.Time // the overlap that the scheduler plans with
	from  queue.Time // the first moment at which that may change
}

// leading is what an attempt knows of its place among those of its executor, where that is given back early. Guarded by queues.mu, but for beside.
type leading struct {
	// alone is how long it takes by itself, on average; 0: that is not known.
	alone queue.Time
	// from is when it could begin: when it was decided on, or when the one before it ended, if that was later. Early is how long before that it was decided on.
	from, early queue.Time
	before      *attempt    // that still runs; nil: none
	timer       clock.Timer // gives its executor back; nil: it is not set
	inLine      bool        // its executor may be given back early; else nothing of this is known
	tested      bool        // the scheduler compares when it ends with what was predicted
	timed       bool        // the server has executed it, until ended
	ran         bool        // it has ended
	same        bool        // the one before it is of the same model, and has the same instance
	beside      atomic.Bool // another one ran beside it
}

const (
	// leadPause is the least time between two changes of the overlap that the scheduler plans with.
	leadPause = queue.Time(1e9)
	// leadChange is the change of it, as a part of an execution, that is worth planning anew.
	leadChange = .05
	// An execution beside another one shows that its profile is wrong if it takes less than leadBelow of that, or more than leadAbove.
	leadBelow, leadAbove = .9, 1.1
)

// leadOf is the lead of the executor's class. Guarded by mu.
func (q *queues) leadOf(p *executor) *lead {
	spec := p.partition.Spec()
	c := class{spec.GPUType, share(spec)}
	if q.leads[c] == nil {
		q.leads[c] = &lead{}
	}
	return q.leads[c]
}

// overlaps is, for each class of a model, how much of an execution runs beside the one before it. Guarded by mu.
func (q *queues) overlaps(m *model) (all []queue.Time) {
	for _, c := range m.classes {
		overlap := queue.Time(0)
		if l := q.leads[c]; l != nil {
			overlap = l.known
		}
		all = append(all, overlap)
	}
	return all
}

// begins notes that an executor has an attempt. Guarded by mu.
func (q *queues) begins(a *attempt, tested bool) {
	p := a.on
	if !q.lead || len(q.executors[a.partition]) > 1 {
		return
	}
	spec := a.partition.Spec()
	if us, ok := q.profiles.of[profileKey{a.model.name, spec.GPUType}].Latency(uint32(a.rows), share(spec)); ok { //nolint:gosec // rows of a batch
		a.alone = queue.Time(us * float64(time.Microsecond))
	}
	a.inLine, a.from, a.tested, a.before = true, a.decided, tested, p.ending
	if a.before == nil {
		q.leadIn(a)
		return
	}
	a.same = a.before.model.name == a.model.name
	a.beside.Store(true)
	a.before.beside.Store(true)
}

// leadIn has an attempt's executor given back at the lead before the attempt's predicted end. A place on probation, which the attempt decides, gets no other one
// meanwhile. Guarded by mu.
func (q *queues) leadIn(a *attempt) {
	ejected, probed := q.router.Unsettled(a.partition)
	if a.over || a.tested || a.alone <= 0 || len(ejected)+len(probed) > 0 {
		return
	}
	l, early := q.leadOf(a.on), a.early
	if a.same {
		early = 0 // it has waited for the instance
	}
	if length := l.Length(a.alone); length > 0 {
		at := a.from + l.Ends(a.alone, early) - length
		a.timer = q.clock.After(max(0, at-q.now()).Duration(), func() { q.giveBack(a) })
	}
}

// giveBack gives the scheduler an attempt's executor before the attempt has ended.
func (q *queues) giveBack(a *attempt) {
	q.mu.Lock()
	p := a.on
	if a.over || p.running != a || p.retired || q.closed {
		q.mu.Unlock()
		return
	}
	a.over = true
	p.running, p.ending = nil, a
	q.do(func(s *queue.Scheduler) error { s.Complete(q.now(), p.id); return nil })
	var changed []*model
	l, now := q.leadOf(p), q.now()
	if overlap := l.Overlap(); now >= l.from && float64(max(overlap, l.known)-min(overlap, l.known)) > leadChange*float64(a.alone) {
		l.known, l.from = overlap, now+leadPause
		changed = slices.Collect(maps.Values(q.byID))
	}
	q.unlockOn(nil)
	for _, m := range changed { // one by one, so that requests can be queued in between
		q.renew(m)
	}
}

// ran notes that an attempt has ended, and learns from it. Further calls do nothing. Guarded by mu.
func (q *queues) ran(a *attempt) {
	if !a.inLine || a.ran {
		return
	}
	a.ran = true
	if a.timer != nil {
		a.timer.Stop()
	}
	p, end := a.on, q.now()
	if a.timed {
		end = q.time(a.ended)
	}
	if p.ending == a {
		if p.ending = nil; p.retired && p.running == nil {
			delete(q.numbered, p.id)
		}
	}
	if next := p.running; next != nil && next.before == a {
		next.before = nil
		next.from, next.early = max(end, next.decided), max(0, end-next.decided)
		q.leadIn(next)
	}
	switch l := q.leadOf(p); {
	case !a.timed || a.alone <= 0 || a.before != nil:
	case a.early > 0 && a.same:
	case a.early > 0:
		l.After(a.early, end-a.from, a.alone)
	case !a.beside.Load():
		l.Alone(end-a.from, a.alone)
	}
}

// shows is from when on an attempt's time shows l(b), if it does. One that ran beside another took l(b) at most from its decision on, and l(b) at least from when
// it could begin: so it only shows that its profile is wrong.
func (q *queues) shows(a *attempt) (from time.Time, shown bool) {
	if !a.beside.Load() {
		return a.started, true
	}
	q.mu.Lock()
	alone, began := a.alone.Duration(), q.origin.Add(a.from.Duration())
	q.mu.Unlock()
	switch {
	case alone <= 0:
	case a.ended.Sub(a.started) < time.Duration(leadBelow*float64(alone)):
		return a.started, true
	case a.ended.Sub(began) > time.Duration(leadAbove*float64(alone)):
		return began, true
	}
	return a.started, false
}

// Lead is how long before the predicted end of an execution the next one is sent to partitions of a class, and how much of that is won.
type Lead struct {
	GPUType          string
	ThreadPercentage uint32
	Length, Overlap  time.Duration
}

// Leads lists what was learnt of each class of partitions, in their order. It is empty without Options.Lead.
func (d *Dispatcher) Leads() (all []Lead) {
	q := d.queues
	q.mu.Lock()
	defer q.mu.Unlock()
	for c, l := range q.leads {
		all = append(all, Lead{c.gpuType, c.share, l.Held().Duration(), l.Overlap().Duration()})
	}
	slices.SortFunc(all, func(a, b Lead) int {
		return cmp.Or(cmp.Compare(a.GPUType, b.GPUType), cmp.Compare(a.ThreadPercentage, b.ThreadPercentage))
	})
	return all
}

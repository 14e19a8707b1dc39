// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/clock"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// queues runs the scheduler, which is pure, on the machine's clock. unlock sets
// the alarm to the scheduler's next event, and starts the batches that the
// scheduler decided on while mu was held.
//
// do recovers a panic of the scheduler. From then on failed is closed and no
// request is queued: requests are forwarded at once. Partitions, tables and leases
// belong to the router and are not affected.
type queues struct {
	clock  clock.Clock
	origin time.Time // zero of queue.Time
	log    *slog.Logger
	router *router.Router
	// begin starts a batch. It is called without the lock. dropped is called with
	// the lock, for each request that the scheduler drops.
	begin   func(*attempt)
	dropped func(*call, queue.DropReason)
	failed  chan struct{}
	// watch is called watchAfter after an execution began, and again while there are some; nil: it is not.
	watch      func()
	watchAfter time.Duration

	mu       sync.Mutex // guards what follows; the router's lock comes after it
	sched    *queue.Scheduler
	fault    error // why the scheduler is not used any more
	alarm    clock.Alarm
	armed    queue.Time // what the alarm is set to
	outbox   []*attempt // decided while mu is held, begun when it is released
	entering *call      // the call that enqueue hands to the scheduler
	entered  *attempt   // of that call alone, if the scheduler has decided on it at once
	// table is the table in force, or the one that is coming into force while mu is held.
	table      *routes
	byID       map[queue.ModelID]*model
	partitions map[*router.Process]*partition
	executors  map[queue.PartitionID]*partition // the same, by their identifiers
	watched    clock.Timer                      // of the next watch; nil: none
	profiles   profiles
	retries    uint64
	closed     bool
}

// model finds a model by its name; nil: the table does not have it. Guarded by mu.
func (q *queues) model(name string) *model {
	if r := q.table.models[name]; r != nil {
		return r.model
	}
	return nil
}

func newQueues(c clock.Clock, log *slog.Logger, r *router.Router, begin func(*attempt), dropped func(*call, queue.DropReason)) *queues {
	q := &queues{
		clock: c, origin: c.Now(), log: log, router: r, begin: begin, dropped: dropped, failed: make(chan struct{}), armed: queue.Never,
		table: &routes{}, byID: make(map[queue.ModelID]*model),
		partitions: make(map[*router.Process]*partition), executors: make(map[queue.PartitionID]*partition),
		profiles: newProfiles(),
	}
	q.sched = queue.New(sink{q}, queue.Options{Trial: trialPause})
	q.alarm = c.Alarm(q.ring)
	return q
}

// time converts a time of the clock to one of the scheduler.
func (q *queues) time(t time.Time) queue.Time { return queue.Time(t.Sub(q.origin)) }

func (q *queues) now() queue.Time { return q.time(q.clock.Now()) }

// do calls use with the scheduler, unless the scheduler has failed. Guarded by mu.
func (q *queues) do(use func(s *queue.Scheduler) error) {
	if q.fault != nil {
		return
	}
	defer func() {
		if fault := recover(); fault != nil {
			q.fault = fmt.Errorf("the scheduler failed: %v", fault)
			close(q.failed)
			q.log.Error("the scheduler failed: requests are forwarded at once from now on; restart Conch", "fault", fmt.Sprint(fault), "stack", string(debug.Stack()))
		}
	}()
	if err := use(q.sched); err != nil {
		q.log.Error("the scheduler refused a change", "error", err)
	}
}

// unlock sets the alarm, releases mu, and begins the batches in the outbox.
func (q *queues) unlock() {
	if !q.closed {
		q.do(func(s *queue.Scheduler) error {
			next := s.Next()
			if next == q.armed {
				return nil
			}
			if q.armed = next; next == queue.Never {
				q.alarm.Set(time.Time{})
			} else {
				q.alarm.Set(q.origin.Add(time.Duration(next)))
			}
			return nil
		})
	}
	runs := q.outbox
	q.outbox = nil
	q.mu.Unlock()
	for _, r := range runs {
		q.begin(r)
	}
}

// ring is called by the alarm.
func (q *queues) ring() {
	q.mu.Lock()
	defer q.unlock()
	q.armed = queue.Never
	if !q.closed {
		q.do(func(s *queue.Scheduler) error { s.Advance(q.now()); return nil })
	}
}

// failure returns the scheduler's fault; nil: it has not failed.
func (q *queues) failure() error {
	select {
	case <-q.failed:
		q.mu.Lock()
		defer q.mu.Unlock()
		return q.fault
	default:
		return nil
	}
}

// enqueued is the result of queueing a call: how it went, and the attempt that its caller is to make; nil: none.
type enqueued struct {
	how whether
	at  *attempt
}

// whether a call was queued.
type whether uint8

const (
	// isQueued: the answer comes through call.done.
	isQueued whether = iota
	// isUnknown: the table in force does not have the model.
	isUnknown
	// isOut: nothing has served the model for too long, or Conch stops.
	isOut
	// isUnqueued: the scheduler has failed.
	isUnqueued
	// isGone: the caller has abandoned the call.
	isGone
)

// enqueue hands a call to the scheduler, under the model that has its name now. If the scheduler decides at once to execute it alone, the attempt is
// for the caller to make.
func (q *queues) enqueue(c *call) (e enqueued) {
	q.mu.Lock()
	defer q.unlock()
	q.entering = c
	e.how = q.put(c)
	e.at, q.entering, q.entered = q.entered, nil, nil
	return e
}

// put queues a call for its model, or for that one's merge group. Guarded by mu.
func (q *queues) put(c *call) whether {
	m := q.model(c.req.Model)
	switch {
	case q.fault != nil:
		return isUnqueued
	case m == nil:
		return isUnknown
	case m.out || q.closed:
		return isOut
	}
	of := m
	if m.spec.Membership != nil {
		if of = q.model(m.spec.Membership.Group); of == nil || of.out {
			return isOut
		}
	}
	c.moves(m)
	c.executes, c.member = of, m.spec.Membership
	c.set(queued)
	if of.failing.isolates() {
		q.separate([]*call{c}, queue.NoPartition)
	}
	c.queued.Owner = c
	q.do(func(s *queue.Scheduler) error { s.Enqueue(q.now(), of.id, &c.queued); return nil })
	q.countLate(of)
	return isQueued
}

// countLate notes how many late requests a model has, for admission. Guarded by mu.
func (q *queues) countLate(m *model) {
	q.do(func(s *queue.Scheduler) error { m.late.Store(int64(s.Late(m.id))); return nil })
}

// putBack queues a call again that a changed table took out of its queue, under the key that the call has by the new table. The result is isGone
// if the caller has left the call meanwhile.
func (q *queues) putBack(c *call, key uint64) whether {
	q.mu.Lock()
	defer q.unlock()
	if c.is(left) {
		return isGone
	}
	if c.key = key; !c.apart {
		c.queued.Key = key
	}
	return q.put(c)
}

// moved reports whether the table that comes into force may put a call into another queue: that of its model's merge group, or its model's own
// after that of a group. Guarded by mu.
func (q *queues) moved(c *call) bool {
	if q.closed || q.fault != nil {
		return false
	}
	m := q.model(c.req.Model)
	return m != nil && (m.spec.Membership != nil || c.member != nil)
}

// leave ends a call whose caller's context has ended. It returns false if the call has its answer. A call that waits is cancelled in the scheduler.
// An attempt goes on, because it may have other calls; this call's part of the answer is discarded. An attempt of one call is cancelled with its
// caller's context.
func (q *queues) leave(c *call) bool {
	q.mu.Lock()
	defer q.unlock()
	switch c.now() {
	case done:
		return false
	case queued:
		q.do(func(s *queue.Scheduler) error { s.Cancel(q.now(), &c.queued); return nil })
		q.countLate(c.executes)
		c.set(done)
	default:
		c.set(left)
	}
	return true
}

// takeBack takes a call back from a scheduler that has failed, for its caller to
// forward. It returns false if the call runs or has its answer.
func (q *queues) takeBack(c *call) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !c.is(queued) {
		return false
	}
	c.set(unqueued)
	return true
}

// end marks a call that runs as done. It returns false if its caller has left it.
func (q *queues) end(c *call) bool {
	if c.is(done) {
		return true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if c.is(left) {
		return false
	}
	c.set(done)
	return true
}

// awaitSwap waits until no table is being swapped.
func (q *queues) awaitSwap() {
	q.mu.Lock()
	defer q.mu.Unlock()
}

// complete reports to the scheduler that an attempt's process is free, and marks its calls as done that their callers have not left. Further calls do
// nothing.
func (q *queues) complete(a *attempt) {
	q.mu.Lock()
	defer q.unlock()
	for _, c := range a.calls {
		if c.is(running) {
			c.set(done)
		}
	}
	q.completed(a)
}

// completed is the first part of complete, for a caller that holds mu.
func (q *queues) completed(a *attempt) {
	if a.over {
		return
	}
	a.over = true
	p := q.partitions[a.process]
	if p.running == a {
		p.running = nil
	}
	q.do(func(s *queue.Scheduler) error { s.Complete(q.now(), p.id); return nil })
	q.countLate(a.model)
	if p.retired {
		q.remove(p)
	}
}

// again puts the calls of an attempt back into the queue, to be executed as step says, and completes the attempt. Calls that no server has seen, because
// the process went down before, are queued as they were. Those in a.spent are left to the caller. Unqueued are the calls that cannot be queued, because
// no partition serves their model, or the scheduler has failed or is closed. Gone are those that their callers have left.
func (q *queues) again(a *attempt, how step) (unqueued, gone []*call) {
	q.mu.Lock()
	defer q.unlock()
	var back []*call
	for _, c := range a.calls {
		switch {
		case c.is(left):
			gone = append(gone, c)
		case slices.Contains(a.spent, c):
		case a.model.out || q.closed:
			unqueued = append(unqueued, c)
		default:
			back = append(back, c)
		}
	}
	a.spent = slices.DeleteFunc(a.spent, func(c *call) bool { return c.is(left) })
	avoid := q.partitions[a.process].id
	q.completed(a)
	switch {
	case len(back) == 0:
		return unqueued, gone
	case a.unleased != nil:
		for _, c := range back {
			c.queued.Avoid = queue.NoPartition
		}
	case how == together:
		q.separate(back, avoid)
	case how == halves:
		q.divide(back, avoid)
	default:
		for i := range back {
			q.separate(back[i:i+1], avoid)
		}
	}
	return append(unqueued, q.requeue(a.model, back)...), gone
}

// requeue puts calls that were running back into a model's queue, and returns the
// calls that the scheduler did not take because it has failed. Guarded by mu.
func (q *queues) requeue(m *model, calls []*call) (untaken []*call) {
	for _, c := range calls {
		c.set(queued)
	}
	q.do(func(s *queue.Scheduler) error {
		now := q.now()
		s.Reconfigure(now, func() {
			for _, c := range calls {
				s.Requeue(now, m.id, &c.queued)
			}
		})
		return nil
	})
	if q.fault == nil {
		return nil
	}
	for _, c := range calls {
		if c.is(queued) { // else it was dispatched, or dropped, before the fault
			c.set(running)
			c.retried = false // what is sent next is its second attempt at the most
			untaken = append(untaken, c)
		}
	}
	return untaken
}

// followModel updates whether a model is out. The queued requests of a model that
// is out are dropped, and further ones are not queued until the model is served
// again.
func (q *queues) followModel(name string) {
	q.mu.Lock()
	defer q.unlock()
	if m := q.model(name); m != nil {
		q.setOut(m)
	}
}

func (q *queues) setOut(m *model) {
	if m.out = q.router.Out(m.name) != nil; m.out {
		q.do(func(s *queue.Scheduler) error { return s.Empty(q.now(), m.id, queue.DropOutage) })
	}
}

// waiting counts the requests that wait for a model.
func (q *queues) waiting(m *model) (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.model(m.name) == m {
		q.do(func(s *queue.Scheduler) error { n, _ = s.Queued(m.id); return nil })
		n += m.inGroup
	}
	return n
}

// close drops the queued requests and stops the alarm.
func (q *queues) close() {
	q.mu.Lock()
	q.closed = true
	if q.watched != nil {
		q.watched.Stop()
	}
	for _, m := range q.byID {
		q.do(func(s *queue.Scheduler) error { return s.Empty(q.now(), m.id, queue.DropOutage) })
	}
	q.unlock()
	q.alarm.Stop()
}

// sink receives the scheduler's decisions, with the lock held.
type sink struct{ q *queues }

// Dispatch implements queue.Sink.
func (s sink) Dispatch(b *queue.Batch) {
	q := s.q
	m, p := q.byID[b.Model], q.executors[b.Partition]
	at := &attempt{model: m, rules: m.rules, process: p.process, rows: b.Rows, decided: b.Start, finish: b.Finish, free: b.Free, calls: make([]*call, len(b.Requests))}
	at.lease, at.unleased = q.router.Take(at.process, m.name)
	for i, request := range b.Requests {
		c := request.Owner.(*call)
		c.set(running)
		if c.piece != nil {
			c.piece.begun = true
		}
		c.req.Ref() // the attempt's own reference: the caller may return before it ends
		at.calls[i] = c
	}
	p.running = at
	q.watchSoon()
	if len(at.calls) == 1 && at.calls[0] == q.entering {
		q.entered = at
		return
	}
	q.outbox = append(q.outbox, at)
}

// Drop implements queue.Sink.
func (s sink) Drop(r *queue.Request, why queue.DropReason) { s.q.dropped(r.Owner.(*call), why) }

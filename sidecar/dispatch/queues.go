// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// queues runs the scheduler, which is pure, on the machine's clock. unlock has
// the alarm ring at the scheduler's next event, begins the attempts that the
// scheduler decided on while mu was held, and answers the calls that it dropped.
// It does all that without mu, which is never held over a system call.
//
// do recovers a panic of the scheduler. From then on no request is queued:
// requests are forwarded at once, those that were queued included. Partitions,
// tables and leases belong to the router and are not affected.
type queues struct {
	clock  clock.Clock
	origin time.Time // zero of queue.Time
	log    *slog.Logger
	router *router.Router
	// d executes what the scheduler decides. dropped is called with
	// the lock, for each request that the scheduler drops.
	d       *Dispatcher
	dropped func(*call, queue.DropReason)

	mu       sync.Mutex // guards what follows; the router's lock comes after it
	sched    *queue.Scheduler
	fault    error // why the scheduler is not used any more
	alarm    alarm
	notes    []func()  // to be logged when mu is released
	outbox   *attempt  // decided while mu is held, begun when it is released; the last one
	answers  []dropped // likewise
	waits    calls     // that are queued
	expiries expiries
	// table is the table in force, or the one that is coming into force while mu is held.
	table     *routes
	byID      map[queue.ModelID]*model
	executors map[*router.Partition][]*executor // of each partition, by their index
	numbered  map[queue.ExecutorID]*executor    // the same, by the numbers that the scheduler has for them
	profiles  profiles
	retries   uint64
	closed    bool
}

// model finds a model by its name; nil: the table does not have it. Guarded by mu.
func (q *queues) model(name string) *model {
	if r := q.table.models[name]; r != nil {
		return r.model
	}
	return nil
}

func newQueues(c clock.Clock, log *slog.Logger, r *router.Router, d *Dispatcher, dropped func(*call, queue.DropReason)) *queues {
	q := &queues{
		clock: c, origin: c.Now(), log: log, router: r, d: d, dropped: dropped,
		table: &routes{}, byID: make(map[queue.ModelID]*model),
		executors: make(map[*router.Partition][]*executor), numbered: make(map[queue.ExecutorID]*executor),
		profiles: newProfiles(),
	}
	q.sched = queue.New(sink{q}, queue.Options{Trial: trialPause, Late: func(r *queue.Request, more int) { r.Tag.(*call).model.late.Add(int64(more)) }})
	q.alarm.init(c.Alarm(q.ring))
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
			stack := string(debug.Stack())
			q.notes = append(q.notes, func() {
				q.log.Error("the scheduler failed: requests are forwarded at once from now on; restart Conch", "fault", fmt.Sprint(fault), "stack", stack)
			})
		}
	}()
	q.check(use(q.sched))
}

// check has a change logged that the scheduler has not taken. Guarded by mu.
func (q *queues) check(err error) {
	if err != nil {
		q.notes = append(q.notes, func() { q.log.Error("the scheduler has not taken a change", "error", err) })
	}
}

// dropped is a call that gets its answer without an execution.
type dropped struct {
	c *call
	a answer
}

// unlock sets the alarm, releases mu, and has workers begin the attempts that were decided on.
func (q *queues) unlock() {
	for a := q.release(nil); a != nil; {
		of, next := a, a.after // it is not ours any more once it has begun
		q.d.workers.start(func() { q.d.execute(nil, of) })
		a = next
	}
}

// unlockOn is unlock on a goroutine that may begin attempts itself, in its turn. Attempts that are repeated are not begun so: each might end at once and
// begin the next.
func (q *queues) unlockOn(t *wire.Turn) {
	for a := q.release(t); a != nil; {
		next := a.after // it is not ours any more once it has begun
		q.d.start(t, a)
		a = next
	}
}

// release releases mu, sets the alarm, answers what was dropped, and returns the attempts that were decided on, in their order.
func (q *queues) release(t *wire.Turn) (first *attempt) {
	if !q.closed {
		q.do(func(s *queue.Scheduler) error { q.alarm.next.Store(int64(s.Next())); return nil })
	}
	var orphans []*call
	if q.fault != nil {
		for c := q.waits.first; c != nil; c = q.waits.first {
			c.set(running)
			c.req.Ref()
			orphans = append(orphans, c)
		}
	}
	for q.outbox != nil { // it is in reverse order
		first, q.outbox, q.outbox.after = q.outbox, q.outbox.after, first
	}
	answers, notes := q.answers, q.notes
	q.answers, q.notes = nil, nil
	q.mu.Unlock()
	q.alarm.follow(q.origin)
	for _, log := range notes {
		log()
	}
	for _, of := range answers {
		of.c.give(t, of.a)
	}
	q.d.forward(orphans)
	return first
}

// ring is called by the alarm.
func (q *queues) ring() {
	q.alarm.rung()
	q.mu.Lock()
	defer q.unlockOn(nil)
	if !q.closed {
		q.do(func(s *queue.Scheduler) error { s.Advance(q.now()); return nil })
	}
}

// failure returns the scheduler's fault; nil: it has not failed.
func (q *queues) failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.fault
}

// whether a call was queued.
type whether uint8

const (
	// isQueued: the answer comes through call.then, and may have come.
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

// enqueue hands a call to the scheduler, under the model that has its name now.
func (q *queues) enqueue(t *wire.Turn, c *call) whether {
	q.mu.Lock()
	defer q.unlockOn(t)
	return q.put(c)
}

// put queues a call for its model, or for that one's merge group. Guarded by mu.
func (q *queues) put(c *call) whether {
	m := q.model(c.req.Model)
	switch {
	case c.gone:
		return isGone
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
	c.moveTo(m)
	c.executes, c.member = of, m.spec.Membership
	c.set(queued)
	if c.lone || of.failing.isolates() {
		q.separate([]*call{c}, queue.NoExecutor)
	}
	c.queued.Tag = c
	q.expects(of, c)
	q.allow(of, c)
	q.do(func(s *queue.Scheduler) error { s.Enqueue(q.now(), of.id, &c.queued); return nil })
	return isQueued
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
	c.queued.MaxQueue = 0 // it was accepted
	return q.put(c)
}

// changesQueue reports whether the table that comes into force may put a call into another queue: that of its model's merge group, or its model's own
// after that of a group. Guarded by mu.
func (q *queues) changesQueue(c *call) bool {
	if q.closed || q.fault != nil {
		return false
	}
	m := q.model(c.req.Model)
	return m != nil && (m.spec.Membership != nil || c.member != nil)
}

// leave ends a call whose caller's context has ended. It returns false if the call has its answer, or is not queued yet. A call that waits is cancelled in the scheduler.
// An attempt goes on, because it may have other calls; this call's part of the answer is discarded. An attempt of one call is cancelled with its
// caller's context.
func (q *queues) leave(c *call) bool {
	q.mu.Lock()
	defer q.unlock()
	if c.is(queued) {
		// What is due comes first in the scheduler. It may dispatch the call, or drop it with an answer.
		q.do(func(s *queue.Scheduler) error { s.Cancel(q.now(), &c.queued); return nil })
	}
	switch c.now() {
	case done:
		return false
	case unqueued:
		c.gone = true
		return false
	case queued:
		c.set(done)
	default:
		c.set(left)
	}
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

// afterSwap returns when no table is being swapped.
func (q *queues) afterSwap() {
	q.mu.Lock()
	defer q.mu.Unlock()
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
	for _, m := range q.byID {
		q.do(func(s *queue.Scheduler) error { return s.Empty(q.now(), m.id, queue.DropOutage) })
	}
	if q.expiries.timer != nil {
		q.expiries.timer.Stop()
	}
	q.unlock()
	q.alarm.stop()
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// call is the ticket of a request for inference that Conch has read.
type call struct {
	ticket
	req   *batch.Request
	key   uint64 // equal for requests that may share an execution
	keyed bool   // its model's rules have a key for it
	lone  bool   // they have none, and it is queued to be executed alone, as the model has a queue policy
	// whole: it is a request of an ensemble that Conch may execute step by step.
	whole bool
	// walked: Conch executes the steps of its ensemble.
	walked bool
	// within is the execution of the ensemble that the call is a step of; nil: it is a client's.
	within *walk
	part   time.Duration // of a step: how much of the ensemble's SLO it may take; 0: that is not known
	// made are the bytes of its inputs that other steps have made.
	made int
	// then takes the call's answer, once, without a lock. It must not block.
	then func(*wire.Turn, answer)
	// waits: its caller's goroutine waits for the answer, so that what may block is done on that goroutine.
	waits bool
	stop  func() bool // of the watch over its caller's context; nil: there is none

	// phase changes only under queues.mu; done and left are never changed again, so that they may be read without it.
	phase atomic.Uint32
	// What follows is guarded by queues.mu while the call is queued, and belongs to its attempt while it runs.
	queued queue.Request
	at     *attempt // that it is in; nil: none. Guarded by queues.mu
	given  bool     // its answer
	// gone: its caller's context ended before it was queued. Guarded by queues.mu, like its place among the calls that are queued.
	gone       bool
	next, prev *call
	// executes is the model whose executions the call is in: its own, or the merge group that member names.
	executes *model
	member   *batch.Membership
	retried  bool // it was sent once to a server that did not answer
	absences int  // of its merge group, on servers that it was sent to
	// suspicion is the last fault of a place that it may have caused; nil: none.
	suspicion *suspicion
	// apart: its key in the queue is not its own. Piece is the part of a failed batch that it is queued in; nil: none.
	apart bool
	piece *piece
}

// phase is where a call is on its way.
type phase = uint32

const (
	// unqueued: its caller has it. It is not queued yet, or it is executed outside the queue.
	unqueued phase = iota
	// queued: the scheduler has it.
	queued
	// running: an attempt has it, or a task that passes it through.
	running
	// done: it has its answer, or will not get one because its caller has taken it out of the queue.
	done
	// left: its caller has left it while it was running. Its answer is only counted.
	left
)

func (c *call) now() phase { return c.phase.Load() }

func (c *call) is(p phase) bool { return c.phase.Load() == p }

// set changes the phase of a call, lists those that are queued, and counts those that wait in the queue of their model's merge group. Guarded by queues.mu.
func (c *call) set(p phase) {
	if was := c.is(queued); was != (p == queued) {
		in := 1
		if was {
			in = -1
			c.d.queues.waits.remove(c)
		} else {
			c.d.queues.waits.add(c)
		}
		if c.member != nil {
			c.model.inGroup += in
		}
	}
	c.phase.Store(p)
}

// calls is a list of calls.
type calls struct{ first *call }

func (l *calls) add(c *call) {
	if c.next = l.first; c.next != nil {
		c.next.prev = c
	}
	l.first = c
}

func (l *calls) remove(c *call) {
	if c.next != nil {
		c.next.prev = c.prev
	}
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		l.first = c.next
	}
	c.next, c.prev = nil, nil
}

// awaited makes a call one whose answer is waited for, by the function that it returns.
func (c *call) awaited() (await func() answer) {
	done := make(chan answer, 1)
	c.then = func(_ *wire.Turn, a answer) { done <- a }
	return func() answer { return <-done }
}

// give hands a call its answer. A panic of the function that takes it concerns that call alone.
func (c *call) give(t *wire.Turn, a answer) {
	defer func() { recovered(c.d.o.Logger, "answering a request", recover()) }()
	c.given = true
	if c.stop != nil {
		c.stop()
	}
	c.then(t, a)
}

// watch has the call abandoned when its caller's context ends. It is called before the call is queued.
func (c *call) watch() {
	if c.stop == nil && c.ctx.Done() != nil {
		c.stop = context.AfterFunc(c.ctx, c.abandon)
	}
}

// abandon answers a call whose caller's context has ended, if it is queued or runs.
func (c *call) abandon() {
	if c.d.queues.leave(c) {
		c.give(nil, answer{err: status.FromContextError(c.ctx.Err()).Err(), result: Cancelled})
	}
}

// admitted admits a call, unless it was before, while it waited for a variant.
func (c *call) admitted() (refused answer, ok bool) {
	if c.account != nil {
		return answer{}, true
	}
	late := int64(0)
	if c.model != nil {
		late = c.model.late.Load()
	}
	return c.admit(sizeOfRequest(c.req), late)
}

// queueable reports whether a call may be queued, by the rules of a route. It sets the call's key and rows. What cannot share an execution is queued if
// the model has a queue policy, which is for all its requests.
func (c *call) queueable(route *route) bool {
	key, rows, ok, _ := route.rules.Key(c.req)
	c.rows, c.key = max(1, rows), key
	c.whole, c.keyed = ok && route.graph != nil, ok && route.graph == nil
	shares := c.keyed && rows <= route.maxBatch && !route.executes.unsplittable.Load()
	c.lone = false
	if !shares && route.policy != nil && route.maxBatch > 0 {
		rows, c.lone = route.rules.Alone(c.req)
		c.rows = max(1, rows)
	}
	c.queued.Key, c.queued.Rows = key, int32(rows) //nolint:gosec // at most max_batch_size
	return shares || c.lone && rows <= route.maxBatch
}

// shortens returns the `timeout` of a call's request where it says when the answer is due; zero: it does not. Under a queue policy it says how long the
// request may wait, if anything.
func (c *call) shortens(route *route) time.Duration {
	if route.policy != nil {
		return 0
	}
	return c.timeout
}

// setDue sets when the answer is due: the soonest of the model's SLO, the latency that was asked of an app, the
// `timeout` parameter and the gRPC deadline. An answer after it is late, whether the request was queued or passed
// through. The `timeout` and the gRPC deadline only shorten an SLO: clients set them generously, and a batch must not be
// delayed until the end of a generous one.
func (c *call) setDue(route *route) {
	slo := c.asked.within(route.spec.SLO)
	if slo <= 0 {
		return
	}
	c.due = c.begins.Add(slo)
	if timeout := c.shortens(route); timeout > 0 && c.arrived.Add(timeout).Before(c.due) {
		c.due = c.arrived.Add(timeout)
	}
	if deadline, ok := c.ctx.Deadline(); ok && deadline.Before(c.due) {
		c.due = deadline
	}
}

// setDeadline sets the deadline that the queue plans with. It is earlier than
// c.due by the response budget and by the margin of who executes it for prediction errors.
func (c *call) setDeadline(d *Dispatcher, route *route) {
	c.queued.Arrival = d.queues.time(c.begins)
	c.queued.Deadline = queue.Never
	if c.due.IsZero() {
		return
	}
	back := forecast.ResponseBudget + route.executes.margin.Of(c.due.Sub(c.begins)-forecast.ResponseBudget)
	c.queued.Deadline = max(1, d.queues.time(c.due.Add(-back)))
}

// setStay sets what the model's queue policy says of the call's stay in the queue.
func (c *call) setStay(route *route) {
	stay := route.policy.Stay(c.req)
	c.queued.Level, c.queued.MaxQueue, c.queued.Expiry, c.queued.Expired = stay.Level, stay.MaxQueue, queue.Never, queue.LateDrop
	if stay.Timeout > 0 && stay.Timeout < (queue.Never-c.queued.Arrival).Duration() {
		c.queued.Expiry = c.queued.Arrival + queue.Time(stay.Timeout)
	}
	if stay.Delay {
		c.queued.Expired = queue.LateServe
	}
}

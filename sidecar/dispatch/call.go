// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"sync/atomic"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// call is the ticket of a request for inference that Conch has read.
type call struct {
	ticket
	req   *batch.Request
	key   uint64      // equal for requests that may share an execution
	batch bool        // its rules have a key and rows for it
	done  chan answer // buffered: a send never blocks

	// phase changes only under queues.mu; done and left are never changed again, so that they may be read without it.
	phase atomic.Uint32
	// What follows belongs to who has the call: whoever holds queues.mu while it is queued, its attempt while it runs.
	queued queue.Request
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

// set changes the phase of a call, and counts those that wait in the queue of their model's merge group. Guarded by queues.mu.
func (c *call) set(p phase) {
	if was := c.is(queued); was != (p == queued) && c.member != nil {
		if was {
			c.model.inGroup--
		} else {
			c.model.inGroup++
		}
	}
	c.phase.Store(p)
}

// admitted admits a call, unless it was before, while it waited for a variant.
func (c *call) admitted() (refused answer, ok bool) {
	if c.under != nil {
		return answer{}, true
	}
	late := int64(0)
	if c.executes != nil {
		late = c.executes.late.Load()
	}
	return c.admit(sizeOfRequest(c.req), late)
}

// queueable reports whether a call may be queued and share an execution, by the
// rules of a route. It sets the call's key and rows.
func (c *call) queueable(route *route) bool {
	key, rows, ok, _ := route.rules.Key(c.req)
	c.rows, c.batch, c.key = max(1, rows), ok, key
	c.queued.Key, c.queued.Rows = key, int32(rows)
	return ok && rows <= route.maxBatch && !route.executes.unsplittable.Load()
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
	if c.timeout > 0 && c.arrived.Add(c.timeout).Before(c.due) {
		c.due = c.arrived.Add(c.timeout)
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
	back := d.o.ResponseBudget + route.executes.margin.Of(c.due.Sub(c.begins)-d.o.ResponseBudget)
	c.queued.Deadline = max(1, d.queues.time(c.due.Add(-back)))
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"time"

	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
)

// unwanted counts the answer of an abandoned call, and frees it.
func (d *Dispatcher) unwanted(c *call, a answer) {
	o, now := c.outcome(&a)
	d.overdue(c, &a, now)
	if o.Result == Cancelled && a.result == OK {
		o.Result = Failed
	}
	c.model.count(c.tally, a.series, &o, verdictOf(&o, a.failure(), c.model.backend(), a.rows > 0))
	if a.resp != nil {
		a.resp.Free()
	}
}

// left counts an abandoned call that does not run, or not again.
func (d *Dispatcher) left(c *call) {
	d.unwanted(c, answer{err: status.FromContextError(c.ctx.Err()).Err(), result: Cancelled})
}

// finish reports the outcome and turns it into what the caller gets.
func (d *Dispatcher) finish(c *call, a answer) (*batch.Response, error) {
	a.expire(c.ctx, d.clock.Now())
	o, now := c.end(&a)
	d.overdue(c, &a, now)
	if !c.is(left) { // else it is counted when it ends
		c.model.count(c.tally, a.series, &o, verdictOf(&o, a.failure(), c.model.backend(), a.rows > 0))
	}
	if a.resp != nil && !a.resp.Cleared && c.asked.target.Answer != nil {
		c.asked.target.Answer(a.resp)
	}
	c.endSpan(&a, &o, now)
	return a.resp, a.err
}

// endSpan ends the span of a call, if it has one.
func (c *call) endSpan(a *answer, o *Outcome, now time.Time) {
	if c.span == nil {
		return
	}
	if !a.passed && o.Result != Refused && !c.walked { // steps of an ensemble have waited, not the whole
		c.span.Queued("", c.arrived, c.arrived.Add(o.Queued))
	}
	c.span.End(now, o.Result.String(), o.Reason, o.PassedThrough, o.Retried, a.failure())
}

// failure returns the error of an answer, also one that the response itself
// reports.
func (a *answer) failure() error {
	if a.err != nil {
		return a.err
	}
	return a.resp.Err()
}

// expire makes an answer DEADLINE_EXCEEDED once the caller's deadline has passed:
// the context's timer may not have fired yet.
func (a *answer) expire(ctx context.Context, now time.Time) {
	if a.result != OK || !expired(ctx, now) {
		return
	}
	if a.resp != nil {
		a.resp.Free()
		a.resp = nil
	}
	a.err, a.result = status.FromContextError(context.DeadlineExceeded).Err(), Cancelled
}

// expired reports whether a caller's deadline has passed.
func expired(ctx context.Context, now time.Time) bool {
	deadline, ok := ctx.Deadline()
	return ok && !now.Before(deadline)
}

// after reports whether an answer comes after it was due, if it was due at all.
func after(now, due time.Time) bool { return !due.IsZero() && now.After(due) }

// overdue counts how much later than predicted the last answer of a batch is
// given.
func (d *Dispatcher) overdue(c *call, a *answer, now time.Time) {
	if a.promised > 0 {
		at := d.queues.time(now)
		c.executes.margin.Add((at-a.promised).Duration()-forecast.ResponseBudget, at)
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/dispatch/spans"
)

// ticket is one request of a client on its way from a front to its outcome, by whichever protocol it came: a call of ModelInfer, an infer request
// over HTTP, a request on a stream, a request that is proxied (generate), or a call of a method that passes through. A stream itself has none: its
// requests do.
//
//	opened    open: it has a caller, a time of arrival, and one deadline for all its waits (until)
//	arrived   arrive: its model is known, it counts as under way of that model, and the Observer learns of it
//	admitted  admit: it takes from the limits, and a drain waits for it
//	ended     end: the Observer has its outcome, and it takes from the limits no more
//
// A request may end at each of these stages. It ends once: end makes the outcomes of all requests, and nothing else does.
//
// Waits. A request may wait for a variant of its app, for its model's load, for a partition of its model, and for a merge group's place to leave the
// table. All these end with the caller's context, and at until: the waits of a request do not add up. What is not such a wait is the queue, where
// the model's SLO and its policy for late requests decide, but while the model has no usable place (nowhere.go).
type ticket struct {
	d   *Dispatcher
	ctx context.Context
	// asked is what it asked for by a name that its model serves; zero: for the model by its own name.
	asked asked
	model *model // nil: none was found yet
	tally *tally
	rows  int
	id    string // as the client gave it
	span  *spans.Request

	arrived time.Time
	begins  time.Time     // of the SLO: when it arrived, or its model was loaded
	due     time.Time     // later answers are late; zero: none is
	timeout time.Duration // its own, Triton's parameter; 0: none
	until   time.Time     // waits end
	loaded  bool          // it waited for a load

	account *account    // that it is admitted to; nil: it is not
	size    int64       // in bytes, as admitted
	atModel bool        // it has arrived at its model
	over    atomic.Bool // it has ended
}

// open begins a ticket. The timeout is the request's own; 0: none.
func (t *ticket) open(ctx context.Context, d *Dispatcher, timeout time.Duration) {
	t.d, t.ctx, t.timeout, t.arrived = d, ctx, timeout, d.clock.Now()
	t.begins = t.arrived
	t.patience(d.o.OutageWait)
}

// patience sets until when the ticket waits, if its own timeout is not sooner.
func (t *ticket) patience(limit time.Duration) {
	if t.timeout > 0 {
		limit = min(limit, t.timeout)
	}
	t.until = t.arrived.Add(limit)
}

// timedOut reports whether the ticket's own timeout has passed.
func (t *ticket) timedOut() bool {
	at := t.expires()
	return !at.IsZero() && !t.d.clock.Now().Before(at)
}

// expires is when the ticket's own timeout passes; zero: it has none.
func (t *ticket) expires() time.Time {
	if t.timeout <= 0 {
		return time.Time{}
	}
	return t.arrived.Add(t.timeout)
}

// admit takes a ticket of a request of so many bytes in. Late is how many late requests its model has in the queue. If it is refused, the
// answer is returned.
func (t *ticket) admit(size, late int64) (refused answer, ok bool) {
	to := &t.d.admission.rest
	if t.model != nil {
		to = &t.model.account
	}
	reason, err := t.d.admission.admit(to, size, late)
	if err != nil {
		return refusal(reason, err), false
	}
	t.account, t.size = to, size
	return answer{}, true
}

// sizeOfRequest is what a request counts for the limits.
func sizeOfRequest(r *batch.Request) (size int64) {
	if size = int64(r.Wire.Len()); size == 0 {
		for i := range r.Inputs {
			size += int64(r.Inputs[i].Data.Len())
		}
	}
	return size
}

// moveTo changes the model of a ticket: to another one, to one that was removed and added again, or from none to one.
func (t *ticket) moveTo(to *model) {
	if t.model == to {
		return
	}
	if t.atModel {
		t.model.counts.leave()
		to.counts.arrive(t.arrived)
	}
	t.model = to
	if t.account != nil {
		t.d.admission.move(t.account, &to.account, t.size)
		t.account = &to.account
	}
}

// waited is how a wait has ended.
type waited uint8

const (
	// changed: what was waited for may have come.
	changed waited = iota
	// waitExpired: the ticket's deadline has passed.
	waitExpired
	// waitLeft: the caller's context has ended.
	waitLeft
	// waitStopped: the Dispatcher is closed.
	waitStopped
)

// await waits until a channel is closed, for the deadline of the ticket at most.
func (t *ticket) await(on <-chan struct{}) waited {
	patience := t.until.Sub(t.d.clock.Now())
	passed := make(chan struct{})
	defer t.d.clock.After(max(0, patience), func() { close(passed) }).Stop()
	select {
	case <-on:
		return changed
	case <-passed:
		return waitExpired
	case <-t.ctx.Done():
		return waitLeft
	case <-t.d.background.Done():
		return waitStopped
	}
}

// gaveUp is the answer to a ticket that waited in vain. Patience is the answer where its own timeout was not what ended the wait.
func (t *ticket) gaveUp(how waited, patience answer) answer {
	switch {
	case how == waitLeft:
		return gone(t.ctx)
	case how == waitStopped:
		return refusal(reasonDraining, errDraining)
	case t.timedOut():
		return answer{err: errExpired, result: Dropped, reason: reasonLoadTimeout}
	}
	return patience
}

// lease leases a partition for a request outside the queue. It waits for one that serves the model.
func (t *ticket) lease(model string, h router.Hints) (router.Lease, answer) {
	for {
		if refused, ok := t.sure(); !ok {
			return router.Lease{}, refused
		}
		lease, on, err := t.d.router.Acquire(model, h)
		if err == nil {
			return lease, answer{}
		}
		how := waitExpired
		if on != nil {
			how = t.await(on)
		}
		switch {
		case how == changed, how == waitStopped && on != nil: // the router is closed then, too
			continue
		case how == waitLeft:
			return lease, answer{err: status.FromContextError(t.ctx.Err()).Err()}
		case status.Code(err) == codes.Unavailable && t.timedOut():
			return lease, answer{err: errExpired, result: Dropped, reason: reasonTimeout}
		}
		return lease, answer{err: err}
	}
}

// reasonTimeout: a request's own timeout passed while it waited for a partition of its model.
const reasonTimeout = "timeout"

// end reports the outcome of a ticket, by its answer, and counts it out. It is the only place where outcomes are made. A further call is a fault of
// Conch's: it is logged and does nothing else.
func (t *ticket) end(a *answer) (o Outcome, now time.Time) {
	o, now = t.outcome(a)
	if t.over.Swap(true) {
		t.d.endedTwice.Add(1)
		t.d.o.Logger.Error("a request has two outcomes: this is a fault of Conch's", "model", o.Model, "result", o.Result.String(), "reason", o.Reason)
		return o, now
	}
	if t.atModel {
		t.model.counts.leave()
	}
	t.d.o.Observer.Finished(o)
	if t.account != nil {
		t.d.admission.leave(t.account, t.size)
	}
	return o, now
}

// closed counts a ticket out whose handling panicked before its end.
func (t *ticket) closed() {
	if !t.over.Load() {
		t.withdraw()
	}
}

// withdraw counts a ticket out that has no outcome here: it names no model, or its front reports what became of it (Refused).
func (t *ticket) withdraw() {
	if t.over.Swap(true) {
		t.d.endedTwice.Add(1)
		return
	}
	if t.atModel {
		t.model.counts.leave()
	}
	if t.account != nil {
		t.d.admission.leave(t.account, t.size)
	}
}

// breakDown breaks the latency of an outcome down.
func (t *ticket) breakDown(o *Outcome, a *answer, now time.Time) {
	o.Ended, o.Identity = now, Identity{t}
	if !t.due.IsZero() {
		o.Deadline = t.due.Sub(t.arrived)
	}
	if a.series != nil {
		o.Partition = a.series.partition
	}
	if a.started.IsZero() {
		o.Queued, o.Wait = o.Latency, o.Latency
		return
	}
	if a.ended.IsZero() {
		a.ended = now
	}
	o.Queued, o.Execute = a.started.Sub(t.arrived), a.ended.Sub(a.started)
	o.Wait, o.Gather = o.Loading+a.waited, a.gathered
}

// outcome returns the outcome of a ticket that has its answer.
func (t *ticket) outcome(a *answer) (o Outcome, now time.Time) {
	now = t.d.clock.Now()
	o = Outcome{
		Early: !t.atModel, Name: t.asked.name, Result: a.result, Latency: now.Sub(t.arrived), Rows: t.rows, Batch: a.rows,
		PassedThrough: a.passed, Retried: a.retried, Reason: a.reason, Loading: t.begins.Sub(t.arrived),
	}
	if t.model != nil {
		o.Model = t.model.name
	}
	t.breakDown(&o, a, now)
	if o.Early && !t.asked.came.IsZero() { // it waited for a variant
		o.Loading = o.Latency
	}
	if o.Result == OK {
		switch {
		case a.err != nil && t.ctx.Err() != nil:
			o.Result = Cancelled
		case a.failure() != nil:
			o.Result = Failed
		case t.loaded:
			o.Result = Cold
		case after(now, t.due):
			o.Result = Late
		}
	}
	if o.Result == Cancelled && o.Reason == "" {
		o.Reason = goneReason(t.ctx, t.arrived, now)
	}
	return o, now
}

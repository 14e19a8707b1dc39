// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/dispatch/spans"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

const methodInfer = tritonpb.GRPCInferenceService_ModelInfer_FullMethodName

// attempt is one execution of one or several calls on one place. It owns the lease of the place and the loan of shared memory, and ends both when it
// ends. Those of the queue are batches (execute); those outside it have one call (passthrough.go).
type attempt struct {
	model     *model       // that is executed: the calls' own, or their merge group's
	rules     *batch.Rules // of the model when it was decided
	partition *router.Partition
	on        *executor // of the partition; nil outside the queue
	lease     router.Lease
	unleased  error // why there is no lease: the partition is not up any more
	calls     []*call
	spent     []*call // of these, that may not be sent again
	rows      int
	started   time.Time
	ended     time.Time
	loan      *loan // nil: none
	// lastWord: the server is done with what was sent.
	lastWord bool
	shared   bool                     // something ran outside the queue when it started
	wasAlone uint64                   // Lease.Alone when it started
	passed   bool                     // it runs outside the queue
	then     func(*wire.Turn, result) // of one outside the queue: takes what it came to

	joined    *batch.Request // that is sent
	span      *spans.Execution
	after     *attempt // that was decided on after it, until it begins
	counted   bool     // the Dispatcher's end waits for its end
	concluded bool

	// Of attempts of the queue.
	decided queue.Time
	finish  queue.Time // as predicted; decided: there is no prediction
	free    queue.Time // since when its executor was free
	over    bool       // the scheduler has its executor back; guarded by queues.mu
	hung    bool       // it takes far too long; guarded by queues.mu
	kept    bool       // it is kept back, as it is not known who executes; guarded by queues.mu
}

// ending is how an attempt has ended, by the server's word or for lack of one.
type ending uint8

const (
	// answeredAll: the server has answered every call.
	answeredAll ending = iota
	// failed: the server has answered with an error. It may have refused the request, or the execution has failed.
	failed
	// lost: the connection failed. Whether the server has executed the attempt is not known.
	lost
	// absent: the server does not have the model, because it is ending or another client has unloaded the model, before the route table shows it.
	absent
	// indivisible: the server's answer cannot be read, or divided among the calls, or their requests cannot be joined.
	indivisible
)

// endingOf reads the ending out of the error of a call to a server for a model.
func endingOf(err error, model string) ending {
	switch {
	case err == nil:
		return answeredAll
	case forward.Lost(err):
		return lost
	case forward.Unloaded(err, model):
		return absent
	}
	return failed
}

// result is what an attempt came to.
type result struct {
	ending ending
	err    error
	parts  []*batch.Response // the answers of the calls, in their order, if they were answered
	meta   *forward.Answer   // what came with the answer, or the error; nil: nothing was sent
	fault  any               // of an attempt outside the queue: that it has panicked with
}

// start begins an attempt in a turn, or has a worker begin it where tensors may have to be copied.
func (d *Dispatcher) start(t *wire.Turn, a *attempt) {
	if a.copies() {
		d.workers.start(func() { d.execute(nil, a) })
		return
	}
	d.execute(t, a)
}

// execute begins an attempt of the queue, and does not wait.
func (d *Dispatcher) execute(t *wire.Turn, a *attempt) {
	defer d.mend(a)
	if !a.counted { // else it was kept back
		a.counted = d.attempts.add()
	}
	if a.unleased != nil {
		d.ended(t, a, result{ending: lost, err: a.unleased})
		return
	}
	if a.withoutGone(d.left); len(a.calls) == 0 {
		d.queues.complete(t, a)
		d.conclude(a)
		return
	}
	if d.yields(t, a) {
		return
	}
	a.started = d.clock.Now()
	a.shared = a.lease.Outside() > 0
	d.send(t, a)
}

// ended takes what an attempt came to.
func (d *Dispatcher) ended(t *wire.Turn, a *attempt, r result) {
	if a.passed {
		d.watch.end(a)
		a.concluded = true
		a.then(t, r)
		return
	}
	d.decide(t, a, r)
	d.conclude(a)
}

// conclude ends what an attempt of the queue holds.
func (d *Dispatcher) conclude(a *attempt) {
	if a.concluded {
		return
	}
	a.concluded = true
	if a.counted {
		defer d.attempts.running.Done()
	}
	a.loan.end(a.lastWord)
	for _, c := range a.calls {
		c.req.Free()
	}
	if a.lease.Valid() {
		a.lease.Release()
	}
}

// mend ends an attempt that has panicked: its calls that have no answer are forwarded once more, without anything that is shared. Call it deferred.
func (d *Dispatcher) mend(a *attempt) {
	fault := recover()
	if fault == nil {
		return
	}
	if a.passed {
		d.watch.end(a)
		if a.concluded {
			recovered(d.o.Logger, "ending a request", fault)
			return
		}
		a.concluded = true
		a.then(nil, result{fault: fault})
		return
	}
	d.o.Logger.Error("executing a batch failed: its requests are forwarded one by one", "model", a.model.name, "fault", fmt.Sprint(fault), "stack", string(debug.Stack()))
	run, done := d.queues.takeBegun(a)
	d.forward(run)
	for _, c := range done {
		d.answer(nil, c, answer{err: errFault})
	}
	d.queues.complete(nil, a)
	d.conclude(a)
}

// send sends the attempt's request. Ended is called with the answer.
func (d *Dispatcher) send(t *wire.Turn, a *attempt) {
	a.line()
	joined, err := a.join()
	if err != nil {
		d.ended(t, a, result{ending: indivisible, err: err}) // equal keys that do not fit: a collision of hashes
		return
	}
	if a.passed {
		d.watch.begin(a)
	}
	a.joined, a.span = joined, a.newSpan()
	a.loan = d.lend(a, joined)
	if d.byHTTP(a) && d.askHTTP(a) {
		return
	}
	d.ask(t, a, a.loan.marshal(joined))
}

// sendOutside is send for an attempt outside the queue. If it panics, the attempt comes to that.
func (d *Dispatcher) sendOutside(t *wire.Turn, a *attempt) {
	defer d.mend(a)
	d.send(t, a)
}

// ask sends a request to the attempt's server. The attempt is another goroutine's from then on.
func (d *Dispatcher) ask(t *wire.Turn, a *attempt, request mem.BufferSlice) {
	ctx := a.span.Onward(a.context(d.background))
	a.partition.Conn().Start(ctx, t, methodInfer, request, func(t *wire.Turn, got *forward.Answer, err error) { d.received(t, a, got, err) })
}

// received takes the answer of the attempt's server.
func (d *Dispatcher) received(t *wire.Turn, a *attempt, got *forward.Answer, err error) {
	defer d.mend(a)
	var fault *forward.FaultError
	if errors.As(err, &fault) {
		panic(fault)
	}
	if a.loan.denied(d, a, err) {
		d.ask(t, a, a.joined.Marshal())
		return
	}
	a.lastWord = got.LastWord
	a.joined.Free()
	a.ended = d.clock.Now()
	outcome := err
	if err == nil && got.HTTP == nil && got.Frame.Data.Len() == 0 {
		outcome = batch.ErrCleared
	}
	a.span.End(a.ended, outcome)
	d.observe(a, outcome)
	if err == nil {
		a.model.took(a.ended.Sub(a.started), a.lease.Beside())
	}
	r := result{ending: endingOf(err, a.model.name), err: err, meta: got}
	if r.ending == answeredAll || r.ending == failed {
		a.answered(err)
	}
	switch {
	case err != nil:
	case got.HTTP != nil:
		r.parts = answerByHTTP(got.HTTP)
	default:
		if r.parts, r.err = a.split(got.Frame.Data); r.err != nil {
			r.ending = indivisible
		}
	}
	d.ended(t, a, r)
}

// completeLater frees the partition of a cancelled execution at its predicted end:
// most models do not check whether they are cancelled.
func (d *Dispatcher) completeLater(a *attempt, now time.Time) {
	left := (a.finish - d.queues.time(now)).Duration()
	if a.finish <= a.decided || left <= 0 || d.background.Err() != nil {
		d.queues.complete(nil, a)
		return
	}
	d.clock.After(left, func() { d.queues.complete(nil, a) })
}

// withoutGone takes out the calls that were abandoned since the batch was decided,
// and calls gone for each. A request whose caller has gone is not executed if that
// can be avoided.
func (a *attempt) withoutGone(gone func(*call)) {
	kept := a.calls[:0]
	for _, c := range a.calls {
		if c.is(left) {
			a.rows -= c.rows
			gone(c)
			c.req.Free()
			continue
		}
		kept = append(kept, c)
	}
	clear(a.calls[len(kept):])
	a.calls = kept
}

// join makes one request of the batch's. A request that is alone is sent
// unchanged, or as a row of its merge group.
func (a *attempt) join() (*batch.Request, error) {
	switch member := a.calls[0].member; {
	case member != nil && len(a.calls) == 1:
		return member.Request(a.calls[0].req), nil
	case member != nil:
		return batch.AssembleGroup(a.requests(), a.members())
	case len(a.calls) == 1:
		alone := a.calls[0].req
		alone.Ref()
		return alone, nil
	}
	return batch.Assemble(a.requests())
}

// split consumes the answer's buffers.
func (a *attempt) split(data mem.BufferSlice) ([]*batch.Response, error) {
	resp, err := batch.ReadResponse(data)
	if err != nil {
		return nil, err
	}
	if err := a.loan.claim(resp); err != nil {
		resp.Free()
		return nil, err
	}
	if err := resp.Err(); err != nil && len(a.calls) > 1 {
		resp.Free()
		return nil, err
	}
	if len(a.calls) == 1 {
		if member := a.calls[0].member; member != nil {
			member.Answer(resp)
		}
		return []*batch.Response{resp}, nil
	}
	defer resp.Free()
	if a.calls[0].member != nil {
		return batch.SplitGroup(resp, a.requests(), a.members())
	}
	return batch.Split(resp, a.requests())
}

func (a *attempt) requests() []*batch.Request {
	reqs := make([]*batch.Request, len(a.calls))
	for i, c := range a.calls {
		reqs[i] = c.req
	}
	return reqs
}

// context returns the context of an execution. A call that is alone is cancelled
// with its caller, unless memory is lent for it, and carries all its caller's metadata. A batch of several calls
// does not end with one caller's context, and carries the trace context of one of
// the callers. A server whose call is cancelled goes on, and says no last word to Conch.
func (a *attempt) context(ctx context.Context) context.Context {
	switch {
	case len(a.calls) == 1 && a.loan == nil:
		return onward(a.calls[0].ctx)
	case len(a.calls) == 1:
		return outgoing(ctx, a.calls[0].ctx)
	}
	for _, c := range a.calls {
		// Only this, and not all metadata, which would be copied for every call.
		if of := spans.Context(c.ctx); of.IsValid() {
			return spans.Onward(ctx, of)
		}
	}
	return ctx
}

// newSpan begins the span of an execution; nil if none of its calls has one.
func (a *attempt) newSpan() *spans.Execution {
	var of []*spans.Request
	for _, c := range a.calls {
		if c.span != nil {
			of = append(of, c.span)
		}
	}
	if of == nil {
		return nil
	}
	return spans.Execute(of, a.model.name, a.partition.ID(), a.rows, len(a.calls), a.started)
}

// observe reports an execution, if its time shows l(b), and learns what Conch itself adds to it.
func (d *Dispatcher) observe(a *attempt, err error) {
	if a.passed && (err != nil || !a.calls[0].keyed || a.wasAlone == 0 || a.wasAlone != a.lease.Alone()) {
		return
	}
	p := a.partition.Spec()
	var due time.Time
	for _, c := range a.calls {
		if !c.due.IsZero() && (due.IsZero() || c.due.Before(due)) {
			due = c.due
		}
	}
	d.o.Observer.Executed(Execution{
		Model: a.model.name, Partition: p.ID, GPUType: p.GPUType, ThreadPercentage: p.ThreadPercentage,
		Rows: a.rows, Requests: len(a.calls), Start: a.started, End: a.ended, Err: err,
		Deadline: due, Lent: a.loan.lent(), Between: a.between(), Shared: !a.passed && (a.shared || a.lease.Outside() > 0),
	})
	if err == nil && !a.passed {
		a.model.counts.executed(a.ended.Sub(a.started))
		d.queues.learn((d.queues.time(a.started) - a.decided).Duration())
	}
}

// answerOf returns the answer of one of an attempt's calls.
func (d *Dispatcher) answerOf(a *attempt, i int, r result) answer {
	c := a.calls[i]
	given := answer{series: d.seriesOf(a, c), started: a.started, ended: a.ended, rows: a.rows, retried: c.retried, passed: a.passed}
	if !a.passed {
		free := min(max(a.free, c.queued.Arrival), a.decided)
		given.waited, given.gathered = max(0, free-c.queued.Arrival).Duration(), (a.decided - free).Duration()
	}
	switch r.ending {
	case answeredAll:
		given.resp = r.parts[i]
	case lost:
		given.err = lostStatus(a.partition, r.err)
	case indivisible:
		given.err = status.Errorf(codes.Internal, "the answer of the partition cannot be read: %v", r.err)
	default:
		given.err = renamed(forward.Status(r.err).Err(), c.member)
	}
	return given
}

// seriesOf returns the counters of the call's model on the partition where the
// attempt ran.
func (d *Dispatcher) seriesOf(a *attempt, c *call) *partitionSeries {
	attached := a.lease.Attached()
	if c.member != nil && !a.passed { // the lease is the group's
		attached = d.router.AttachedOn(a.partition, c.model.name)
	}
	s, _ := attached.(*partitionSeries)
	return s
}

// answered counts the server's answer to the batch: for its model, or for every member of the merge group that has rows in it. Requests with
// equal keys are for the same version.
func (a *attempt) answered(err error) {
	for i, c := range a.calls {
		if i == 0 || c.member != nil && !slices.ContainsFunc(a.calls[:i], func(o *call) bool { return o.tally == c.tally }) {
			c.tally.answered(err, a.model.backend())
		}
	}
}

// members returns the memberships of the calls of a merge group's batch, in their
// order.
func (a *attempt) members() []*batch.Membership {
	all := make([]*batch.Membership, len(a.calls))
	for i, c := range a.calls {
		all[i] = c.member
	}
	return all
}

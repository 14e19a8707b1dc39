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
)

const methodInfer = tritonpb.GRPCInferenceService_ModelInfer_FullMethodName

// run is one batch on one partition.
type run struct {
	model   *model
	rules   *batch.Rules // of the model when it was decided
	process *router.Process
	lease   router.Lease
	refused error // there is no lease: the process is not up any more
	calls   []*call
	rows    int
	decided queue.Time
	finish  queue.Time // as predicted; decided: there is no prediction
	started time.Time
	loan    *loan // nil: none
	shared  bool  // something ran outside the queue when it started
}

// execute runs a batch, answers its calls and frees the partition.
func (d *Dispatcher) execute(b *run) {
	defer func() {
		if fault := recover(); fault != nil {
			d.rescue(b, fault)
		}
		b.loan.end()
		for _, c := range b.calls {
			c.req.Free()
		}
		if b.lease.Valid() {
			b.lease.Release()
		}
	}()
	if b.refused != nil {
		d.lost(b, b.calls, b.refused)
		return
	}
	if b.withoutGone(d.left); len(b.calls) == 0 {
		d.queues.complete(b)
		return
	}
	b.started = d.clock.Now()
	b.shared = b.lease.Outside() > 0

	joined, err := b.join()
	if err != nil {
		// Equal keys that do not fit: a collision of hashes.
		d.separately(b, err)
		return
	}
	span := b.span()
	ctx := span.Onward(b.context(d.background))
	b.loan = d.lend(b, joined)
	frame := batch.Frame{Data: b.loan.marshal(joined)}
	got, err := b.process.Conn().Call(ctx, methodInfer, &frame)
	if b.loan.refused(d, b, err) {
		frame = batch.Frame{Data: joined.Marshal()}
		got, err = b.process.Conn().Call(ctx, methodInfer, &frame)
	}
	joined.Free()
	end := d.clock.Now()
	outcome := err
	if err == nil && got.Frame.Data.Len() == 0 {
		outcome = batch.ErrCleared
	}
	span.End(end, outcome)
	d.observe(b, end, outcome)
	switch {
	case forward.Lost(err):
		d.lost(b, b.calls, err)
		return
	case forward.Unloaded(err, b.model.name):
		d.unloaded(b, b.calls, err)
		return
	}
	b.answered(err)
	switch {
	case err != nil && len(b.calls) > 1:
		// One request is bad, and Triton refused all of them: run each alone.
		d.separately(b, err)
		return
	case d.faulted(b, b.calls[0], err):
		d.again(b, b.calls, err)
		return
	case err != nil:
		d.answer(b.calls[0], d.ran(b, b.calls[0], nil, renamed(err, b.calls[0].member)))
		if b.calls[0].ctx.Err() == nil {
			d.queues.complete(b)
		} else {
			d.completeLater(b, end)
		}
		return
	}
	parts, err := b.split(got.Frame.Data)
	if err != nil {
		d.unsplittable(b, err)
		return
	}
	b.worked()
	d.queues.complete(b)
	for i, c := range b.calls {
		a := d.ran(b, c, parts[i], nil)
		if i == len(b.calls)-1 && b.finish > b.decided {
			a.promised = b.finish
		}
		d.answer(c, a)
	}
}

// completeLater frees the partition of a cancelled execution at its predicted end:
// most models do not check whether they are cancelled.
func (d *Dispatcher) completeLater(b *run, now time.Time) {
	left := (b.finish - d.queues.time(now)).Duration()
	if b.finish <= b.decided || left <= 0 || d.background.Err() != nil {
		d.queues.complete(b)
		return
	}
	d.clock.After(left, func() { d.queues.complete(b) })
}

// withoutGone takes out the calls that were abandoned since the batch was decided,
// and calls left for each. A request whose caller has gone is not executed if that
// can be avoided.
func (b *run) withoutGone(left func(*call)) {
	kept := b.calls[:0]
	for _, c := range b.calls {
		if c.state.Load() == abandoned {
			b.rows -= c.rows
			left(c)
			c.req.Free()
			continue
		}
		kept = append(kept, c)
	}
	clear(b.calls[len(kept):])
	b.calls = kept
}

// join makes one request of the batch's. A request that is alone is sent
// unchanged, or as a row of its merge group.
func (b *run) join() (*batch.Request, error) {
	switch member := b.calls[0].member; {
	case member != nil && len(b.calls) == 1:
		return member.Request(b.calls[0].req), nil
	case member != nil:
		return batch.AssembleGroup(b.requests(), b.members())
	case len(b.calls) == 1:
		alone := b.calls[0].req
		alone.Ref()
		return alone, nil
	}
	return batch.Assemble(b.requests())
}

// split consumes the answer's buffers.
func (b *run) split(data mem.BufferSlice) ([]*batch.Response, error) {
	resp, err := batch.ReadResponse(data)
	if err != nil {
		return nil, err
	}
	if err := b.loan.claim(resp); err != nil {
		resp.Free()
		return nil, err
	}
	if err := resp.Err(); err != nil && len(b.calls) > 1 {
		resp.Free()
		return nil, err
	}
	if len(b.calls) == 1 {
		if member := b.calls[0].member; member != nil {
			member.Answer(resp)
		}
		return []*batch.Response{resp}, nil
	}
	defer resp.Free()
	if b.calls[0].member != nil {
		return batch.SplitGroup(resp, b.requests(), b.members())
	}
	return batch.Split(resp, b.requests())
}

func (b *run) requests() []*batch.Request {
	reqs := make([]*batch.Request, len(b.calls))
	for i, c := range b.calls {
		reqs[i] = c.req
	}
	return reqs
}

// context returns the context of an execution. A call that is alone is cancelled
// with its caller, and carries all its caller's metadata. A batch of several calls
// does not end with one caller's context, and carries the trace context of one of
// the callers.
func (b *run) context(ctx context.Context) context.Context {
	if len(b.calls) == 1 {
		return onward(b.calls[0].ctx)
	}
	for _, c := range b.calls {
		// Only this, and not all metadata, which would be copied for every call.
		if of := spans.Context(c.ctx); of.IsValid() {
			return spans.Onward(ctx, of)
		}
	}
	return ctx
}

// span begins the span of an execution; nil if none of its calls has one.
func (b *run) span() *spans.Execution {
	var of []*spans.Request
	for _, c := range b.calls {
		if c.span != nil {
			of = append(of, c.span)
		}
	}
	if of == nil {
		return nil
	}
	return spans.Execute(of, b.model.name, b.process.ID(), b.rows, len(b.calls), b.started)
}

// alone begins the span of an execution of this call only; nil if it has none.
func (c *call) alone(p *router.Process, started time.Time) *spans.Execution {
	if c.span == nil {
		return nil
	}
	return spans.Execute([]*spans.Request{c.span}, c.req.Model, p.ID(), c.rows, 1, started)
}

// observe reports an execution and learns what Conch itself adds to it.
func (d *Dispatcher) observe(b *run, end time.Time, err error) {
	p := b.process.Spec()
	d.o.Observer.Executed(Execution{
		Model: b.model.name, Partition: p.ID, GPUType: p.GPUType, ThreadPercentage: p.ThreadPercentage,
		Rows: b.rows, Requests: len(b.calls), Start: b.started, End: end, Err: err,
		Lent: b.loan.size(), Shared: b.shared || b.lease.Outside() > 0,
	})
	if err == nil {
		b.model.counts.executed(end.Sub(b.started))
		d.queues.learn((d.queues.time(b.started) - b.decided).Duration())
	}
}

// unsplittable handles an answer that cannot be divided.
func (d *Dispatcher) unsplittable(b *run, err error) {
	if len(b.calls) == 1 {
		d.queues.complete(b)
		d.answer(b.calls[0], d.ran(b, b.calls[0], nil, status.Errorf(codes.Internal, "the answer of the partition cannot be read: %v", err)))
		return
	}
	if errors.Is(err, batch.ErrUnsplittable) && !b.model.unsplittable.Swap(true) {
		d.o.Logger.Warn("the model's answers do not have its rows: its requests run alone until its next route table", "model", b.model.name, "error", err)
	}
	d.separately(b, err)
}

// separately runs the calls of a batch one by one, on the partition that the
// batch still holds, so that one caller's bad request fails that caller alone.
func (d *Dispatcher) separately(b *run, cause error) {
	d.o.Logger.Debug("running a failed batch one by one", "model", b.model.name, "requests", len(b.calls), "error", cause)
	var again []*call // of a merge group that may be at fault
	last := cause
	for i, c := range b.calls {
		if c.state.Load() == abandoned {
			d.left(c)
			continue
		}
		started := d.clock.Now()
		frame := batch.Frame{Data: marshal(c.req, c.member)}
		span := c.alone(b.process, started)
		got, err := b.process.Conn().Call(span.Onward(onward(c.ctx)), methodInfer, &frame)
		span.End(d.clock.Now(), err)
		if forward.Lost(err) {
			d.lost(b, append(again, b.calls[i:]...), err)
			return
		}
		if forward.Unloaded(err, b.model.name) {
			d.unloaded(b, append(again, b.calls[i:]...), err)
			return
		}
		if err == nil {
			b.worked()
		}
		if d.faulted(b, c, err) {
			again, last = append(again, c), err
			continue
		}
		c.tally.answered(err, b.model.backend())
		a := answer{err: renamed(err, c.member), series: d.seriesOf(b, c), started: started, rows: c.rows, retried: c.retried}
		if err == nil {
			if a.resp, err = readAnswer(got.Frame.Data, c.member); err != nil {
				a.err = status.Errorf(codes.Internal, "the answer of the partition cannot be read: %v", err)
			}
		}
		d.answer(c, a)
	}
	if len(again) > 0 {
		d.again(b, again, last)
		return
	}
	d.queues.complete(b)
}

// rescue answers the calls of a batch whose execution panicked: each is
// forwarded once more, without anything that is shared.
func (d *Dispatcher) rescue(b *run, fault any) {
	d.o.Logger.Error("executing a batch failed: its requests are forwarded one by one", "model", b.model.name, "fault", fmt.Sprint(fault), "stack", string(debug.Stack()))
	for _, c := range b.calls {
		if c.state.Load() == waiting {
			d.answer(c, d.passThrough(c))
		}
	}
	d.queues.complete(b)
}

// ran returns the answer of an execution.
func (d *Dispatcher) ran(b *run, c *call, resp *batch.Response, err error) answer {
	return answer{resp: resp, err: err, series: d.seriesOf(b, c), started: b.started, rows: b.rows, retried: c.retried}
}

// seriesOf returns the counters of the call's model on the partition where the
// batch ran.
func (d *Dispatcher) seriesOf(b *run, c *call) *partitionSeries {
	attached := b.lease.Attached()
	if c.member != nil {
		attached = d.router.AttachedOn(b.process, c.model.name)
	}
	s, _ := attached.(*partitionSeries)
	return s
}

// answered counts the server's answer to the batch: for its model, or for every member of the merge group that has rows in it. Requests with
// equal keys are for the same version.
func (b *run) answered(err error) {
	for i, c := range b.calls {
		if i == 0 || c.member != nil && !slices.ContainsFunc(b.calls[:i], func(o *call) bool { return o.tally == c.tally }) {
			c.tally.answered(err, b.model.backend())
		}
	}
}

// members returns the memberships of the calls of a merge group's batch, in their
// order.
func (b *run) members() []*batch.Membership {
	all := make([]*batch.Membership, len(b.calls))
	for i, c := range b.calls {
		all[i] = c.member
	}
	return all
}

// lost handles a process that was lost during a batch. The process gets no more
// batches. The calls without an answer go back to the queue, once, each to run
// alone.
func (d *Dispatcher) lost(b *run, calls []*call, cause error) {
	if b.refused == nil {
		d.router.Lost(b.process, cause)
		d.o.Logger.Warn("a partition was lost under a batch", "partition", b.process.ID(), "model", b.model.name, "requests", len(calls), "error", cause)
	}
	for _, c := range d.giveBack(b, calls) {
		if c.retried {
			d.answer(c, d.ran(b, c, nil, lostStatus(b.process, cause)))
		} else {
			d.answer(c, d.passThrough(c))
		}
	}
}

// unloaded handles a server that no longer has the model, because it is ending or
// another client unloaded the model, before the route table shows it. The calls go
// back to the queue, once, for another place.
func (d *Dispatcher) unloaded(b *run, calls []*call, cause error) {
	for _, c := range d.giveBack(b, calls) {
		if c.retried && d.mayComeBack(b, c) {
			continue
		}
		if c.retried {
			c.tally.answered(forward.Status(cause).Err(), b.model.backend())
			d.answer(c, d.ran(b, c, nil, renamed(forward.Status(cause).Err(), c.member)))
		} else {
			d.answer(c, d.passThrough(c))
		}
	}
}

// giveBack puts calls back into the queue and returns those that cannot be queued.
// Abandoned calls are counted.
func (d *Dispatcher) giveBack(b *run, calls []*call) (hopeless []*call) {
	hopeless, gone := d.queues.giveBack(b, calls)
	for _, c := range gone {
		d.left(c)
	}
	return hopeless
}

func lostStatus(p *router.Process, cause error) error {
	return status.Errorf(codes.Unavailable, "partition %s was lost: %v", p.ID(), status.Convert(cause).Message())
}

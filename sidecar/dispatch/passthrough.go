// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// pass executes one request alone and at once, outside the queue. It does not wait: where its model has no place now, and for what follows an attempt that has
// to be repeated, there is passThrough. A request of a sequence goes there, too.
func (d *Dispatcher) pass(t *wire.Turn, c *call) {
	if router.SequenceOf(c.req) == nil && c.ctx.Err() == nil && d.mayExecute() {
		if lease, _, err := d.router.Acquire(c.req.Model, router.Hints{}); err == nil {
			d.passOn(t, c, lease)
			return
		}
	}
	d.aside(c, func() { d.answer(nil, c, d.passThrough(c)) })
}

// passOn makes the first attempt of pass, on a lease.
func (d *Dispatcher) passOn(t *wire.Turn, c *call, lease router.Lease) {
	a, refused := d.newOutside(c, lease)
	if refused.err != nil {
		lease.Release()
		d.answer(t, c, refused)
		return
	}
	a.counted = d.attempts.add()
	a.then = func(t *wire.Turn, r result) {
		if a.counted {
			defer d.attempts.running.Done()
		}
		defer d.rescue(c)
		given, now := d.judgedSafely(a, r)
		lease.Release()
		if now == giveAnswer {
			d.answer(t, c, given)
		} else {
			d.workers.start(func() {
				defer d.rescue(c)
				d.answer(nil, c, d.passAgain(c, router.Hints{Avoid: lease.Partition()}, 1, given))
			})
		}
	}
	d.sendOutside(t, a)
}

// passThrough executes one request alone and at once, outside the queue, and again on another place where the attempt says so. It waits for both. A request
// of a sequence has one attempt, because its state is on one server.
func (d *Dispatcher) passThrough(c *call) answer {
	return d.passAgain(c, router.Hints{Sequence: router.SequenceOf(c.req)}, 0, answer{})
}

// passAgain is passThrough after so many attempts that are to be repeated. Before is the answer of the last of them.
func (d *Dispatcher) passAgain(c *call, h router.Hints, repeats int, before answer) answer {
	retried := repeats > 0 || c.retried
	for moved := false; ; { // moved: the call was changed to one for another model
		if err := c.ctx.Err(); err != nil { // checked before the router notes a step of its sequence
			return answer{err: status.FromContextError(err).Err(), passed: true, retried: retried}
		}
		lease, none := c.lease(c.req.Model, h)
		if none.err != nil {
			if errors.Is(none.err, anothersError{}) {
				return d.handOn(c)
			}
			if !moved && status.Code(none.err) == codes.NotFound && d.elsewhere(c) != nil {
				moved = true
				continue
			}
			if before.err != nil && status.Code(before.err) != codes.Unavailable {
				return before // it has waited in vain for another place
			}
			none.err, none.passed, none.retried = d.unserved(c.req, none.err), true, retried
			return none
		}
		a, now := d.outside(c, lease)
		a.retried = retried
		before = a
		if now == giveAnswer || h.Sequence != nil || repeats > 0 && c.member == nil {
			return a
		}
		h.Avoid, retried = lease.Partition(), true
		repeats++
	}
}

// outside makes one attempt to execute one request outside the queue, on a lease, which it releases. It returns the answer that the attempt came to,
// and what is to be done next.
func (d *Dispatcher) outside(c *call, lease router.Lease) (answer, step) {
	defer lease.Release()
	return d.onto(c, lease)
}

// onto is outside on a lease that it does not release.
func (d *Dispatcher) onto(c *call, lease router.Lease) (answer, step) {
	a, refused := d.newOutside(c, lease)
	if refused.err != nil {
		return refused, giveAnswer
	}
	came := make(chan result, 1)
	a.then = func(_ *wire.Turn, r result) { came <- r }
	d.sendOutside(nil, a)
	r := <-came
	if r.fault != nil {
		panic(r.fault)
	}
	return d.judged(a, r)
}

// newOutside makes an attempt outside the queue, or an answer with an error, where the place does not have what the request asks for.
func (d *Dispatcher) newOutside(c *call, lease router.Lease) (a *attempt, refused answer) {
	c.member = lease.Membership()
	a = &attempt{model: c.model, partition: lease.Partition(), lease: lease, calls: []*call{c}, rows: c.rows, passed: true, started: d.clock.Now()}
	if c.member != nil {
		if c.req.Version != "" && c.req.Version != c.member.Version {
			err := status.Errorf(codes.NotFound, "Request for unknown model: '%s' version %s is not found", c.req.Model, c.req.Version)
			return nil, d.answerOf(a, 0, result{ending: failed, err: err})
		}
		if group := d.modelOf(c.member.Group); group != nil {
			a.model = group
		}
	}
	a.wasAlone = lease.Alone()
	return a, answer{}
}

// judged returns the answer that an attempt outside the queue came to, and what is to be done next.
func (d *Dispatcher) judged(a *attempt, r result) (answer, step) {
	now := d.judge(a, r)
	if r.ending == answeredAll {
		passBack(a.calls[0].ctx, r.meta)
	}
	return d.answerOf(a, 0, r), now
}

// judgedSafely is judged, or an answer with an error if that panics or the attempt has.
func (d *Dispatcher) judgedSafely(a *attempt, r result) (given answer, now step) {
	defer func() {
		if recovered(d.o.Logger, "executing a request", recover()) {
			given, now = answer{err: errFault}, giveAnswer
		}
	}()
	if r.fault != nil {
		panic(r.fault)
	}
	return d.judged(a, r)
}

// Pick leases a partition for a request that is proxied: the one that serves the
// model with the fewest calls under way, or any partition when model is empty.
// While no partition that serves the model is up, it waits as a request in the
// queue would, and for a model that loads on demand until it is loaded. Errors are
// gRPC status errors with Triton's text; UNIMPLEMENTED for a name that no server
// has a model of: an app's, or that of a model that runs merged with others.
//
// The request has arrived at its model then, as one row: Conch does not read it.
// Done must be called when the exchange is over, with its failure, or nil if the
// server's answer says that it succeeded. A failure is a gRPC status error, of code
// UNKNOWN if the server gave a text without a code, or one that is forward.Lost.
// Done reports the outcome. The outcome is never late, because how long a request
// takes depends on what it asks for. A request that names no model is not an
// inference request, and has no outcome.
func (d *Dispatcher) Pick(ctx context.Context, model string) (p router.PartitionSpec, done func(failure error), err error) {
	t := new(ticket)
	t.open(ctx, d, 0)
	if model != "" {
		if route, err := d.route(model); err == nil && !route.spec.Internal {
			t.model = route.model
		}
	}
	if a, ok := t.admit(0, 0); !ok { // its front counts its bytes
		return router.PartitionSpec{}, nil, a.err
	}
	if t.model != nil {
		t.model.counts.arrive(t.arrived)
		t.atModel, t.rows = true, 1
	}
	lease, a, ok := d.proxied(t, model)
	if !ok {
		t.withdraw()
		return router.PartitionSpec{}, nil, a.err
	}
	a = answer{started: d.clock.Now(), rows: 1, passed: true}
	if t.model != nil {
		d.o.Observer.Arrived(model, 1, t.arrived)
	}
	return *lease.Partition().Spec(), func(failure error) {
		if ctx.Err() == nil || failure == nil {
			t.proxiedTo(lease, model, failure)
		}
		lease.Release()
		if t.model == nil {
			t.withdraw()
			return
		}
		a.err = failure
		t.end(&a)
	}, nil
}

// proxiedTo reports to the place of a lease what a request that was proxied there came to. It is not tried again elsewhere: a part of its answer may have
// been sent.
func (t *ticket) proxiedTo(on router.Lease, model string, failure error) {
	switch endingOf(failure, model) {
	case answeredAll:
		on.Worked()
	case lost:
		if p := on.Partition(); t.d.router.Unreachable(p, failure) {
			t.d.o.Logger.Warn("a partition was lost under a request that is proxied", "partition", p.ID(), "model", model, "error", failure)
		} else {
			on.Faulted(failure, router.OfPlace)
		}
	case absent:
		on.Absent(failure)
	case failed:
		s := forward.Status(failure)
		if t.model != nil && forward.Faulted(failure) && !(s.Code() == codes.Unknown && forward.GaveUpText(s.Message())) {
			t.faulted(on, failure, s.Message(), 1, false)
		}
	case indivisible: // no answer is divided
	}
}

// onward returns the context of a call to Triton for a caller: with the caller's
// metadata, and cancelled with the caller's context, but without its deadline.
// Conch alone enforces the deadline; a server that enforced it too might decide
// otherwise.
func onward(caller context.Context) context.Context {
	if _, ok := caller.Deadline(); ok {
		return outgoing(withoutDeadline{caller}, caller)
	}
	return outgoing(caller, caller)
}

type withoutDeadline struct{ context.Context }

// Deadline implements context.Context.
func (withoutDeadline) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// outgoing puts the metadata that came in with a call on its way to Triton,
// without what belongs to one connection.
func outgoing(ctx, caller context.Context) context.Context {
	md, ok := metadata.FromIncomingContext(caller)
	if !ok {
		return ctx
	}
	out := make(metadata.MD, len(md))
	for k, v := range md {
		switch k {
		case ":authority", "content-type", "user-agent", "te", "host", "connection":
		default:
			if len(k) > 5 && k[:5] == "grpc-" {
				continue
			}
			out[k] = v
		}
	}
	return metadata.NewOutgoingContext(ctx, out)
}

// passBack returns Triton's metadata to a gRPC caller; for others it does
// nothing.
func passBack(ctx context.Context, a *forward.Answer) {
	if h := incoming(a.Header); len(h) > 0 {
		_ = grpc.SetHeader(ctx, h) // fails for callers that are not gRPC
	}
	if t := incoming(a.Trailer); len(t) > 0 {
		_ = grpc.SetTrailer(ctx, t)
	}
}

func incoming(md metadata.MD) metadata.MD {
	out := make(metadata.MD, len(md))
	for k, v := range md {
		if k != "content-type" && (len(k) < 5 || k[:5] != "grpc-") {
			out[k] = v
		}
	}
	return out
}

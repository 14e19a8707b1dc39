// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// passThrough forwards one request alone and at once, outside the queue. A request
// whose partition was lost is tried once more on another one. So is one whose
// model another client has unloaded there before the route table shows it. A
// request of a sequence is not, because its state was lost too.
func (d *Dispatcher) passThrough(c *call) answer {
	h := router.Hints{Sequence: router.SequenceOf(c.req)}
	moved := false // the call was changed to one for another model
	for {
		retried := h.Avoid != nil
		if err := c.ctx.Err(); err != nil { // checked before the router notes a step of its sequence
			return answer{err: status.FromContextError(err).Err(), passed: true, retried: retried}
		}
		lease, none := c.lease(c.req.Model, h)
		if none.err != nil {
			if !moved && status.Code(none.err) == codes.NotFound && d.elsewhere(c) != nil {
				moved = true
				continue
			}
			none.err, none.passed, none.retried = d.unserved(c.req, none.err), true, retried
			return none
		}
		a := d.passOn(c, lease)
		a.retried = retried
		serves := c.req.Model
		if a.member != nil {
			serves = a.member.Group
		}
		ending := endingOf(a.err, serves)
		if ending == answeredAll || h.Sequence != nil || c.ctx.Err() != nil {
			return a.final(lease.Process())
		}
		on := lease.Process()
		switch now := d.nextOutside(c, lease, &a, ending); {
		case a.member != nil && ending != lost:
			if now == giveAnswer || now == untilGone && !d.awaitGone(c, on.ID(), serves, d.o.OutageWait) {
				return a.final(on)
			}
		case now == giveAnswer || retried:
			return a.final(on)
		default:
			h.Avoid = on
		}
	}
}

// nextOutside decides what is done next with a request that was passed through and not answered.
func (d *Dispatcher) nextOutside(c *call, lease router.Lease, a *answer, how ending) step {
	switch {
	case how == failed:
		return d.blame(c, lease, 1, a.err)
	case how == absent && a.member != nil:
		c.absences++
		if c.absences > absencePatience || !d.awaitGone(c, lease.Process().ID(), a.member.Group, absencePause) && (c.ctx.Err() != nil || d.background.Err() != nil) {
			return giveAnswer
		}
	}
	return alone
}

// final makes the error of an answer that is not retried a plain status. Calls on a connection that Conch itself closed end as CANCELLED, which
// their callers did not do.
func (a answer) final(of *router.Process) answer {
	if a.err == nil {
		return a
	}
	if s := forward.Status(a.err); s.Code() == codes.Canceled && forward.Lost(a.err) {
		a.err = lostStatus(of, s.Err())
	}
	a.err = renamed(forward.Status(a.err).Err(), a.member)
	return a
}

// passOn forwards one request on a lease, which it releases.
func (d *Dispatcher) passOn(c *call, lease router.Lease) answer {
	defer lease.Release()
	series, _ := lease.Attached().(*partitionSeries)
	a := answer{series: series, started: d.clock.Now(), rows: c.rows, passed: true, member: lease.Membership()}
	if a.member != nil && c.req.Version != "" && c.req.Version != a.member.Version {
		a.err = status.Errorf(codes.NotFound, "Request for unknown model: '%s' version %s is not found", c.req.Model, c.req.Version)
		return a
	}
	frame := batch.Frame{Data: marshal(c.req, a.member)}
	begun := lease.Alone()
	span := c.alone(lease.Process(), a.started)
	got, err := lease.Process().Conn().Call(span.Onward(onward(c.ctx)), methodInfer, &frame)
	a.ended = d.clock.Now()
	span.End(a.ended, err)
	if err != nil {
		a.err = err // unchanged: passThrough decides by it whether to retry
		if forward.Lost(err) && c.ctx.Err() == nil {
			d.router.Lost(lease.Process(), err)
		} else {
			c.tally.answered(forward.Status(err).Err(), c.model.backend())
		}
		return a
	}
	c.tally.answered(nil, c.model.backend())
	lease.Worked()
	c.suspicion.succeeded(lease.Process())
	if got.Frame.Data.Len() > 0 && c.batch && begun > 0 && begun == lease.Alone() {
		d.observeAlone(c, lease, a.started)
	}
	passBack(c.ctx, got)
	if a.resp, err = readAnswer(got.Frame.Data, a.member); err != nil {
		a.err = status.Errorf(codes.Internal, "the answer of the partition cannot be read: %v", err)
	}
	return a
}

// observeAlone reports a request that was passed through and had the partition to
// itself as an execution. So profiles are learnt where nothing is batched yet.
func (d *Dispatcher) observeAlone(c *call, on router.Lease, started time.Time) {
	p, ran := on.Process().Spec(), c.req.Model
	if member := on.Membership(); member != nil {
		ran = member.Group
	}
	d.o.Observer.Executed(Execution{
		Model: ran, Partition: p.ID, GPUType: p.GPUType, ThreadPercentage: p.ThreadPercentage,
		Rows: c.rows, Requests: 1, Start: started, End: d.clock.Now(), Deadline: c.due,
	})
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
// server's answer says that it succeeded. Done reports the outcome. The outcome is
// never late, because how long a request takes depends on what it asks for. A
// request that names no model is not an inference request, and has no outcome.
func (d *Dispatcher) Pick(ctx context.Context, model string) (p router.Partition, done func(failure error), err error) {
	t := new(ticket)
	t.open(ctx, d, 0)
	if model != "" {
		if route, err := d.route(model); err == nil && !route.spec.Internal {
			t.model = route.model
		}
	}
	if a, ok := t.admit(0); !ok { // its front counts its bytes
		return router.Partition{}, nil, a.err
	}
	if t.model != nil {
		t.model.counts.begin(t.arrived)
		t.here, t.rows = true, 1
	}
	lease, a, ok := d.proxied(t, model)
	if !ok {
		t.withdraw()
		return router.Partition{}, nil, a.err
	}
	a = answer{started: d.clock.Now(), rows: 1, passed: true}
	if t.model != nil {
		d.o.Observer.Arrived(model, 1, t.arrived)
	}
	return *lease.Process().Spec(), func(failure error) {
		if failure == nil {
			lease.Worked()
		} else if ctx.Err() == nil && forward.Faulted(failure) {
			lease.Faulted(failure, false)
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

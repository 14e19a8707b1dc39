// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// step is what is done next with the calls of an attempt.
type step uint8

const (
	// giveAnswer: what the server said is their answer.
	giveAnswer step = iota
	// alone: each is queued again, to share no execution, on another place where there is one.
	alone
	// together: they are queued again as one batch, on another place.
	together
	// halves: they are queued again in two batches, to find the one that fails the others (pieces.go).
	halves
	// elsewhere: they wait until the table no longer has their merge group on the place.
	untilGone
)

// evidence is what next decides by.
type evidence struct {
	ending ending
	calls  int
	// fault: the error may be the fault of the place (forward.Faulted), and not only of a request.
	fault bool
	// dead: the model's process has died. One of the calls may have killed it.
	dead bool
	// row is how many executions on the place have failed in a row, this one included.
	row int
	// other: the model has another usable place.
	other bool
	// own: the failure is known as the fault of the model's requests. Repeated: the call has failed on another place before, alone or with the same
	// cause. A batch that failed for another cause may have held a bad request, which says nothing of this one.
	own, repeated bool
}

// next decides what is done with the calls of an attempt that a server has not answered. The calls of merge groups that are alone are decided on by
// nextInGroup.
func (e evidence) next() step {
	switch {
	case e.ending == lost, e.ending == absent, e.ending == indivisible:
		return alone // alone, because one of them may have crashed the server
	case e.calls == 1 && (!e.fault || !e.other || e.own || e.repeated || e.dead && e.row <= 1):
		return giveAnswer
	case e.calls == 1:
		return alone
	case e.dead:
		return alone
	case e.fault && e.other && !e.own && e.row > 1:
		return together // the place is suspected, not its requests
	}
	return halves
}

// suspicion is a fault of a place that one of its requests may have caused. They share it.
type suspicion struct {
	router.Fault
	text string
	// alone: the execution was of one request.
	alone bool
	// open is how many of several requests have not succeeded elsewhere. When all have, the place was at fault, and not one of them.
	open atomic.Int32
	// excuse takes the fault back.
	excuse func()
}

func suspect(f router.Fault, text string, calls int) *suspicion {
	s := &suspicion{Fault: f, text: text, alone: calls == 1, excuse: sync.OnceFunc(f.Excuse)}
	s.open.Store(int32(calls))
	return s
}

// succeeded counts a request of a failed batch that has succeeded on a process.
func (s *suspicion) succeeded(on *router.Process) {
	if s != nil && !s.On(on) && s.open.Add(-1) == 0 {
		s.Confirm()
	}
}

// decide gives the calls of an attempt their answers, or has them executed again. It gives the partition back to the scheduler.
func (d *Dispatcher) decide(a *attempt, r result) {
	switch r.ending {
	case answeredAll:
		a.lease.Worked()
		if a.model.failing.succeeded(len(a.calls)) {
			defer d.queues.renew(a.model)
		}
		d.forward(d.queues.found(a, true))
		d.queues.complete(a)
		for i, c := range a.calls {
			c.suspicion.succeeded(a.process)
			given := d.ran(a, c, r.parts[i], nil)
			if i == len(a.calls)-1 && a.finish > a.decided {
				given.promised = a.finish
			}
			d.answer(c, given)
		}
		return
	case lost:
		if a.refused == nil {
			d.router.Lost(a.process, r.err)
			d.o.Logger.Warn("a partition was lost under a batch", "partition", a.process.ID(), "model", a.model.name, "requests", len(a.calls), "error", r.err)
		}
	case indivisible:
		if len(a.calls) == 1 {
			d.queues.complete(a)
			d.answer(a.calls[0], d.ran(a, a.calls[0], nil, status.Errorf(codes.Internal, "the answer of the partition cannot be read: %v", r.err)))
			return
		}
		if errors.Is(r.err, batch.ErrUnsplittable) && !a.model.unsplittable.Swap(true) {
			d.o.Logger.Warn("the model's answers do not have its rows: its requests run alone until its next route table", "model", a.model.name, "error", r.err)
		}
	case failed:
		d.forward(d.queues.found(a, false))
		d.decideFailed(a, r)
		return
	}
	d.repeat(a, r, alone)
}

// decideFailed is decide for an attempt that its server answered with an error.
func (d *Dispatcher) decideFailed(a *attempt, r result) {
	c := a.calls[0]
	now := d.blame(c, a.lease, len(a.calls), r.err)
	for _, other := range a.calls[1:] {
		other.suspicion = c.suspicion
	}
	if now != giveAnswer {
		d.o.Logger.Debug("a failed batch runs again", "model", a.model.name, "requests", len(a.calls), "error", r.err)
		d.repeat(a, r, now)
		return
	}
	given := d.ran(a, c, nil, renamed(r.err, c.member))
	if a.lastWord || c.ctx.Err() == nil {
		if c.ctx.Err() == nil && a.model.failing.failed() {
			defer d.queues.renew(a.model)
		}
		d.queues.complete(a)
	} else {
		d.completeLater(a, d.clock.Now())
	}
	d.answer(c, given)
}

// blame reports a failed execution of n calls, of which c is one, to the place that it was on, and returns what is done next with them.
func (d *Dispatcher) blame(c *call, lease router.Lease, n int, err error) step {
	e := evidence{ending: failed, calls: n}
	if c.ctx.Err() != nil && n == 1 {
		return giveAnswer
	}
	if !forward.Faulted(err) {
		return e.next()
	}
	text, now := forward.Status(err).Message(), d.now()
	e.fault, e.dead = true, forward.DeadStub(text)
	// An answer of a model's own is nothing that another place would answer otherwise, as far as is known. It counts in the rate of the place.
	e.own = !e.dead && (c.model.failsByItself(text, now) || judgeError(err, c.model.backend()) == succeeded)
	process := lease.Process()
	var fault router.Fault
	switch {
	case e.own:
		e.row = lease.FaultedByItself(err)
	case n > 1 && !e.dead:
		fault, e.row = lease.Suspect(err)
	default:
		fault, e.row = lease.Faulted(err, e.dead)
	}
	before := c.suspicion
	elsewhere := n == 1 && before != nil && !before.On(process)
	same := elsewhere && sameCause(before.text, text)
	if e.repeated = same || elsewhere && before.alone; same {
		before.excuse() // it failed on two places: it is the request's own fault
		fault.Excuse()
		if e.row <= 1 { // else this place may be sick as well
			c.model.failsItself(text, now.Add(ownMemory))
		}
	} else if !e.own {
		c.suspicion = suspect(fault, text, n)
	}
	if n == 1 && d.o.GroupFaulted != nil && memberOf(c, lease) != nil {
		return d.nextInGroup(c, lease, e, err)
	}
	e.other = d.router.Other(process, c.req.Model)
	return e.next()
}

// repeat has the calls of an attempt executed again, and gives the partition back to the scheduler. Those that cannot be queued are forwarded, or
// answered with what the attempt came to if they have been sent twice.
func (d *Dispatcher) repeat(a *attempt, r result, how step) {
	if how == untilGone {
		d.waitUntilGone(a, r)
		return
	}
	hopeless, gone := d.queues.again(a, r.ending, how)
	for _, c := range gone {
		d.left(c)
	}
	for _, c := range hopeless {
		switch {
		case !c.retried || r.ending == failed || r.ending == indivisible:
			d.answer(c, d.safely(func() answer { return d.passThrough(c) }))
		case r.ending == lost:
			d.answer(c, d.ran(a, c, nil, lostStatus(a.process, r.err)))
		case !d.mayComeBack(a, c):
			c.tally.answered(forward.Status(r.err).Err(), a.model.backend())
			d.answer(c, d.ran(a, c, nil, renamed(forward.Status(r.err).Err(), c.member)))
		}
	}
}

// forward passes calls through that the scheduler has failed to queue.
func (d *Dispatcher) forward(calls []*call) {
	for _, c := range calls {
		c.req.Ref()
		forward := func() {
			defer c.req.Free()
			d.answer(c, d.safely(func() answer { return d.passThrough(c) }))
		}
		if !d.tasks.begin(forward) {
			forward()
		}
	}
}

// ownFault is a failure that is known as the fault of a model's requests: it happened on two places, or in a merge group and on the member.
type ownFault struct {
	text  string
	until time.Time
}

// ownMemory is how long a failure on two places is taken for the requests' own fault. It is short, because a sick server may fail with the same text,
// and because all that it saves is one execution for each request that fails. Failures on one place do not prolong it.
const ownMemory = 10 * time.Second

// failsItself notes a failure that is the fault of the model's requests.
func (m *model) failsItself(text string, until time.Time) {
	if own := m.ownFault.Load(); own == nil || own.text != text || own.until.Before(until) {
		m.ownFault.Store(&ownFault{text, until})
	}
}

// failsByItself reports whether a failure is known to be the fault of the model's requests.
func (m *model) failsByItself(text string, now time.Time) bool {
	own := m.ownFault.Load()
	return own != nil && own.text == text && !now.After(own.until)
}

// sameCause reports whether two errors of servers about one model have the same cause.
func sameCause(a, b string) bool { return cause(a) == cause(b) }

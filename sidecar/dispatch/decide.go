// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// step is what is done next with the calls of an attempt.
type step uint8

const (
	// giveAnswer: what the server said is their answer.
	giveAnswer step = iota
	// alone: each is executed again, and shares no execution, on another place where there is one.
	alone
	// together: they are queued again as one batch, on another place.
	together
	// halves: they are queued again in two batches, to find the one that fails the others (pieces.go).
	halves
)

// evidence is what next decides by.
type evidence struct {
	ending ending
	calls  int
	// spent: no server has answered them, and none of them may be sent again.
	spent bool
	// fault: the error may be the fault of the place (forward.Faulted), and not only of a request.
	fault bool
	// dead: the model's process has died. One of the calls may have killed it.
	dead bool
	// known: the failure is known as the fault of the model's requests. Repeated: the call has failed on another place before, alone or with the same
	// cause. A batch that failed for another cause may have held a bad request, which says nothing of this one.
	known, repeated bool
	// row is how many executions on the place have failed in a row, this one included.
	row int
	// other: the model has another usable place.
	other bool
	// group: the calls ran as rows of a merge group. Conch makes the groups itself, and their members can be served without them: no call fails because
	// of its group.
	group bool
	// ejected, gone: nothing runs on the place for now, or the table does not have it any more.
	ejected, gone bool
	// failures is how often the call has failed alone on this place of a group, this time included. Patient: its deadline for waits has not passed.
	failures int
	patient  bool
}

// groupFailures is how many failures of one request in a merge group, while others succeed, are the request's fault.
const groupFailures = 3

// next decides what is done with the calls of an attempt. It is the one place where that is decided, for all attempts.
func (e evidence) next() step {
	switch {
	case e.ending == answeredAll, e.spent:
		return giveAnswer
	case e.ending == lost, e.ending == absent, e.ending == indivisible && e.calls > 1:
		return alone // alone, because one of them may have crashed the server
	case e.calls > 1 && e.dead:
		return alone
	case e.calls > 1 && e.fault && e.other && !e.known && e.row > 1:
		return together // the place is suspected, not its requests
	case e.calls > 1:
		return halves
	case !e.fault, e.known, e.ending == indivisible:
		return giveAnswer
	case e.group && (e.gone || e.ejected && e.patient || !e.ejected && e.failures < groupFailures):
		return alone // by its members, once the place is ejected and they serve
	case e.group, !e.other, e.repeated, e.dead && e.row <= 1:
		return giveAnswer
	}
	return alone
}

// suspicion is a fault of a place that one of its requests may have caused. They share it.
type suspicion struct {
	router.Fault
	err  error  // the server's, without the name of a merge group
	text string // of it
	dead bool   // the model's process had died
	// alone: the execution was of one request.
	alone    bool
	failures int // as evidence has them
	// open is how many of several requests have not succeeded elsewhere. When all have, the place was at fault, and not one of them.
	open atomic.Int32
	// excuse takes the fault back.
	excuse func()
}

// succeeded counts a request of a failed batch that has succeeded under a lease.
func (s *suspicion) succeeded(on router.Lease) {
	if s != nil && !s.On(on) && s.open.Add(-1) == 0 {
		s.Confirm()
	}
}

// judge reports to the place of an attempt what the attempt came to, and decides what is done next with its calls.
func (d *Dispatcher) judge(a *attempt, r result) step {
	e := evidence{ending: r.ending, calls: len(a.calls)}
	switch r.ending {
	case answeredAll:
		a.lease.Worked()
		for _, c := range a.calls {
			c.suspicion.succeeded(a.lease)
		}
	case lost:
		if a.unleased == nil {
			d.router.Lost(a.partition, r.err)
			d.o.Logger.Warn("a partition was lost under requests", "partition", a.partition.ID(), "model", a.model.name, "requests", len(a.calls), "error", r.err)
		}
	case absent:
		a.lease.Absent(r.err)
	case indivisible:
		if errors.Is(r.err, batch.ErrUnsplittable) && !a.model.unsplittable.Swap(true) {
			d.o.Logger.Warn("the model's answers do not have its rows: its requests run alone until its next route table", "model", a.model.name, "error", r.err)
		}
	case failed:
		d.blame(a, r.err, &e)
	}
	if a.unleased == nil && (r.ending == lost || r.ending == absent) {
		for _, c := range a.calls {
			if !c.unanswered(r.ending) {
				a.spent = append(a.spent, c)
			}
		}
		e.spent = len(a.spent) == len(a.calls)
	}
	return e.next()
}

// absencePatience is how often a call is sent to servers that do not have its merge group, which is loaded again, or its members are, as soon as that is
// noticed. Meanwhile the place is passed over (router.Lease.Absent).
const absencePatience = 40

// unanswered counts an execution of the call that no server has answered, and reports whether the call may be sent once more.
func (c *call) unanswered(how ending) (again bool) {
	if how == absent && c.member != nil {
		c.absences++
		return c.absences <= absencePatience
	}
	again, c.retried = !c.retried, true
	return again
}

// blame reports a failed execution to its place, and adds what that shows to the evidence.
func (d *Dispatcher) blame(a *attempt, err error, e *evidence) {
	c := a.calls[0]
	if e.fault = forward.Faulted(err) && (e.calls > 1 || c.ctx.Err() == nil); !e.fault {
		return
	}
	named := renamed(forward.Status(err).Err(), c.member)
	text := status.Convert(named).Message()
	fault, known := c.faulted(a.lease, err, text, e.calls, c.member != nil)
	e.known, e.dead, e.group = known, forward.DeadStub(text), c.member != nil
	e.row, e.ejected, e.gone = fault.Row, fault.Ejected, fault.Gone
	now := &suspicion{Fault: fault, err: named, text: text, dead: e.dead, alone: e.calls == 1, failures: index(e.calls == 1), excuse: sync.OnceFunc(fault.Excuse)}
	now.open.Store(int32(e.calls))
	before, same := c.suspicion, false
	switch {
	case before == nil || e.calls > 1:
	case before.On(a.lease):
		now.failures += before.failures
	case !e.group: // two groups that fail alike say nothing of the request: Conch has made both
		same = sameCause(before.text, text) && !(before.OfGroup() && before.dead)
		e.repeated = same || before.alone
	}
	e.failures, e.patient = now.failures, d.now().Before(c.until)
	switch {
	case same: // it failed on two places: it is the request's own fault
		before.excuse()
		fault.Excuse()
		if before.OfGroup() {
			c.model.fails(before.text, true, d.now().Add(groupMemory))
		} else if e.row <= 1 { // else this place may be sick as well
			c.model.fails(text, false, d.now().Add(faultMemory))
		}
	case !e.known:
		for _, c := range a.calls {
			c.suspicion = now
		}
	}
	e.other = d.router.Other(a.partition, c.req.Model)
}

// faulted reports a failed execution of n requests, of which the ticket's is one, to the place of a lease. Known is whether the failure is known to be
// the requests' own: then it says little of the place.
func (t *ticket) faulted(on router.Lease, err error, text string, n int, inGroup bool) (f router.Fault, known bool) {
	dead := forward.DeadStub(text)
	// An answer of a model's own is nothing that another place would answer otherwise, as far as is known.
	known = !dead && (t.model.failsAs(text, inGroup, t.d.now()) || verdictOfError(err, t.model.backend()) == succeeded)
	of := router.OfPlace
	switch {
	case known:
		of = router.OfRequest
	case dead:
		of = router.OfPlaceForGood
	case n > 1:
		of = router.OfOneOfSeveral
	}
	return on.Faulted(err, of), known
}

// decide gives the calls of an attempt of the queue their answers, or has them executed again. It gives the executor back to the scheduler.
func (d *Dispatcher) decide(t *wire.Turn, a *attempt, r result) {
	now := d.judge(a, r)
	if r.ending == answeredAll || r.ending == failed {
		d.forward(d.queues.found(a, r.ending == answeredAll))
	}
	if now != giveAnswer {
		d.repeat(a, r, now)
		return
	}
	if r.ending == answeredAll && a.model.failing.succeeded(len(a.calls)) || r.ending == failed && a.calls[0].ctx.Err() == nil && a.model.failing.failed() {
		defer d.queues.renew(a.model)
	}
	if r.ending == failed && !a.lastWord && a.calls[0].ctx.Err() != nil {
		d.completeLater(a, d.clock.Now())
	} else {
		d.queues.complete(t, a)
	}
	for i, c := range a.calls {
		given := d.answerOf(a, i, r)
		if i == len(a.calls)-1 && r.ending == answeredAll && a.finish > a.decided {
			given.promised = a.finish
		}
		d.answer(t, c, given)
	}
}

// repeat has the calls of an attempt executed again, and gives the executor back to the scheduler. Those that cannot be queued are forwarded, or
// answered with what the attempt came to if they have been sent twice.
func (d *Dispatcher) repeat(a *attempt, r result, how step) {
	d.o.Logger.Debug("requests run again", "model", a.model.name, "requests", len(a.calls), "error", r.err)
	unqueued, gone := d.queues.again(a, how)
	d.forward(unqueued)
	for _, c := range gone {
		d.left(c)
	}
	for _, c := range a.spent {
		d.answer(nil, c, d.answerOf(a, slices.Index(a.calls, c), r))
	}
}

// forward passes calls through that cannot be queued. It takes over a reference to the request of each.
func (d *Dispatcher) forward(calls []*call) {
	for _, c := range calls {
		d.workers.start(func() {
			defer c.req.Free()
			d.answer(nil, c, d.safely(func() answer { return d.passThrough(c) }))
		})
	}
}

// knownFault is a failure that is known as the fault of a model's requests: it happened on two places, or in a merge group and on the member.
type knownFault struct {
	text  string
	until time.Time
}

// How long a failure is taken for the requests' own fault. After two places it is short, because a sick server may fail with the same text, and because
// all that it saves is one execution for each request that fails. After a merge group and the member it is long, because each group that is found at
// fault leaves the table for a while. Failures on one place do not prolong it.
const (
	faultMemory = 10 * time.Second
	groupMemory = 10 * time.Minute
)

// fails notes a failure, in a merge group or not, that is the fault of the model's requests.
func (m *model) fails(text string, inGroup bool, until time.Time) {
	of := &m.known[index(inGroup)]
	if known := of.Load(); known == nil || known.text != text || known.until.Before(until) {
		of.Store(&knownFault{text, until})
	}
}

// failsAs reports whether a failure is known to be the fault of the model's requests.
func (m *model) failsAs(text string, inGroup bool, now time.Time) bool {
	known := m.known[index(inGroup)].Load()
	return known != nil && known.text == text && !now.After(known.until)
}

// index is 1 for true.
func index(is bool) int {
	if is {
		return 1
	}
	return 0
}

// sameCause reports whether two errors of servers about one model have the same cause. Backends give most of their faults the same code.
func sameCause(a, b string) bool { return cause(a) == cause(b) }

// cause returns the part of a backend's error that says what went wrong, without the part that says where: instances and nodes have other names
// in a group, and a member's nodes may be in a branch there.
func cause(text string) string {
	const ofNode, ofInstance = " Status Message: ", ", message: "
	if i := strings.LastIndex(text, ofNode); i >= 0 {
		return text[i+len(ofNode):]
	}
	if _, after, ok := strings.Cut(text, ofInstance); ok {
		return after
	}
	return text
}

// renamed returns a server's error with the names of the member where the request ran as a row of a merge group.
func renamed(err error, member *batch.Membership) error {
	if err == nil || member == nil {
		return err
	}
	s := forward.Status(err)
	if text := member.Text(s.Message()); text != s.Message() {
		return status.Error(s.Code(), text)
	}
	return err
}

// lostStatus is the answer to a request that was sent twice to servers that did not answer.
func lostStatus(p *router.Partition, cause error) error {
	return status.Errorf(codes.Unavailable, "partition %s was lost: %v", p.ID(), status.Convert(cause).Message())
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// Conch makes the merge groups itself. A request whose execution fails in a group is therefore not answered with the failure while the group may
// be at fault. It runs again, alone. When executions of a group fail on a partition three times in a row, Options.GroupFaulted is called, which
// takes that place out of the route table. The requests that failed there wait for the new table. They run where the group still serves, or on
// their members. A failure there is the request's own failure. So is the third failure of a request while others succeed. If a request for which
// GroupFaulted was called fails on its member in the same way, the request was at fault, and not the group. Options.GroupCleared is called then,
// and such failures of that member's requests no longer count against the group.

// A group that a server has unloaded is loaded again, or its members are, as soon as that is noticed. Its requests wait for a short time.

// groupPatience is how many failed executions in a row are the group's fault. It is also how many failures of one request, while others succeed,
// are the request's fault.
const groupPatience = 3

// groupOwnMemory is how long a failure in a merge group is taken for the fault of a member's requests after one of them has failed in the same way on
// the member. It is long, because each group that is found at fault leaves the table for a while.
const groupOwnMemory = 10 * time.Minute

// A request waits at most absencePatience times, for absencePause each, for a group that its server has unloaded.
const (
	absencePatience = 40
	absencePause    = 250 * time.Millisecond
)

// memberOf describes how a call runs as a row of a merge group: in the queue, or on a lease outside it. Nil: it does not.
func memberOf(c *call, lease router.Lease) *batch.Membership {
	if m := lease.Membership(); m != nil {
		return m
	}
	return c.member
}

// nextInGroup decides what is done next with a call that has failed alone in a merge group, which may be at fault.
func (d *Dispatcher) nextInGroup(c *call, lease router.Lease, e evidence, err error) step {
	on, member := lease.Process(), memberOf(c, lease)
	if d.router.Retired(on) {
		return alone // the place is gone already; another process may have the partition's name
	}
	c.faults++
	if e.row < groupPatience {
		if c.faults < groupPatience {
			return alone
		}
		return giveAnswer
	}
	if e.own {
		return giveAnswer
	}
	s := forward.Status(err)
	c.blames = &blame{partition: on.ID(), group: member.Group, member: member, text: s.Message(), code: s.Code(), dead: e.dead}
	d.o.GroupFaulted(on.ID(), member.Group, err)
	return untilGone
}

// blame is a call's last failure for which Options.GroupFaulted was called.
type blame struct {
	partition, group, text string
	member                 *batch.Membership
	code                   codes.Code
	dead                   bool // the model's process had died
}

// clear calls Options.GroupCleared for a call that has its answer and for which Options.GroupFaulted was called, if the call has failed on its
// member in the same way: the request is at fault.
func (d *Dispatcher) clear(c *call, a *answer) {
	merged := c.member != nil
	if a.passed {
		merged = a.member != nil
	}
	s := forward.Status(a.err)
	if merged || a.series == nil || c.blames.dead || s.Code() != c.blames.code || s.Code() == codes.Unavailable || forward.DeadStub(s.Message()) {
		return
	}
	if !sameFault(c.blames.member, c.blames.text, s.Message()) { // backends give most of their faults the same code
		return
	}
	c.model.failsItself(c.blames.text, d.now().Add(groupOwnMemory))
	if d.o.GroupCleared != nil {
		d.o.GroupCleared(c.blames.partition, c.blames.group)
	}
}

// sameFault reports whether a failure in a merge group and one of its member are the same fault, by the texts of the servers' errors.
func sameFault(member *batch.Membership, inGroup, inMember string) bool {
	return member.Text(cause(inGroup)) == cause(inMember)
}

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

// waitUntilGone queues the calls of an attempt again once the table no longer has their merge group on the place.
func (d *Dispatcher) waitUntilGone(a *attempt, r result) {
	partition := a.process.ID()
	for _, c := range a.calls {
		c.req.Ref()
		failed := d.ran(a, c, nil, renamed(r.err, c.member))
		fail := func() {
			defer c.req.Free()
			d.answer(c, failed)
		}
		wait := func() {
			if d.awaitGone(c, partition, c.member.Group, d.o.OutageWait) {
				d.move(c)
			} else {
				fail()
			}
		}
		if !d.tasks.begin(wait) {
			fail()
		}
	}
	d.queues.complete(a)
}

// mayComeBack takes over a call whose merge group its server has unloaded, and reports whether it did. The call is queued again when the table
// has changed, or after absencePause.
func (d *Dispatcher) mayComeBack(a *attempt, c *call) bool {
	if c.absences++; c.member == nil || c.absences > absencePatience || c.ctx.Err() != nil {
		return false
	}
	c.req.Ref()
	partition, group := a.process.ID(), c.member.Group
	begun := d.tasks.begin(func() {
		d.awaitGone(c, partition, group, absencePause)
		d.move(c)
	})
	if !begun {
		c.req.Free()
	}
	return begun
}

// awaitGone waits until the table no longer has a merge group's place, or no longer runs the call's model in the group. It returns false if the
// limit passes, the caller's context ends, or the Dispatcher is closed before that.
func (d *Dispatcher) awaitGone(c *call, partition, group string, limit time.Duration) bool {
	since := d.clock.Now()
	for {
		t := d.routes.Load()
		if !t.runsIn(c.req.Model, group, partition) {
			c.faults = 0
			return true
		}
		left := limit - d.clock.Now().Sub(since)
		if left <= 0 || c.await(t.superseded, left) != changed {
			return false
		}
	}
}

// runsIn reports whether a model runs in a merge group that has a place on a partition.
func (t *routes) runsIn(model, group, partition string) bool {
	member, in := t.models[model], t.models[group]
	return member != nil && in != nil && member.spec.Membership != nil && member.spec.Membership.Group == group &&
		slices.ContainsFunc(in.spec.Places, func(p router.Place) bool { return p.Partition == partition })
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"slices"
	"strings"
	"sync/atomic"
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

// A request waits at most absencePatience times, for absencePause each, for a group that its server has unloaded.
const (
	absencePatience = 40
	absencePause    = 250 * time.Millisecond
)

// faultsOf returns the counter of a merge group's executions that failed on a process in a row. For a place that is gone it returns a new
// counter.
func (d *Dispatcher) faultsOf(p *router.Process, group string) *atomic.Int32 {
	if s, ok := d.router.AttachedOn(p, group).(*partitionSeries); ok {
		return &s.faults
	}
	return new(atomic.Int32)
}

// worked resets the count of failures in a row after an execution of a merge group that succeeded.
func (b *run) worked() {
	if b.calls[0].member == nil {
		return
	}
	if s, ok := b.lease.Attached().(*partitionSeries); ok {
		s.faults.Store(0)
	}
}

// faulted counts a failed execution of one call, and reports whether the call is to run again because its merge group may be at fault.
func (d *Dispatcher) faulted(b *run, c *call, err error) bool {
	if c.member == nil {
		return false
	}
	s, ok := b.lease.Attached().(*partitionSeries)
	return ok && d.mayBeTheGroup(c, &s.faults, b.process, c.member, err)
}

func (d *Dispatcher) mayBeTheGroup(c *call, faults *atomic.Int32, on *router.Process, member *batch.Membership, err error) bool {
	if d.o.GroupFaulted == nil || c.ctx.Err() != nil || !forward.Faulted(err) {
		return false
	}
	if d.router.Retired(on) {
		return true // the place is gone already; another process may have the partition's name
	}
	c.faults++
	text := forward.Status(err).Message()
	dead := forward.DeadStub(text)
	if !dead && c.model.failsBySelf(text, d.now()) {
		return c.faults < groupPatience && faults.Load() < groupPatience
	}
	n := faults.Add(1)
	if n < groupPatience && dead { // the model's process has died
		n = groupPatience
		faults.Store(n)
	}
	if n < groupPatience {
		return c.faults < groupPatience
	}
	c.blames = &blame{partition: on.ID(), group: member.Group, member: member, text: text, code: forward.Status(err).Code(), dead: dead}
	d.o.GroupFaulted(on.ID(), member.Group, err)
	return true
}

// blame is a call's last failure for which Options.GroupFaulted was called.
type blame struct {
	partition, group, text string
	member                 *batch.Membership
	code                   codes.Code
	dead                   bool // the model's process had died
}

// ownFault is a failure in a merge group that is the fault of a member's requests: one of them failed on the member as well.
type ownFault struct {
	text string
	last time.Time // when a request last failed on the member
}

// ownMemory is how long an ownFault is valid after the last request that failed on the member. Failures in the group do not prolong it: a group
// that is at fault may fail with the same text.
const ownMemory = 10 * time.Minute

// failsBySelf reports whether a failure in a merge group is known to be the fault of the model's requests.
func (m *model) failsBySelf(text string, now time.Time) bool {
	own := m.ownFault.Load()
	return own != nil && own.text == text && now.Sub(own.last) <= ownMemory
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
	c.model.ownFault.Store(&ownFault{c.blames.text, d.now()})
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

// again runs the calls of a merge group's failed execution again. If the group is at fault, the calls wait until its place is out of the table.
// Otherwise they are queued at once, each to run alone.
func (d *Dispatcher) again(b *run, calls []*call, cause error) {
	s, _ := b.lease.Attached().(*partitionSeries)
	if s.faults.Load() < groupPatience || d.router.Retired(b.process) {
		hopeless, gone := d.queues.repeat(b, calls)
		for _, c := range gone {
			d.left(c)
		}
		for _, c := range hopeless {
			d.answer(c, d.safely(func() answer { return d.passThrough(c) }))
		}
		return
	}
	partition := b.process.ID()
	for _, c := range calls {
		c.req.Ref()
		failed := d.ran(b, c, nil, renamed(cause, c.member))
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
	d.queues.complete(b)
}

// againOutside reports whether a request that was passed through is to be passed through again because its merge group may be at fault or
// unloaded. It waits first, as again does.
func (d *Dispatcher) againOutside(c *call, lease router.Lease, a *answer) bool {
	if a.member == nil || a.err == nil {
		return false
	}
	partition, group := lease.Process().ID(), a.member.Group
	if forward.Unloaded(a.err, group) {
		c.absences++
		return c.absences <= absencePatience && (d.awaitGone(c, partition, group, absencePause) || c.ctx.Err() == nil && d.background.Err() == nil)
	}
	faults := d.faultsOf(lease.Process(), group)
	if !d.mayBeTheGroup(c, faults, lease.Process(), a.member, a.err) {
		return false
	}
	return faults.Load() < groupPatience || d.router.Retired(lease.Process()) || d.awaitGone(c, partition, group, d.o.OutageWait)
}

// mayComeBack takes over a call whose merge group its server has unloaded, and reports whether it did. The call is queued again when the table
// has changed, or after absencePause.
func (d *Dispatcher) mayComeBack(b *run, c *call) bool {
	if c.absences++; c.member == nil || c.absences > absencePatience || c.ctx.Err() != nil {
		return false
	}
	c.req.Ref()
	partition, group := b.process.ID(), c.member.Group
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
	patience := make(chan struct{})
	timer := d.clock.After(limit, func() { close(patience) })
	defer timer.Stop()
	for {
		t := d.routes.Load()
		if !t.runsIn(c.req.Model, group, partition) {
			c.faults = 0
			return true
		}
		select {
		case <-t.superseded:
		case <-c.ctx.Done():
			return false
		case <-d.background.Done():
			return false
		case <-patience:
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

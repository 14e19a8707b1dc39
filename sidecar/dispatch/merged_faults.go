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

// A merge group is Conch's own doing: a request whose execution fails in one is not answered with the failure as long as it may be the
// group's. It runs again, alone. Where executions of the group fail on a partition three times in a row, without one that succeeds between,
// Options.GroupFaulted is told, who takes that place out of the route table; the requests that have failed there wait for that, and run
// where the group still serves, or on their members. What fails there too is the request's own failure, and so is what fails three times
// while others succeed. A request whose failures took a group out, and that fails on its member in the same way, was at fault, and not the
// group: Options.GroupCleared is told, and such failures of that member's requests are not held against the group any more.

// A group that a server does not have any more is loaded again, or its members are, as soon as that is seen: its requests wait a little.

// groupPatience is how many executions in a row make it the group's fault, and how often one request may fail while others succeed.
const groupPatience = 3

// A request waits so often so long for a group that its server has unloaded.
const (
	absencePatience = 40
	absencePause    = 250 * time.Millisecond
)

// faultsOf counts the executions of a merge group that failed on a process in a row. Of a place that is gone it counts nothing.
func (d *Dispatcher) faultsOf(p *router.Process, group string) *atomic.Int32 {
	if s, ok := d.router.AttachedOn(p, group).(*partitionSeries); ok {
		return &s.faults
	}
	return new(atomic.Int32)
}

// worked notes that an execution of a merge group succeeded.
func (b *run) worked() {
	if b.calls[0].member == nil {
		return
	}
	if s, ok := b.lease.Attached().(*partitionSeries); ok {
		s.faults.Store(0)
	}
}

// faulted takes in how an execution of one call ended, and reports whether the call is to run again because its merge group may be at
// fault.
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
		return true // it fails there no more; another may have the partition's name
	}
	c.faults++
	text := forward.Status(err).Message()
	dead := forward.DeadStub(text)
	if !dead && c.model.failsBySelf(text, d.now()) {
		return c.faults < groupPatience && faults.Load() < groupPatience
	}
	n := faults.Add(1)
	if n < groupPatience && dead { // it answers nobody any more
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

// blame is the last failure of a call in a merge group that was held against the group.
type blame struct {
	partition, group, text string
	member                 *batch.Membership
	code                   codes.Code
	dead                   bool // nobody was answered any more
}

// ownFault is how requests to a member of a merge group fail in the group by their own fault: one of them failed on the member as well.
type ownFault struct {
	text string
	last time.Time // that one failed on the member
}

// ownMemory is how long it is known of requests to a member that they fail by their own fault, after the last one that failed on the member. It is
// not made longer by failures in the group: a group that is at fault may fail with the same text.
const ownMemory = 10 * time.Minute

// failsBySelf reports whether a failure in a merge group is one of those that are known to be the requests' own fault.
func (m *model) failsBySelf(text string, now time.Time) bool {
	own := m.ownFault.Load()
	return own != nil && own.text == text && now.Sub(own.last) <= ownMemory
}

// clear takes back what was held against a merge group for a call that has its answer, if that is a failure of its member: the request is at
// fault.
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

// sameFault reports whether a failure in a merge group and one of its member are the same fault, by what servers say of them.
func sameFault(member *batch.Membership, inGroup, inMember string) bool {
	return member.Text(cause(inGroup)) == cause(inMember)
}

// cause is what a backend says went wrong, without what it says of where: instances and nodes have other names in a group, and a member's
// nodes may be in a branch there.
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

// again has calls of a merge group's execution that failed run again: at once, each alone, or once the place is gone where it is at fault.
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

// againOutside is again for a request that was passed through.
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

// mayComeBack takes over a call whose merge group its server has unloaded: it is queued again when the table has changed, or after a while.
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

// awaitGone waits until the table does not have a merge group's place any more, or the call's model does not run in the group. It is false
// where that does not come to pass within the patience, or the caller has gone.
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

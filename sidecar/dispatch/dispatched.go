// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"slices"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// sink receives the scheduler's decisions, with the lock held.
type sink struct{ q *queues }

// Dispatch implements queue.Sink.
func (s sink) Dispatch(b *queue.Batch) {
	q := s.q
	m, p := q.byID[b.Model], q.numbered[b.Executor]
	at := &attempt{model: m, rules: m.rules, partition: p.partition, on: p, rows: b.Rows, decided: b.Start, finish: b.Finish, free: b.Free, calls: make([]*call, len(b.Requests))}
	at.lease, at.unleased = q.router.Take(at.partition, m.name)
	for i, request := range b.Requests {
		c := request.Tag.(*call)
		c.set(running)
		if c.piece != nil {
			c.piece.begun = true
		}
		c.req.Ref() // the attempt's own reference: the caller may return before it ends
		at.calls[i], c.at = c, at
	}
	p.running = at
	q.d.watch.soon()
	at.after, q.outbox = q.outbox, at
}

// Drop implements queue.Sink.
func (s sink) Drop(r *queue.Request, why queue.DropReason) { s.q.dropped(r.Tag.(*call), why) }

// complete reports to the scheduler that an attempt's executor is free, and marks its calls as done that their callers have not left. Further calls do
// nothing. What the scheduler decides next begins in the turn.
func (q *queues) complete(t *wire.Turn, a *attempt) {
	q.mu.Lock()
	defer q.unlockOn(t)
	for _, c := range a.calls {
		if c.at == a && c.is(running) {
			c.set(done)
		}
	}
	q.completed(a)
}

// completed is the first part of complete, for a caller that holds mu.
func (q *queues) completed(a *attempt) {
	if a.over {
		return
	}
	a.over = true
	p := a.on
	strayed := p.running == a && q.strayed(p.partition)
	if p.running == a {
		p.running = nil
	}
	if strayed { // before the executor is free: another one may wait for the end of its batch
		q.offerAll(p.partition)
	}
	q.do(func(s *queue.Scheduler) error { s.Complete(q.now(), p.id); return nil })
	if p.retired {
		q.removeIdle(p)
	}
}

// again puts the calls of an attempt back into the queue, to be executed as step says, and completes the attempt. Calls that no server has seen, because
// the partition went down before, are queued as they were. Those in a.spent are left to the caller. Unqueued are the calls that cannot be queued, because
// no partition serves their model, or the scheduler has failed or is closed, with a reference to the request of each. Gone are those that their callers
// have left.
func (q *queues) again(a *attempt, how step) (unqueued, gone []*call) {
	q.mu.Lock()
	defer q.unlock()
	var back []*call
	for _, c := range a.calls {
		switch {
		case c.is(left):
			gone = append(gone, c)
		case slices.Contains(a.spent, c):
		case a.model.out || q.closed:
			c.at = nil
			c.req.Ref()
			unqueued = append(unqueued, c)
		default:
			back = append(back, c)
		}
	}
	a.spent = slices.DeleteFunc(a.spent, func(c *call) bool { return c.is(left) })
	avoid := a.on.server()
	q.completed(a)
	switch {
	case len(back) == 0:
		return unqueued, gone
	case a.unleased == nil:
		for _, c := range back {
			c.queued.Expiry = queue.Never // it was executed in time
		}
	}
	switch {
	case a.unleased != nil:
		for _, c := range back {
			c.queued.Avoid = queue.NoExecutor
		}
	case how == together:
		q.separate(back, avoid)
	case how == halves:
		slices.SortStableFunc(back, func(x, y *call) int { return cmp.Compare(x.queued.Deadline, y.queued.Deadline) }) // attempt.line may have another order
		q.divide(back, avoid)
	default:
		for i := range back {
			q.separate(back[i:i+1], avoid)
		}
	}
	return append(unqueued, q.requeue(a.model, back)...), gone
}

// requeue puts calls that were running back into a model's queue, and returns the
// calls that the scheduler did not take because it has failed, with a reference to the request of each. Guarded by mu.
func (q *queues) requeue(m *model, calls []*call) (untaken []*call) {
	for _, c := range calls {
		c.at = nil
		c.set(queued)
		q.expects(m, c)
	}
	q.do(func(s *queue.Scheduler) error {
		now := q.now()
		s.Reconfigure(now, func() {
			for _, c := range calls {
				s.Requeue(now, m.id, &c.queued)
			}
		})
		return nil
	})
	if q.fault == nil {
		return nil
	}
	for _, c := range calls {
		if c.is(queued) { // else it was dispatched, or dropped, before the fault
			c.set(running)
			c.req.Ref()
			untaken = append(untaken, c)
		}
	}
	return untaken
}

// takeBegun takes the calls out of an attempt that have no answer: those that still run, with a reference to the request of each, and those that it has
// marked as done.
func (q *queues) takeBegun(a *attempt) (run, marked []*call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, c := range a.calls {
		switch {
		case c.at != a:
		case c.is(running):
			c.at = nil
			c.req.Ref()
			run = append(run, c)
		case c.is(done) && !c.given: // who has marked it so gives it its answer
			marked = append(marked, c)
		}
	}
	return run, marked
}

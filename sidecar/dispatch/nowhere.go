// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"time"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// While a model has no usable place, its requests in the queue wait for one, as those outside the queue do (ticket.await), and each waits until its own timeout at
// most. Once there is a place, the model's SLO and its policies decide again.

// expiries ends these waits. Guarded by queues.mu.
type expiries struct {
	at    time.Time   // of the timer; zero: it does not run
	timer clock.Timer // nil: it never ran
	ended time.Time   // when waits were ended last
}

// expiryPause is the least time between two looks at all that waits.
const expiryPause = 10 * time.Millisecond

// setNowhere notes whether a model has a usable place, and reports whether it has lost the last one. Guarded by mu.
func (q *queues) setNowhere(m *model) (lost bool) {
	had := !m.nowhere
	m.nowhere = !q.router.Other(nil, m.name)
	return had && m.nowhere
}

// followUsable is setNowhere for the models of a partition. Where one has lost its last place, it ends the waits that are over. Guarded by mu.
func (q *queues) followUsable(of *router.Partition) {
	lost := false
	for _, p := range q.executors[of] {
		for _, sv := range p.serves.Serves {
			if m := q.byID[sv.Model]; m != nil {
				lost = q.setNowhere(m) || lost
			}
		}
	}
	if lost { // else it would look at all that waits for nothing
		q.endWaits()
	}
}

// endWaits ends the waits of queued calls whose timeout has passed and whose model has no usable place, and has itself called for those whose timeout will.
// Guarded by mu.
func (q *queues) endWaits() {
	if q.closed || q.fault != nil {
		return
	}
	now := q.clock.Now()
	var over []*call
	var next time.Time
	for c := q.waits.first; c != nil; c = c.next {
		switch at := c.expires(); {
		case at.IsZero() || !c.executes.nowhere:
		case !now.Before(at):
			over = append(over, c)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	q.expiries.ended = now
	for _, c := range over {
		q.do(func(s *queue.Scheduler) error { s.Cancel(q.now(), &c.queued); return nil })
		if c.is(queued) { // else something was due that the scheduler did first
			c.set(done)
			q.answers = append(q.answers, dropped{c, answer{err: errExpired, result: Dropped, reason: reasonTimeout}})
		}
	}
	if !next.IsZero() {
		q.endWaitsAt(next)
	}
}

// expects has the wait of a call that is queued for a model end at the call's timeout, if the model has no usable place. Guarded by mu.
func (q *queues) expects(m *model, c *call) {
	if at := c.expires(); m.nowhere && !at.IsZero() {
		q.endWaitsAt(at)
	}
}

// endWaitsAt has endWaits called at a moment, or soon after it. Guarded by mu.
func (q *queues) endWaitsAt(at time.Time) {
	e := &q.expiries
	if soonest := e.ended.Add(expiryPause); at.Before(soonest) {
		at = soonest
	}
	if !e.at.IsZero() && !at.Before(e.at) {
		return
	}
	if e.timer != nil {
		e.timer.Stop()
	}
	e.at = at
	e.timer = q.clock.After(max(0, at.Sub(q.clock.Now())), func() {
		q.mu.Lock()
		defer q.unlock()
		q.expiries.at = time.Time{}
		q.endWaits()
	})
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"slices"
	"time"
)

// payload is what one instance executes at once.
type payload struct {
	requests []*request
	rows     int
	// closed: nothing may join any more, because a request of another shape waits behind. saturated: the batcher is done growing it.
	closed bool
	taken  bool
	oldest time.Time
}

// batcher is Triton's rule for what goes together and when, as plain state: the caller holds a lock and passes the time in. Without
// dynamic batching every request is a payload of its own, first come, first served. With it requests join the newest payload that no
// instance has taken, until that is full, has a preferred size, or the next request has another shape; a payload becomes available to
// the instances when that happens, or when its oldest request has waited for delay. Up to two payloads per instance are made ahead, unless
// there are queue policies: then requests wait in line until an instance is free.
type batcher struct {
	dynamic      bool
	maxBatch     int
	preferred    []int // ascending
	delay        time.Duration
	instances    int
	equalShapes  bool            // the model has variable dimensions: only equal shapes may share a batch
	ragged       map[string]bool // inputs whose shapes need not be equal
	waiting      []*request
	ready        []*payload
	current      *payload
	saturated    bool // of current
	policies     *policies
	idle         int // instances that wait for a payload; it counts only with policies
	dropCanceled func(*request)
	dropExpired  func(*request)
}

// add takes a request in, or refuses it when its queue is full. The caller calls form next.
func (b *batcher) add(r *request) *Error {
	if !b.dynamic {
		b.ready = append(b.ready, &payload{requests: []*request{r}, rows: max(1, r.rows), oldest: r.enqueued})
		return nil
	}
	if b.policies == nil {
		b.waiting = append(b.waiting, r)
		return nil
	}
	if err := b.policies.enter(r, b.waiting); err != nil {
		return err
	}
	b.waiting = insert(b.waiting, r)
	return nil
}

// ahead is how many payloads may be ready.
func (b *batcher) ahead() int {
	if b.policies != nil {
		return b.idle
	}
	return 2 * b.instances
}

// expire lets the policies look at the line, and says how long until they want to again.
func (b *batcher) expire(now time.Time) time.Duration {
	if b.policies == nil {
		return 0
	}
	left, rejected, next := b.policies.expire(b.waiting, now)
	b.waiting = left
	for _, r := range rejected {
		b.dropExpired(r)
	}
	return next
}

// form makes the payloads that the rule allows at now, and says after what time it wants to be asked again: 0 means only after the next
// add or take.
func (b *batcher) form(now time.Time) time.Duration {
	for b.dynamic && len(b.ready) < b.ahead() {
		expiring := b.expire(now)
		b.dropGone()
		if len(b.waiting) == 0 {
			return 0
		}
		if b.current == nil || b.saturated || b.current.taken {
			b.current, b.saturated = &payload{}, false
		}
		n, wait := b.next(now)
		if n == 0 {
			if wait == 0 { // nothing fits the current payload, which next has marked: start another one
				continue
			}
			if expiring > 0 {
				wait = min(wait, expiring)
			}
			return wait
		}
		p := b.current
		if len(p.requests) == 0 {
			p.oldest = b.oldest(n)
			b.ready = append(b.ready, p)
		}
		for _, r := range b.waiting[:n] {
			p.rows += max(1, r.rows)
		}
		p.requests = append(p.requests, b.waiting[:n]...)
		clear(b.waiting[:n])
		b.waiting = b.waiting[n:]
	}
	return 0
}

// dropGone removes requests whose callers have gone from the head of the queue, as far as one batch can reach: Triton does that for
// queued requests under dynamic batching alone.
func (b *batcher) dropGone() {
	for i := 0; i < len(b.waiting) && i < b.maxBatch; {
		r := b.waiting[i]
		if r.ctx.Err() == nil {
			i++
			continue
		}
		b.waiting = slices.Delete(b.waiting, i, i+1)
		b.dropCanceled(r)
	}
}

// next says how many of the waiting requests join the current payload now, or how long to wait for more.
func (b *batcher) next(now time.Time) (int, time.Duration) {
	p := b.current
	largest := b.preferred[len(b.preferred)-1]
	n, rows, best := 0, 0, 0
	full := false
	for _, r := range b.waiting {
		size := max(1, r.rows)
		if p.rows+rows > 0 {
			if p.rows+rows+size > largest && best == 0 {
				best = n
				b.saturated = true
			}
			if p.rows+rows+size > b.maxBatch {
				full = true
				break
			}
			if b.equalShapes && !b.sameShapes(b.firstOf(p), r) {
				p.closed, full = true, true
				break
			}
		}
		n, rows = n+1, rows+size
		if slices.Contains(b.preferred, p.rows+rows) {
			best = n
		}
	}
	age := now.Sub(b.oldest(len(b.waiting)))
	overdue := b.delay > 0 && age >= b.delay
	if best > 0 && !overdue {
		if b.delay == 0 {
			b.saturated = true
		}
		return best, 0
	}
	if full || p.rows+rows >= largest {
		b.saturated = true
		return n, 0
	}
	if overdue || b.delay == 0 {
		return n, 0
	}
	if !b.saturated && p.rows > 0 && !slices.Contains(b.preferred, p.rows) {
		return n, 0 // a payload not yet taken may as well grow
	}
	return 0, b.delay - age
}

// oldest is when the first of the n requests in front came. Policies may have put it behind others.
func (b *batcher) oldest(n int) time.Time {
	first := b.waiting[0].enqueued
	if b.policies != nil {
		for _, r := range b.waiting[1:n] {
			if r.enqueued.Before(first) {
				first = r.enqueued
			}
		}
	}
	return first
}

func (b *batcher) firstOf(p *payload) *request {
	if len(p.requests) > 0 {
		return p.requests[0]
	}
	return b.waiting[0]
}

// take hands the oldest payload to an instance, or nil if none is ready. Payloads behind it that have waited beyond the delay are merged
// into it as far as they fit. The caller calls form next: there is a free slot.
func (b *batcher) take(now time.Time) *payload {
	if len(b.ready) == 0 {
		return nil
	}
	p := b.ready[0]
	b.ready[0] = nil
	b.ready = b.ready[1:]
	p.taken = true
	if !b.dynamic || b.delay == 0 {
		return p
	}
	for len(b.ready) > 0 && !p.closed {
		q := b.ready[0]
		if q.closed || now.Sub(q.oldest) <= b.delay || p.rows+q.rows > b.maxBatch ||
			b.equalShapes && !b.sameShapes(p.requests[0], q.requests[0]) {
			break
		}
		q.taken = true
		p.requests, p.rows = append(p.requests, q.requests...), p.rows+q.rows
		b.ready = b.ready[1:]
	}
	return p
}

// pending counts the requests that no instance has taken.
func (b *batcher) pending() int {
	n := len(b.waiting)
	for _, p := range b.ready {
		n += len(p.requests)
	}
	return n
}

// sameShapes says whether two requests may share a batch of a model with variable dimensions: same inputs, same shapes but for the rows.
func (b *batcher) sameShapes(r, other *request) bool {
	if len(r.inputs) != len(other.inputs) {
		return false
	}
	for i := range r.inputs {
		x, y := &r.inputs[i], other.input(r.inputs[i].name)
		if y == nil || !b.ragged[x.name] && !slices.Equal(x.shape[1:], y.shape[1:]) {
			return false
		}
	}
	return true
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package triton

import "slices"

// request waits for its answer.
type request struct {
	at      int64 // arrival, nanoseconds
	rows    int
	counted bool
	// flow is the pipeline's request whose step this is; nil: it is none.
	flow *flow
	step int
}

// payload is what one instance executes at once.
type payload struct {
	requests []request
	rows     int
	oldest   int64
	taken    bool
}

// ahead is how many payloads Triton makes for each instance before one is free, if no queue policy is set.
const ahead = 2

// batcher is Triton's rule for what goes together and when (dynamic_batch_scheduler.cc; internal/minitriton has the same rule with
// shapes and policies, held against a real server). Without dynamic batching every request is a payload of its own.
type batcher struct {
	dynamic   bool
	maxBatch  int
	preferred []int // ascending; the largest batch alone unless given
	delay     int64
	ahead     int // payloads that may be ready
	waiting   []request
	ready     []*payload
	current   *payload
	saturated bool // of current: it is full enough to grow no more
}

func newBatcher(m Model, instances int) *batcher {
	b := &batcher{ahead: ahead * instances, dynamic: m.Dynamic, maxBatch: max(1, m.MaxBatch), delay: int64(m.Delay), preferred: slices.Sorted(slices.Values(m.Preferred))}
	if len(b.preferred) == 0 {
		b.preferred = []int{b.maxBatch}
	}
	return b
}

// add queues a request. The caller calls form next.
func (b *batcher) add(r request) {
	if !b.dynamic {
		b.ready = append(b.ready, &payload{requests: []request{r}, rows: r.rows, oldest: r.at})
		return
	}
	b.waiting = append(b.waiting, r)
}

// form makes the payloads that the rule allows now, and returns when it wants to be called again; 0 means after the next add or take.
func (b *batcher) form(now int64) (again int64) {
	for b.dynamic && len(b.ready) < b.ahead && len(b.waiting) > 0 {
		if b.current == nil || b.saturated || b.current.taken {
			b.current, b.saturated = &payload{}, false
		}
		n, wait := b.next(now)
		if n == 0 {
			if wait == 0 { // nothing fits the current payload: start another one
				continue
			}
			return now + wait
		}
		p := b.current
		if len(p.requests) == 0 {
			p.oldest = b.waiting[0].at
			b.ready = append(b.ready, p)
		}
		for _, r := range b.waiting[:n] {
			p.rows += r.rows
		}
		p.requests = append(p.requests, b.waiting[:n]...)
		b.waiting = b.waiting[n:]
	}
	return 0
}

// next is how many of the waiting requests join the current payload now, or how long to wait for more.
func (b *batcher) next(now int64) (n int, wait int64) {
	p := b.current
	largest := b.preferred[len(b.preferred)-1]
	rows, best := 0, 0
	full := false
	for _, r := range b.waiting {
		if p.rows+rows > 0 {
			if p.rows+rows+r.rows > largest && best == 0 {
				best = n
				b.saturated = true
			}
			if p.rows+rows+r.rows > b.maxBatch {
				full = true
				break
			}
		}
		n, rows = n+1, rows+r.rows
		if slices.Contains(b.preferred, p.rows+rows) {
			best = n
		}
	}
	age := now - b.waiting[0].at
	overdue := b.delay > 0 && age >= b.delay
	switch {
	case best > 0 && !overdue:
		b.saturated = b.saturated || b.delay == 0
		return best, 0
	case full || p.rows+rows >= largest:
		b.saturated = true
		return n, 0
	case overdue || b.delay == 0:
		return n, 0
	case !b.saturated && p.rows > 0 && !slices.Contains(b.preferred, p.rows):
		return n, 0 // a payload that is not taken yet may as well grow
	}
	return 0, b.delay - age
}

// take hands the oldest payload to the instance, nil if none is ready. Those behind it that have waited beyond the delay are merged into it
// as far as they fit. The caller calls form next.
func (b *batcher) take(now int64) *payload {
	if len(b.ready) == 0 {
		return nil
	}
	p := b.ready[0]
	b.ready = b.ready[1:]
	p.taken = true
	for b.dynamic && b.delay > 0 && len(b.ready) > 0 {
		q := b.ready[0]
		if now-q.oldest <= b.delay || p.rows+q.rows > b.maxBatch {
			break
		}
		q.taken = true
		p.requests, p.rows = append(p.requests, q.requests...), p.rows+q.rows
		b.ready = b.ready[1:]
	}
	return p
}

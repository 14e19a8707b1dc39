// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// One bad request fails the execution that it shares, and the server does not say which it was. The requests are queued again in two halves, in the
// order of their deadlines, so that more urgent batches can start in between. What the first half comes to says more than its own answers (binary
// splitting, as in group testing): if it fails, the other half is under suspicion no more and joins the queue of its model again; if it succeeds,
// the bad request is in the other half, which is divided without being executed. So one bad request of b costs some log2(b)+1 executions, most of
// which answer good requests, and not b+1.

// piece is a part of a failed batch that is queued by itself. Guarded by queues.mu.
type piece struct {
	calls   []*call
	sibling *piece // the other half; nil: there is none, or it is known what it holds
	begun   bool   // a part of it has been dispatched
}

// divide makes two pieces of calls, or one of a single call, each with a key of its own, which keeps off a partition where it can.
func (q *queues) divide(calls []*call, avoid queue.ExecutorID) {
	half := (len(calls) + 1) / 2
	first, second := &piece{calls: calls[:half]}, &piece{calls: calls[half:]}
	if len(second.calls) > 0 {
		first.sibling, second.sibling = second, first
	}
	for _, p := range []*piece{first, second} {
		q.separate(p.calls, avoid)
		for _, c := range p.calls {
			c.piece = p
		}
	}
}

// separate gives calls a key of their own, so that they share executions with each other only. Guarded by mu.
func (q *queues) separate(calls []*call, avoid queue.ExecutorID) {
	q.retries++
	for _, c := range calls {
		c.piece, c.apart = nil, true
		c.queued.Key, c.queued.Avoid = math.MaxUint64-q.retries, avoid
	}
}

// found takes in what the execution of a piece came to: whether it was clean. It returns the calls that the scheduler did not take because it has
// failed, with a reference to the request of each.
func (q *queues) found(a *attempt, clean bool) (unqueued []*call) {
	if a.calls[0].piece == nil {
		return nil
	}
	q.mu.Lock()
	defer q.unlock()
	p := a.calls[0].piece
	if p == nil || p.sibling == nil {
		return nil
	}
	other := p.sibling
	p.sibling, other.sibling = nil, nil
	if other.begun || q.closed || clean && (len(a.calls) < len(p.calls) || len(other.calls) < 2) {
		return nil
	}
	var calls []*call
	q.do(func(s *queue.Scheduler) error {
		now := q.now()
		for _, c := range other.calls {
			if c.piece == other && c.is(queued) && s.Cancel(now, &c.queued) {
				c.set(running)
				calls = append(calls, c)
			}
		}
		return nil
	})
	switch {
	case len(calls) == 0:
		return nil
	case clean:
		q.divide(calls, calls[0].queued.Avoid)
	default:
		for _, c := range calls {
			c.piece, c.apart = nil, false
			c.queued.Key, c.queued.Avoid = c.key, queue.NoExecutor
		}
	}
	return q.requeue(a.model, calls)
}

// failing is how often requests of a model fail by themselves. It is what executions that are repeated for them cost, and while it is high requests
// share no executions.
type failing struct {
	good  atomic.Int64 // requests that succeeded in the queue's executions since the last halving of both counts
	level atomic.Int32 // 0: hardly any; l: some 2^(l-failingLevels) of the requests

	mu  sync.Mutex
	bad float64
}

const (
	// failingLevels: from the lowest level, 1/64 of the requests, to the highest, half of them.
	failingLevels = 6
	// isolated is the level from which on requests run alone: a quarter of them fails.
	isolated = failingLevels - 1
	// failingMemory is after how many requests both counts are halved.
	failingMemory = 512
	// leastFailures are too few to say anything.
	leastFailures = 4
)

// succeeded counts requests of an execution that succeeded, and reports whether the level has changed.
func (f *failing) succeeded(n int) (changed bool) {
	if good := f.good.Add(int64(n)); f.level.Load() > 0 && good&63 < int64(n) {
		return f.weigh(0)
	}
	return false
}

// failed counts a request that failed by itself, and reports whether the level has changed.
func (f *failing) failed() (changed bool) { return f.weigh(1) }

// weigh counts failures, sets the level by the counts and halves these. It reports whether the level has changed.
func (f *failing) weigh(more float64) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bad += more
	good := float64(f.good.Load())
	level := int32(0)
	if share := f.bad / (good + f.bad); f.bad >= leastFailures && share > 0 {
		level = int32(max(0, failingLevels+math.Ilogb(share)+1))
	}
	level = min(level, failingLevels)
	changed = f.level.Swap(level) != level
	if good+f.bad > failingMemory {
		f.good.Store(int64(good / 2))
		f.bad /= 2
	}
	return changed
}

// isolates reports whether requests of the model are to run alone for now.
func (f *failing) isolates() bool { return f.level.Load() >= isolated }

// burden adds to a table what repeated executions cost at the present level: the expected time of the executions that find the bad requests of a
// batch.
func (f *failing) burden(t queue.Table) queue.Table {
	level := f.level.Load()
	if level == 0 || len(t) < 2 {
		return t
	}
	share := math.Ldexp(1, int(level)-failingLevels-1)
	burdened := make(queue.Table, len(t))
	copy(burdened, t)
	for b := 1; b < len(t); b++ {
		extra := queue.Time(0)
		for part := b; part > 1; part = (part + 1) / 2 {
			extra += t.At((part + 1) / 2)
		}
		if b > 1 {
			extra += t.At(1)
		}
		any := 1 - math.Pow(1-share, float64(b))
		burdened[b] = max(t[b]+queue.Time(any*float64(extra)), burdened[b-1])
	}
	return burdened
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// Horizon serves requests with the given arrivals, in order, of which it sees
// those that have come. It expects further ones at the given rate in requests
// per second, evenly spaced. After every arrival and every completion, while a
// GPU is free, it searches anew and starts the best schedule's first batch, if
// that is due.
func Horizon(m Model, s Search, rate float64, arrivals []queue.Time) (Result, error) {
	if err := m.check(); err != nil {
		return Result{}, err
	}
	h := horizon{searcher: newSearcher(m, s), gap: queue.Time(1e9 / rate), result: Result{Requests: len(arrivals)}}
	reach := m.reach(rate)
	h.row = float64(m.Table.At(reach)) / float64(reach)
	for next := 0; next < len(arrivals) || len(h.queue) > 0; {
		now := h.completion()
		if next < len(arrivals) && arrivals[next] <= now {
			now = arrivals[next]
			h.queue = append(h.queue, now)
			next++
		}
		if now == queue.Never {
			// Every GPU is free and no request follows: a request that waits for an
			// expected arrival waits in vain.
			now = h.now
			h.ahead = 0
		} else {
			h.ahead = s.Ahead
		}
		h.now = now
		h.decide()
	}
	return h.result, nil
}

// horizon is the state of a run.
type horizon struct {
	*searcher
	gap    queue.Time
	now    queue.Time
	ahead  int
	queue  []queue.Time // arrivals
	free   [MaxGPUs]queue.Time
	plan   []queue.Time
	result Result
}

// completion returns the next moment at which a GPU becomes free.
func (h *horizon) completion() queue.Time {
	for _, t := range h.free[:h.m.GPUs] {
		if t > h.now {
			return t
		}
	}
	return queue.Never
}

// decide takes steps for as long as they are due.
func (h *horizon) decide() {
	for len(h.queue) > 0 {
		if h.now+h.m.Table.At(1) > h.queue[0]+h.m.SLO {
			h.drop()
			continue
		}
		if h.free[0] > h.now {
			return
		}
		if h.ahead == 0 {
			h.run(h.most()) // nothing is worth waiting for, and no GPU time worth a drop
			continue
		}
		h.plan = append(h.plan[:0], h.queue...)
		for k := range h.ahead {
			h.plan = append(h.plan, h.now+queue.Time(k+1)*h.gap)
		}
		first := h.open(h.now, h.free, h.plan).first
		if first.rows == 0 || first.start > h.now || first.drops+first.rows > len(h.queue) {
			return // nothing is dropped before a batch gains by it
		}
		for range first.drops {
			h.drop()
		}
		h.run(first.rows)
	}
}

// most is the largest batch that still meets the head's deadline.
func (h *horizon) most() int {
	b := 1
	for b < min(h.m.MaxBatch, len(h.queue)) && h.now+h.m.Table.At(b+1) <= h.queue[0]+h.m.SLO {
		b++
	}
	return b
}

func (h *horizon) drop() {
	h.queue = h.queue[1:]
	h.result.Bad++
}

func (h *horizon) run(rows int) {
	h.queue = h.queue[rows:]
	h.result.Batches++
	h.result.Rows += rows
	end := h.now + h.m.Table.At(rows)
	k := 0
	for ; k+1 < h.m.GPUs && h.free[k+1] < end; k++ {
		h.free[k] = h.free[k+1]
	}
	h.free[k] = end
}

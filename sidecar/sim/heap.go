// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import "github.com/conch-serving/conch/sidecar/dispatch/queue"

// timer is an event to come. A partition owns one for its batch; rare events carry a function.
type timer struct {
	at  queue.Time
	seq uint64 // of equal times the one that was set first is first
	pos int    // index in the heap plus one; zero while in none
	// Exactly one of these is set.
	partition *partition
	do        func()
}

// timers is an indexed binary heap.
type timers struct {
	heap []*timer
	seq  uint64
}

func (t *timer) before(o *timer) bool { return t.at < o.at || t.at == o.at && t.seq < o.seq }

func (h *timers) next() queue.Time {
	if len(h.heap) == 0 {
		return queue.Never
	}
	return h.heap[0].at
}

// set puts a timer in, or moves it.
func (h *timers) set(t *timer, at queue.Time) {
	t.at = at
	h.seq++
	t.seq = h.seq
	if t.pos == 0 {
		h.heap = append(h.heap, t)
		t.pos = len(h.heap)
		h.up(t.pos - 1)
		return
	}
	h.up(t.pos - 1)
	h.down(t.pos - 1)
}

// remove takes a timer out, if it is in.
func (h *timers) remove(t *timer) {
	if t.pos == 0 {
		return
	}
	i, last := t.pos-1, len(h.heap)-1
	moved := h.heap[last]
	h.heap[last] = nil
	h.heap = h.heap[:last]
	t.pos = 0
	if i == last {
		return
	}
	h.heap[i], moved.pos = moved, i+1
	h.up(i)
	h.down(moved.pos - 1)
}

func (h *timers) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !h.heap[i].before(h.heap[parent]) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h *timers) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(h.heap) {
			return
		}
		if child+1 < len(h.heap) && h.heap[child+1].before(h.heap[child]) {
			child++
		}
		if !h.heap[child].before(h.heap[i]) {
			return
		}
		h.swap(i, child)
		i = child
	}
}

func (h *timers) swap(i, j int) {
	h.heap[i], h.heap[j] = h.heap[j], h.heap[i]
	h.heap[i].pos, h.heap[j].pos = i+1, j+1
}

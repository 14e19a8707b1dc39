// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// slot is an element's place in a heap; each element embeds one per heap that
// it can be in, so that moving it needs no search and no allocation.
type slot struct {
	pos  int32 // index in the heap plus one; zero while in none
	lane *lane
	cand *candidate
	pool *pool
}

type entry struct {
	key Time
	s   *slot
}

// heap is an indexed binary heap of slots, smallest key first. Keys lie beside
// the pointers: sifting does not touch the elements that it compares.
type heap []entry

// set inserts s, or moves it to a new key.
func (h *heap) set(s *slot, key Time) {
	if s.pos == 0 {
		*h = append(*h, entry{})
		h.up(len(*h)-1, entry{key, s})
		return
	}
	i := int(s.pos - 1)
	switch old := (*h)[i].key; {
	case key < old:
		h.up(i, entry{key, s})
	case key > old:
		h.down(i, entry{key, s})
	}
}

// remove takes s out if it is in.
func (h *heap) remove(s *slot) {
	if s.pos == 0 {
		return
	}
	i, last := int(s.pos-1), len(*h)-1
	moved := (*h)[last]
	(*h)[last] = entry{}
	*h = (*h)[:last]
	s.pos = 0
	if i == last {
		return
	}
	if i > 0 && moved.key < (*h)[(i-1)/2].key {
		h.up(i, moved)
	} else {
		h.down(i, moved)
	}
}

// key returns the key of s, Never if it is in no heap.
func (h heap) key(s *slot) Time {
	if s.pos == 0 {
		return Never
	}
	return h[s.pos-1].key
}

// min returns the key at the top, Never if the heap is empty.
func (h heap) min() Time {
	if len(h) == 0 {
		return Never
	}
	return h[0].key
}

func (h heap) up(i int, e entry) {
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent].key <= e.key {
			break
		}
		h[i] = h[parent]
		h[i].s.pos = int32(i + 1)
		i = parent
	}
	h[i] = e
	e.s.pos = int32(i + 1)
}

func (h heap) down(i int, e entry) {
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if right := child + 1; right < len(h) && h[right].key < h[child].key {
			child = right
		}
		if e.key <= h[child].key {
			break
		}
		h[i] = h[child]
		h[i].s.pos = int32(i + 1)
		i = child
	}
	h[i] = e
	e.s.pos = int32(i + 1)
}

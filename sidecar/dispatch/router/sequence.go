// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// Sequence is a request's place in a sequence of requests.
type Sequence struct {
	ID         SequenceID
	Start, End bool
}

// SequenceID names a sequence of a model: a number, or a text.
type SequenceID struct {
	Number uint64
	Text   string
}

// SequenceOf returns nil for a request without a sequence.
func SequenceOf(r *batch.Request) *Sequence {
	p, ok := batch.FindParameter(r.Parameters, batch.ParameterSequenceID)
	if !ok {
		return nil
	}
	s := &Sequence{}
	if v, ok := p.Int64(); ok {
		s.ID.Number = uint64(v)
	} else if v, ok := p.Uint64(); ok {
		s.ID.Number = v
	} else if v, ok := p.Text(); ok {
		s.ID.Text = v
	}
	if s.ID == (SequenceID{}) {
		return nil // Triton's "no sequence"
	}
	if p, ok := batch.FindParameter(r.Parameters, batch.ParameterSequenceStart); ok {
		s.Start, _ = p.Bool()
	}
	if p, ok := batch.FindParameter(r.Parameters, batch.ParameterSequenceEnd); ok {
		s.End, _ = p.Bool()
	}
	return s
}

const (
	// defaultIdle is Triton's max_sequence_idle_microseconds where a model has none.
	defaultIdle = time.Second
	// maxHomes bounds the sequences of a model that are remembered; beyond it the
	// one that was idle for longest is forgotten. A server holds far fewer at a time.
	maxHomes = 1 << 16
)

// idleTime is how long a sequence of a model may be idle: twice what Triton
// allows, whose clock starts later than ours.
func idleTime(m *Model) time.Duration {
	idle := defaultIdle
	if us := m.Config.GetSequenceBatching().GetMaxSequenceIdleMicroseconds(); us > 0 {
		idle = time.Duration(min(us, 1<<40)) * time.Microsecond
	}
	return 2 * idle
}

// homes holds the place of every sequence of a model, because the state of a
// sequence is in one server. A sequence starts on the partition with the fewest
// leases and stays there. A start request of one that was idle for longer than its
// model allows, or whose place is ejected, is placed anew. When the partition is no longer up, the state is lost:
// the next request reaches another partition, and Triton answers that the sequence
// must start again. Guarded by Router.mu.
type homes struct {
	of   map[SequenceID]*home
	idle time.Duration
	// A ring in the order of use: ring.next is the one that was idle for longest.
	ring home
}

type home struct {
	id         SequenceID
	place      *place
	used       time.Time
	prev, next *home
}

// find returns the place of a sequence. It returns nil if there is none, if the
// place is no longer in the table or its partition is not up, or if the request starts
// a sequence whose name was idle for longer than homes.idle or whose place is ejected.
func (s *homes) find(q *Sequence, now time.Time) *place {
	h := s.of[q.ID]
	if h == nil {
		return nil
	}
	if !h.place.current || h.place.partition.state != up || q.Start && (now.Sub(h.used) > s.idle || !h.place.usable()) {
		s.drop(h)
		return nil
	}
	return h.place
}

// put notes the place of a sequence's request. A request that ends the sequence
// removes the note.
func (s *homes) put(q *Sequence, at *place, now time.Time) {
	h := s.of[q.ID]
	if q.End {
		if h != nil {
			s.drop(h)
		}
		return
	}
	if s.of == nil {
		s.of = make(map[SequenceID]*home)
		s.ring.next, s.ring.prev = &s.ring, &s.ring
	}
	if h == nil {
		h = &home{id: q.ID}
		s.of[q.ID] = h
	} else {
		h.prev.next, h.next.prev = h.next, h.prev
	}
	h.place, h.used = at, now
	h.prev, h.next = s.ring.prev, &s.ring
	h.prev.next, h.next.prev = h, h
	// Idle sequences are dropped at most two at a time.
	for range 2 {
		if oldest := s.ring.next; now.Sub(oldest.used) > s.idle || len(s.of) > maxHomes {
			s.drop(oldest)
		}
	}
}

func (s *homes) drop(h *home) {
	delete(s.of, h.id)
	h.prev.next, h.next.prev = h.next, h.prev
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"sync"
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// sequences remembers on which partition every sequence is, because its state
// lives there. A sequence starts on the least busy partition and stays; one
// that has been idle for longer than its model allows is forgotten, as Triton
// forgets it. When its partition goes, so does its state: the next request
// reaches another partition, and Triton says that the sequence must start
// again.
type sequences struct {
	mu      sync.Mutex
	homes   map[sequenceKey]*home
	sweepAt int
}

type sequenceKey struct {
	model string
	id    uint64
	text  string
}

type home struct {
	partition *partition
	used      time.Time
	idle      time.Duration
}

// sequenceID is a request's place in a sequence.
type sequenceID struct {
	key sequenceKey
	end bool
}

// defaultIdle is Triton's max_sequence_idle_microseconds where a model has none.
const defaultIdle = time.Second

// sequenceOf returns nil for a request without a sequence.
func sequenceOf(r *batch.Request) *sequenceID {
	p, ok := batch.FindParameter(r.Parameters, batch.ParameterSequenceID)
	if !ok {
		return nil
	}
	s := &sequenceID{key: sequenceKey{model: r.Model}}
	if v, ok := p.Int64(); ok {
		s.key.id = uint64(v)
	} else if v, ok := p.Uint64(); ok {
		s.key.id = v
	} else if v, ok := p.Text(); ok {
		s.key.text = v
	}
	if s.key.id == 0 && s.key.text == "" {
		return nil // Triton's "no sequence"
	}
	if p, ok := batch.FindParameter(r.Parameters, batch.ParameterSequenceEnd); ok {
		s.end, _ = p.Bool()
	}
	return s
}

// find returns where a sequence is, if that is still a place for it.
func (s *sequences) find(id *sequenceID, r *route, now time.Time) *placement {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.homes[id.key]
	if h == nil {
		return nil
	}
	if id.end || now.Sub(h.used) > h.idle {
		delete(s.homes, id.key)
	}
	h.used = now
	for _, l := range r.places {
		if l.partition == h.partition && h.partition.up.Load() {
			return l
		}
	}
	delete(s.homes, id.key)
	return nil
}

func (s *sequences) put(id *sequenceID, r *route, p *partition, now time.Time) {
	if id.end {
		return
	}
	idle := defaultIdle
	if us := r.spec.Config.GetSequenceBatching().GetMaxSequenceIdleMicroseconds(); us > 0 {
		idle = time.Duration(min(us, 1<<40)) * time.Microsecond
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.homes == nil {
		s.homes = make(map[sequenceKey]*home)
		s.sweepAt = 1024
	}
	// Twice the idle time: Triton's clock starts later than ours.
	s.homes[id.key] = &home{partition: p, used: now, idle: 2 * idle}
	if len(s.homes) < s.sweepAt {
		return
	}
	for k, h := range s.homes {
		if now.Sub(h.used) > h.idle {
			delete(s.homes, k)
		}
	}
	s.sweepAt = max(1024, 2*len(s.homes))
}

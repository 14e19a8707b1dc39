// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// Stats are totals since New, and gauges.
type Stats struct {
	// Enqueued, Requeued and Cancelled count calls that took effect.
	Enqueued, Requeued, Cancelled uint64
	// Dispatched and Batches count requests and batches; LateDispatched and
	// LateBatches are the part of them that had been given up before.
	Dispatched, Batches         uint64
	LateDispatched, LateBatches uint64
	// Hurried counts batches that started before their exec.
	Hurried uint64
	// Preempted counts batches that gave way to larger ones, PreemptedRequests
	// their requests. Dispatched and Batches count them too.
	Preempted, PreemptedRequests uint64
	// Trials and Probes count executions that were to find out whether a profile is
	// still true (see trial.go).
	Trials, Probes uint64
	// Dropped counts Sink.Drop calls, GivenUp requests that were kept to be
	// served late, both by DropReason.
	Dropped, GivenUp [dropReasons]uint64

	// WaitingLanes have QueuedRequests that can still be in time; LateRequests
	// were given up and wait for an idle executor.
	WaitingLanes, QueuedRequests, LateRequests int
	// FreeExecutors are up, not draining and idle.
	FreeExecutors int
}

func (s *Stats) dispatched(b *Batch) {
	n := uint64(len(b.Requests))
	s.Batches++
	s.Dispatched += n
	if b.Late {
		s.LateBatches++
		s.LateDispatched += n
	}
	if b.Hurried {
		s.Hurried++
	}
}

// Stats returns the Scheduler's totals and gauges.
func (s *Scheduler) Stats() Stats {
	st := s.stats
	st.FreeExecutors = s.free
	return st
}

// Queued returns how much of a model is queued, late requests included.
func (s *Scheduler) Queued(id ModelID) (requests, rows int) {
	m := s.model(id)
	if m == nil {
		return 0, 0
	}
	return m.requests + m.late, m.rows + m.lateRows
}

// Late returns how many requests of a model were given up and wait to be served nevertheless.
func (s *Scheduler) Late(id ModelID) int {
	if m := s.model(id); m != nil {
		return m.late
	}
	return 0
}

// Waiting is what waits for a model.
type Waiting struct {
	Model ModelID
	// Requests and Rows that wait, late requests included.
	Requests, Rows int
	// Oldest is when the oldest request arrived, of those that are next in their lanes.
	Oldest Time
	// Candidate is how many rows the candidate with the nearest latest start has; 0: there is none. Latest is that start, Never if it has no deadline
	// or no profile.
	Candidate int
	Latest    Time
}

// Waiting calls visit for every model for which something waits. It looks at lanes and candidates, and not at every request.
func (s *Scheduler) Waiting(visit func(Waiting)) {
	for _, m := range s.models {
		if m == nil || m.requests+m.late == 0 {
			continue
		}
		w := Waiting{Model: m.id, Requests: m.requests + m.late, Rows: m.rows + m.lateRows, Oldest: Never, Latest: Never}
		for _, l := range m.lanes {
			for _, r := range []*Request{l.waiting.head, l.late.head} {
				if r != nil {
					w.Oldest = min(w.Oldest, r.Arrival)
				}
			}
			for i := range l.cands {
				c := &l.cands[i]
				if c.Requests == 0 {
					continue
				}
				w.Oldest = min(w.Oldest, c.Arrival)
				latest := c.Latest
				if c.svc.Table == nil || c.Deadline == Never {
					latest = Never
				}
				if w.Candidate == 0 || latest < w.Latest {
					w.Candidate, w.Latest = c.Rows, latest
				}
			}
		}
		visit(w)
	}
}

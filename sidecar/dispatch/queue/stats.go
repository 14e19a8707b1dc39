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
	// were given up and wait for an idle partition.
	WaitingLanes, QueuedRequests, LateRequests int
	// FreePartitions are up, not draining and idle.
	FreePartitions int
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
	st.FreePartitions = s.free
	return st
}

// ModelStats are a model's gauges.
type ModelStats struct {
	// Rate is in rows per second over the rate window, zero until a tenth of
	// the window has been seen.
	Rate float64
	// Hold is the batch in rows that the drop policy holds on to, one per group
	// of equal partitions that serve the model.
	Hold []int
	// Requests and Rows wait and can still be in time; Late requests were given up
	// and wait for an idle partition.
	Requests, Rows, Late int
	// Lanes counts the lanes: those with requests, and some idle ones.
	Lanes int
}

// ModelStats returns a model's gauges, zero for an unknown model.
func (s *Scheduler) ModelStats(id ModelID) ModelStats {
	m := s.model(id)
	if m == nil {
		return ModelStats{}
	}
	st := ModelStats{Requests: m.requests, Rows: m.rows, Late: m.late, Lanes: len(m.lanes)}
	m.aimed(s.now)
	st.Rate, _ = m.rate.perSecond()
	for _, svc := range m.services {
		st.Hold = append(st.Hold, svc.hold)
	}
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

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"encoding/binary"
	"time"

	"github.com/conch-serving/conch/internal/clock"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// sequences is Triton's sequence batcher as far as clients see it: what it checks before it queues a request, and its slots. A sequence
// holds a slot from its first request until its last one has been answered or it has been idle for too long; when all are taken the next
// one waits whole. The model's lock guards it.
type sequences struct {
	idle    time.Duration
	slots   int
	used    int
	running map[string]*runningSequence
	backlog []*waitingSequence // oldest first
	alarm   clock.Alarm        // rings when a running sequence may have been idle for too long while another waits
}

// runningSequence is one that holds a slot and has not ended.
type runningSequence struct{ last time.Time }

// waitingSequence is one without a slot, with its requests so far.
type waitingSequence struct {
	id       string
	requests []*request
}

func newSequences(c *pb.ModelConfig, instances int) *sequences {
	sb := c.GetSequenceBatching()
	idle := time.Duration(sb.MaxSequenceIdleMicroseconds) * time.Microsecond
	if idle == 0 {
		idle = time.Second // Triton's default
	}
	slots := max(1, int(c.MaxBatchSize))
	if oldest := sb.GetOldest(); oldest != nil {
		slots = int(max(1, oldest.MaxCandidateSequences))
	}
	return &sequences{idle: idle, slots: slots * instances, running: map[string]*runningSequence{}}
}

// admit checks one request of a sequence and returns what may be queued now: the request, unless its sequence has to wait, and before it
// what waited for the slots of sequences that have been idle for too long. What is returned with an error may be queued nevertheless.
func (s *sequences) admit(model string, r *request) ([]*request, *Error) {
	if r.rows > 1 {
		return nil, invalid("inference request to model '%s' must specify batch-size 1 due to requirements of sequence batcher", model)
	}
	id := r.sequence.id
	if id == "" {
		return nil, invalid("inference request to model '%s' must specify a non-zero or non-empty correlation ID", model)
	}
	ready := s.reap(r.enqueued)
	if run := s.running[id]; run != nil {
		run.last = r.enqueued
		if r.sequence.end {
			delete(s.running, id)
		}
		return append(ready, r), nil
	}
	for _, w := range s.backlog {
		if w.id == id && !w.requests[len(w.requests)-1].sequence.end {
			w.requests = append(w.requests, r)
			return ready, nil
		}
	}
	if !r.sequence.start {
		return ready, invalid("inference request for sequence %s to model '%s' must specify the START flag on the first request of the sequence", id, model)
	}
	s.backlog = append(s.backlog, &waitingSequence{id: id, requests: []*request{r}})
	return append(ready, s.promote(r.enqueued)...), nil
}

// ended gives up the slot of a sequence whose last request has been answered, and returns what may be queued for it.
func (s *sequences) ended(now time.Time) []*request {
	s.used--
	return s.promote(now)
}

// reap ends the sequences that have been idle for too long and returns what may be queued for them.
func (s *sequences) reap(now time.Time) []*request {
	for id, run := range s.running {
		if now.Sub(run.last) > s.idle {
			delete(s.running, id)
			s.used--
		}
	}
	return s.promote(now)
}

// promote gives free slots to waiting sequences and returns their requests.
func (s *sequences) promote(now time.Time) []*request {
	var ready []*request
	for s.used < s.slots && len(s.backlog) > 0 {
		w := s.backlog[0]
		s.backlog = s.backlog[1:]
		s.used++
		if !w.requests[len(w.requests)-1].sequence.end {
			s.running[w.id] = &runningSequence{last: now}
		}
		ready = append(ready, w.requests...)
	}
	if len(s.backlog) > 0 {
		for _, run := range s.running {
			s.alarm.Set(now.Add(max(time.Millisecond, s.idle-now.Sub(run.last)+time.Millisecond)))
		}
	}
	return ready
}

// accumulate answers with the sum of a sequence's inputs so far.
type accumulate struct {
	output string
	sums   map[string]int32
}

func (a *accumulate) execute(p *payload, responses []response) error {
	for i, r := range p.requests {
		in := &r.inputs[0]
		sum := int32(binary.LittleEndian.Uint32(in.data))
		if !r.sequence.start {
			sum += a.sums[r.sequence.id]
		}
		a.sums[r.sequence.id] = sum
		if r.sequence.end {
			delete(a.sums, r.sequence.id)
		}
		responses[i].outputs = []tensor{{name: a.output, dtype: in.dtype, shape: in.shape, data: binary.LittleEndian.AppendUint32(nil, uint32(sum))}}
	}
	return nil
}

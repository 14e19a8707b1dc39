// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"encoding/binary"
	"time"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// sequences is what Triton's sequence batcher checks before it queues a request. Sequences never wait for a slot here: there are as many
// as clients start.
type sequences struct {
	idle time.Duration
	last map[string]time.Time // by sequence id
}

func newSequences(sb *pb.ModelSequenceBatching) *sequences {
	idle := time.Duration(sb.MaxSequenceIdleMicroseconds) * time.Microsecond
	if idle == 0 {
		idle = time.Second // Triton's default
	}
	return &sequences{idle: idle, last: map[string]time.Time{}}
}

// admit checks one request of a sequence and notes it. The model's lock is held.
func (s *sequences) admit(model string, r *request) *Error {
	if r.rows > 1 {
		return invalid("inference request to model '%s' must specify batch-size 1 due to requirements of sequence batcher", model)
	}
	id := r.sequence.id
	if id == "" {
		return invalid("inference request to model '%s' must specify a non-zero or non-empty correlation ID", model)
	}
	for other, at := range s.last {
		if r.enqueued.Sub(at) > s.idle {
			delete(s.last, other)
		}
	}
	if _, running := s.last[id]; !running && !r.sequence.start {
		return invalid("inference request for sequence %s to model '%s' must specify the START flag on the first request of the sequence", id, model)
	}
	s.last[id] = r.enqueued
	if r.sequence.end {
		delete(s.last, id)
	}
	return nil
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

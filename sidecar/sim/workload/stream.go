// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"hash/fnv"
	"io"
	"math/rand/v2"
	"time"
)

// Arrival is one request.
type Arrival struct {
	// At is the time since the start.
	At time.Duration
	// Deadline is how long after At the response must be there; 0 means the model's SLO.
	Deadline time.Duration
	// Model is an index, of whatever list the stream's maker was given.
	Model int32
	// Rows of the request; below 1 counts as 1.
	Rows int32
	// Bytes of the request's tensors, for traces; 0 where unknown.
	Bytes int64
}

// Stream gives arrivals in order of time.
type Stream interface {
	// Next fills in the next arrival. It returns false if there is none; [Err] then returns why.
	Next(*Arrival) bool
}

// Failing is a stream that can end because of an error, as files can.
type Failing interface {
	Stream
	// Err is what ended the stream; nil where it ended by itself or has not ended.
	Err() error
}

// Err is what ended a stream; nil for one that cannot fail.
func Err(s Stream) error {
	if f, ok := s.(Failing); ok {
		return f.Err()
	}
	return nil
}

// Seed returns a generator for one purpose of one model: equal arguments give equal sequences, whatever else there is.
func Seed(seed uint64, purpose, name string) *rand.Rand {
	h := fnv.New64a()
	// A hash never fails to write.
	_, _ = io.WriteString(h, purpose)
	_, _ = h.Write([]byte{0})
	_, _ = io.WriteString(h, name)
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// Slice is a stream of the given arrivals, which must be in order of time.
func Slice(arrivals ...Arrival) Stream {
	s := slice(arrivals)
	return &s
}

type slice []Arrival

func (s *slice) Next(a *Arrival) bool {
	if len(*s) == 0 {
		return false
	}
	*a, *s = (*s)[0], (*s)[1:]
	return true
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// merge is all streams as one, in order of time; of equal times the stream listed first is first. It is a tournament: the next arrival
// takes as many comparisons as a stream has ancestors, and no others.
type merge struct {
	streams []workload.Stream
	heads   []workload.Arrival
	keys    []queue.Time // of heads; Never where a stream has ended or is past the end
	winners []int32      // winners[i] is the stream that comes first below node i; 1 is the root
	leaves  int
	end     time.Duration
}

func newMerge(streams []workload.Stream, end time.Duration) *merge {
	m := &merge{streams: streams, heads: make([]workload.Arrival, len(streams)), keys: make([]queue.Time, len(streams)), leaves: 1, end: end}
	for m.leaves < len(streams) {
		m.leaves *= 2
	}
	m.winners = make([]int32, 2*m.leaves)
	for i := range m.winners {
		m.winners[i] = -1
	}
	for i := range streams {
		m.read(int32(i))
		m.winners[m.leaves+i] = int32(i)
	}
	for i := m.leaves - 1; i > 0; i-- {
		m.winners[i] = m.first(m.winners[2*i], m.winners[2*i+1])
	}
	return m
}

func (m *merge) read(i int32) {
	if m.streams[i].Next(&m.heads[i]) && m.heads[i].At < m.end {
		m.keys[i] = queue.Time(m.heads[i].At)
	} else {
		m.keys[i] = queue.Never
	}
}

func (m *merge) first(a, b int32) int32 {
	if b < 0 || a >= 0 && m.keys[a] <= m.keys[b] {
		return a
	}
	return b
}

// next is when the next arrival is; Never where there is none.
func (m *merge) next() queue.Time {
	if w := m.winners[1]; w >= 0 {
		return m.keys[w]
	}
	return queue.Never
}

// head is the next arrival, until pop.
func (m *merge) head() *workload.Arrival { return &m.heads[m.winners[1]] }

func (m *merge) pop() {
	w := m.winners[1]
	m.read(w)
	for i := (m.leaves + int(w)) / 2; i > 0; i /= 2 {
		m.winners[i] = m.first(m.winners[2*i], m.winners[2*i+1])
	}
}

// err is what ended a stream that did not end by itself.
func (m *merge) err() error {
	for _, s := range m.streams {
		if err := workload.Err(s); err != nil {
			return err
		}
	}
	return nil
}

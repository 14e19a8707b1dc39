// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// Margin is the time that is kept back from the deadlines of a model's requests,
// because its answers come later than predicted. The profile's upper quantile is
// about one deviation above the mean. A queue that is never empty starts every batch
// at the latest moment that its first deadline allows, so that every execution above
// the quantile would be late, and the work on it lost. There the margin costs
// nothing: an older request is given up for a younger one.
//
// The lateness of a batch is when its last answer was given, less what the
// queue predicted. The margin is its upper quantile over the recent past.
type Margin struct {
	held  atomic.Int64 // nanoseconds
	alone atomic.Int64 // l(1) on the fastest partition, nanoseconds; 0: unknown

	mu     sync.Mutex
	counts [marginBuckets]float32 // of batches, by lateness; decaying
	total  float32
	// started is true once since is set.
	started bool
	since   queue.Time // when counts were last halved
}

const (
	// marginQuantile of all batches are answered within the margin.
	marginQuantile = .95
	// marginAfter is how many batches must have been seen.
	marginAfter = 20
	// marginMemory is how many batches are remembered, and marginLife for how long,
	// until each counts half.
	marginMemory = 256
	marginLife   = 30 * time.Second
	// marginShare bounds the margin to this part of the time that a request has.
	marginShare = 5

	// The bounds of the buckets grow by a quarter, from marginUnit to about 3 s.
	marginBuckets = 48
	marginUnit    = 100 * time.Microsecond
	marginFactor  = 1.25
)

// Held is the margin of a request whose time left does not limit it: see Of.
func (m *Margin) Held() time.Duration { return time.Duration(m.held.Load()) }

// Add counts the lateness of one batch.
func (m *Margin) Add(lateness time.Duration, now queue.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, bound := 0, marginUnit
	for ; i < marginBuckets-1 && lateness > bound; i++ {
		bound = longer(bound)
	}
	m.counts[i]++
	if m.total++; !m.started {
		m.started, m.since = true, now
	}
	if m.total >= marginMemory || now-m.since >= queue.Time(marginLife) {
		m.since, m.total = now, 0
		for i := range m.counts {
			m.counts[i] /= 2
			m.total += m.counts[i]
		}
	}
	m.held.Store(int64(m.quantile()))
}

func longer(bound time.Duration) time.Duration { return time.Duration(marginFactor * float64(bound)) }

// quantile is the bound of the bucket that marginQuantile lies in; 0 for the
// first one.
func (m *Margin) quantile() time.Duration {
	if m.total < marginAfter || m.counts[0] >= marginQuantile*m.total {
		return 0
	}
	bound, seen := marginUnit, m.counts[0]
	for _, n := range m.counts[1:] {
		bound = longer(bound)
		if seen += n; seen >= marginQuantile*m.total {
			break
		}
	}
	return bound
}

// Of is the margin of a request that has this much time left: at most a fifth of
// it, and at most half of what remains when the request runs alone. No request that
// can be served alone is therefore given up for the margin.
func (m *Margin) Of(left time.Duration) time.Duration {
	return max(0, min(time.Duration(m.held.Load()), left/marginShare, (left-time.Duration(m.alone.Load()))/2))
}

// Sets takes the latency of a single row from the queue's tables: the least of them.
func (m *Margin) Sets(tables []queue.Table) {
	alone := queue.Time(0)
	for _, t := range tables {
		if len(t) > 1 && (alone == 0 || t[1] < alone) {
			alone = t[1]
		}
	}
	m.alone.Store(int64(alone))
}

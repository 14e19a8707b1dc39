// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import "github.com/conch-serving/conch/sidecar/dispatch/queue"

// What the plan path sees of a model covers the last window seconds, as sidecar/observe does.
const (
	window = 10
	second = queue.Time(1e9)
	// Burstiness remembers so many gaps, and says Poisson before it has seen enough.
	gapMemory  = 1000
	gapsNeeded = 20
)

// observed is what a snapshot says about a model's load.
type observed struct {
	buckets      [window]bucket
	now          int64 // the second of the present
	last         queue.Time
	gaps         float64
	mean, square float64
	any          bool
}

type bucket struct{ requests, rows, good, bad, dropped uint64 }

func (o *observed) bucket(now queue.Time) *bucket {
	s := int64(now / second)
	if s-o.now >= window {
		o.buckets, o.now = [window]bucket{}, s
	}
	for ; o.now < s; o.now++ {
		o.buckets[(o.now+1)%window] = bucket{}
	}
	return &o.buckets[s%window]
}

func (o *observed) arrived(now queue.Time, rows int32) {
	b := o.bucket(now)
	b.requests++
	b.rows += uint64(max(1, rows))
	if o.any {
		gap := float64(now-o.last) / 1e9
		o.gaps = min(o.gaps+1, gapMemory)
		o.mean += (gap - o.mean) / o.gaps
		o.square += (gap*gap - o.square) / o.gaps
	}
	o.last, o.any = now, true
}

func (o *observed) answered(now queue.Time, as outcome) {
	b := o.bucket(now)
	switch {
	case as == good:
		b.good++
	case as >= dropped:
		b.dropped++
		b.bad++
	default:
		b.bad++
	}
}

// total of the window, and the seconds that it covers.
func (o *observed) total(now queue.Time) (sum bucket, covered float64) {
	o.bucket(now)
	for _, b := range o.buckets {
		sum.requests += b.requests
		sum.rows += b.rows
		sum.good += b.good
		sum.bad += b.bad
		sum.dropped += b.dropped
	}
	return sum, max(1, min(float64(now)/1e9, window-1+float64(now%second)/1e9))
}

func (b bucket) badRate() float64 {
	if b.good+b.bad == 0 {
		return 0
	}
	return float64(b.bad) / float64(b.good+b.bad)
}

// burstiness is the squared coefficient of variation of the times between arrivals.
func (o *observed) burstiness() float64 {
	if o.gaps < gapsNeeded || o.mean <= 0 {
		return 1
	}
	return max(0, o.square/(o.mean*o.mean)-1)
}

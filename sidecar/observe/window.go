// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"iter"
	"math"
	"math/bits"
	"time"
)

// Statistics lie in slots of a tenth of a second; a ring of them covers the
// window and a little more, so that what is summed is never half overwritten.
const (
	slotLength = 100 * time.Millisecond
	slots      = int64(Window/slotLength) + 10
)

// ring holds the recent slots of some statistic.
type ring[T any] struct {
	slot  [slots]T
	index [slots]int64
	first int64
}

func slotOf(at time.Time) int64 { return at.UnixNano() / int64(slotLength) }
func slotEnd(at time.Time) time.Time {
	return at.Add(slotLength - time.Duration(at.UnixNano()%int64(slotLength)))
}

// spread divides a time, or its last Window where it is longer, into the parts that lie
// in each slot, with a moment of the slot.
func spread(start, end time.Time) iter.Seq2[time.Time, time.Duration] {
	return func(yield func(time.Time, time.Duration) bool) {
		if end.Sub(start) > Window {
			start = end.Add(-Window)
		}
		for start.Before(end) {
			until := slotEnd(start)
			if until.After(end) {
				until = end
			}
			if !yield(start, until.Sub(start)) {
				return
			}
			start = until
		}
	}
}

func position(slot int64) int64 { return ((slot % slots) + slots) % slots }

// at is the slot of a moment, emptied if it still held an older one. A moment
// older than the ring gets the slot it would have had: it is a straggler of one
// execution, and the error is one sample.
func (r *ring[T]) at(at time.Time) *T {
	s := slotOf(at)
	i := position(s)
	if r.index[i] < s {
		r.index[i] = s
		var empty T
		r.slot[i] = empty
	}
	if r.first == 0 || s < r.first {
		r.first = s
	}
	return &r.slot[i]
}

// each calls visit for the slots of the window that ends at now and returns the
// seconds that they cover: less than the window for a ring that is younger.
func (r *ring[T]) each(now time.Time, window time.Duration, visit func(*T)) float64 {
	last := slotOf(now)
	first := last - int64(window/slotLength) + 1
	for s := first; s <= last; s++ {
		if i := position(s); r.index[i] == s {
			visit(&r.slot[i])
		}
	}
	since := first
	if r.first > since {
		since = r.first
	}
	covered := now.Sub(time.Unix(0, since*int64(slotLength))).Seconds()
	// The first moments would make any rate look huge.
	return max(covered, min(1, window.Seconds()))
}

// arrivals learns the rate of a stream and how bursty it is.
type arrivals struct {
	counts ring[arrivalCounts]

	last    time.Time
	started time.Time
	// average is the exponentially decaying rate, before correction for its
	// start.
	average float64
	// gaps, and their first and second moments, decaying by count.
	gaps, mean, square float64
}

type arrivalCounts struct{ requests, rows uint32 }

const (
	// averageOver is the time constant of the decaying rate.
	averageOver = 20 * time.Second
	// gapMemory is the number of gaps that burstiness remembers.
	gapMemory = 1000
	// gapsNeeded before burstiness is more than noise; until then arrivals count
	// as Poisson.
	gapsNeeded = 20
	// A gap of more than averageOver and so many mean ones is the end of one load
	// and the beginning of another: no burstiness of either.
	silence = 20
)

func (a *arrivals) add(at time.Time, rows int) {
	slot := a.counts.at(at)
	slot.requests++
	slot.rows += uint32(max(0, rows))
	if a.started.IsZero() {
		a.started, a.last = at, at
		a.average = 1 / averageOver.Seconds()
		return
	}
	gap := at.Sub(a.last).Seconds()
	if gap < 0 {
		// Two callers may report in another order than they arrived.
		gap = 0
	} else {
		a.last = at
	}
	a.average = a.average*math.Exp(-gap/averageOver.Seconds()) + 1/averageOver.Seconds()
	if gap > averageOver.Seconds() && a.gaps >= gapsNeeded && gap > silence*a.mean {
		return
	}
	a.gaps = min(a.gaps+1, gapMemory)
	a.mean += (gap - a.mean) / a.gaps
	a.square += (gap*gap - a.square) / a.gaps
}

// Rates of one model at one moment, per second.
type Rates struct {
	// Second and Window count requests over the last second and the last Window,
	// Average decays over 20 s.
	Second, Window, Average float64
	// Rows per second over the last Window.
	Rows float64
	// Burstiness is the squared coefficient of variation of the times between
	// arrivals: 1 is Poisson.
	Burstiness float64
}

func (a *arrivals) rates(now time.Time) Rates {
	var r Rates
	var requests, rows uint32
	covered := a.counts.each(now, Window, func(c *arrivalCounts) { requests += c.requests; rows += c.rows })
	r.Window, r.Rows = float64(requests)/covered, float64(rows)/covered
	requests = 0
	covered = a.counts.each(now, time.Second, func(c *arrivalCounts) { requests += c.requests })
	r.Second = float64(requests) / covered
	r.Burstiness = 1
	if a.started.IsZero() {
		return r
	}
	idle, age := now.Sub(a.last).Seconds(), now.Sub(a.started).Seconds()
	if seen := 1 - math.Exp(-max(age, 1)/averageOver.Seconds()); seen > 0 {
		r.Average = a.average * math.Exp(-max(0, idle)/averageOver.Seconds()) / seen
	}
	if square := a.mean * a.mean; a.gaps >= gapsNeeded && square > 0 {
		r.Burstiness = max(0, a.square/square-1)
	}
	return r
}

// histogram counts durations in buckets an eighth of an octave wide, from 1 us
// to over an hour: quantiles are right within 6%.
type histogram struct {
	counts [histogramBuckets]uint16
}

const (
	histogramSteps   = 8
	histogramBuckets = 32 * histogramSteps
)

func bucketOf(d time.Duration) int {
	us := uint64(max(1, d.Microseconds()))
	octave := bits.Len64(us) - 1
	step := int((us << 3 >> octave) & (histogramSteps - 1))
	return min(octave*histogramSteps+step, histogramBuckets-1)
}

// bucketMiddle is the duration that stands for a bucket.
func bucketMiddle(i int) time.Duration {
	low := math.Ldexp(1+float64(i%histogramSteps)/histogramSteps, i/histogramSteps)
	return time.Duration(low * (1 + .5/histogramSteps) * float64(time.Microsecond))
}

func (h *histogram) add(d time.Duration) {
	if i := bucketOf(d); h.counts[i] < math.MaxUint16 {
		h.counts[i]++
	}
}

// histogramSum adds histograms up.
type histogramSum struct {
	counts [histogramBuckets]uint64
	total  uint64
}

func (s *histogramSum) add(h *histogram) {
	for i, c := range h.counts {
		s.counts[i] += uint64(c)
		s.total += uint64(c)
	}
}

// quantile is the duration below which the fraction q lies; 0 when nothing was
// counted.
func (s *histogramSum) quantile(q float64) time.Duration {
	if s.total == 0 {
		return 0
	}
	rank := uint64(math.Ceil(q * float64(s.total)))
	var seen uint64
	for i, c := range s.counts {
		if seen += c; seen >= max(1, rank) {
			return bucketMiddle(i)
		}
	}
	return bucketMiddle(histogramBuckets - 1)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package histogram counts durations in buckets of constant relative width, as HDR histograms do: any number of values in bounded memory,
// quantiles within 0.8%, no allocation once the largest value has been seen.
package histogram

import (
	"math/bits"
	"time"
)

// Every power of two is divided into 1<<precision buckets. Values below 1<<precision ticks have a bucket each.
const (
	precision = 7
	// tick is the resolution; shorter differences are one value.
	tick = 64 * time.Nanosecond
)

// Histogram counts durations; the zero value is empty and ready. Negative durations count as zero. It is not safe for concurrent use.
type Histogram struct {
	counts []uint64
	n      uint64
	sum    float64
	max    time.Duration
}

// Add counts one value.
func (h *Histogram) Add(d time.Duration) {
	d = max(d, 0)
	i := index(uint64(d / tick))
	if i >= len(h.counts) {
		h.grow(i)
	}
	h.counts[i]++
	h.n++
	h.sum += float64(d)
	h.max = max(h.max, d)
}

// grow makes room for bucket i and the rest of its power of two.
func (h *Histogram) grow(i int) {
	next := make([]uint64, (i>>precision+1)<<precision)
	copy(next, h.counts)
	h.counts = next
}

// index of the bucket that a number of ticks falls into.
func index(v uint64) int {
	if v < 1<<precision {
		return int(v)
	}
	shift := bits.Len64(v) - precision - 1
	return shift<<precision + int(v>>shift)
}

// upper is the largest number of ticks in a bucket.
func upper(i int) uint64 {
	if i < 1<<precision {
		return uint64(i)
	}
	shift := i>>precision - 1
	return uint64(i-shift<<precision+1)<<shift - 1
}

// Merge adds the values of another histogram.
func (h *Histogram) Merge(o *Histogram) {
	if len(o.counts) > len(h.counts) {
		h.grow(len(o.counts) - 1)
	}
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.n += o.n
	h.sum += o.sum
	h.max = max(h.max, o.max)
}

// Count is the number of values.
func (h *Histogram) Count() uint64 { return h.n }

// Max is the largest value, exactly; zero where there is none.
func (h *Histogram) Max() time.Duration { return h.max }

// Mean is the exact average; zero where there is no value.
func (h *Histogram) Mean() time.Duration {
	if h.n == 0 {
		return 0
	}
	return time.Duration(h.sum / float64(h.n))
}

// Quantile is the smallest bucket bound that at least the fraction q of the values does not exceed, never above Max; zero where there is
// no value.
func (h *Histogram) Quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := uint64(q * float64(h.n))
	if float64(rank) < q*float64(h.n) || rank == 0 {
		rank++
	}
	var seen uint64
	for i, n := range h.counts {
		if seen += n; seen >= rank {
			// A bucket holds every duration up to the next one's first tick.
			return min(time.Duration(upper(i)+1)*tick-1, h.max)
		}
	}
	return h.max
}

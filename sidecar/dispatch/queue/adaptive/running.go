// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package adaptive

import "slices"

// batchUnit is one batch in the fixed point of Work.
const batchUnit = 1 << 40

// Work is how much of running batches is left, in batches, as a linear function of
// time that takes one addition per batch: a batch of a model that ends at t counts
// with (t - now) / l(reach), which is negative once it takes longer than predicted.
//
// Integers, because sums of floating point numbers that come and go would drift.
// ends wraps around, and so does ebb times now; their difference is small.
type Work struct {
	ends int64 // sum of ebb times end
	ebb  int64 // batchUnit / l(reach)
	end  Time  // of a single batch
}

// WorkOf is the work of one batch that runs until end.
func WorkOf(end, reach Time) Work {
	if reach <= 0 {
		return Work{end: end}
	}
	ebb := batchUnit / int64(reach)
	return Work{ends: ebb * int64(end), ebb: ebb, end: end}
}

// Running is the work of the batches that run in a pool, and when they end.
type Running struct {
	work Work
	ends []Time // the latest first
}

// Add counts a batch in, Remove the same batch out.
func (r *Running) Add(w Work) {
	r.work.ends += w.ends
	r.work.ebb += w.ebb
	r.ends = slices.Insert(r.ends, r.first(w.end), w.end)
}

// Remove counts a batch out that was counted in.
func (r *Running) Remove(w Work) {
	r.work.ends -= w.ends
	r.work.ebb -= w.ebb
	i := r.first(w.end)
	r.ends = slices.Delete(r.ends, i, i+1)
}

// first is the index of the first batch that does not end after a moment.
func (r *Running) first(end Time) int {
	low, high := 0, len(r.ends)
	for low < high {
		if mid := (low + high) / 2; r.ends[mid] > end {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// left returns how many batches are left at now, and by how much that falls per
// nanosecond.
func (r *Running) left(now Time) (left, ebb float64) {
	w := r.work
	return float64(max(0, w.ends-w.ebb*int64(now))) / batchUnit, float64(w.ebb) / batchUnit
}

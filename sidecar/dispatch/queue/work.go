// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// batchUnit is one batch in the fixed point of work.
const batchUnit = 1 << 40

// work is how much of the running batches is left, in batches, as a linear
// function of time that takes one addition per batch: a batch of a model that
// ends at t counts with (t - now) / l(reach), which is negative once it takes
// longer than predicted.
//
// Integers, because sums of floating point numbers that come and go would drift.
// ends wraps around, and so does ebb times now; their difference is small.
type work struct {
	ends int64 // sum of ebb times end
	ebb  int64 // batchUnit / l(reach)
	late int   // batches of requests that were given up
}

// workOf is the work of one batch that runs until end.
func workOf(end, reach Time) work {
	if reach <= 0 {
		return work{}
	}
	ebb := batchUnit / int64(reach)
	return work{ends: ebb * int64(end), ebb: ebb}
}

// add adds d times o.
func (w *work) add(o work, d int) {
	w.ends += int64(d) * o.ends
	w.ebb += int64(d) * o.ebb
	w.late += d * o.late
}

// left returns how many batches are left at now, and by how much that falls per
// nanosecond.
func (w work) left(now Time) (left, ebb float64) {
	return float64(max(0, w.ends-w.ebb*int64(now))) / batchUnit, float64(w.ebb) / batchUnit
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// rateBuckets divides the rate window; the rate is renewed once per bucket.
const rateBuckets = 10

// rate counts rows per second over a sliding window, in virtual time.
type rate struct {
	width   Time // of one bucket
	end     Time // of the current bucket
	started bool
	filled  int // buckets that have been completed, up to rateBuckets
	cur     int64
	sum     int64 // over the completed buckets
	buckets [rateBuckets]int64
	i       int
	epoch   uint32 // changes whenever perSecond does

	// The same in bins of the length of the SLO, for dispersion: the number of bins,
	// the rows in them, and the squares of these. They are halved once there are
	// many, so that old arrivals count little. They do not decay with time: a model
	// whose requests come in bursts would lose its dispersion in a long silence.
	bin                 Time
	binEnd              Time
	inBin               int64
	bins, rows, squares float64
}

func (r *rate) add(now Time, rows int32) {
	if now >= r.end {
		r.roll(now)
	}
	if r.binEnd == 0 {
		r.binEnd = now + r.bin
	}
	if now >= r.binEnd {
		r.closeBin(now)
	}
	r.cur += int64(rows)
	r.inBin += int64(rows)
}

// roll completes the buckets that ended before now.
func (r *rate) roll(now Time) {
	if !r.started {
		r.started, r.end = true, now+r.width
		return
	}
	if now < r.end {
		return
	}
	r.epoch++
	for k := 0; now >= r.end; k++ {
		if k > rateBuckets { // silent for longer than the window: all buckets are zero already
			r.end += (now - r.end) / r.width * r.width
			k = 0
		}
		r.sum += r.cur - r.buckets[r.i]
		r.buckets[r.i] = r.cur
		r.i = (r.i + 1) % rateBuckets
		r.filled = min(r.filled+1, rateBuckets)
		r.cur = 0
		r.end += r.width
	}
}

// perSecond returns the rate, and false until the first bucket is complete.
func (r *rate) perSecond() (float64, bool) {
	if r.filled == 0 {
		return 0, false
	}
	return float64(r.sum) / (float64(r.filled) * float64(r.width) / 1e9), true
}

// dispersion is the variance of the rows that arrive within one SLO over their
// mean: 1 for Poisson arrivals and less for regular ones, both of which count as
// 1, and more where requests come in bursts.
func (r *rate) dispersion() float64 {
	if r.rows == 0 {
		return 1
	}
	return max(1, r.squares/r.rows-r.rows/r.bins)
}

// manyRows and manyBins are the rows and bins from which the dispersion is known well
// enough: beyond both, the counts are halved.
const manyRows, manyBins = 400, 40

// closeBin ends the current bin, and the empty bins between it and now.
func (r *rate) closeBin(now Time) {
	passed := 1 + (now-r.binEnd)/r.bin
	n := float64(r.inBin)
	r.bins += float64(passed)
	r.rows += n
	r.squares += n * n
	if r.rows > manyRows && r.bins > manyBins {
		r.bins, r.rows, r.squares = r.bins/2, r.rows/2, r.squares/2
	}
	r.inBin = 0
	r.binEnd += passed * r.bin
}

// reach is the largest batch that can be gathered at the present rate and then
// run within the SLO: the largest b with
//
//	l(b) + b/rate <= SLO.
//
// Symphony writes it as l(b)(1+1/n) <= SLO with n = rate*l(b)/b, the number of
// executors that the model alone keeps busy (equation 1, staggered execution),
// which is the same. Without a rate yet it is the largest b with l(b) <= SLO/2.
func reach(t Table, limit int, slo Time, r *rate) int {
	perSecond, known := r.perSecond()
	best := 1
	for b := 2; b <= limit; b++ {
		need := 2 * t.At(b)
		if known {
			need = Never
			if perSecond > 0 {
				need = t.At(b) + Time(float64(b)/perSecond*1e9)
			}
		}
		if need > slo {
			break
		}
		best = b
	}
	return best
}

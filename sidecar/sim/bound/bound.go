// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package bound computes how much load could be held at best, without simulating anything: upper guides that measured goodput is compared
// with. Latency is a function of rows at the whole partition, in seconds; rates are requests per second with one row each.
package bound

import "math"

// Model is what the bounds know of one model.
type Model struct {
	// Latency is l(b) in seconds for b >= 1; it must not decrease in b.
	Latency func(b int) float64
	// SLO in seconds.
	SLO float64
	// MaxBatch is the largest batch; below 1 counts as 1.
	MaxBatch int
	// Share is the model's part of the total rate; only ratios count.
	Share float64
}

// Staggered is the goodput of one model on n equal partitions that take turns evenly (Symphony, equations 1 and 2 of section 3.3, and Table 2): the largest b
// with l(b)(1+1/n) <= SLO, run on all of them without a pause. It returns batch 0 where not even one row fits, which means that no request
// can wait a turn.
func Staggered(m Model, n int) (batch int, rate float64) {
	return full(m, n, 1+1/float64(n))
}

// Uncoordinated is Staggered for partitions that do not know of each other: l(b)*2 <= SLO.
func Uncoordinated(m Model, n int) (batch int, rate float64) {
	return full(m, n, 2)
}

func full(m Model, n int, factor float64) (batch int, rate float64) {
	for b := 1; b <= max(1, m.MaxBatch); b++ {
		if m.Latency(b)*factor > m.SLO {
			break
		}
		batch = b
	}
	if batch == 0 {
		return 0, 0
	}
	return batch, float64(n) * float64(batch) / m.Latency(batch)
}

// Gather is the total rate up to which the models fit on n partitions that all of them share: at rate r_i a batch x gathers for (x-1)/r_i
// before its last row is there, so that the largest useful batch x_i has (x-1)/r_i + l_i(x) <= SLO_i, and the partitions are full when the
// sum of r_i l_i(x_i)/x_i reaches n. Batches are taken as real numbers by linear interpolation between rows: rounding down would put the
// bound below what alternating batch sizes reach. No scheduler can serve much more; with bursts, or few partitions, every scheduler serves less.
func Gather(models []Model, n int) float64 {
	total := 0.0
	for _, m := range models {
		total += m.Share
	}
	if total <= 0 || n < 1 {
		return 0
	}
	busy := func(rate float64) float64 {
		sum := 0.0
		for _, m := range models {
			if r := rate * m.Share / total; r > 0 {
				x := gathered(m, r)
				sum += r * at(m, x) / x
			}
		}
		return sum
	}
	lo, hi := 0.0, 1.0
	for busy(hi) <= float64(n) {
		if lo, hi = hi, 2*hi; hi > 1e15 {
			return math.Inf(1)
		}
	}
	for range 100 {
		if mid := (lo + hi) / 2; busy(mid) <= float64(n) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

// gathered is the largest real batch with (x-1)/r + l(x) <= SLO, at least 1.
func gathered(m Model, r float64) float64 {
	fits := func(x float64) bool { return (x-1)/r+at(m, x) <= m.SLO }
	lo, hi := 1.0, float64(max(1, m.MaxBatch))
	if fits(hi) {
		return hi
	}
	for range 60 {
		if mid := (lo + hi) / 2; fits(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return lo
}

func at(m Model, x float64) float64 {
	low := math.Floor(x)
	l := m.Latency(int(low))
	if x == low {
		return l
	}
	return l + (x-low)*(m.Latency(int(low)+1)-l)
}

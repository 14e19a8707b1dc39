// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import "math"

// Latency is l(b, p): the expected microseconds of a batch of the given rows at
// the given thread percentage, interpolated on the profile's grid. It is false
// where the profile has no points of a share, or batch or share is 0.
//
// Between two batches l is linear in b, as in Nexus and Symphony (l(b) = alpha
// b + beta); between two shares it is linear in 1/p, for work that fills its
// share takes time in inverse proportion to it. Outside the grid the answer is
// never better than the nearest point allows: a batch below the smallest takes
// as long as the smallest, one above the largest continues its last slope, a
// share below the smallest slows in proportion, and one above the largest
// gains nothing.
func (p *Profile) Latency(batch, share uint32) (us float64, ok bool) {
	return p.at(batch, share, func(q *ProfilePoint) float64 { return q.GetLatencyUs().GetValue() })
}

// Upper is the upper quantile of l(b, p), that deadlines are planned with, by
// the rules of [Profile.Latency]; never below the expected latency.
func (p *Profile) Upper(batch, share uint32) (us float64, ok bool) {
	return p.at(batch, share, func(q *ProfilePoint) float64 {
		return math.Max(q.GetLatencyUpperUs(), q.GetLatencyUs().GetValue())
	})
}

// Bound is the half width of the 95% interval of l(b, p), by the rules of
// [Profile.Latency].
func (p *Profile) Bound(batch, share uint32) (us float64, ok bool) {
	return p.at(batch, share, func(q *ProfilePoint) float64 { return q.GetLatencyUs().GetErrorBound() })
}

// MaxBatch is the largest batch up to limit whose upper latency at the share is
// at most the given microseconds; 0 where not even one row is.
func (p *Profile) MaxBatch(share, limit uint32, us float64) uint32 {
	low, high := uint32(0), limit
	for low < high {
		middle := high - (high-low)/2 // nearer to high, and no sum that could overflow
		if l, ok := p.Upper(middle, share); ok && l <= us {
			low = middle
		} else {
			high = middle - 1
		}
	}
	return low
}

func (p *Profile) at(batch, share uint32, value func(*ProfilePoint) float64) (float64, bool) {
	if batch == 0 || share == 0 || len(p.GetPoints()) == 0 {
		return 0, false
	}
	below, above := p.rows(share)
	switch {
	case below == nil && above == nil:
		return 0, false
	case below == nil:
		smallest := above[0].GetThreadPercentage()
		return inRow(above, batch, value) * float64(smallest) / float64(share), true
	case above == nil:
		return inRow(below, batch, value), true
	}
	lowShare, highShare := below[0].GetThreadPercentage(), above[0].GetThreadPercentage()
	low := inRow(below, batch, value)
	if lowShare == highShare {
		return low, true
	}
	high := inRow(above, batch, value)
	inverse := func(s uint32) float64 { return 1 / float64(s) }
	weight := (inverse(lowShare) - inverse(share)) / (inverse(lowShare) - inverse(highShare))
	return low + (high-low)*weight, true
}

// rows returns the points of the nearest share at or below the given one and of
// the nearest at or above it; nil where the grid has none.
func (p *Profile) rows(share uint32) (below, above []*ProfilePoint) {
	points := p.GetPoints()
	for start := 0; start < len(points); {
		s := points[start].GetThreadPercentage()
		end := start + 1
		for end < len(points) && points[end].GetThreadPercentage() == s {
			end++
		}
		row := points[start:end]
		start = end
		if s == 0 {
			continue
		}
		if s <= share {
			below = row
		}
		if s >= share {
			return below, row
		}
	}
	return below, nil
}

// inRow interpolates the points of one share, sorted by batch.
func inRow(row []*ProfilePoint, batch uint32, value func(*ProfilePoint) float64) float64 {
	b := float64(batch)
	first, last := row[0], row[len(row)-1]
	if batch <= first.GetBatch() {
		return value(first)
	}
	if len(row) == 1 {
		return value(first) * b / math.Max(1, float64(first.GetBatch()))
	}
	for i := 1; i < len(row); i++ {
		low, high := row[i-1], row[i]
		if batch > high.GetBatch() && high != last {
			continue
		}
		span := float64(high.GetBatch()) - float64(low.GetBatch())
		if span <= 0 {
			return value(high)
		}
		slope := (value(high) - value(low)) / span
		if batch > high.GetBatch() {
			return value(high) + math.Max(0, slope)*(b-float64(high.GetBatch()))
		}
		return value(low) + slope*(b-float64(low.GetBatch()))
	}
	return value(last)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// Table is the latency table of the queue for 1..n+1 rows: the upper latency at the
// share, plus extra for every batch. It is nil for a profile without a usable point.
func Table(p *policy.Profile, share uint32, n int, extra queue.Time) queue.Table {
	upper := Upper(p, share, n+1)
	if upper == nil {
		return nil
	}
	t := make(queue.Table, len(upper))
	for b := 1; b < len(t); b++ {
		t[b] = max(queue.Time(upper[b])+extra, t[b-1], 1)
	}
	return t
}

// Optimistic is a table like that of [Table] with the least latencies that the error
// bounds of the profile allow. The queue may probe batch sizes that only this table
// allows. It is nil if it differs little from the other table, as for a well-known profile.
func Optimistic(p *policy.Profile, share uint32, n int, extra queue.Time) queue.Table {
	upper := Upper(p, share, n+1)
	bound := row(boundsOf(p), share, n+1)
	if upper == nil || bound == nil {
		return nil
	}
	t := make(queue.Table, len(upper))
	wide := false
	for b := 1; b < len(t); b++ {
		least := max(0, upper[b]-bound[b])
		wide = wide || least < worthProbing*upper[b]
		t[b] = max(queue.Time(least)+extra, t[b-1], 1)
	}
	if !wide {
		return nil
	}
	return t
}

// worthProbing is the part of the predicted latency that the least latency of some size
// must be below, or there is no optimistic table. The queue's own limit is lower.
const worthProbing = .9

// Upper is the upper latency of 1..rows rows at the share in nanoseconds, by the
// number of rows, made monotone; index 0 is unused. It interpolates as the
// contract does (policy.Profile.Upper): linear in rows, and in 1/p between
// shares. A share of 0 is the whole GPU. A profile without a usable point gives
// nil.
func Upper(p *policy.Profile, share uint32, rows int) []float64 {
	upper := row(usable(p), share, rows)
	for b := 1; b < len(upper); b++ {
		upper[b] = max(upper[b], upper[b-1], 1)
	}
	return upper
}

// row is the upper latency of a grid for 1..rows rows at one share, in nanoseconds; nil for
// an empty grid.
func row(grid *policy.Profile, share uint32, rows int) []float64 {
	if len(grid.GetPoints()) == 0 {
		return nil
	}
	if share == 0 {
		share = 100
	}
	at := make([]float64, rows+1)
	for b := 1; b <= rows; b++ {
		us, _ := grid.Upper(uint32(b), share)
		at[b] = us * float64(time.Microsecond)
	}
	return at
}

// boundsOf is a grid of the error bounds of a profile, as upper latencies.
func boundsOf(p *policy.Profile) *policy.Profile {
	grid := &policy.Profile{}
	for _, q := range p.GetPoints() {
		us := q.GetLatencyUs().GetErrorBound()
		if !(us >= 0) || math.IsInf(us, 0) || q.GetBatch() == 0 || q.GetThreadPercentage() == 0 {
			continue
		}
		grid.Points = append(grid.Points, &policy.ProfilePoint{Batch: q.GetBatch(), ThreadPercentage: q.GetThreadPercentage(), LatencyUpperUs: us})
	}
	sortGrid(grid)
	return grid
}

func sortGrid(grid *policy.Profile) {
	slices.SortStableFunc(grid.Points, func(a, b *policy.ProfilePoint) int {
		return cmp.Or(cmp.Compare(a.GetThreadPercentage(), b.GetThreadPercentage()), cmp.Compare(a.GetBatch(), b.GetBatch()))
	})
}

// usable is the part of a profile's grid with valid values, in the order that the
// contract requires: a policy's profile may have any values. Where a point has no
// quantile, value plus error bound stand for it.
func usable(p *policy.Profile) *policy.Profile {
	grid := &policy.Profile{}
	for _, q := range p.GetPoints() {
		mean := q.GetLatencyUs().GetValue()
		us := q.GetLatencyUpperUs()
		if us <= 0 {
			us = mean + q.GetLatencyUs().GetErrorBound()
		}
		us = max(us, mean)
		if us <= 0 || math.IsNaN(us) || math.IsInf(us, 0) || q.GetBatch() == 0 || q.GetThreadPercentage() == 0 {
			continue
		}
		grid.Points = append(grid.Points, &policy.ProfilePoint{Batch: q.GetBatch(), ThreadPercentage: q.GetThreadPercentage(), LatencyUpperUs: us})
	}
	sortGrid(grid)
	return grid
}

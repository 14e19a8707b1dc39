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

// Table is what the queue plans with for 1..n+1 rows: the upper latency at the
// share, and what is added to every batch. A profile that says nothing has none.
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

// Upper is the upper latency of 1..rows rows at the share in nanoseconds, by the
// number of rows, made monotone; index 0 is unused. It interpolates as the
// contract does (policy.Profile.Upper): linear in rows, and in 1/p between
// shares. A share of 0 is the whole GPU. A profile without a usable point gives
// nil.
func Upper(p *policy.Profile, share uint32, rows int) []float64 {
	grid := usable(p)
	if len(grid.GetPoints()) == 0 {
		return nil
	}
	if share == 0 {
		share = 100
	}
	upper := make([]float64, rows+1)
	for b := 1; b <= rows; b++ {
		us, _ := grid.Upper(uint32(b), share)
		upper[b] = max(us*float64(time.Microsecond), upper[b-1], 1)
	}
	return upper
}

// usable is the part of a profile's grid that says something, in the order that
// the contract wants: profiles of other people's policies may say anything.
// Where there is no quantile, value and error bound stand for it.
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
	slices.SortStableFunc(grid.Points, func(a, b *policy.ProfilePoint) int {
		return cmp.Or(cmp.Compare(a.GetThreadPercentage(), b.GetThreadPercentage()), cmp.Compare(a.GetBatch(), b.GetBatch()))
	})
	return grid
}

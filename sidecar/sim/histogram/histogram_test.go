// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package histogram_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/sidecar/sim/histogram"
)

// TestQuantilesAreNear compares with sorted values: never below, and at most one bucket above.
func TestQuantilesAreNear(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(-5, int64(2*time.Hour)), 1, 300).Draw(t, "values")
		q := rapid.Float64Range(0, 1).Draw(t, "q")
		var h, left, right histogram.Histogram
		for i, v := range values {
			h.Add(time.Duration(v))
			if i%2 == 0 {
				left.Add(time.Duration(v))
			} else {
				right.Add(time.Duration(v))
			}
		}
		slices.Sort(values)
		rank := max(1, int(q*float64(len(values))))
		if float64(rank) < q*float64(len(values)) {
			rank++
		}
		exact := max(0, float64(values[rank-1]))
		require.GreaterOrEqual(t, float64(h.Quantile(q)), exact)
		require.LessOrEqual(t, float64(h.Quantile(q)), exact*(1+1./128)+64)
		require.Equal(t, max(0, values[len(values)-1]), int64(h.Max()))
		left.Merge(&right)
		require.Equal(t, h.Quantile(q), left.Quantile(q))
		require.Equal(t, h.Count(), left.Count())
	})
}

func TestEmpty(t *testing.T) {
	var h histogram.Histogram
	require.Zero(t, h.Quantile(.99))
	require.Zero(t, h.Mean())
}

func TestAddDoesNotAllocate(t *testing.T) {
	var h histogram.Histogram
	h.Add(time.Minute)
	require.Zero(t, testing.AllocsPerRun(100, func() { h.Add(3 * time.Millisecond) }))
}

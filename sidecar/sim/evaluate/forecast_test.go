// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package evaluate

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func drawnMean(rates []float64) (mean, least, most float64) {
	f, random := fit(rates), rand.New(rand.NewPCG(1, 2))
	least = f.draw(random)
	const draws = 4000
	for range draws {
		r := f.draw(random)
		mean, least, most = mean+r/draws, min(least, r), max(most, r)
	}
	return mean, least, most
}

// What is steady stays; bursts come again as large as they were and as often, and do not grow from the last one; what rises goes on rising.
func TestForecastsFollowPastMinutes(t *testing.T) {
	mean, least, most := drawnMean([]float64{50, 50, 50, 50})
	require.InDelta(t, 50, mean, 1e-9)
	require.InDelta(t, 50, least, 1e-9)
	require.InDelta(t, 50, most, 1e-9)

	bursts := []float64{10, 10, 110, 10, 10, 10, 10, 110, 10, 10, 10, 110, 10, 10, 110}
	mean, least, most = drawnMean(bursts)
	require.InEpsilon(t, 110*4./15+10*11./15, mean, .15)
	require.InDelta(t, 10, least, 15)
	require.InEpsilon(t, 110, most, .25)

	var rising []float64
	for minute := range 15 {
		rising = append(rising, float64(100+10*minute))
	}
	mean, _, _ = drawnMean(rising)
	require.Greater(t, mean, 240., "the last minute has 240")
	require.Less(t, mean, 300.)

	drifting := []float64{10, 12, 9, 11, 10, 30, 31, 29, 30, 32, 30, 29, 31, 30, 31}
	mean, _, _ = drawnMean(drifting)
	require.Greater(t, mean, 26., "nearer to the level that there is now than to the mean of 23")
}

// Rates are never below 0, nor without bound, whatever the past was.
func TestForecastsAreRates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rates := rapid.SliceOfN(rapid.Float64Range(0, 1e6), leastMinutes, 60).Draw(t, "rates")
		f, random := fit(rates), rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		require.True(t, f.phi >= 0 && f.phi <= 1)
		largest := 0.
		for _, r := range rates {
			largest = max(largest, r)
		}
		for range 50 {
			r := f.draw(random)
			require.GreaterOrEqual(t, r, 0.)
			require.LessOrEqual(t, r, (1+2*ahead)*largest+1e-6, "each minute adds at most one error, and these are within twice the largest rate")
		}
	})
}

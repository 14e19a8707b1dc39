// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
)

// TestDrawsAreReproducible: equal seeds give equal loads, other seeds others, and each can be simulated.
func TestDrawsAreReproducible(t *testing.T) {
	for k := range 8 {
		a, again, other := drawLoad(1, k), drawLoad(1, k), drawLoad(2, k)
		require.Equal(t, a, again)
		require.NotEqual(t, a.scenario, other.scenario)
		require.Positive(t, a.capacity)
		a.scenario.Duration = duration(1)
		require.NoError(t, a.scenario.Check(), a.name)
	}
}

// TestTightModelsHoldBesideHeavyOnes: a model with an SLO of 15 ms holds its share of the load beside one whose batches take 27 ms and more,
// and does not once nothing is kept for it.
func TestTightModelsHoldBesideHeavyOnes(t *testing.T) {
	for gpus, rate := range map[string]float64{"tightheavy.gpus2": 300, "tightheavy.gpus4": 800} {
		for _, d := range namedLoads() {
			if d.name != gpus {
				continue
			}
			d.part = 4
			bad := func(p adaptive.Params) float64 {
				r, err := d.search(entrant{rule: rule("adaptive", "", nil), params: &p}, rate, 0, 1).Run(t.Context(), rate, 1)
				require.NoError(t, err)
				return r.WorstBadRate()
			}
			require.LessOrEqual(t, bad(adaptive.Defaults()), .01, d.name)
			without := adaptive.Defaults()
			without.Keep = 0
			require.Greater(t, bad(without), .015, d.name)
		}
	}
}

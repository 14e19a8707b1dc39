// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
	"github.com/conch-serving/conch/sidecar/sim/try"
)

// TestLiveScenes: in the simulator every scene's policy plans for it, within what two cores serve live, and some requests are bad, so that live and
// simulated could differ.
func TestLiveScenes(t *testing.T) {
	for _, s := range liveScenes() {
		t.Run(s.policy, func(t *testing.T) {
			s.stretch = defaultStretch
			session, err := try.Open(t.Context(), try.Options{Policy: s.policy, Parameters: s.parameters, Evaluations: 64})
			require.NoError(t, err)
			world := s.snapshot()
			trial, err := session.Run(t.Context(), world)
			require.NoError(t, err)
			require.Empty(t, trial.Error)
			require.Empty(t, trial.Violations)
			require.LessOrEqual(t, len(trial.Plan.GetPartitions()), 8)
			rates := s.rates
			for _, times := range []float64{1, s.overload} {
				s.rates = map[string]float64{}
				for name, rate := range rates {
					s.rates[name] = times * rate
				}
				traffic, err := evaluate.Generate(s.snapshot(), time.Minute)
				require.NoError(t, err)
				r, err := sim.Run(t.Context(), evaluate.New(world, traffic).World(trial.Plan))
				require.NoError(t, err)
				var batches uint64
				for _, p := range r.Partitions {
					batches += p.Batches
				}
				t.Logf("%s: %.0f req/s, %.0f executions/s, bad %.2f%%", placed(trial.Plan), r.Total.Goodput, float64(batches)/r.Seconds, 100*r.Total.BadRate)
				require.LessOrEqual(t, float64(batches)/r.Seconds, 300.)
				if times == 1 {
					require.Less(t, r.Total.BadRate, .01)
				} else {
					require.Greater(t, r.Total.BadRate, .02)
					require.Less(t, r.Total.BadRate, .25)
				}
			}
		})
	}
}

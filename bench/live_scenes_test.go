// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
	"github.com/conch-serving/conch/sidecar/sim/try"
)

// badRate has a scene's policy plan for the scene, and is the bad rate of the plan in the simulator under a minute of what is offered: the scene with other
// rates or another seed. It checks that the plan and its executions are within what two cores serve live.
func badRate(t *testing.T, s liveScene, offered *policy.Snapshot) float64 {
	session, err := try.Open(t.Context(), try.Options{Policy: s.policy, Parameters: s.parameters, Evaluations: 64})
	require.NoError(t, err)
	world := s.snapshot()
	trial, err := session.Run(t.Context(), world)
	require.NoError(t, err)
	require.Empty(t, trial.Error)
	require.Empty(t, trial.Violations)
	require.LessOrEqual(t, len(trial.Plan.GetPartitions()), 8)
	traffic, err := evaluate.Generate(offered, time.Minute)
	require.NoError(t, err)
	r, err := sim.Run(t.Context(), evaluate.New(world, traffic).World(trial.Plan))
	require.NoError(t, err)
	var batches uint64
	for _, p := range r.Partitions {
		batches += p.Batches
	}
	t.Logf("%s: %s: %.0f req/s, %.0f executions/s, bad %.2f%%", s.policy, placed(trial.Plan), r.Total.Goodput, float64(batches)/r.Seconds, 100*r.Total.BadRate)
	require.LessOrEqual(t, float64(batches)/r.Seconds, 300.)
	return r.Total.BadRate
}

// TestLiveScenes: in the simulator every scene's policy plans for it, within what two cores serve live, and some requests are bad, so that live and
// simulated could differ.
func TestLiveScenes(t *testing.T) {
	for _, s := range liveScenes() {
		t.Run(s.policy, func(t *testing.T) {
			s.stretch = defaultStretch
			require.Less(t, badRate(t, s, s.snapshot()), .01)
			over := s
			over.rates = maps.Clone(s.rates)
			for name := range over.rates {
				over.rates[name] *= s.overload
			}
			bad := badRate(t, s, over.snapshot())
			require.Greater(t, bad, .02)
			require.Less(t, bad, .25)
		})
	}
}

// TestJudgedScenes: in the simulator some policies hold a scene's load and others do not, and all plans are within what two cores serve live.
func TestJudgedScenes(t *testing.T) {
	scenes := judgedScenes()
	require.Len(t, scenes, 3)
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			s.stretch = defaultStretch
			unseen := s.snapshot()
			unseen.Seed++
			var bad []float64
			for _, p := range livePolicies() {
				s.policy, s.parameters = p.policy, p.parameters
				bad = append(bad, badRate(t, s, unseen))
			}
			require.Less(t, slices.Min(bad), .02)
			require.Greater(t, slices.Max(bad), .05)
		})
	}
}

func TestOverBest(t *testing.T) {
	require.InDelta(t, 1.25, overBest(map[string][]float64{ours: {90, 110}, simplest: {70, 90}, "usher": {50}}), 1e-9)
}

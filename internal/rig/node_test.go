// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

// nightly is why a test is skipped. Every push runs the tests that are short.
const nightly = "it takes long, and needs CONCH_TRITONSERVER and CONCH_BIN: of CI only the nightly run has it, by make test-all"

// TestOneServerOverTwoGPUs on a real tritonserver: two models at more than one GPU can do are served in time, whether instances are bound to GPUs or not,
// with the rate limiter too.
func TestOneServerOverTwoGPUs(t *testing.T) {
	server := os.Getenv("CONCH_TRITONSERVER")
	if server == "" || testing.Short() {
		t.Skip(nightly)
	}
	models := rig.Copies(zoo.Profile{Model: "hundred", GPUType: zoo.A100, Beta: 100 * time.Millisecond, SLO: 2 * time.Second}, 2, 1, 1)
	for _, o := range []rig.TritonOptions{{Node: rig.NodeBound}, {Node: rig.NodeFree}, {Node: rig.NodeBound, RateLimiter: true}, {Node: rig.NodeFree, RateLimiter: true}, {Node: rig.NodeFree, RateLimiter: true, Instances: 1}} {
		o.Server, o.Models, o.GPUs, o.Dynamic = server, models, 2, &zoo.DynamicBatching{}
		tritons, err := rig.StartTritons(t.Context(), o)
		require.NoError(t, err)
		require.Len(t, tritons.Endpoints(), 1)
		trial, err := rig.Measure(t.Context(), tritons, loadgen.Load{Models: models.Load(), Rate: 14, Arrivals: loadgen.Fixed, Measure: 6 * time.Second, Patience: 3 * time.Second, Seed: 1})
		require.NoError(t, err)
		failed, wrong, first := trial.Faults()
		require.Zero(t, failed+wrong, first)
		require.Less(t, trial.Bad(), .1, "%s, rate limiter %v: one GPU does ten a second", o.Node, o.RateLimiter)
		require.NoError(t, tritons.Close())
	}
}

// TestAttachedOverTwoGPUs on a real tritonserver: conch in front of one server with two instances of each model, which executes two batches there at once, answers
// in time and with everyone's own rows what is more than it could do one by one.
func TestAttachedOverTwoGPUs(t *testing.T) {
	server, bin := os.Getenv("CONCH_TRITONSERVER"), os.Getenv("CONCH_BIN")
	if server == "" || bin == "" || testing.Short() {
		t.Skip(nightly)
	}
	// An execution takes 200 ms, however many of the eight rows it has: one model in one place can do 40 a second, and two models 40 between them.
	models := rig.Copies(zoo.Profile{Model: "long", GPUType: zoo.A100, Beta: 200 * time.Millisecond, SLO: 2 * time.Second}, 2, 1, 8)
	c := &rig.Contest{Bin: bin, Server: server, Models: models, GPUs: 2}
	tritons, err := rig.StartTritons(t.Context(), rig.TritonOptions{Server: server, Models: models, GPUs: 2, Node: rig.NodeBound})
	require.NoError(t, err)
	defer func() { require.NoError(t, tritons.Close()) }()
	bad := map[int]float64{}
	for _, executions := range []int{1, 2} {
		conch, err := rig.ConchSetup{Attach: executions}.StartBefore(t.Context(), c, tritons)
		require.NoError(t, err)
		trial, err := rig.Measure(t.Context(), conch, loadgen.Load{Models: models.Load(), Rate: 60, Arrivals: loadgen.Fixed, Measure: 8 * time.Second, Patience: 3 * time.Second, Seed: 1})
		require.NoError(t, err)
		failed, wrong, first := trial.Faults()
		require.Zero(t, wrong, first)
		if executions == 2 {
			require.Zero(t, failed, first)
		}
		bad[executions] = trial.Bad()
		require.NoError(t, conch.Close())
	}
	require.Greater(t, bad[1], .2, "one at a time is too few")
	require.Less(t, bad[2], .05)
}

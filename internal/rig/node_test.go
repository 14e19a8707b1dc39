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

// TestOneServerOverTwoGPUs on a real tritonserver: two models at more than one GPU can do are served in time, whether instances are bound to GPUs or not,
// with the rate limiter too.
func TestOneServerOverTwoGPUs(t *testing.T) {
	server := os.Getenv("CONCH_TRITONSERVER")
	if server == "" || testing.Short() {
		t.Skip("CONCH_TRITONSERVER is not set: make test-all sets it")
	}
	models := rig.Copies(zoo.Profile{Model: "hundred", GPUType: zoo.A100, Beta: 100 * time.Millisecond, SLO: 2 * time.Second}, 2, 1, 1)
	for _, o := range []rig.TritonOptions{{Node: rig.NodeBound}, {Node: rig.NodeFree}, {Node: rig.NodeBound, RateLimiter: true}} {
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

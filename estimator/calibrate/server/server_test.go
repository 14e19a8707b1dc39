// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/estimator/calibrate"
	"github.com/conch-serving/conch/estimator/calibrate/server"
	"github.com/conch-serving/conch/internal/rig"
)

type machineClock struct{}

func (machineClock) Now() time.Time { return time.Now() }

func (machineClock) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// A real tritonserver takes models with the call that loads them, and counts what an execution computed.
func TestMicroModelsRunOnARealTriton(t *testing.T) {
	program := os.Getenv("CONCH_TRITONSERVER")
	if _, err := os.Stat(program); program == "" || err != nil {
		t.Skip("CONCH_TRITONSERVER names no tritonserver: make test sets it")
	}
	triton, err := rig.StartServer(t.Context(), rig.ServerOptions{Server: program, Repository: t.TempDir()})
	require.NoError(t, err)
	defer func() { require.NoError(t, triton.Close()) }()
	runner, err := server.Dial(t.Context(), triton.GRPC, server.Options{Python: true, CPU: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, runner.Close()) }()

	var some []calibrate.Model
	for _, m := range calibrate.Micros() {
		if m.Name == "null_1" || m.Name == "conv_64_32_3_1" {
			some = append(some, m)
		}
	}
	require.Len(t, some, 2)
	o := calibrate.Options{State: filepath.Join(t.TempDir(), "state.json"), Runs: 3, Clock: machineClock{}}
	state, err := calibrate.Measure(t.Context(), runner, some, o)
	require.NoError(t, err)
	require.Contains(t, state.Server, "python, ONNX Runtime")
	seconds := map[string]float64{}
	for _, r := range state.Results {
		require.Positive(t, r.Seconds)
		if r.Batch == 1 || r.Batch == 6 {
			seconds[r.Model] = max(seconds[r.Model], r.Seconds)
		}
	}
	// Two billion multiplications against sixteen: a busy machine does not turn that around.
	require.Greater(t, seconds["conv_64_32_3_1"], seconds["null_1"])

	again, err := calibrate.Measure(t.Context(), runner, some, o)
	require.NoError(t, err)
	require.Equal(t, state.Results, again.Results, "the state file has everything: nothing is measured again")
}

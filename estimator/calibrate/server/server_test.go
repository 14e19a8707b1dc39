// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/estimator/calibrate"
	"github.com/conch-serving/conch/estimator/calibrate/server"
	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/rig"
)

// dial starts a real tritonserver on an empty repository.
func dial(t *testing.T, o server.Options) *server.Runner {
	t.Helper()
	program := os.Getenv("CONCH_TRITONSERVER")
	if _, err := os.Stat(program); program == "" || err != nil {
		t.Skip("CONCH_TRITONSERVER names no tritonserver: make test sets it")
	}
	triton, err := rig.StartServer(t.Context(), rig.ServerOptions{Server: program, Repository: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, triton.Close()) })
	runner, err := server.Dial(t.Context(), triton.GRPC, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, runner.Close()) })
	return runner
}

// A real tritonserver takes models with the call that loads them, and counts what an execution computed.
func TestMicroModelsRunOnARealTriton(t *testing.T) {
	runner := dial(t, server.Options{Python: true, CPU: true})
	var some []calibrate.Model
	for _, m := range calibrate.Micros() {
		if m.Name == "null_1" || m.Name == "conv_64_32_3_1" {
			some = append(some, m)
		}
	}
	require.Len(t, some, 2)
	o := calibrate.Options{State: filepath.Join(t.TempDir(), "state.json"), Runs: 3, Clock: clock.Interruptible{}}
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

// A server without the backend that runs graphs says so in its own words, which name no way out.
func TestAServerWithoutTheBackend(t *testing.T) {
	runner := dial(t, server.Options{CPU: true})
	o := calibrate.Options{State: filepath.Join(t.TempDir(), "state.json"), Runs: 3, Clock: clock.Interruptible{}}
	_, err := calibrate.Measure(t.Context(), runner, calibrate.Micros()[:1], o)
	if err == nil {
		t.Skip("this tritonserver has the onnxruntime backend")
	}
	require.ErrorContains(t, err, "this tritonserver has no onnxruntime backend; measure with one that has it, or on the CPU with --python")
}

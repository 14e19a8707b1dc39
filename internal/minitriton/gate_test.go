// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/minitriton"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// An execution that meets a closed gate says so by a file and goes on once that is removed; one that comes after it has opened does not wait.
func TestGate(t *testing.T) {
	repo, gate := t.TempDir(), t.TempDir()
	write(t, repo, "m", slow(0)+fmt.Sprintf(` parameters { key: "conch_gate" value { string_value: %q } }`, gate))
	_, c := start(t, minitriton.Options{Repository: repo, Load: []string{"m"}})
	closed := filepath.Join(gate, "closed")
	require.NoError(t, os.WriteFile(closed, nil, 0o600))
	answer := make(chan error, 1)
	go func() {
		_, err := infer(t.Context(), c, "m")
		answer <- err
	}()
	var begun []string
	require.Eventually(t, func() bool {
		begun, _ = filepath.Glob(filepath.Join(gate, "begun-*")) // the pattern is right
		return len(begun) == 1
	}, 30*time.Second, time.Millisecond)
	require.NoError(t, os.Remove(closed))
	require.Empty(t, answer, "who waits goes on only when its own file is gone")
	require.NoError(t, os.Remove(begun[0]))
	require.NoError(t, <-answer)
	_, err := infer(t.Context(), c, "m")
	require.NoError(t, err)
}

// A step of an ensemble whose queue policy refuses it ends the ensemble, which wants the lock of the step's model to let go of it.
func TestAStepThatItsQueuePolicyRefuses(t *testing.T) {
	repo, gate := t.TempDir(), t.TempDir()
	write(t, repo, "first", slow(0)+fmt.Sprintf(`parameters { key: "conch_gate" value { string_value: %q } }
		dynamic_batching { default_queue_policy { timeout_action: REJECT default_timeout_microseconds: 600000000 allow_timeout_override: true } }`, gate))
	write(t, repo, "all", ensembleOf("first"))
	s, c := start(t, minitriton.Options{Repository: repo, Load: []string{"first", "all"}})
	closed := filepath.Join(gate, "closed")
	require.NoError(t, os.WriteFile(closed, nil, 0o600))
	busy, refused := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := infer(t.Context(), c, "first")
		busy <- err
	}()
	var begun []string
	require.Eventually(t, func() bool {
		begun, _ = filepath.Glob(filepath.Join(gate, "begun-*")) // the pattern is right
		return len(begun) == 1
	}, 30*time.Second, time.Millisecond)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		r := row("all", 1)
		r.Inputs[0].Name = "A"
		r.Parameters = map[string]*pb.InferParameter{"timeout": {ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: 1}}} // over at once
		_, err := c.Stub.ModelInfer(ctx, r)
		refused <- err
	}()
	require.Eventually(t, func() bool {
		return metric(t, s, `nv_inference_pending_request_count{model="first",version="1"}`) == "1"
	}, 30*time.Second, time.Millisecond)
	require.NoError(t, os.Remove(closed))
	require.NoError(t, os.Remove(begun[0]))
	require.NoError(t, <-busy)
	requireRefusal(t, <-refused, codes.Unavailable, "in ensemble 'all', Request timeout expired")
}

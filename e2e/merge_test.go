// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/graphs"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/internal/pymodels"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/trial"
	"github.com/conch-serving/conch/merger"
)

// fineTune writes an encoder of the tests' own: the layers of all of them are the same, the classifier is its own.
func fineTune(t *testing.T, dir string, seed uint64) {
	t.Helper()
	m := graphs.Encoder(graphs.Weights{Base: 1, Own: seed, Shared: func(tensor string) graphs.Region {
		if strings.HasPrefix(tensor, "head") {
			return graphs.Region{}
		}
		return graphs.Everything()
	}}, graphs.EncoderSize{Vocabulary: 100, Layers: 2, Width: 64, Heads: 2, Inner: 128}, 16, 5)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "1"), 0o755))
	require.NoError(t, onnx.Write(filepath.Join(dir, "1", merger.GraphFile), m.Model, m))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "1", "model.py"), pymodels.ONNX, 0o644))
	config := fmt.Sprintf(`name: %q
backend: "python"
max_batch_size: 4
input { name: "TOKENS" data_type: TYPE_INT64 dims: [ 16 ] }
output { name: "SCORES" data_type: TYPE_FP32 dims: [ 5 ] }
instance_group { count: 1 kind: KIND_CPU }
`, filepath.Base(dir))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.pbtxt"), []byte(config), 0o644))
}

// A real tritonserver runs two fine-tunes, the backbone that they share and their heads, and the merge answers as they do. A weight that
// was changed is found.
func TestAMergeIsVerifiedOnTriton(t *testing.T) {
	models, repository, merge := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "merge")
	var members []merger.Member
	directories := map[string]string{}
	for i, name := range []string{"first", "second"} {
		directories[name] = filepath.Join(models, name)
		fineTune(t, directories[name], uint64(2+i))
		m, err := merger.Find(directories[name])
		require.NoError(t, err)
		members = append(members, m)
	}
	a, err := merger.Analyze(t.Context(), members, merger.Options{})
	require.NoError(t, err)
	_, err = a.Emit(t.Context(), merge, "group", merger.Backbone)
	require.NoError(t, err)
	require.NoError(t, a.Close())

	server, err := rig.StartServer(t.Context(), rig.ServerOptions{
		Server: setting(t, "CONCH_TRITONSERVER"), Repository: repository, Flags: []string{"--model-control-mode=explicit"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	run, err := trial.Open(server.GRPC, repository)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, run.Close()) })

	m, err := merger.Verify(t.Context(), merge, directories, run, merger.VerifyOptions{})
	require.NoError(t, err, server.LogTail())
	t.Logf("%d runs, largest difference %.2g", m.Verification.Runs, m.Verification.MaxDifference)
	_, err = merger.Load(t.Context(), merge)
	require.NoError(t, err)
	left, err := os.ReadDir(repository)
	require.NoError(t, err)
	require.Empty(t, left, "the repository for trials is as it was")

	weights := filepath.Join(merge, "group", "1", "model.onnx.data")
	data, err := os.ReadFile(weights)
	require.NoError(t, err)
	for i := 3; i < len(data); i += 4096 {
		data[i] ^= 0x40 // the highest bit of an exponent
	}
	require.NoError(t, os.WriteFile(weights, data, 0o644))
	_, err = merger.Verify(t.Context(), merge, directories, run, merger.VerifyOptions{})
	require.ErrorContains(t, err, "differs by")
	_, err = merger.Load(t.Context(), merge)
	require.ErrorIs(t, err, merger.ErrUnverified)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package graphs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/graphs"
	"github.com/conch-serving/conch/internal/onnx"
)

func weightBytes(t *testing.T, m *graphs.Model) int64 {
	t.Helper()
	total := int64(0)
	for _, x := range m.Graph.Initializers {
		total += x.Bytes()
	}
	return total
}

func TestSizesAreThoseOfTheRealOnes(t *testing.T) {
	require.InDelta(t, 436e6, weightBytes(t, graphs.BERTBase(graphs.Weights{}, 128, 2)), 3e6)
	require.InDelta(t, 102.2e6, weightBytes(t, graphs.ResNet(graphs.Weights{}, []int{3, 4, 6, 3}, 64, 224, 1000)), 1e6)
}

func TestModelsShareWhatTheySay(t *testing.T) {
	half := func(tensor string) graphs.Region {
		if strings.HasPrefix(tensor, "layer1") {
			return graphs.Region{From: .25, To: .75}
		}
		return graphs.Everything()
	}
	read := func(own uint64) *onnx.Model {
		path := filepath.Join(t.TempDir(), "m.onnx")
		m := graphs.Chain(graphs.Weights{Base: 1, Own: own, Shared: half}, 8, 16, 32)
		require.NoError(t, onnx.Write(path, m.Model, m))
		got, err := onnx.Open(path)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, got.Close()) })
		return got
	}
	a, b := read(2), read(3)
	floats := func(m *onnx.Model, name string) []float32 {
		v, err := m.Float32s(m.Graph.Initializer(name))
		require.NoError(t, err)
		return v
	}
	require.Equal(t, floats(a, "layer0.weight"), floats(b, "layer0.weight"))
	x, y := floats(a, "layer1.weight"), floats(b, "layer1.weight")
	for i := range x {
		require.Equal(t, i%32 >= 8 && i%32 < 24, x[i] == y[i], "%d", i)
	}
}

// ONNX's checker accepts them and ONNX Runtime runs them.
func TestONNXRuntimeRunsThem(t *testing.T) {
	python := os.Getenv("CONCH_PYTHON")
	if python == "" {
		t.Skip("CONCH_PYTHON is not set: make test sets it")
	}
	small := graphs.EncoderSize{Vocabulary: 50, Layers: 2, Width: 32, Heads: 2, Inner: 64}
	dir := t.TempDir()
	models := map[string]*graphs.Model{
		"chain": graphs.Chain(graphs.Weights{}, 8, 16, 4), "resnet": graphs.ResNet(graphs.Weights{}, []int{3, 4, 6, 3}, 64, 32, 10), "encoder": graphs.Encoder(graphs.Weights{}, small, 6, 3),
	}
	for name, spelling := range map[string]graphs.Spelling{
		"plain": {}, "written": {Norm: "written", Gelu: "half", Attention: "scaled"}, "twice": {Norm: "twice", Gelu: "tanh", Attention: "packed", Dynamic: true},
		"reciprocal": {Norm: "reciprocal", Gelu: "quick", Attention: "gemm", Mask: true}, "stacked": {Attention: "stacked", Before: true, Causal: true, Dynamic: true},
		"skip": {Norm: "skip", Gelu: "fast", Attention: "op"}, "multihead": {Gelu: "bias", Attention: "multihead", Norm: "skip", Before: true},
		"casts": {Casts: true, Norm: "written", Mask: true}, "gelu": {Gelu: "op"},
	} {
		models[name] = graphs.Transformer(graphs.Weights{}, small, 6, 3, spelling)
	}
	for name, m := range models {
		require.NoError(t, onnx.Write(filepath.Join(dir, name+".onnx"), m.Model, m))
	}
	out, err := exec.CommandContext(t.Context(), python, "testdata/run.py", dir).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, len(models), strings.Count(string(out), "finite"), string(out))
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/internal/graphs"
	"github.com/conch-serving/conch/internal/onnx"
)

// spelled estimates a transformer spelled so: BERT-base's layers, fewer of them.
func spelled(t testing.TB, s graphs.Spelling, layers int64, d estimator.Device, g estimator.Grid) *estimator.Estimate {
	t.Helper()
	m := graphs.Transformer(graphs.Weights{}, graphs.EncoderSize{Vocabulary: 30522, Layers: layers, Width: 768, Heads: 12, Inner: 3072}, 128, 2, s)
	text, err := onnx.Skeleton(m.Model, m)
	require.NoError(t, err)
	read, err := estimator.Read(bytes.NewReader(text), int64(len(text)), "transformer.onnx")
	require.NoError(t, err)
	defer func() { require.NoError(t, read.Close()) }()
	e, err := read.Estimate(estimator.Declared{}, g, d)
	require.NoError(t, err)
	require.Empty(t, e.Warnings)
	return e
}

// The same network costs the same however its file spells it: with one launch per kernel at batch 1, with the device's time at batch 16.
func TestATransformerCostsTheSameInEverySpelling(t *testing.T) {
	grid := estimator.Grid{Batches: []int{1, 16}, Shares: []int{30, 100}}
	single := map[string]graphs.Spelling{
		"norm written":        {Norm: "written"},
		"norm twice":          {Norm: "twice"},
		"norm reciprocal":     {Norm: "reciprocal"},
		"norm skip":           {Norm: "skip"},
		"gelu half":           {Gelu: "half"},
		"gelu tanh":           {Gelu: "tanh"},
		"gelu quick":          {Gelu: "quick"},
		"gelu op":             {Gelu: "op"},
		"gelu bias":           {Gelu: "bias"},
		"gelu fast":           {Gelu: "fast"},
		"attention packed":    {Attention: "packed"},
		"attention stacked":   {Attention: "stacked"},
		"attention gemm":      {Attention: "gemm"},
		"attention scaled":    {Attention: "scaled"},
		"attention op":        {Attention: "op"},
		"attention multihead": {Attention: "multihead"},
		"attention onnx":      {Attention: "onnx"},
		"mask":                {Mask: true},
		"dynamic":             {Dynamic: true},
		"all written":         {Norm: "written", Gelu: "tanh", Attention: "packed", Mask: true, Dynamic: true},
		"all named":           {Embed: true, Norm: "skip", Gelu: "bias", Attention: "op"},
		"embed":               {Embed: true},
	}
	causal := map[string]graphs.Spelling{
		"named":                       {Before: true, Causal: true, Norm: "skip", Gelu: "fast", Attention: "op"},
		"written, matrices":           {Before: true, Causal: true, Norm: "written", Gelu: "tanh", Attention: "gemm"},
		"written, packed, while runs": {Before: true, Causal: true, Norm: "reciprocal", Gelu: "half", Attention: "packed", Dynamic: true, Mask: true},
	}
	half := map[string]graphs.Spelling{
		"casts":               {Half: true, Casts: true},
		"norm written, casts": {Half: true, Casts: true, Norm: "written"},
		"all named":           {Half: true, Norm: "skip", Gelu: "fast", Attention: "op"},
		"all written":         {Half: true, Casts: true, Norm: "written", Gelu: "tanh", Attention: "stacked", Mask: true, Dynamic: true},
	}
	for _, runtime := range []string{"onnxruntime", "tensorrt"} {
		for _, gpuName := range []string{"T4", "A100"} {
			d := device(t, gpuName, runtime)
			for _, c := range []struct {
				plain     graphs.Spelling
				spellings map[string]graphs.Spelling
			}{{graphs.Spelling{}, single}, {graphs.Spelling{Half: true}, half}, {graphs.Spelling{Before: true, Causal: true}, causal}} {
				want := spelled(t, c.plain, 6, d, grid)
				for name, s := range c.spellings {
					t.Run(fmt.Sprintf("%s %s %+v %s", runtime, gpuName, c.plain, name), func(t *testing.T) {
						got := spelled(t, s, 6, d, grid)
						require.InEpsilon(t, want.FLOPs, got.FLOPs, .02, "nothing is counted twice, and nothing left out")
						require.InEpsilon(t, want.Bytes, got.Bytes, .03)
						require.InDelta(t, want.Kernels, got.Kernels, 8, "of %d kernels", want.Kernels)
						for i := range want.Points {
							require.InEpsilon(t, want.Points[i].LatencyUS, got.Points[i].LatencyUS, .05, "batch %d, share %d", want.Points[i].Batch, want.Points[i].ThreadPercentage)
						}
					})
				}
			}
		}
	}
}

// A network that PyTorch executes has the kernels of its modules, however they were exported; what is written out by hand stays as it is written.
func TestModulesOfPyTorchAreOneKernel(t *testing.T) {
	d, grid := device(t, "T4", "eager"), estimator.Grid{Batches: []int{16}, Shares: []int{100}}
	want := spelled(t, graphs.Spelling{}, 2, d, grid)
	for _, s := range []graphs.Spelling{{Norm: "written"}, {Norm: "twice"}, {Gelu: "half"}, {Gelu: "op"}} {
		got := spelled(t, s, 2, d, grid)
		require.Equal(t, want.Kernels, got.Kernels, "%+v", s)
		require.InEpsilon(t, want.Points[0].LatencyUS, got.Points[0].LatencyUS, .02, "%+v", s)
	}
	require.Greater(t, spelled(t, graphs.Spelling{Gelu: "tanh"}, 2, d, grid).Kernels, want.Kernels)
}

// An unknown operator is counted as one that reads its inputs once, with a warning and a wider bound; what follows need not agree with the shape
// that was guessed.
func TestAnUnknownOperatorIsBoundedAndSaid(t *testing.T) {
	m := graphs.Transformer(graphs.Weights{}, graphs.EncoderSize{Vocabulary: 1000, Layers: 2, Width: 768, Heads: 12, Inner: 3072}, 128, 2, graphs.Spelling{Attention: "op", Gelu: "bias"})
	known := spelled(t, graphs.Spelling{Attention: "op", Gelu: "bias"}, 2, device(t, "T4", ""), estimator.Grid{Batches: []int{1}, Shares: []int{100}})
	for _, n := range m.Graph.Nodes {
		if n.Op == "BiasGelu" || n.Op == "Attention" {
			n.Op = "Packed" + n.Op
			n.Inputs = append(n.Inputs[1:], n.Inputs[0]) // its first input is a parameter, its shape is not the next one's
		}
	}
	text, err := onnx.Skeleton(m.Model, m)
	require.NoError(t, err)
	read, err := estimator.Read(bytes.NewReader(text), int64(len(text)), "packed.onnx")
	require.NoError(t, err)
	defer func() { require.NoError(t, read.Close()) }()
	e, err := read.Estimate(estimator.Declared{}, estimator.Grid{Batches: []int{1}, Shares: []int{100}}, device(t, "T4", ""))
	require.NoError(t, err)
	require.Len(t, e.Warnings, 2, "%v", e.Warnings)
	require.Contains(t, e.Warnings[0], "com.microsoft.PackedAttention is not known")
	require.Greater(t, e.Bound, known.Bound)
	require.InDelta(t, known.Points[0].LatencyUS, e.Points[0].LatencyUS, .5*known.Points[0].LatencyUS)
}

// However a transformer's graph is damaged (operators exchanged, inputs left out or taken from elsewhere), it is estimated, or refused with a reason.
func TestADamagedTransformerIsEstimatedOrRefused(t *testing.T) {
	d := device(t, "T4", "")
	rapid.Check(t, func(t *rapid.T) {
		text := func(values ...string) string { return rapid.SampledFrom(values).Draw(t, "spelling") }
		m := graphs.Transformer(graphs.Weights{}, graphs.EncoderSize{Vocabulary: 50, Layers: 1, Width: 32, Heads: 4, Inner: 64}, 16, 2, graphs.Spelling{
			Norm: text("", "written", "twice", "reciprocal", "skip"), Gelu: text("", "half", "tanh", "quick", "op", "bias", "fast"),
			Attention: text("", "packed", "stacked", "gemm", "scaled", "op", "multihead", "onnx"),
			Half:      rapid.Bool().Draw(t, "half"), Casts: rapid.Bool().Draw(t, "casts"), Mask: rapid.Bool().Draw(t, "mask"),
			Dynamic: rapid.Bool().Draw(t, "dynamic"), Embed: rapid.Bool().Draw(t, "embed"), Before: rapid.Bool().Draw(t, "before"), Causal: rapid.Bool().Draw(t, "causal"),
		})
		nodes := m.Graph.Nodes
		for range rapid.IntRange(0, 4).Draw(t, "damages") {
			at := rapid.IntRange(1, len(nodes)-1).Draw(t, "node")
			n, earlier := nodes[at], nodes[rapid.IntRange(0, at-1).Draw(t, "earlier")]
			switch rapid.IntRange(0, 3).Draw(t, "damage") {
			case 0:
				n.Op = earlier.Op
			case 1:
				n.Inputs = n.Inputs[:rapid.IntRange(0, len(n.Inputs)).Draw(t, "kept")]
			case 2:
				if len(n.Inputs) > 0 {
					n.Inputs[rapid.IntRange(0, len(n.Inputs)-1).Draw(t, "input")] = earlier.Outputs[0]
				}
			case 3:
				n.Op = "Unheard"
			}
		}
		file, err := onnx.Skeleton(m.Model, m)
		require.NoError(t, err)
		read, err := estimator.Read(bytes.NewReader(file), int64(len(file)), "damaged.onnx")
		if err != nil {
			require.ErrorContains(t, err, "damaged.onnx")
			return
		}
		e, err := read.Estimate(estimator.Declared{}, estimator.Grid{Batches: []int{1, 2}, Shares: []int{50, 100}}, d)
		if err != nil {
			require.ErrorContains(t, err, "damaged.onnx")
			return
		}
		for _, p := range e.Points {
			require.True(t, p.LatencyUS > 0 && p.LatencyUS < 1e9, "%+v", p)
		}
	})
}

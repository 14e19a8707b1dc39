// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/graphs"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/internal/ort"
	"github.com/conch-serving/conch/merger"
)

// repository is model directories made of generated graphs.
type repository struct {
	dir         string
	members     []merger.Member
	directories map[string]string
}

// input and output of the generated models, for their configurations.
var tensors = map[string][2]string{
	"chain":   {`name: "X" data_type: TYPE_FP32 dims: [ %d ]`, `name: "Y" data_type: TYPE_FP32 dims: [ %d ]`},
	"resnet":  {`name: "IMAGE" data_type: TYPE_FP32 dims: [ 3, %d, %d ]`, `name: "LOGITS" data_type: TYPE_FP32 dims: [ %d ]`},
	"encoder": {`name: "TOKENS" data_type: TYPE_INT64 dims: [ %d ]`, `name: "SCORES" data_type: TYPE_FP32 dims: [ %d ]`},
}

func write(t testing.TB, models map[string]*graphs.Model) repository {
	t.Helper()
	r := repository{dir: t.TempDir(), directories: map[string]string{}}
	for _, name := range []string{"a", "b", "c"} {
		m, is := models[name]
		if !is {
			continue
		}
		dir := filepath.Join(r.dir, name)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "1"), 0o700))
		require.NoError(t, onnx.Write(filepath.Join(dir, "1", "model.onnx"), m.Model, m))
		config := fmt.Sprintf("# Serves %s.\nname: %q\nbackend: \"python\"\nmax_batch_size: 4\ninput { %s }\noutput { %s }\ninstance_group { count: 1 kind: KIND_CPU }\ndynamic_batching { }\n",
			name, name, tensors[m.Graph.Name][0], tensors[m.Graph.Name][1])
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.pbtxt"), []byte(config), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "1", "model.py"), []byte("# the model's own\n"), 0o600))
		found, err := merger.Find(dir)
		require.NoError(t, err)
		r.members = append(r.members, found)
		r.directories[name] = dir
	}
	return r
}

func analyze(t testing.TB, r repository, o merger.Options) *merger.Analysis {
	t.Helper()
	a, err := merger.Analyze(t.Context(), r.members, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

func runtime(t testing.TB) *ort.Runtime {
	t.Helper()
	python := os.Getenv("CONCH_PYTHON")
	if python == "" {
		t.Skip("CONCH_PYTHON is not set: make test sets it")
	}
	r, err := ort.Start(context.WithoutCancel(t.Context()), python)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// own takes the tensors whose names begin with one of the prefixes from the model itself, all others from the base.
func own(prefixes ...string) func(string) graphs.Region { return partly(graphs.Region{}, prefixes...) }

// partly shares only the region of tensors whose names begin with one of the prefixes.
func partly(r graphs.Region, prefixes ...string) func(string) graphs.Region {
	return func(tensor string) graphs.Region {
		for _, p := range prefixes {
			if strings.HasPrefix(tensor, p) {
				return r
			}
		}
		return graphs.Everything()
	}
}

func weights(own uint64, shared func(string) graphs.Region) graphs.Weights {
	return graphs.Weights{Base: 1, Own: own, Shared: shared}
}

var small = graphs.EncoderSize{Vocabulary: 50, Layers: 3, Width: 64, Heads: 2, Inner: 128}

// Chains, encoders and residual networks whose last part is each one's own, and whether the heads run as one.
var backbones = map[string]struct {
	model    func(seed uint64) *graphs.Model
	together bool
}{
	"chain": {model: func(s uint64) *graphs.Model {
		return graphs.Chain(weights(s, own("layer2", "layer3")), 32, 64, 64, 16, 4)
	}},
	"classifier": {together: true, model: func(s uint64) *graphs.Model {
		return graphs.Chain(weights(s, own("layer2")), 32, 64, 64, 4)
	}},
	// Other numbers of classes: an output for each member.
	"classes": {model: func(s uint64) *graphs.Model {
		return graphs.Chain(weights(s, own("layer2")), 32, 64, 64, 2+int64(s)) //nolint:gosec // small
	}},
	"encoder": {model: func(s uint64) *graphs.Model {
		return graphs.Encoder(weights(s, own("layer2", "pooler", "head")), small, 6, 3)
	}},
	// A product per token, a normalisation, and operators between with weights that are the same.
	"last matrix": {together: true, model: func(s uint64) *graphs.Model {
		return graphs.Encoder(weights(s, own("layer3.outer", "layer3.norm2", "head")), graphs.EncoderSize{Vocabulary: 50, Layers: 4, Width: 64, Heads: 2, Inner: 128}, 6, 3)
	}},
	"gemm":            {together: true, model: func(s uint64) *graphs.Model { return gemm(s, 0) }},
	"gemm transposed": {together: true, model: func(s uint64) *graphs.Model { return gemm(s, 1) }},
	// The head reads the member's own input beside what crosses.
	"skip": {together: true, model: func(s uint64) *graphs.Model {
		return graphs.Skipping(weights(s, own("layer2", "skip")), 32, 64, 64, 4)
	}},
	// Requests decide how many tokens there are.
	"open": {model: func(s uint64) *graphs.Model {
		return graphs.Encoder(weights(s, own("layer2", "pooler", "head")), small, -1, 3)
	}},
	"resnet": {together: true, model: func(s uint64) *graphs.Model {
		return graphs.ResNet(weights(s, own("head")), []int{1, 1, 2}, 16, 32, 10)
	}},
}

// gemm is a chain whose last layer is one operator.
func gemm(seed uint64, transposed int64) *graphs.Model {
	m := graphs.Chain(weights(seed, own("layer2")), 128, 256, 32, 32)
	last := slices.IndexFunc(m.Graph.Nodes, func(n *onnx.Node) bool { return n.Op == "MatMul" && n.Inputs[1] == "layer2.weight" })
	product, sum := m.Graph.Nodes[last], m.Graph.Nodes[last+1]
	sum.Op, sum.Inputs = "Gemm", append(product.Inputs, sum.Inputs[1])
	sum.Attributes = []*onnx.Attribute{{Name: "transB", Kind: onnx.KindInt, Int: transposed}}
	m.Graph.Nodes = slices.Delete(m.Graph.Nodes, last, last+1)
	return m
}

func TestABackboneServesItsMembers(t *testing.T) {
	run := runtime(t)
	for name, test := range backbones {
		t.Run(name, func(t *testing.T) {
			r := write(t, map[string]*graphs.Model{"a": test.model(2), "b": test.model(3), "c": test.model(4)})
			a := analyze(t, r, merger.Options{})
			require.Empty(t, a.Report.Refusals)
			require.True(t, a.Report.Mode(merger.Backbone).Feasible, a.Report.Mode(merger.Backbone).Reason)
			dir := filepath.Join(t.TempDir(), "group")
			m, err := a.Emit(t.Context(), dir, "group", merger.Backbone)
			require.NoError(t, err)
			require.Len(t, m.Parts, 1, "the group is one model")
			require.Equal(t, test.together, m.HeadsTogether)
			_, err = merger.Load(t.Context(), dir)
			require.ErrorIs(t, err, merger.ErrUnverified)
			m, err = merger.Verify(t.Context(), dir, r.directories, run, merger.VerifyOptions{})
			require.NoError(t, err)
			require.Positive(t, m.Verification.Runs)
			t.Logf("largest difference %.2g in %d runs", m.Verification.MaxDifference, m.Verification.Runs)
			_, err = merger.Load(t.Context(), dir)
			require.NoError(t, err)
		})
	}
}

func TestSuperOperatorsComputeWhatTheirMembersDo(t *testing.T) {
	run := runtime(t)
	for name, model := range map[string]func(seed uint64) *graphs.Model{
		"channels of a chain": func(s uint64) *graphs.Model {
			return graphs.Chain(weights(s, partly(graphs.Region{From: .2, To: .9}, "layer")), 32, 256, 256, 8)
		},
		"whole layers between": func(s uint64) *graphs.Model { return graphs.Chain(weights(s, own("layer1")), 256, 256, 256, 256) },
		"rectangles": func(s uint64) *graphs.Model {
			return graphs.Chain(weights(s, partly(graphs.Region{From: .25, To: 1, Inputs: .75}, "layer0.weight", "layer1.weight")), 256, 256, 256, 8)
		},
		"an encoder": func(s uint64) *graphs.Model {
			return graphs.Encoder(weights(s, partly(graphs.Region{To: .6}, "layer")), small, 6, 3)
		},
		"convolutions": func(s uint64) *graphs.Model {
			return graphs.ResNet(weights(s, partly(graphs.Region{From: .1, To: .8}, "conv")), []int{1, 1, 2}, 16, 32, 10)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := write(t, map[string]*graphs.Model{"a": model(2), "b": model(3)})
			a := analyze(t, r, merger.Options{})
			for _, mode := range []merger.Mode{merger.SuperOp, merger.SuperOpPadded} {
				report := a.Report.Mode(mode)
				require.True(t, report.Feasible, report.Reason)
				require.False(t, report.Serves)
				dir := filepath.Join(t.TempDir(), string(mode))
				_, err := a.Emit(t.Context(), dir, "group", mode)
				require.NoError(t, err)
				m, err := merger.Verify(t.Context(), dir, r.directories, run, merger.VerifyOptions{})
				require.NoError(t, err)
				t.Logf("%s: %d super-operators, %d shared nodes, memory x%.2f, largest difference %.2g", mode, len(report.SuperOperators), report.SharedNodes,
					float64(m.MergedBytes)/float64(m.SeparateBytes), m.Verification.MaxDifference)
			}
		})
	}
}

// A change of a merge after it was made is detected: by Load from the files, and by Verify from what they compute.
func TestACorruptedMergeIsCaught(t *testing.T) {
	run := runtime(t)
	region := map[string]graphs.Region{"a weight": {To: .7}, "a slice bound": {From: .25, To: 1, Inputs: .75}, "an order of channels": {From: .2, To: .9}}
	for name, corrupt := range map[string]func(*onnx.Tensor, []byte) bool{
		"a weight": func(x *onnx.Tensor, b []byte) bool {
			b[3] ^= 0x40 // the highest bit of the exponent
			return strings.HasPrefix(x.Name, "merge/common")
		},
		"a slice bound": func(x *onnx.Tensor, b []byte) bool {
			b[0]-- // 192 to 191: the rows beside the block
			return x.Name == "merge/ints.192"
		},
		"an order of channels": func(x *onnx.Tensor, b []byte) bool {
			if !strings.HasPrefix(x.Name, "merge/indices") {
				return false
			}
			for i := range 8 {
				b[i], b[8+i] = b[8+i], b[i]
			}
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			model := func(s uint64) *graphs.Model {
				return graphs.Chain(weights(s, partly(region[name], "layer0.weight")), 256, 256, 8)
			}
			r := write(t, map[string]*graphs.Model{"a": model(2), "b": model(3)})
			a := analyze(t, r, merger.Options{})
			dir := filepath.Join(t.TempDir(), "group")
			_, err := a.Emit(t.Context(), dir, "group", merger.SuperOp)
			require.NoError(t, err)
			_, err = merger.Verify(t.Context(), dir, r.directories, run, merger.VerifyOptions{})
			require.NoError(t, err, "as it was made")
			edit(t, filepath.Join(dir, "group", "1", "model.onnx"), corrupt)
			_, err = merger.Load(t.Context(), dir)
			require.ErrorIs(t, err, merger.ErrUnverified)
			require.ErrorContains(t, err, "changed since")
			_, err = merger.Verify(t.Context(), dir, r.directories, run, merger.VerifyOptions{})
			require.Error(t, err)
			t.Log(err)
			m, err := merger.Read(dir)
			require.NoError(t, err)
			require.Nil(t, m.Verification, "what it had is taken back")
		})
	}
}

// edited is a model's weights with one tensor changed.
type edited struct {
	*onnx.Model
	change func(*onnx.Tensor, []byte) bool
	count  int
}

func (e *edited) Reader(x *onnx.Tensor) (io.Reader, error) {
	b, err := e.Data(x)
	if err != nil || len(b) == 0 {
		return bytes.NewReader(b), err
	}
	changed := bytes.Clone(b)
	if len(b) >= 8 && e.change(x, changed) {
		e.count++
		return bytes.NewReader(changed), nil
	}
	return bytes.NewReader(b), nil
}

func edit(t *testing.T, path string, change func(*onnx.Tensor, []byte) bool) {
	t.Helper()
	m, err := onnx.Open(path)
	require.NoError(t, err)
	e := &edited{Model: m, change: func(x *onnx.Tensor, b []byte) bool {
		return len(b) >= 16 && change(x, b) || len(b) == 8 && change(x, b)
	}}
	again := filepath.Join(t.TempDir(), "model.onnx")
	require.NoError(t, onnx.Write(again, m, e))
	require.NoError(t, m.Close())
	require.Positive(t, e.count, "something was changed")
	require.NoError(t, os.Rename(again, path))
	require.NoError(t, os.Rename(again+onnx.DataSuffix, path+onnx.DataSuffix))
}

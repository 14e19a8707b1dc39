// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/graphs"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/merger"
)

func chain(seed uint64, shared func(string) graphs.Region) *graphs.Model {
	return graphs.Chain(weights(seed, shared), 32, 64, 64, 16, 4)
}

func TestTheReportSaysWhatIsShared(t *testing.T) {
	shared := own("layer2", "layer3")
	r := write(t, map[string]*graphs.Model{"a": chain(2, shared), "b": chain(3, shared)})
	// Time by operators: heads have two of four products.
	cost := func(m *onnx.Model, rows int) (time.Duration, error) {
		products := 0
		for _, n := range m.Graph.Nodes {
			if n.Op == "MatMul" {
				products++
			}
		}
		return time.Duration(products) * (time.Millisecond + time.Duration(rows)*100*time.Microsecond), nil
	}
	a := analyze(t, r, merger.Options{Cost: cost, Rows: 5})
	require.Equal(t, [][]string{{"a", "b"}}, a.Report.Families)
	b := a.Report.Mode(merger.Backbone)
	require.True(t, b.Feasible)
	require.True(t, b.Serves)
	sharedBytes := int64(4 * (32*64 + 64 + 64*64 + 64))
	ownBytes := int64(4 * (64*16 + 16 + 16*4 + 4))
	require.Equal(t, sharedBytes, b.SharedBytes)
	require.Equal(t, sharedBytes+2*ownBytes, b.MergedBytes)
	require.Equal(t, 2*(sharedBytes+ownBytes), b.SeparateBytes)
	require.InDelta(t, .012, b.SeparateSeconds, 1e-9, "2 members x 4 products x 1.5 ms")
	require.InDelta(t, .010, b.MergedSeconds, 1e-9, "2 products of 10 rows, 2 of 5 rows in each of 2 heads")
	require.Equal(t, []string{"Relu_6: rows float [N,64]"}, b.Frontier)
	var text bytes.Buffer
	require.NoError(t, a.Report.Text(&text))
	require.Contains(t, text.String(), "backbone crosses: Relu_6")
}

func TestMembersThatCannotBeMerged(t *testing.T) {
	fixed := chain(2, nil)
	fixed.Graph.Inputs[0].Type.Dims[0] = onnx.Dim{Size: 8}
	early := chain(2, nil)
	early.Opsets[""] = 12
	mixing := chain(3, nil)
	mixing.Graph.Nodes[0].Op = "Einsum"
	mixing.Graph.Nodes[0].Attributes = []*onnx.Attribute{{Name: "equation", Kind: onnx.KindString, String: []byte("ij,jk->ik")}}
	for _, c := range []struct {
		name string
		a, b *graphs.Model
		why  string
	}{
		{"a fixed batch", chain(2, nil), fixed, "8 rows, fixed when it was exported"},
		{"another operator set", chain(2, nil), early, "operator set 12, a of 17"},
		{"nothing in common", chain(2, own("layer")), chain(3, own("layer")), "nothing alike from their inputs on: a parts at MatMul_1 (MatMul), whose weight layer0.weight is its own"},
		{"another first operator", chain(2, nil), mixing, "ONNX Runtime dies of it on an empty batch"},
		{"too little in common", chain(2, own("layer1", "layer2", "layer3")), chain(3, own("layer1", "layer2", "layer3")), "bytes of weights lie in what the members compute alike"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := analyze(t, write(t, map[string]*graphs.Model{"a": c.a, "b": c.b}), merger.Options{MinShared: .5})
			mode := a.Report.Mode(merger.Backbone)
			require.False(t, mode.Feasible)
			require.Contains(t, mode.Reason, c.why)
			_, err := a.Emit(t.Context(), filepath.Join(t.TempDir(), "x"), "x", merger.Backbone)
			require.ErrorContains(t, err, c.why)
		})
	}
}

// Weights in Constant nodes are weights: they are counted, shared and looked up as initializers are.
func TestWeightsMayBeConstants(t *testing.T) {
	constants := func(seed uint64) *graphs.Model {
		m := chain(seed, own("layer3"))
		var nodes []*onnx.Node
		for _, w := range m.Graph.Initializers {
			nodes = append(nodes, &onnx.Node{Op: "Constant", Outputs: []string{w.Name}, Attributes: []*onnx.Attribute{{Name: "value", Kind: onnx.KindTensor, Tensor: w}}})
		}
		g := &onnx.Graph{Name: m.Graph.Name, Nodes: append(nodes, m.Graph.Nodes...), Inputs: m.Graph.Inputs, Outputs: m.Graph.Outputs}
		m.Model = &onnx.Model{IR: m.IR, Opsets: m.Opsets, Graph: g}
		return m
	}
	plain := analyze(t, write(t, map[string]*graphs.Model{"a": chain(2, own("layer3")), "b": chain(3, own("layer3"))}), merger.Options{})
	r := write(t, map[string]*graphs.Model{"a": constants(2), "b": constants(3)})
	a := analyze(t, r, merger.Options{})
	require.Equal(t, plain.Report.Modes, a.Report.Modes)
	require.Equal(t, plain.Report.Families, a.Report.Families)
	for i, m := range a.Report.Members {
		require.Equal(t, plain.Report.Members[i].WeightBytes, m.WeightBytes)
	}
	little := analyze(t, r, merger.Options{MinShared: .999})
	require.Contains(t, little.Report.Mode(merger.Backbone).Reason, "bytes of weights lie in what the members compute alike")
	m, err := a.Emit(t.Context(), filepath.Join(t.TempDir(), "x"), "x", merger.Backbone)
	require.NoError(t, err)
	require.Positive(t, m.SharedBytes)
}

// A refusal names the node where the proof ends, not the output alone; emit says the same.
func TestARefusalSaysWhere(t *testing.T) {
	sorted := func(seed uint64) *graphs.Model {
		m := chain(seed, own("layer3"))
		m.Graph.Nodes = append(m.Graph.Nodes,
			&onnx.Node{Name: "best", Op: "TopK", Inputs: []string{m.Graph.Outputs[0].Name, "one"}, Outputs: []string{"values", "places"}},
			&onnx.Node{Name: "after", Op: "Relu", Inputs: []string{"values"}, Outputs: []string{"positive"}})
		m.Graph.AddInitializer(&onnx.Tensor{Name: "one", Type: onnx.Float, Dims: []int64{1}})
		out := *m.Graph.Outputs[0]
		out.Name = "positive"
		m.Graph.Outputs = []*onnx.Value{&out}
		return m
	}
	declared := func(seed uint64) *graphs.Model {
		m := chain(seed, own("layer3"))
		m.Graph.Outputs[0].Type.Dims[1].Size = 5
		return m
	}
	impossible := func(seed uint64) *graphs.Model {
		m := chain(seed, own("layer3"))
		m.Graph.Inputs[0].Type.Dims[1].Size = 31
		return m
	}
	for name, c := range map[string]struct {
		model func(uint64) *graphs.Model
		why   string
	}{
		"an operator that is refused": {sorted, `a: nothing proves that rows stay apart on the way to output "positive": best (TopK): ONNX Runtime dies of it on an empty batch`},
		"another declaration":         {declared, `a: output "Y" is declared with 5 places on axis 1, and 4 are computed`},
		"shapes that cannot be":       {impossible, "31 columns meet 32 rows of a matrix"},
	} {
		t.Run(name, func(t *testing.T) {
			a := analyze(t, write(t, map[string]*graphs.Model{"a": c.model(2), "b": c.model(3)}), merger.Options{})
			require.Contains(t, a.Report.Mode(merger.Backbone).Reason, c.why)
			_, err := a.Emit(t.Context(), filepath.Join(t.TempDir(), "x"), "x", merger.Backbone)
			require.ErrorContains(t, err, c.why)
		})
	}
}

func TestNoModelThatCanBeReadIsAnError(t *testing.T) {
	r := write(t, map[string]*graphs.Model{"a": chain(2, nil), "b": chain(3, nil)})
	short := func(name string) {
		data := filepath.Join(r.directories[name], "1", "model.onnx.data")
		require.NoError(t, os.Truncate(data, 100))
	}
	short("a")
	a := analyze(t, r, merger.Options{})
	require.NoError(t, a.Report.Unreadable(), "b can be read")
	require.Contains(t, a.Report.Refusals[0].Reason, `1/model.onnx: tensor "layer0.weight" (external data in model.onnx.data): 8092 bytes are missing of the 8192`)
	short("b")
	require.ErrorContains(t, analyze(t, r, merger.Options{}).Report.Unreadable(), "none of the models could be read; a: ")
}

func TestAFileThatIsNoModelIsARefusal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.onnx")
	require.NoError(t, os.WriteFile(path, []byte("no model"), 0o600))
	m, err := merger.Find(path)
	require.NoError(t, err)
	r := write(t, map[string]*graphs.Model{"a": chain(2, nil)})
	a := analyze(t, repository{members: append(r.members, m)}, merger.Options{})
	require.Len(t, a.Report.Refusals, 1)
	require.Equal(t, "x", a.Report.Refusals[0].Member)
	require.Contains(t, a.Report.Mode(merger.Backbone).Reason, "x.onnx")
}

func TestTwoMembersWithOneNameAreRefused(t *testing.T) {
	r := write(t, map[string]*graphs.Model{"a": chain(2, nil)})
	a := analyze(t, repository{members: append(r.members, r.members...)}, merger.Options{})
	require.Contains(t, a.Report.Mode(merger.Backbone).Reason, "another member has this name")
}

func TestCandidatesAreThoseThatShare(t *testing.T) {
	shared := own("layer2", "layer3")
	other := graphs.Chain(graphs.Weights{Base: 9}, 32, 64, 4)
	r := write(t, map[string]*graphs.Model{"a": chain(2, shared), "b": other, "c": chain(3, shared)})
	groups, report, err := merger.Candidates(t.Context(), r.members, merger.Options{})
	require.NoError(t, err)
	require.Len(t, groups, 1)
	require.Equal(t, "a", groups[0][0].Name)
	require.Equal(t, "c", groups[0][1].Name)
	require.Equal(t, [][]string{{"a", "c"}, {"b"}}, report.Families)
}

func TestFamiliesOfLikeSequences(t *testing.T) {
	r := write(t, map[string]*graphs.Model{
		"a": graphs.Chain(weights(2, nil), 8, 8, 8, 8, 8), "b": graphs.Chain(weights(2, nil), 8, 8, 8, 8, 8, 8), "c": graphs.Encoder(weights(2, nil), small, 6, 3),
	})
	require.Equal(t, [][]string{{"a"}, {"b"}, {"c"}}, analyze(t, r, merger.Options{}).Report.Families)
	require.Equal(t, [][]string{{"a", "b"}, {"c"}}, analyze(t, r, merger.Options{Loose: .3}).Report.Families)
}

func TestADigestChangesWithAMember(t *testing.T) {
	shared := own("layer3")
	models := map[string]*graphs.Model{"a": chain(2, shared), "b": chain(3, shared)}
	emit := func(r repository) string {
		a := analyze(t, r, merger.Options{})
		m, err := a.Emit(t.Context(), filepath.Join(t.TempDir(), "g"), "g", merger.Backbone)
		require.NoError(t, err)
		return m.Digest
	}
	r := write(t, models)
	first := emit(r)
	require.Equal(t, first, emit(r))
	require.Equal(t, first, emit(write(t, models)), "wherever it lies")
	for _, name := range []string{"a", "b"} {
		require.NoError(t, os.WriteFile(filepath.Join(r.dir, name, "1", "model.py"), []byte("# other\n"), 0o600))
	}
	second := emit(r)
	require.NotEqual(t, first, second)
	models["b"] = chain(4, shared)
	require.NotEqual(t, first, emit(write(t, models)))
}

func TestAMemberThatChangedIsNotVerifiedAgainst(t *testing.T) {
	run := runtime(t)
	shared := own("layer3")
	r := write(t, map[string]*graphs.Model{"a": chain(2, shared), "b": chain(3, shared)})
	a := analyze(t, r, merger.Options{})
	dir := filepath.Join(t.TempDir(), "g")
	_, err := a.Emit(t.Context(), dir, "g", merger.Backbone)
	require.NoError(t, err)
	changed := chain(4, shared)
	require.NoError(t, onnx.Write(filepath.Join(r.dir, "b", "1", merger.GraphFile), changed.Model, changed))
	_, err = merger.Verify(t.Context(), dir, r.directories, run, merger.VerifyOptions{})
	require.ErrorContains(t, err, "member b changed since the merge was made of it")
}

func TestPartsKeepBackendAndFiles(t *testing.T) {
	shared := own("layer3")
	r := write(t, map[string]*graphs.Model{"a": chain(2, shared), "b": chain(3, shared)})
	a := analyze(t, r, merger.Options{})
	dir := filepath.Join(t.TempDir(), "g")
	_, err := a.Emit(t.Context(), dir, "g", merger.Backbone)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(dir, "g", "config.pbtxt"))
	require.NoError(t, err)
	require.Equal(t, `# A merge group, made by Conch.
name: "g"
max_batch_size: 4
input { name: "X" data_type: TYPE_FP32 dims: [ 32 ] }
input { name: "conch_member" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] }
backend: "python"
instance_group { count: 1 kind: KIND_CPU }
`, string(text))
	script, err := os.ReadFile(filepath.Join(dir, "g", "1", "model.py"))
	require.NoError(t, err)
	require.Equal(t, "# the model's own\n", string(script))
}

// One process computes for all members: what runs around their graphs has to be the same.
func TestMembersThatAreServedOtherwiseAreRefused(t *testing.T) {
	shared := own("layer3")
	for reason, change := range map[string]func(dir string){
		"other files beside their graphs": func(dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "1", "model.py"), []byte("# other\n"), 0o600))
		},
		"other backends": func(dir string) {
			path := filepath.Join(dir, "config.pbtxt")
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, bytes.Replace(text, []byte("python"), []byte("onnxruntime"), 1), 0o600))
		},
	} {
		t.Run(reason, func(t *testing.T) {
			r := write(t, map[string]*graphs.Model{"a": chain(2, shared), "b": chain(3, shared)})
			change(r.directories["b"])
			_, err := analyze(t, r, merger.Options{}).Emit(t.Context(), filepath.Join(t.TempDir(), "g"), "g", merger.Backbone)
			require.ErrorContains(t, err, reason)
		})
	}
}

// Two models of strangers: whatever the bytes, the analysis says something and ends.
func FuzzAnalyze(f *testing.F) {
	for _, m := range []*graphs.Model{chain(2, own("layer3")), graphs.Encoder(weights(2, own("head")), graphs.EncoderSize{Vocabulary: 5, Layers: 1, Width: 4, Heads: 2, Inner: 4}, 3, 2)} {
		b, err := onnx.Marshal(m.Model, m)
		require.NoError(f, err)
		f.Add(b, 100, byte(3))
	}
	dir := f.TempDir()
	whole := filepath.Join(dir, "whole.onnx")
	other := filepath.Join(dir, "other.onnx")
	f.Fuzz(func(t *testing.T, b []byte, at int, change byte) {
		require.NoError(t, os.WriteFile(whole, b, 0o600))
		c := bytes.Clone(b)
		if len(c) > 0 && at >= 0 {
			c[at%len(c)] ^= change
		}
		require.NoError(t, os.WriteFile(other, c, 0o600))
		members := []merger.Member{{Name: "whole", Graph: whole}, {Name: "other", Graph: other}}
		a, err := merger.Analyze(t.Context(), members, merger.Options{})
		require.NoError(t, err)
		for _, mode := range merger.Modes() {
			r := a.Report.Mode(mode)
			require.NotNil(t, r)
			require.True(t, r.Feasible || r.Reason != "", "a mode that is not feasible says why")
		}
		require.NoError(t, a.Close())
		_, _, err = merger.Candidates(t.Context(), members, merger.Options{})
		require.NoError(t, err)
	})
}

// Two encoders of the size of BERT-base: run with -bench; the figure is merge.analyze_seconds of `make bench BENCH=merge`.
func BenchmarkAnalyze(b *testing.B) {
	last := own("layer8", "layer9", "layer10", "layer11", "pooler", "head")
	r := write(b, map[string]*graphs.Model{"a": graphs.BERTBase(weights(2, last), 128, 2), "b": graphs.BERTBase(weights(3, last), 128, 2)})
	b.ReportAllocs()
	for b.Loop() {
		a, err := merger.Analyze(b.Context(), r.members, merger.Options{})
		require.NoError(b, err)
		require.True(b, a.Report.Mode(merger.Backbone).Feasible)
		require.NoError(b, a.Close())
	}
}

func TestNamesOfPartsAreChecked(t *testing.T) {
	shared := own("layer3")
	a := analyze(t, write(t, map[string]*graphs.Model{"a": chain(2, shared), "b": chain(3, shared)}), merger.Options{})
	for _, name := range []string{"", "../x", "a b", "-x"} {
		_, err := a.Emit(t.Context(), filepath.Join(t.TempDir(), "g"), name, merger.Backbone)
		require.ErrorContains(t, err, "cannot be the name of a model", "%q", name)
	}
	_, err := a.Emit(t.Context(), filepath.Join(t.TempDir(), "g"), "g", "magic")
	require.ErrorContains(t, err, "the modes are")
}

// Models that the onnx package tests itself with, a quarter of its 1,400 for time, their first axes opened: each is analysed, or refused
// with a reason.
func TestModelsOfStrangers(t *testing.T) {
	python := os.Getenv("CONCH_PYTHON")
	if python == "" {
		t.Skip("CONCH_PYTHON is not set: make test sets it")
	}
	out, err := exec.CommandContext(t.Context(), python, "-c", "import onnx.backend.test, os; print(os.path.dirname(onnx.backend.test.__file__))").Output()
	require.NoError(t, err)
	paths, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "data", "*", "*", "model.onnx"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	var members []merger.Member
	dir := t.TempDir()
	for i, path := range paths {
		if i%4 > 0 {
			continue
		}
		graph := filepath.Join(dir, strconv.Itoa(i)+".onnx")
		if !opened(t, path, graph) {
			graph = path
		}
		members = append(members, merger.Member{Name: strconv.Itoa(i), Graph: graph})
	}
	_, report, err := merger.Candidates(t.Context(), members, merger.Options{})
	require.NoError(t, err)
	refused := map[string]bool{}
	for _, r := range report.Refusals {
		require.NotEmpty(t, r.Reason)
		refused[r.Member] = true
	}
	t.Logf("%d models, %d refused", len(members), len(refused))
	for i, m := range members {
		if refused[m.Name] || i%5 > 0 { // a fifth of them beside themselves
			continue
		}
		a, err := merger.Analyze(t.Context(), []merger.Member{m, {Name: "itself", Graph: m.Graph}}, merger.Options{})
		require.NoError(t, err)
		for _, mode := range merger.Modes() {
			require.True(t, a.Report.Mode(mode).Feasible || a.Report.Mode(mode).Reason != "", "%s: %s", m.Graph, mode)
		}
		require.NoError(t, a.Close())
	}
}

// opened writes the model again with a first axis of no fixed size; false if it cannot be written.
func opened(t *testing.T, from, to string) bool {
	t.Helper()
	m, err := onnx.Open(from)
	require.NoError(t, err)
	defer m.Close() //nolint:errcheck // only read from
	for _, v := range slices.Concat(m.Graph.Inputs, m.Graph.Outputs) {
		if len(v.Type.Dims) > 0 {
			v.Type.Dims[0] = onnx.Dim{Size: -1, Name: "N"}
		}
	}
	m.Graph.Values = nil
	b, err := onnx.Marshal(m, m)
	if err != nil {
		return false
	}
	require.NoError(t, os.WriteFile(to, b, 0o600))
	return true
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package segment_test

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/sidecar/sim/segment"
)

// handMade is testdata/experiment: three models, and a network whose output is 1 ms, 2 ms for every operator of the first slice and 1.5 ms for every
// operator of the second.
const handMade = "testdata/experiment"

// published is the directory with what the authors published, which has no licence and is not here.
func published(t *testing.T) *segment.Experiment {
	t.Helper()
	dir := os.Getenv("CONCH_ABACUS")
	if dir == "" {
		t.Skip("CONCH_ABACUS names no directory with the published weights of Abacus: sidecar/sim/segment/README.md says how to make one")
	}
	x, err := segment.ReadExperiment(os.DirFS(dir))
	require.NoError(t, err)
	return x
}

// TestMLPIsTheReference compares with outputs of another program, in exact arithmetic.
func TestMLPIsTheReference(t *testing.T) {
	text, err := os.ReadFile("testdata/mlp.json")
	require.NoError(t, err)
	m, err := segment.ParseMLP(text)
	require.NoError(t, err)
	var file struct {
		Cases []struct {
			Features []float64
			Output   float64
		}
	}
	require.NoError(t, json.Unmarshal(text, &file))
	require.Len(t, file.Cases, 8)
	for _, c := range file.Cases {
		require.InDelta(t, c.Output, m.Predict(c.Features), 1e-9)
	}
}

// TestPublishedMLP compares the published weights with outputs of another program for the same features, and with medians of 100 runs on an A100 that
// the authors measured (rows of data/profile/A100/2in7 in their repository): the predictor is trained on such rows, with a mean error of 5.7% over
// all pairs, and of 8% over pairs with a VGG.
func TestPublishedMLP(t *testing.T) {
	x := published(t)
	features := func(a, b segment.Slice) []float64 {
		f := make([]float64, 7)
		for _, s := range []segment.Slice{a, b} {
			f[s.Model] = 1
			f = append(f, float64(s.Start), float64(s.End), float64(s.Batch), float64(s.SeqLen))
		}
		return f
	}
	for _, c := range []struct {
		a, b segment.Slice
		ms   float64
	}{
		{segment.Slice{Model: 0, End: 18, Batch: 4}, segment.Slice{Model: 1, End: 35, Batch: 32}, 19.631547321284945},
		{segment.Slice{Model: 2, Start: 10, End: 52, Batch: 16}, segment.Slice{Model: 6, End: 12, Batch: 8, SeqLen: 64}, 18.956207712640715},
		{segment.Slice{Model: 3, End: 14, Batch: 8}, segment.Slice{Model: 4, Start: 3, End: 11, Batch: 16}, 14.42769667313405},
		{segment.Slice{Model: 4, End: 19, Batch: 32}, segment.Slice{Model: 5, End: 22, Batch: 32}, 50.27707522858595},
		{segment.Slice{Model: 0, Start: 5, End: 18, Batch: 8}, segment.Slice{Model: 6, End: 4, Batch: 32, SeqLen: 16}, 6.113619875138343},
	} {
		require.InDelta(t, c.ms, x.Pairs.Predict(features(c.a, c.b)), 1e-9)
	}
	vgg16 := func(start, end int) segment.Slice {
		return segment.Slice{Model: 4, Start: start, End: end, Batch: 32}
	}
	vgg19 := func(start, end int) segment.Slice {
		return segment.Slice{Model: 5, Start: start, End: end, Batch: 32}
	}
	bert := func(start, end, length int) segment.Slice {
		return segment.Slice{Model: 6, Start: start, End: end, Batch: 32, SeqLen: length}
	}
	measured := []struct {
		a, b segment.Slice
		ms   float64
	}{
		{vgg16(0, 19), bert(0, 0, 8), 22.2930}, {vgg16(17, 17), bert(0, 12, 8), 10.8140}, {vgg16(14, 19), bert(0, 12, 8), 11.0870},
		{vgg16(0, 11), bert(1, 12, 64), 24.5820}, {vgg16(4, 11), bert(0, 12, 32), 12.6500}, {vgg16(0, 19), bert(11, 12, 8), 23.5885},
		{vgg16(0, 19), bert(5, 12, 64), 26.1070}, {vgg16(0, 8), bert(0, 12, 8), 16.1885}, {vgg16(15, 19), bert(0, 5, 64), 4.9795},
		{vgg16(8, 8), vgg19(0, 22), 28.3605}, {vgg16(0, 19), vgg19(0, 0), 24.2485}, {vgg16(0, 19), vgg19(0, 9), 39.6765},
		{vgg16(0, 15), vgg19(0, 22), 51.6905}, {vgg16(0, 2), vgg19(15, 22), 9.6505}, {vgg16(4, 19), vgg19(0, 10), 33.1915},
	}
	sum := 0.
	for _, c := range measured {
		sum += math.Abs(x.Pairs.Predict(features(c.a, c.b))-c.ms) / c.ms
	}
	require.Less(t, sum/float64(len(measured)), .08)
}

// TestServing: a query alone has the other model beside it without operators; order is exact.
func TestServing(t *testing.T) {
	x, err := segment.ReadExperiment(os.DirFS(handMade))
	require.NoError(t, err)
	p := x.Serving([2]int{0, 1})
	a := func(end int) segment.Slice { return segment.Slice{Model: 0, End: end, Batch: 4} }
	b := func(end int) segment.Slice { return segment.Slice{Model: 1, End: end, Batch: 4} }
	require.Zero(t, p.Latency(nil))
	require.Equal(t, 11*ms, p.Latency([]segment.Slice{a(5)}))
	require.Equal(t, 16*ms, p.Latency([]segment.Slice{b(10)}))
	require.Equal(t, 26*ms, p.Latency([]segment.Slice{a(5), b(10)}))
	require.Equal(t, 26*ms, p.Latency([]segment.Slice{b(10), a(5)}), "the network has the slots in the order of the models' numbers")
	require.Equal(t, 15500*time.Microsecond, p.Latency([]segment.Slice{a(5), b(3)}))
	exactAboutOrder(t, x)
}

// TestServingAsRun: the authors' code has the group's first slice in the network's first slot, and nothing in the second for a query alone.
func TestServingAsRun(t *testing.T) {
	x, err := segment.ReadExperiment(os.DirFS(handMade))
	require.NoError(t, err)
	a, b := segment.Slice{Model: 0, End: 5, Batch: 4}, segment.Slice{Model: 1, End: 10, Batch: 4}
	p := x.ServingAsRun([2]int{0, 1})
	require.Equal(t, 26*ms, p.Latency([]segment.Slice{a, b}))
	require.Equal(t, 28500*time.Microsecond, p.Latency([]segment.Slice{b, a}))
	require.Equal(t, 21*ms, p.Latency([]segment.Slice{b}), "16 ms in its own slot")
}

// TestAnyNetworkIsExactAboutOrder: of a drawn network, which says anything about order.
func TestAnyNetworkIsExactAboutOrder(t *testing.T) {
	weights, err := os.ReadFile("testdata/mlp.json")
	require.NoError(t, err)
	models, operators, targets := map[string]string{}, map[string]int{}, map[string]int{}
	for i, n := range []int{18, 35, 52, 14, 19, 22, 12} {
		name := strconv.Itoa(i)
		models[name], operators["m"+name] = "m"+name, n
		for j := range i {
			targets[strconv.Itoa(j)+" "+name] = 50
		}
	}
	config, err := json.Marshal(map[string]any{
		"models": models, "operators_per_model(MODELS_LEN)": operators, "paper_batch_sizes": []int{4, 32}, "seq_lens_bert": []int{8},
		"qos_ms_used_when_running": map[string]any{"7.2_qos/2in7": targets, "7.3_throughput/2in7": targets},
	})
	require.NoError(t, err)
	x, err := segment.ReadExperiment(fstest.MapFS{"experiment_config.json": &fstest.MapFile{Data: config}, "mlp_A100_2in7.json": &fstest.MapFile{Data: weights}})
	require.NoError(t, err)
	exactAboutOrder(t, x)
}

// TestPublishedIsExactAboutOrder is that of the published weights, whose network is not.
func TestPublishedIsExactAboutOrder(t *testing.T) { exactAboutOrder(t, published(t)) }

func exactAboutOrder(t *testing.T, x *segment.Experiment) {
	rapid.Check(t, func(t *rapid.T) {
		pair := rapid.SampledFrom(pairs(x)).Draw(t, "pair")
		p := x.Serving(pair)
		slice := func(model int) segment.Slice {
			m := x.Models[pair[model]]
			start := rapid.IntRange(0, m.Operators-1).Draw(t, "start")
			s := segment.Slice{Model: model, Start: start, End: rapid.IntRange(start+1, m.Operators).Draw(t, "end"), Batch: rapid.SampledFrom(x.Batches).Draw(t, "batch")}
			if m.Name == segment.Bert {
				s.SeqLen = rapid.SampledFrom(x.SeqLens).Draw(t, "length")
			}
			return s
		}
		first := rapid.IntRange(0, 1).Draw(t, "first")
		group := []segment.Slice{slice(first), slice(1 - first)}
		both := p.Latency(group)
		require.GreaterOrEqual(t, both, p.Latency(group[:1]))
		require.GreaterOrEqual(t, both, p.Latency(group[1:]))
		require.Positive(t, p.Latency(group[:1]))
		less := slices.Clone(group)
		if less[1].End--; less[1].End > less[1].Start {
			require.GreaterOrEqual(t, both, p.Latency(less))
		}
		require.Equal(t, both, x.Serving(pair).Latency(group), "what was asked before does not matter")
	})
}

func pairs(x *segment.Experiment) (all [][2]int) {
	for a := range x.Models {
		for b := a + 1; b < len(x.Models); b++ {
			all = append(all, [2]int{a, b})
		}
	}
	return all
}

// TestLoad: arrivals come at the rate, for both models, with the sizes that there are, and with lengths where the model reads sequences.
func TestLoad(t *testing.T) {
	x, err := segment.ReadExperiment(os.DirFS(handMade))
	require.NoError(t, err)
	l := segment.Load{Pair: [2]int{0, 2}, Rate: 50, Target: 60 * ms, Queries: 10_000, Seed: 1}
	queries := x.Queries(l)
	require.Equal(t, queries, x.Queries(l))
	require.InDelta(t, 200, queries[len(queries)-1].Arrival.Seconds(), 8, "four standard deviations")
	kinds := map[segment.Query]int{}
	for _, q := range queries {
		require.Equal(t, 60*ms, q.Deadline-q.Arrival)
		q.Arrival, q.Deadline = 0, 0
		kinds[q]++
	}
	require.Len(t, kinds, 2+4)
	require.InDelta(t, 2500, kinds[segment.Query{Model: 0, Batch: 8}], 200)
	require.InDelta(t, 1250, kinds[segment.Query{Model: 1, Batch: 4, SeqLen: 16}], 150)
	l.Seed = 2
	require.NotEqual(t, queries, x.Queries(l))
}

// files are those of testdata/experiment, with a text in one of them replaced.
func files(t *testing.T, name, old, text string) fstest.MapFS {
	all := fstest.MapFS{}
	for _, file := range []string{"experiment_config.json", "mlp_A100_2in7.json"} {
		content, err := os.ReadFile(filepath.Join(handMade, file))
		require.NoError(t, err)
		if file == name {
			require.Contains(t, string(content), old)
			content = []byte(strings.Replace(string(content), old, text, 1))
		}
		all[file] = &fstest.MapFile{Data: content}
	}
	return all
}

// TestWrongFiles: what cannot be read says which file and what about it.
func TestWrongFiles(t *testing.T) {
	const config, weights = "experiment_config.json", "mlp_A100_2in7.json"
	for _, c := range []struct{ file, old, text, says string }{
		{config, `"bert": 8`, `"gpt": 8`, `experiment_config.json: model 2, "bert", has no number of operators`},
		{config, `"0 1": 60`, `"0 9": 60`, `"0 9" is no pair of 3 models`},
		{config, `"0 1": 60`, `"1 0": 60`, "not in the order"},
		{config, `"0 1": 60`, `"0": 60`, "no target of a pair"},
		{config, `"0 1": 60`, `"0 2": 60`, "no target for the pair 0 1"},
		{config, "{", "[", "experiment_config.json: "},
		{weights, "hidden2.bias", "other.bias", "mlp_A100_2in7.json: weights of an MLP: there is no hidden2.bias"},
		{weights, `"hidden1.bias": [0, 0]`, `"hidden1.bias": [0]`, "hidden1 has 2 rows of weights and 1 biases"},
		{weights, `"hidden3.weight": [[1, 0], [0, 1]]`, `"hidden3.weight": [[1, 0], [0]]`, "row 1 of hidden3 has 1 weights; the layer has 2 inputs"},
		{weights, `[[0, 0, 0, -1, 1, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, -1, 1, 0, 0]]`, `[[1], [1]]`, "1 inputs; pairs of 3 models have 11 features"},
	} {
		_, err := segment.ReadExperiment(files(t, c.file, c.old, c.text))
		require.ErrorContains(t, err, c.says)
	}
	_, err := segment.ReadExperiment(fstest.MapFS{})
	require.ErrorContains(t, err, "experiment_config.json")
}

// FuzzParseMLP: no text makes it panic, and what it accepts can be evaluated.
func FuzzParseMLP(f *testing.F) {
	for _, name := range []string{"testdata/mlp.json", filepath.Join(handMade, "mlp_A100_2in7.json")} {
		text, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(text)
	}
	f.Add([]byte(`{"weights":{"hidden1.weight":[[]],"hidden1.bias":[1],"hidden2.weight":[[1]],"hidden2.bias":[1],"hidden3.weight":[[1]],"hidden3.bias":[1],"predict.weight":[[1]],"predict.bias":[1]}}`))
	f.Fuzz(func(_ *testing.T, text []byte) {
		if m, err := segment.ParseMLP(text); err == nil {
			m.Predict(make([]float64, m.Inputs()))
		}
	})
}

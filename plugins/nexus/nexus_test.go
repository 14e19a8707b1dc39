// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package nexus_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/nexus"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
)

func TestConformance(t *testing.T) {
	for _, discipline := range []string{"adaptive", "duty-cycle"} {
		conformance.Run(t, conformance.Options{
			New: func(*testing.T) policy.Policy { return nexus.New() }, Parameters: map[string]string{"discipline": discipline},
			Snapshots: packtest.Profiled(),
		})
	}
}

// Golden plans of worlds that are small enough to check by hand; "go test -update" writes them.
func TestGolden(t *testing.T) { packtest.Golden(t, nexus.New(), "testdata") }

// Nexus' own example in the gpulet paper's terms: a model whose rate fills a GPU and a half gets one GPU for itself and a round for the rest.
func TestARateOfOneGPUAndAHalf(t *testing.T) {
	// l(b) = b + 4 ms, SLO 40 ms: 2 l(16) = 40, so that a GPU carries 16/20 ms = 800 rows a second.
	s := packtest.World(2).Line("m", 1, 4, 40, 1200).Snapshot
	s.Parameters = map[string]string{"discipline": "duty-cycle"}
	p, err := nexus.New().Plan(t.Context(), s, policy.NoEvaluation{})
	require.NoError(t, err)
	require.Empty(t, conformance.Check(s, p))
	require.Len(t, p.GetPartitions(), 2)
	full, rest := p.GetPartitions()[0].GetInstances()[0], p.GetPartitions()[1].GetInstances()[0]
	require.InDelta(t, 800, full.GetRate(), 1e-6)
	require.Equal(t, uint32(16), full.GetMaxBatch())
	// b/400 s + l(b) <= 40 ms holds up to b = 10: 25 + 14 = 39.
	require.InDelta(t, 400, rest.GetRate(), 1e-6)
	require.Equal(t, uint32(10), rest.GetMaxBatch())
}

// GPUs that are equal to a model come from nodes that have fewest of its GPUs.
func TestGPUsOfAModelAreOnSeveralNodes(t *testing.T) {
	s := packtest.World(4).OnTwoNodes().Line("a", 1, 4, 40, 1600).Line("b", 1, 4, 40, 1600).Snapshot
	p, err := nexus.New().Plan(t.Context(), s, policy.NoEvaluation{})
	require.NoError(t, err)
	require.Empty(t, conformance.Check(s, p))
	for _, model := range []string{"a", "b"} {
		require.ElementsMatch(t, []string{"m", "n"}, packtest.NodesOf(p, model), model)
	}
}

func TestModelsShareARoundAndNoMoreGPUsThanTheyNeed(t *testing.T) {
	w := packtest.World(4)
	for i := range 4 {
		w.Line(fmt.Sprintf("m%d", i), 1, 2, 50, 40)
	}
	p, err := nexus.New().Plan(t.Context(), w.Snapshot, policy.NoEvaluation{})
	require.NoError(t, err)
	require.Len(t, p.GetPartitions(), 1)
	require.Len(t, p.GetPartitions()[0].GetInstances(), 4)
}

func TestMoreThanThereIs(t *testing.T) {
	s := packtest.World(1).Line("m", 1, 4, 40, 5000).Line("n", 1, 4, 40, 10).Snapshot
	p, err := nexus.New().Plan(t.Context(), s, policy.NoEvaluation{})
	require.NoError(t, err)
	require.Empty(t, conformance.Check(s, p), "every model keeps a place")
	require.Len(t, p.PartitionsOf("n"), 1)
}

// A model that another's ensemble brings into the round keeps the rate that it was packed with, and one that cannot be packed has its load divided over
// the places that the operator wants for it.
func TestEveryModelHasItsRate(t *testing.T) {
	b := packtest.World(1).Line("inner", 1, 4, 100, 20).Line("outer", 1, 4, 100, 30)
	b.Models[1].DependsOn = []string{"inner"}
	rates := func(b packtest.Builder) map[string]float64 {
		p, err := nexus.New().Plan(t.Context(), b.Snapshot, policy.NoEvaluation{})
		require.NoError(t, err)
		require.Empty(t, conformance.Check(b.Snapshot, p))
		sums := map[string]float64{}
		for _, part := range p.GetPartitions() {
			for _, in := range part.GetInstances() {
				sums[in.GetModel()] += in.GetRate()
			}
		}
		return sums
	}
	require.Equal(t, map[string]float64{"inner": 20, "outer": 30}, rates(b))

	b = packtest.World(2).Line("m", 1, 4, 100, 20)
	b.Models[0].SloUs = 0
	b.Constraints = []*policy.Constraint{{Model: "m", MinInstances: 2}}
	require.Equal(t, map[string]float64{"m": 20}, rates(b))
}

// TestPipelinesAreSplit: a model that gains from batches gets more of the SLO than its part by latency, so that fewer GPUs do.
func TestPipelinesAreSplit(t *testing.T) {
	// By latency of a batch of 8 the steps would have 62 and 38 ms of 100.
	w := packtest.World(32).Line("flat", 4, 1, 62, 2000).Line("steep", .5, 16, 38, 2000)
	without, err := nexus.New().Plan(t.Context(), w.Snapshot, policy.NoEvaluation{})
	require.NoError(t, err)
	w.Pipelines = []*policy.Pipeline{{Name: "p", SloUs: 100_000, Rate: 2000, Steps: []*policy.PipelineStep{{Model: "flat", Rows: 1}, {Model: "steep", After: []uint32{0}, Rows: 1}}}}
	with, err := nexus.New().Plan(t.Context(), w.Snapshot, policy.NoEvaluation{})
	require.NoError(t, err)
	require.Empty(t, conformance.Check(w.Snapshot, with))
	require.Less(t, len(with.GetPartitions()), len(without.GetPartitions()))
	reasons := ""
	for _, r := range with.GetReasons() {
		reasons += r.String()
	}
	require.Contains(t, reasons, "pipeline p leaves it")
}

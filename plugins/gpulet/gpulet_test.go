// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package gpulet_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/gpulet"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
)

func TestConformance(t *testing.T) {
	for name, parameters := range map[string]map[string]string{
		"defaults": nil, "no interference": {"interference": "off"}, "best fit": {"partitioning": "bestfit"}, "even split": {"partitioning": "evensplit"},
		"no split": {"partitioning": "none"}, "the paper's rounds": {"round": "paper"}, "four a GPU, few GPUs": {"partitions_per_gpu": "4", "gpu_scaling": "true", "discipline": "duty-cycle"},
	} {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, conformance.Options{
				New: func(*testing.T) policy.Policy { return gpulet.New() }, Parameters: parameters, Snapshots: packtest.Profiled(),
			})
		})
	}
}

// Golden plans of worlds that are small enough to check by hand; "go test -update" writes them.
func TestGolden(t *testing.T) { packtest.Golden(t, gpulet.New(), "testdata") }

func plan(t *testing.T, b packtest.Builder, parameters map[string]string) *policy.Plan {
	t.Helper()
	b.Parameters = parameters
	p, err := gpulet.New().Plan(t.Context(), b.Snapshot, policy.NoEvaluation{})
	require.NoError(t, err)
	require.Empty(t, conformance.Check(b.Snapshot, p))
	return p
}

func shares(p *policy.Plan, model string) (all []uint32) {
	for _, part := range p.PartitionsOf(model) {
		all = append(all, part.GetThreadPercentage())
	}
	return all
}

// exact takes away what makes hand calculation hard.
func exact(more ...string) map[string]string {
	p := map[string]string{"interference": "off", "poisson_inflation": "false", "latency_margin": "1", "dropped_residue": "0", "partition_bytes": "0"}
	for i := 0; i < len(more); i += 2 {
		p[more[i]] = more[i+1]
	}
	return p
}

// A model whose knee is 40% gets 40% of a GPU, and the rest is for the other.
func TestTheKnee(t *testing.T) {
	b := packtest.World(1).Shaped("small", 1, 4, 40, 600, 40).Shaped("large", 1, 4, 40, 700, 60)
	p := plan(t, b, exact())
	require.Equal(t, []uint32{40}, shares(p, "small"))
	require.Equal(t, []uint32{60}, shares(p, "large"))
	// Without shares the two do not fit: 600/800 of the GPU for one in rounds leaves too little for the other.
	b = packtest.World(1).Shaped("small", 1, 4, 40, 700, 40).Shaped("large", 1, 4, 40, 700, 60)
	whole := plan(t, b, exact("partitioning", "none"))
	require.Len(t, whole.GetPartitions(), 1)
}

// A low rate takes the least share that carries it, below the knee.
func TestTheLeastShare(t *testing.T) {
	p := plan(t, packtest.World(1).Shaped("m", 1, 4, 100, 20, 60), exact())
	require.Equal(t, []uint32{20}, shares(p, "m"))
}

func TestTwoPartitionsAGPUAreTheMost(t *testing.T) {
	b := packtest.World(2)
	for i := range 4 {
		b.Shaped(fmt.Sprintf("m%d", i), 1, 4, 40, 500, 20)
	}
	p := plan(t, b, exact("models_per_partition", "1"))
	require.Len(t, p.GetPartitions(), 4)
	all := plan(t, packtest.Builder{Snapshot: b.Snapshot}, exact("models_per_partition", "1", "partitions_per_gpu", "4", "gpu_scaling", "true"))
	require.Equal(t, all.GetPartitions()[0].GetGpus(), all.GetPartitions()[3].GetGpus(), "more than two are an option: one GPU is enough")
}

func TestResiduesShareInTime(t *testing.T) {
	b := packtest.World(1)
	for i := range 5 {
		b.Shaped(fmt.Sprintf("m%d", i), 1, 2, 100, 10, 20)
	}
	p := plan(t, b, exact())
	require.Len(t, p.GetPartitions(), 2, "three models share a partition in time, and two partitions a GPU")
}

// Two models of 30 ms a row, every 100 ms: a round of 70 ms holds both batches and leaves each model 30 ms of its SLO, enough for its own batch. The
// authors' scheduler wants room for both after the round, 130 ms of 100; in a round of 100 ms they need 160.
func TestWhatARoundHasToKeepIsAParameter(t *testing.T) {
	b := packtest.World(1).Line("a", 1, 29, 100, 10).Line("b", 1, 29, 100, 10)
	rates := func(round string) (all []float64) {
		for _, in := range plan(t, b, exact("partitioning", "none", "round", round)).GetPartitions()[0].GetInstances() {
			all = append(all, in.GetRate())
		}
		return all
	}
	require.Equal(t, []float64{10, 10}, rates("own"))
	require.ElementsMatch(t, []float64{10, 0}, rates("paper"), "the other has a place and is not counted on")
	for _, m := range b.Models {
		m.SloUs = 161e3
	}
	require.Equal(t, []float64{10, 10}, rates("paper"))
	_, err := gpulet.New().Plan(t.Context(), &policy.Snapshot{Parameters: map[string]string{"round": "both"}}, policy.NoEvaluation{})
	require.ErrorContains(t, err, "round")
}

// Slowed by a co-runner, the two models no longer fit on one GPU.
func TestInterferenceKeepsApart(t *testing.T) {
	b := packtest.World(2).Shaped("a", 1, 4, 40, 790, 50).Shaped("b", 1, 4, 40, 790, 50).Interfering()
	for _, m := range b.Profiles {
		for _, q := range m.GetPoints() {
			q.L2Utilization, q.BandwidthUtilization = &policy.Estimate{Value: .9}, &policy.Estimate{Value: .9}
		}
	}
	blind := exact("sizes", "50,100", "gpu_scaling", "true")
	require.Len(t, gpusOf(plan(t, b, blind)), 1)
	minding := exact("sizes", "50,100", "gpu_scaling", "true", "interference", "on")
	require.Len(t, gpusOf(plan(t, b, minding)), 2)
}

func gpusOf(p *policy.Plan) map[string]bool {
	all := map[string]bool{}
	for _, part := range p.GetPartitions() {
		all[part.GPU()] = true
	}
	return all
}

func TestInterferenceWithoutDataIsRefused(t *testing.T) {
	b := packtest.World(1).Line("m", 1, 4, 40, 100)
	_, err := gpulet.New().Plan(t.Context(), b.Snapshot, policy.NoEvaluation{})
	require.ErrorContains(t, err, "calibrate interference")
	require.ErrorContains(t, err, "set the parameter interference to off")
}

// gpulet plans for the 99th percentile of Poisson arrivals: 100 becomes 125, 200 becomes 235, and above 550 it is a tenth more.
func TestInflation(t *testing.T) {
	for rate, want := range map[float64]string{100: "125 rows/s", 200: "235 rows/s", 600: "660 rows/s"} {
		p := plan(t, packtest.World(1).Shaped("m", .1, 1, 200, rate, 20), map[string]string{"interference": "off"})
		require.Contains(t, p.GetReasons()[0].GetText(), want)
		require.InDelta(t, rate, p.GetPartitions()[0].GetInstances()[0].GetRate(), 1e-6, "an instance promises the mean")
	}
}

func TestFewestGPUsFollowTheLoad(t *testing.T) {
	b := packtest.World(4)
	for i := range 4 {
		b.Line(fmt.Sprintf("m%d", i), 1, 4, 40, 700)
	}
	many := plan(t, b, exact("gpu_scaling", "true"))
	require.Len(t, gpusOf(many), 4)
	b.Current = many
	for _, m := range b.Models {
		m.Rate, m.RowRate = 50, 50
	}
	require.Less(t, len(gpusOf(plan(t, b, exact("gpu_scaling", "true")))), 4)
}

func TestBadParameters(t *testing.T) {
	for name, value := range map[string]string{"sizes": "50,40,100", "latency_margin": "0.5", "partitions_per_gpu": "0", "memory": "2", "partition_bytes": "-1", "models_per_partition": "0"} {
		_, err := gpulet.New().Plan(t.Context(), &policy.Snapshot{Parameters: map[string]string{name: value}}, policy.NoEvaluation{})
		require.ErrorContains(t, err, name)
	}
}

// BenchmarkNineModelsOnFourGPUs is what a schedulability study asks tens of thousands of times.
func BenchmarkNineModelsOnFourGPUs(b *testing.B) {
	w := packtest.World(4).Interfering()
	for i := range 9 {
		w.Shaped(fmt.Sprintf("m%d", i), 1+float64(i)/4, 3, 60+10*float64(i), 100, []uint32{20, 40, 60}[i%3])
	}
	p := gpulet.New()
	for b.Loop() {
		_, err := p.Plan(b.Context(), w.Snapshot, policy.NoEvaluation{})
		require.NoError(b, err)
	}
}

// Pipelines are divided as the authors' scheduler divides its applications: in game all models, which run beside each other, have the whole SLO; in
// traffic the detector has 90 of 202 ms, and the two models after it 112.
func TestPhasesOfPipelines(t *testing.T) {
	why := func(b packtest.Builder, pipeline *policy.Pipeline, parameters map[string]string) (texts []string) {
		b.Pipelines = []*policy.Pipeline{pipeline}
		for _, r := range plan(t, b, parameters).GetReasons() {
			if strings.HasPrefix(r.GetText(), "pipeline ") {
				texts = append(texts, r.GetModel()+": "+r.GetText())
			}
		}
		return texts
	}
	game := packtest.World(2).Line("resnet50", 1.43, 8.1, 20, 100).Line("lenet1", .066, .38, 5, 100)
	require.Equal(t, []string{"resnet50: pipeline game leaves its phase 108 of 108 ms", "lenet1: pipeline game leaves its phase 108 of 108 ms"},
		why(game, &policy.Pipeline{Name: "game", SloUs: 108_000, Rate: 100, Steps: []*policy.PipelineStep{{Model: "resnet50"}, {Model: "lenet1"}}}, exact()))

	traffic := func() (packtest.Builder, *policy.Pipeline) {
		b := packtest.World(4).Line("ssd", 1.2, 6.7, 50, 100).Line("googlenet", .87, 4.95, 50, 100).Line("vgg16", 1.73, 9.83, 50, 100)
		return b, &policy.Pipeline{Name: "traffic", SloUs: 202_000, Rate: 100, Steps: []*policy.PipelineStep{
			{Model: "ssd"}, {Model: "googlenet", After: []uint32{0}}, {Model: "vgg16", After: []uint32{0}},
		}}
	}
	b, pipeline := traffic()
	require.Equal(t, []string{
		"ssd: pipeline traffic leaves its phase 90 of 202 ms", "googlenet: pipeline traffic leaves its phase 112 of 202 ms", "vgg16: pipeline traffic leaves its phase 112 of 202 ms",
	}, why(b, pipeline, exact("phases", "traffic=90:112")))
	// By itself in proportion to the longest of each phase: batches of eight take 16.3 ms, and 23.67 ms.
	b, pipeline = traffic()
	require.Equal(t, "ssd: pipeline traffic leaves its phase 82.38 of 202 ms", why(b, pipeline, exact())[0])

	for text, want := range map[string]string{
		"traffic": `"traffic" is not PIPELINE=NUMBER:NUMBER`, "traffic=90:": `"" of pipeline traffic is no number above 0`, "traffic=-1:2": "is no number above 0",
		"traffic=1:2:3": "pipeline traffic has another number of phases than 3",
	} {
		b.Parameters = exact("phases", text)
		_, err := gpulet.New().Plan(t.Context(), b.Snapshot, policy.NoEvaluation{})
		require.ErrorContains(t, err, want, text)
	}
}

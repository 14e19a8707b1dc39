// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package infaas_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/infaas"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
)

// worlds are those of the conformance suite, half of them with wishes and a plan of this policy in force.
func worlds() *rapid.Generator[*policy.Snapshot] {
	return rapid.Custom(func(t *rapid.T) *policy.Snapshot {
		s := packtest.Profiled().Draw(t, "world")
		for _, a := range s.Apps {
			a.Rate = rapid.Float64Range(0, 3000).Draw(t, "app rate")
			a.Wishes = []*policy.Wish{{MinimumAccuracy: rapid.Float64Range(0, 1).Draw(t, "accuracy"), SloUs: rapid.Int64Range(0, 200_000).Draw(t, "wish"), Rate: a.Rate / 2}}
		}
		return s
	})
}

func TestConformance(t *testing.T) {
	for name, parameters := range map[string]map[string]string{"greedy": nil, "exact": {"solver": "exact", "inference_part": "1"}, "half GPUs": {"gpu_share": "50", "slack": "0"}} {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, conformance.Options{
				New: func(*testing.T) policy.Policy { return infaas.New() }, Parameters: parameters, Snapshots: worlds(),
			})
		})
	}
}

// Golden plans of worlds that are small enough to check by hand; "go test -update" writes them.
func TestGolden(t *testing.T) { packtest.Golden(t, infaas.New(), "testdata") }

// table2 is the paper's table 2: three variants of ResNet50 with their latency, the rate at which one instance saturates, and their cost. A
// batch of the last column in that latency is that rate.
func table2(qps float64, sloMS int64) packtest.Builder {
	s := &policy.Snapshot{Revision: 1, Seed: 1, Nodes: []*policy.Node{{
		Name: "n", Cpu: &policy.CPU{Type: "cpu", Cores: 400, MemoryBytes: 1 << 40},
	}}, Apps: []*policy.App{{Name: "app", SloUs: sloMS * 1000, Rate: qps}}, Parameters: map[string]string{"slack": "0", "inference_part": "1"}}
	for i := range 16 {
		for _, gpuType := range []string{"inferentia", "V100"} {
			s.Nodes[0].Gpus = append(s.Nodes[0].Gpus, &policy.GPU{Id: fmt.Sprintf("%s-%d", gpuType, i), Type: gpuType})
		}
	}
	for _, v := range []struct {
		name, place string
		latency     int64
		cost        float64
		batch       uint32
	}{{"A", "cpu", 200, 1, 1}, {"B", "inferentia", 20, 3, 2}, {"C", "V100", 15, 16, 12}} {
		s.Models = append(s.Models, &policy.Model{Name: v.name, SloUs: v.latency * 1000, MaxBatchSize: v.batch, Batchable: true})
		us := float64(v.latency) * 1000
		s.Profiles = append(s.Profiles, &policy.Profile{Model: v.name, GpuType: v.place, Usable: true, Points: []*policy.ProfilePoint{
			{Batch: v.batch, ThreadPercentage: 1, LatencyUs: &policy.Estimate{Value: us}, LatencyUpperUs: us},
			{Batch: v.batch, ThreadPercentage: 100, LatencyUs: &policy.Estimate{Value: us}, LatencyUpperUs: us},
		}})
		s.Apps[0].Variants = append(s.Apps[0].Variants, &policy.Variant{Model: v.name, Places: []string{v.place}, CostPerHour: v.cost})
	}
	return packtest.Builder{Snapshot: s}
}

func plan(t *testing.T, b packtest.Builder, more ...string) *policy.Plan {
	t.Helper()
	if b.Parameters == nil {
		b.Parameters = make(map[string]string)
	}
	for i := 0; i < len(more); i += 2 {
		b.Parameters[more[i]] = more[i+1]
	}
	p, err := infaas.New().Plan(t.Context(), b.Snapshot, policy.NoEvaluation{})
	require.NoError(t, err)
	require.Empty(t, conformance.Check(b.Snapshot, p))
	return p
}

func instances(p *policy.Plan) map[string]int {
	all := make(map[string]int)
	for _, part := range p.GetPartitions() {
		for _, in := range part.GetInstances() {
			all[in.GetModel()]++
		}
	}
	return all
}

// The paper's table 3: the cheapest configuration for a load and an SLO. The greedy rule starts with one variant and so misses the last.
func TestTable3(t *testing.T) {
	for _, row := range []struct {
		qps           float64
		slo           int64
		exact, greedy map[string]int
		cost          int
	}{
		{10, 300, map[string]int{"A": 2}, map[string]int{"A": 2}, 2},
		{10, 50, map[string]int{"B": 1}, map[string]int{"B": 1}, 3},
		{1000, 300, map[string]int{"B": 2, "C": 1}, map[string]int{"B": 10}, 22},
	} {
		got := instances(plan(t, table2(row.qps, row.slo), "solver", "exact"))
		require.Equal(t, row.exact, got, "%v QPS within %d ms", row.qps, row.slo)
		require.Equal(t, row.cost, got["A"]+3*got["B"]+16*got["C"])
		require.Equal(t, row.greedy, instances(plan(t, table2(row.qps, row.slo))), "%v QPS within %d ms, greedy", row.qps, row.slo)
	}
}

// Exact is never dearer than greedy, and its plans carry the load.
func TestExactIsNoDearerThanGreedy(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := table2(rapid.Float64Range(1, 3000).Draw(rt, "qps"), rapid.SampledFrom([]int64{18, 50, 300}).Draw(rt, "slo"))
		cost := func(solver string) int {
			n := instances(plan(t, b, "solver", solver))
			require.GreaterOrEqual(rt, float64(5*n["A"]+100*n["B"]+800*n["C"]), b.Apps[0].Rate-1e-6)
			return n["A"] + 3*n["B"] + 16*n["C"]
		}
		require.LessOrEqual(rt, cost("exact"), cost("greedy"))
	})
}

// A new instance costs its loading too: what runs is replicated where something cheaper would have to be loaded first.
func TestLoadingCounts(t *testing.T) {
	b := table2(10, 300)
	b.Parameters["solver"] = "exact"
	b.Current = plan(t, table2(10, 50), "solver", "exact")
	b.Models[0].LoadSeconds = 30
	require.Equal(t, map[string]int{"B": 1}, instances(plan(t, b, "load_unpredictability", "0.1")), "2 A cost 2 and 6 for loading, the B that runs 3")
	p := plan(t, b, "load_unpredictability", "0", "scale_down_ticks_gpu", "0")
	require.Equal(t, map[string]int{"A": 2}, instances(p), "downgrade where loading is free")
}

// Less than runs has to be enough for so many ticks before it goes, and the ticks are in policy_state.
func TestScaleDownWaits(t *testing.T) {
	b := table2(150, 50)
	p := plan(t, b, "scale_down_ticks_gpu", "3")
	require.Equal(t, map[string]int{"B": 2}, instances(p))
	b.Apps[0].Rate = 10
	for tick, want := range []int{2, 2, 2, 1} {
		b.Current, b.PolicyState = p, p.GetPolicyState()
		p = plan(t, b)
		require.Equal(t, want, instances(p)["B"], "tick %d", tick)
	}
	// The load that comes back in between starts the count anew.
	b.Apps[0].Rate, b.Current, b.PolicyState = 150, p, p.GetPolicyState()
	p = plan(t, b)
	require.Equal(t, 2, instances(p)["B"])
	require.NotContains(t, string(p.GetPolicyState()), "ticks")
}

// An interfered instance moves to another GPU, and gets requests again once it is less than 1.25 times as slow as its profile.
func TestInterfered(t *testing.T) {
	b := table2(50, 50)
	p := plan(t, b)
	part := p.GetPartitions()[0]
	require.Equal(t, "inferentia-0", part.GPU())
	see := func(slower float64) *policy.Plan {
		b.Current, b.PolicyState = p, p.GetPolicyState()
		b.Observations = []*policy.InstanceObservation{{
			Partition: part.GetId(), Model: "B", Ready: true, RowRate: 50, MeanBatch: 2, LatencyP50Us: slower * 20_000,
		}}
		return plan(t, b)
	}
	require.Equal(t, "inferentia-0", see(1.4).GetPartitions()[0].GPU(), "not yet")
	moved := see(1.6)
	require.NotEqual(t, "inferentia-0", moved.GetPartitions()[0].GPU())
	require.Contains(t, string(moved.GetPolicyState()), "interfered")
	p = moved
	p.Partitions[0] = part // as if it could not be moved
	require.Contains(t, string(see(1.3).GetPolicyState()), "interfered", "it stays so until 1.25")
	require.NotContains(t, string(see(1.2).GetPolicyState()), "interfered")
}

// Wishes are met by variants that meet both, the strictest first, and the routes say how much each carries.
func TestWishes(t *testing.T) {
	b := table2(0, 300)
	a := b.Apps[0]
	a.Variants[0].Accuracy, a.Variants[1].Accuracy, a.Variants[2].Accuracy = .7, .75, .8
	a.Rate, a.Wishes = 22, []*policy.Wish{{MinimumAccuracy: .78, SloUs: 300_000, Rate: 10}, {MinimumAccuracy: .9, SloUs: 1000, Rate: 2}}
	p := plan(t, b)
	require.Equal(t, map[string]int{"C": 1}, instances(p), "C is there for the first, and has room for the rest")
	require.Len(t, p.GetAppRoutes()[0].GetVariants(), 1)
	require.InDelta(t, 20, p.GetAppRoutes()[0].GetVariants()[0].GetWeight(), 1e-6)
	require.Contains(t, fmt.Sprint(p.GetReasons()), "no variant of app has an accuracy of 0.9 within 1 ms; the closest in accuracy is C")
	require.Equal(t, policy.CauseOnDemand, p.GetUnplaced()[0].GetRefusals()[0].GetCause(), "the others are inactive")
}

// A request that just misses a batch waits for it to end: by default a batch may take half of what is promised.
func TestABatchLeavesTimeToWait(t *testing.T) {
	b := packtest.World(4).Line("v", 1, 4, 40, 0)
	b.Apps = []*policy.App{{Name: "app", SloUs: 40_000, Rate: 1600, Variants: []*policy.Variant{{Model: "v"}}}}
	// l(16) = 20 ms are half of 40: 800 rows a second. l(32) = 36 ms leave 4 to wait, for 889.
	p := plan(t, b, "slack", "0")
	require.Equal(t, map[string]int{"v": 2}, instances(p))
	require.Equal(t, uint32(16), p.GetPartitions()[0].GetInstances()[0].GetMaxBatch())
	require.Equal(t, uint32(32), plan(t, b, "inference_part", "1").GetPartitions()[0].GetInstances()[0].GetMaxBatch())
}

func TestAnAppWithoutLoadKeepsItsCheapestVariant(t *testing.T) {
	require.Equal(t, map[string]int{"A": 1}, instances(plan(t, table2(0, 300))))
}

// A variant that is no model of the snapshot is nothing that a plan may speak of.
func TestAVariantThatIsNoModel(t *testing.T) {
	b := table2(22, 300)
	b.Apps[0].Variants = append(b.Apps[0].Variants, &policy.Variant{Model: "gone", Accuracy: .9})
	plan(t, b)
}

func TestMoreThanThereIs(t *testing.T) {
	p := plan(t, table2(1e6, 20), "solver", "exact")
	require.Equal(t, 16, instances(p)["C"])
	require.Contains(t, fmt.Sprint(p.GetReasons()), "do not carry the 1e+06 rows/s")
}

func TestBadParameters(t *testing.T) {
	for name, value := range map[string]string{"slack": "-1", "inference_part": "0", "gpu_share": "0", "cpu_cores": "0", "load_unpredictability": "-1", "scale_down_ticks_gpu": "-1", "scale_down_ticks_cpu": "-1"} {
		_, err := infaas.New().Plan(t.Context(), &policy.Snapshot{Parameters: map[string]string{name: value}}, policy.NoEvaluation{})
		require.ErrorContains(t, err, name)
	}
}

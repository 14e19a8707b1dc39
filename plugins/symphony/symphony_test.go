// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package symphony_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
	"github.com/conch-serving/conch/plugins/symphony"
)

// disjoint fails an answer of which a partition and a model that it serves are not in one sub-cluster.
type disjoint struct{ policy.Policy }

func (d disjoint) Plan(ctx context.Context, s *policy.Snapshot, h policy.Host) (*policy.Plan, error) {
	p, err := d.Policy.Plan(ctx, s, h)
	if err != nil {
		return nil, err
	}
	for _, part := range p.GetPartitions() {
		holders := 0
		for _, c := range p.GetSubClusters() {
			if !slices.Contains(c.GetPartitions(), part.GetId()) {
				for _, in := range part.GetInstances() {
					if slices.Contains(c.GetModels(), in.GetModel()) {
						return nil, fmt.Errorf("%s serves %s of sub-cluster %s", part.GetId(), in.GetModel(), c.GetName())
					}
				}
				continue
			}
			holders++
		}
		if holders != 1 {
			return nil, fmt.Errorf("%s is in %d sub-clusters", part.GetId(), holders)
		}
	}
	return p, nil
}

func TestConformance(t *testing.T) {
	for name, parameters := range map[string]map[string]string{
		"defaults": nil, "greedy": {"solver": "greedy", "sub_clusters": "2"}, "random": {"solver": "random", "sub_clusters": "3", "steps": "1000"},
		"bounds": {"max_rate": "600", "max_disruption": "3", "discipline": "deferred"},
	} {
		t.Run(name, func(t *testing.T) {
			conformance.Run(t, conformance.Options{
				New: func(*testing.T) policy.Policy { return disjoint{symphony.New()} }, Parameters: parameters, Snapshots: packtest.Profiled(),
			})
		})
	}
}

// Golden plans of worlds that are small enough to check by hand; "go test -update" writes them.
func TestGolden(t *testing.T) { packtest.Golden(t, symphony.New(), "testdata") }

func plan(t *testing.T, b packtest.Builder, more ...string) *policy.Plan {
	t.Helper()
	if b.Parameters == nil {
		b.Parameters = make(map[string]string)
	}
	for i := 0; i < len(more); i += 2 {
		b.Parameters[more[i]] = more[i+1]
	}
	p, err := disjoint{symphony.New()}.Plan(t.Context(), b.Snapshot, policy.NoEvaluation{})
	require.NoError(t, err)
	require.Empty(t, conformance.Check(b.Snapshot, p))
	return p
}

func models(p *policy.Plan) (all [][]string) {
	for _, c := range p.GetSubClusters() {
		all = append(all, c.GetModels())
	}
	return all
}

// four models of 100, 80, 60 and 40 requests per second, and of 1 GiB each.
func four(gpus int) packtest.Builder {
	b := packtest.World(gpus)
	for i, name := range []string{"a", "b", "c", "d"} {
		b.Line(name, 1, 4, 40, float64(100-20*i))
	}
	return b
}

// a with d and b with c: 140 requests per second and 2 GiB in each.
func TestEqualRateAndMemory(t *testing.T) {
	p := plan(t, four(4), "sub_clusters", "2")
	require.ElementsMatch(t, [][]string{{"a", "d"}, {"b", "c"}}, models(p))
	for _, c := range p.GetSubClusters() {
		require.Len(t, c.GetPartitions(), 2, "equal loads have equal numbers of GPUs")
	}
	require.Contains(t, fmt.Sprint(p.GetReasons()), "an imbalance of 0, the least there is")
}

// Without bounds there is one sub-cluster, and every model on every GPU. What does not fit a GPU's memory, and what one dispatcher cannot
// serve, is divided.
func TestFewestSubClusters(t *testing.T) {
	p := plan(t, four(3))
	require.Equal(t, [][]string{{"a", "b", "c", "d"}}, models(p))
	require.Len(t, p.PartitionsOf("a"), 3)
	require.Len(t, plan(t, four(3), "max_rate", "150").GetSubClusters(), 2)
	b := four(3)
	for _, m := range b.Models {
		m.MemoryBytes = 7 << 30
	}
	require.Len(t, plan(t, b).GetSubClusters(), 2, "28 GiB of models and 16 of a GPU")
}

// GPUs go where the load is: a, at 2,100 of the 800 rows/s that a GPU carries, gets three; b, at 100, one.
func TestGPUsFollowTheLoad(t *testing.T) {
	b := packtest.World(4).Line("a", 1, 4, 40, 2100).Line("b", 1, 4, 40, 100)
	p := plan(t, b, "sub_clusters", "2")
	require.Len(t, p.PartitionsOf("a"), 3)
	require.Len(t, p.PartitionsOf("b"), 1)
}

// A change of the rates that would be worth a better balance is made only as far as its loads are allowed.
func TestDisruptionIsBounded(t *testing.T) {
	b := four(4)
	b.Current = plan(t, b, "sub_clusters", "2")
	// Now a with d have 160, and b with c 80; where b and d change places both have 120.
	for i, rate := range []float64{90, 30, 50, 70} {
		b.Models[i].LoadSeconds, b.Models[i].Rate, b.Models[i].RowRate = 5, rate, rate
	}
	free := plan(t, b)
	require.ElementsMatch(t, [][]string{{"a", "b"}, {"c", "d"}}, models(free))
	held := plan(t, b, "max_disruption", "19")
	require.ElementsMatch(t, models(b.GetCurrent()), models(held), "two models move for 20 s")
	require.ElementsMatch(t, models(free), models(plan(t, b, "max_disruption", "20")))
	require.Equal(t, b.Current.GetSubClusters(), held.GetSubClusters(), "names and GPUs stay")
}

// The advice of section 3.5 in elastic mode: what is to be added is rented, what is to be given back is not used.
func TestAdvice(t *testing.T) {
	b := four(3)
	b.Objective = policy.Objective_OBJECTIVE_MIN_COST
	b.Offers = []*policy.GPUOffer{{Type: "Y", CostPerHour: 3, MaxCount: 9}, {Type: "X", CostPerHour: 1, MaxCount: 9}}
	require.Equal(t, map[string]uint32{"X": 3, "Y": 0}, plan(t, b).GetWantedGpus())
	b.Statistics = &policy.DispatchStatistics{Advice: &policy.Advice{AllocateGpus: 2, Gpus: 3, Reason: "too many bad requests"}}
	p := plan(t, b)
	require.Equal(t, map[string]uint32{"X": 5, "Y": 0}, p.GetWantedGpus())
	require.Contains(t, fmt.Sprint(p.GetReasons()), "too many bad requests")
	b.Statistics.Advice = &policy.Advice{ReleaseGpus: 1, Gpus: 3, Release: []string{"gpu2"}}
	p = plan(t, b)
	require.Equal(t, map[string]uint32{"X": 2, "Y": 0}, p.GetWantedGpus())
	require.Len(t, p.GetPartitions(), 2)
	b.Objective = policy.Objective_OBJECTIVE_MAX_GOODPUT
	require.Len(t, plan(t, b).GetPartitions(), 3, "GPUs that cost nothing more are all used")
}

func TestAModelThatFitsNowhereIsSaid(t *testing.T) {
	b := four(2)
	b.Models[0].MemoryBytes = 20 << 30
	p := plan(t, b)
	require.Equal(t, [][]string{{"b", "c", "d"}}, models(p))
	require.Equal(t, "a", p.GetUnplaced()[0].GetModel())
	require.Contains(t, p.GetUnplaced()[0].GetText(), "memory")
}

func TestBadParameters(t *testing.T) {
	for name, value := range map[string]string{"sub_clusters": "-1", "max_rate": "-1", "max_disruption": "-1", "memory_weight": "-1", "steps": "0"} {
		_, err := symphony.New().Plan(t.Context(), &policy.Snapshot{Parameters: map[string]string{name: value}}, policy.NoEvaluation{})
		require.ErrorContains(t, err, name)
	}
}

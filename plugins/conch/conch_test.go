// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/conch"
	"github.com/conch-serving/conch/plugins/gpulet"
	"github.com/conch-serving/conch/plugins/nexus"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/conformance"
	"github.com/conch-serving/conch/plugins/policy/pack/packtest"
	"github.com/conch-serving/conch/plugins/static"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
)

func made() policy.Policy { return conch.New(static.New(), nexus.New(), gpulet.New()) }

func TestConformance(t *testing.T) {
	conformance.Run(t, conformance.Options{New: func(*testing.T) policy.Policy { return made() }, Snapshots: packtest.Profiled()})
}

// ask plans with real evaluations.
func ask(t *testing.T, s *policy.Snapshot, evaluations uint32) *policy.Plan {
	t.Helper()
	s.Traffic, s.Evaluations = evaluate.Promise(s, 2*time.Second), evaluations
	p, err := made().Plan(t.Context(), s, (&evaluate.InProcess{}).Host(s))
	require.NoError(t, err)
	require.Empty(t, conformance.Check(s, p))
	return p
}

func outcome(t *testing.T, s *policy.Snapshot, p *policy.Plan) *policy.Outcome {
	t.Helper()
	all, err := (&evaluate.InProcess{}).Evaluate(t.Context(), s, []*policy.Plan{p})
	require.NoError(t, err)
	require.Empty(t, all[0].GetViolations())
	return all[0]
}

// mixed is a tight model beside a heavy one whose every batch is longer than the tight one can wait.
func mixed(gpus int) packtest.Builder {
	b := packtest.World(gpus).Line("tight", .3, 4, 15, 900*float64(gpus)).Line("heavy", 2, 25, 200, 80*float64(gpus))
	for _, m := range b.Models {
		m.Late = policy.LatePolicy_LATE_POLICY_DROP
	}
	return b
}

// Where one model blocks another for longer than it can wait and the GPUs are nearly full, both everywhere loses twice as much.
func TestHeavyBesideTight(t *testing.T) {
	b := mixed(2)
	p := ask(t, b.Snapshot, 64)
	everywhere, err := static.New().Plan(t.Context(), b.Snapshot, policy.NoEvaluation{})
	require.NoError(t, err)
	best, plain := outcome(t, b.Snapshot, p), outcome(t, b.Snapshot, everywhere)
	t.Logf("goodput %.0f against %.0f, bad %.3f against %.3f", best.GetGoodput(), plain.GetGoodput(), best.GetBadRate(), plain.GetBadRate())
	require.Greater(t, best.GetGoodput(), 1.02*plain.GetGoodput())
	require.Less(t, best.GetBadRate(), .6*plain.GetBadRate())
}

// On the traffic that it is asked about it is at least as good as what it begins with.
func TestNeverWorseThanItsBeginnings(t *testing.T) {
	b := packtest.World(3).Interfering()
	for i := range 6 {
		b.Shaped(fmt.Sprintf("m%d", i), .5+float64(i)/4, 3, 30+20*float64(i), 120, []uint32{20, 40, 60}[i%3])
	}
	p := ask(t, b.Snapshot, 100)
	got := outcome(t, b.Snapshot, p)
	for _, other := range []policy.Policy{static.New(), nexus.New(), gpulet.New()} {
		plan, err := other.Plan(t.Context(), b.Snapshot, policy.NoEvaluation{})
		require.NoError(t, err)
		// Least_gain is what counts as a gain at all.
		require.GreaterOrEqual(t, got.GetGoodput(), .995*outcome(t, b.Snapshot, plan).GetGoodput())
	}
}

func TestTheSameTwice(t *testing.T) {
	b := mixed(2)
	first := ask(t, proto.CloneOf(b.Snapshot), 40)
	require.True(t, proto.Equal(first, ask(t, proto.CloneOf(b.Snapshot), 40)))
}

// A plan that serves as well as any stays, however many others do.
func TestWhatServesWellStays(t *testing.T) {
	b := packtest.World(2).Line("a", 1, 4, 100, 50).Line("b", 1, 4, 100, 50)
	b.ChangeCost = &policy.ChangeCost{DefaultLoadSeconds: 1, PartitionStartSeconds: 2}
	first := ask(t, b.Snapshot, 40)
	b.Current = first
	b.Revision++
	again := ask(t, b.Snapshot, 40)
	require.Len(t, again.GetPartitions(), len(first.GetPartitions()))
	for i, p := range first.GetPartitions() {
		require.True(t, proto.Equal(p, again.GetPartitions()[i]))
	}
}

func TestWithoutEvaluationsItIsTheFirstBeginning(t *testing.T) {
	b := mixed(2)
	p, err := made().Plan(t.Context(), b.Snapshot, policy.NoEvaluation{})
	require.NoError(t, err)
	require.Contains(t, p.GetReasons()[len(p.GetReasons())-1].GetText(), "nothing could be evaluated")
	require.Len(t, p.GetPartitions(), 2)
}

func TestMinimalCost(t *testing.T) {
	b := packtest.World(4).Line("a", 1, 4, 100, 50).Line("b", 1, 4, 100, 50)
	b.Snapshot.Objective = policy.Objective_OBJECTIVE_MIN_COST
	require.Len(t, ask(t, b.Snapshot, 60).GetPartitions(), 1, "one GPU carries both")
}

// Two models that share nearly all of their weights serve more as one: a request that misses a batch waits for the next of both, and not for that
// of the other model and then its own.
func TestItMergesWhereThatServesMore(t *testing.T) {
	b := packtest.World(1).Line("a", .2, 10, 30, 500).Line("b", .2, 10, 30, 500)
	merged := proto.CloneOf(b.Profiles[0])
	merged.Model = "ab"
	b.Derived = []*policy.DerivedModel{{
		Recipe:   &policy.Recipe{Name: "ab", Kind: policy.RecipeKind_RECIPE_KIND_MERGE, Mode: policy.MergeMode_MERGE_MODE_BACKBONE, Members: []string{"a", "b"}},
		Verified: true, SharedBytes: 1 << 30, MemoryBytes: 1 << 30, Profiles: []*policy.Profile{merged},
	}}
	apart := proto.CloneOf(b.Snapshot)
	apart.Derived = nil
	one, two := ask(t, b.Snapshot, 96), ask(t, apart, 96)
	require.Len(t, one.GetRecipes(), 1)
	require.Greater(t, outcome(t, b.Snapshot, one).GetGoodput(), 1.02*outcome(t, apart, two).GetGoodput())
}

// CPUs are places like others, where a profile says what a model takes there.
func TestItUsesCPUs(t *testing.T) {
	b := packtest.World(1).Line("small", .5, 1, 80, 600).Line("large", 2, 20, 80, 220)
	cpu := proto.CloneOf(b.Profiles[0])
	cpu.GpuType = "cpu"
	b.Profiles = append(b.Profiles, cpu)
	without := outcome(t, b.Snapshot, ask(t, proto.CloneOf(b.Snapshot), 96)).GetGoodput()
	b.Nodes[0].Cpu = &policy.CPU{Type: "cpu", Cores: 8, MemoryBytes: 16 << 30}
	p := ask(t, b.Snapshot, 96)
	require.True(t, slices.ContainsFunc(p.GetPartitions(), (*policy.Partition).OnCPU), "%v", p)
	require.Greater(t, outcome(t, b.Snapshot, p).GetGoodput(), 1.1*without)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch_test

import (
	"context"
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

// The tight model cannot wait for a batch of the heavy one, which needs four fifths of the GPU to make its SLO: one cut serves both, and exact search
// finds it.
func TestASmallWorldIsCutExactly(t *testing.T) {
	b := packtest.World(1).Shaped("tight", 0, 5, 12, 40, 20).Shaped("heavy", 0, 60, 135, 8, 80)
	for _, m := range b.Models {
		m.Late = policy.LatePolicy_LATE_POLICY_DROP
	}
	p := ask(t, b.Snapshot, 64)
	shares := map[string]uint32{}
	for _, part := range p.GetPartitions() {
		for _, in := range part.GetInstances() {
			shares[in.GetModel()] = part.GetThreadPercentage()
		}
	}
	require.Equal(t, map[string]uint32{"tight": 20, "heavy": 80}, shares)
	require.Less(t, outcome(t, b.Snapshot, p).GetBadRate(), .01)
	everywhere, err := static.New().Plan(t.Context(), b.Snapshot, policy.NoEvaluation{})
	require.NoError(t, err)
	require.Greater(t, outcome(t, b.Snapshot, everywhere).GetBadRate(), .1)
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
	b.Objective = policy.Objective_OBJECTIVE_MIN_COST
	require.Len(t, ask(t, b.Snapshot, 60).GetPartitions(), 1, "one GPU carries both")
}

// The load is held on as few GPUs as the beginnings take, or fewer, under other arrivals too; of two types, on the one that carries it for less.
func TestFewerGPUs(t *testing.T) {
	world := func() packtest.Builder {
		b := packtest.World(8)
		for i := range 5 {
			b.Shaped(fmt.Sprintf("m%d", i), .5+float64(i)/4, 3, 40+30*float64(i), 150, []uint32{20, 40, 60}[i%3])
		}
		b.Objective = policy.Objective_OBJECTIVE_MIN_COST
		return b
	}
	b := world()
	p := ask(t, b.Snapshot, 128)
	others := proto.CloneOf(b.Snapshot)
	others.Seed += 1000
	got := outcome(t, others, p)
	require.LessOrEqual(t, got.GetBadRate(), .01)
	plain, err := nexus.New().Plan(t.Context(), b.Snapshot, policy.NoEvaluation{})
	require.NoError(t, err)
	require.LessOrEqual(t, got.GetGpus(), outcome(t, b.Snapshot, plain).GetGpus())
	require.Less(t, got.GetGpus(), uint32(4))

	b = world()
	for i, g := range b.Nodes[0].Gpus {
		if g.CostPerHour = 1; i < 4 {
			g.CostPerHour = 3
		}
		if i < 4 {
			g.Type = "Y"
		}
	}
	for _, profile := range slices.Clone(b.Profiles) {
		dear := proto.CloneOf(profile)
		dear.GpuType = "Y"
		b.Profiles = append(b.Profiles, dear)
	}
	for _, part := range ask(t, b.Snapshot, 128).GetPartitions() {
		require.Contains(t, []string{"gpu4", "gpu5", "gpu6", "gpu7"}, part.GPU(), "equally fast, for a third")
	}
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
	mergedPlan, apartPlan := ask(t, b.Snapshot, 96), ask(t, apart, 96)
	require.Len(t, mergedPlan.GetRecipes(), 1)
	require.Greater(t, outcome(t, b.Snapshot, mergedPlan).GetGoodput(), 1.02*outcome(t, apart, apartPlan).GetGoodput())
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

// fickle is a host whose traffic flatters plans on few GPUs: other arrivals like it are bad there.
type fickle struct {
	asked, draws uint32
	seen         map[uint32]bool
}

// Evaluate implements policy.Host.
func (f *fickle) Evaluate(ctx context.Context, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	return f.EvaluateDraw(ctx, 0, plans...)
}

// EvaluateDraw implements policy.Host.
func (f *fickle) EvaluateDraw(_ context.Context, draw uint32, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	all := make([]*policy.Outcome, len(plans))
	for i, p := range plans {
		gpus := map[string]bool{}
		for _, part := range p.GetPartitions() {
			gpus[part.GPU()] = true
		}
		o := &policy.Outcome{Goodput: 99.6, BadRate: .004, Gpus: uint32(len(gpus)), CostPerHour: float64(len(gpus))}
		if draw > 0 && len(gpus) < 3 {
			o.BadRate = .006 + .004*float64(draw%3) // less than a hundredth now and then, but more on average
		}
		all[i] = o
	}
	f.asked += uint32(len(plans))
	if draw > 0 {
		f.draws += uint32(len(plans))
		f.seen[draw] = true
	}
	return all, nil
}

// A plan that holds the load by the arrivals that it was chosen by and not by others does not count as cheaper; other arrivals are drawn anew for every plan
// that is tried, and cost evaluations.
func TestCheaperPlansHoldUnderOtherArrivals(t *testing.T) {
	b := packtest.World(6).Line("a", 1, 4, 100, 50).Line("b", 1, 4, 100, 50)
	b.Objective, b.Evaluations = policy.Objective_OBJECTIVE_MIN_COST, 128
	for _, g := range b.Nodes[0].Gpus {
		g.CostPerHour = 1
	}
	h := &fickle{seen: map[uint32]bool{}}
	p, err := made().Plan(t.Context(), b.Snapshot, h)
	require.NoError(t, err)
	require.LessOrEqual(t, h.asked, b.Evaluations)
	require.EqualValues(t, len(h.seen), h.draws, "no draw is used twice")
	gpus := map[string]bool{}
	for _, part := range p.GetPartitions() {
		gpus[part.GPU()] = true
	}
	require.Len(t, gpus, 3)
	require.Contains(t, fmt.Sprint(p.GetReasons()), "surely holds the load")

	b.Parameters = map[string]string{"surely_bad": "1"}
	p, err = made().Plan(t.Context(), b.Snapshot, &fickle{seen: map[uint32]bool{}})
	require.NoError(t, err)
	require.Len(t, p.GetPartitions(), 1, "an operator who tolerates anything gets the cheapest plan")
}

// hostFunc is a host whose outcome of a plan is what the function returns.
type hostFunc func(draw uint32, p *policy.Plan) *policy.Outcome

// Evaluate implements policy.Host.
func (f hostFunc) Evaluate(ctx context.Context, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	return f.EvaluateDraw(ctx, 0, plans...)
}

// EvaluateDraw implements policy.Host.
func (f hostFunc) EvaluateDraw(_ context.Context, draw uint32, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	all := make([]*policy.Outcome, len(plans))
	for i, p := range plans {
		all[i] = f(draw, p)
	}
	return all, nil
}

// A plan in force that holds the load for no more money than any stays, though others that do so as well serve a little more: they were tried under other
// arrivals before it was.
func TestWhatHoldsTheLoadAsCheaplyStays(t *testing.T) {
	b := packtest.World(2).Line("a", 1, 4, 100, 50).Line("b", 1, 4, 100, 50)
	b.Objective, b.Evaluations = policy.Objective_OBJECTIVE_MIN_COST, 128
	b.ChangeCost = &policy.ChangeCost{DefaultLoadSeconds: 1, PartitionStartSeconds: 2}
	half := func(model, id string) *policy.Partition {
		return &policy.Partition{Id: id, Node: b.Nodes[0].GetName(), Gpus: []string{b.Nodes[0].Gpus[0].GetId()}, ThreadPercentage: 50, Instances: []*policy.Instance{{Model: model}}}
	}
	b.Current = &policy.Plan{Partitions: []*policy.Partition{half("a", "gpu0a"), half("b", "gpu0b")}}
	h := hostFunc(func(_ uint32, p *policy.Plan) *policy.Outcome {
		gpus := map[string]bool{}
		for _, part := range p.GetPartitions() {
			gpus[part.GPU()] = true
		}
		o := &policy.Outcome{Goodput: 99.9, BadRate: .001, Gpus: uint32(len(gpus)), CostPerHour: float64(len(gpus))}
		if len(p.GetPartitions()) == 2 {
			o.Goodput, o.BadRate = 99.8, .002
		}
		return o
	})
	p, err := made().Plan(t.Context(), b.Snapshot, h)
	require.NoError(t, err)
	require.Len(t, p.GetPartitions(), 2, "%v", p.GetReasons())
	require.Contains(t, fmt.Sprint(p.GetReasons()), "surely holds the load")
}

// What is merged in the end was not tried yet: it takes the place of a plan that surely holds the load only if it does so too.
func TestWhatIsMergedSurelyHoldsTheLoadToo(t *testing.T) {
	for _, bad := range []float64{0, .5} {
		b := packtest.World(1).Line("a", .2, 10, 30, 500).Line("b", .2, 10, 30, 500)
		b.Objective, b.Evaluations = policy.Objective_OBJECTIVE_MIN_COST, 64
		merged := proto.CloneOf(b.Profiles[0])
		merged.Model = "ab"
		b.Derived = []*policy.DerivedModel{{
			Recipe:   &policy.Recipe{Name: "ab", Kind: policy.RecipeKind_RECIPE_KIND_MERGE, Mode: policy.MergeMode_MERGE_MODE_BACKBONE, Members: []string{"a", "b"}},
			Verified: true, SharedBytes: 1 << 30, MemoryBytes: 1 << 30, Profiles: []*policy.Profile{merged},
		}}
		p, err := made().Plan(t.Context(), b.Snapshot, hostFunc(func(draw uint32, p *policy.Plan) *policy.Outcome {
			o := &policy.Outcome{Goodput: 100, Gpus: 1, CostPerHour: 1}
			if len(p.GetRecipes()) > 0 {
				if o.Goodput = 99.99; draw > 0 {
					o.BadRate = bad
				}
			}
			return o
		}))
		require.NoError(t, err)
		require.Contains(t, fmt.Sprint(p.GetReasons()), "surely holds the load")
		require.Equal(t, bad == 0, len(p.GetRecipes()) > 0)
	}
}

// TestTheSearchIsOverDivisionsOfSLOs: with SLOs in proportion to the steps' times, every plan that the search begins with takes both GPUs. With SLOs by
// the GPUs that the steps take, one of them holds the load on one GPU.
func TestTheSearchIsOverDivisionsOfSLOs(t *testing.T) {
	b := packtest.World(2).Shaped("first", .2, 10, 1000, 0, 20).Shaped("second", 1, 5, 1000, 0, 20)
	b.Pipelines = []*policy.Pipeline{{Name: "app", SloUs: 40_000, Rate: 450, Steps: []*policy.PipelineStep{{Model: "first"}, {Model: "second", After: []uint32{0}}}}}
	part, _ := b.Pipelines[0].Divide(b.Takes)
	for i, m := range b.Models {
		m.SloUs = int64(part[i] * 40_000)
	}
	b.Pipelines[0].Load(map[string]*policy.Model{"first": b.Models[0], "second": b.Models[1]})
	p := ask(t, b.Snapshot, 96)
	require.Contains(t, fmt.Sprint(p.GetReasons()), "with SLOs divided by the GPUs that steps take")
	o := outcome(t, b.Snapshot, p)
	require.Zero(t, o.GetBadRate())
	require.EqualValues(t, 1, o.GetGpus())
}

// TestPipelinesAreServedAsWellAsByOthers: whatever SLO a step is given, it is judged by what becomes of the pipeline.
func TestPipelinesAreServedAsWellAsByOthers(t *testing.T) {
	b := packtest.World(2).Shaped("heavy", 1.5, 8, 108, 0, 100).Shaped("first", .5, 4, 108, 0, 60).Shaped("second", .5, 4, 108, 0, 60)
	b.Pipelines = []*policy.Pipeline{{Name: "app", SloUs: 60_000, Rate: 300, Steps: []*policy.PipelineStep{
		{Model: "heavy"}, {Model: "first"}, {Model: "second", After: []uint32{1}},
	}}}
	models := map[string]*policy.Model{}
	for _, m := range b.Models {
		models[m.GetName()] = m
	}
	b.Pipelines[0].Load(models)
	p := ask(t, b.Snapshot, 96)
	require.Empty(t, conformance.Check(b.Snapshot, p))
	best := outcome(t, b.Snapshot, p)
	for _, other := range []policy.Policy{static.New(), nexus.New(), gpulet.New()} {
		parameters := b.Snapshot.Parameters
		plan, err := other.Plan(t.Context(), b.Snapshot, policy.NoEvaluation{})
		b.Snapshot.Parameters = parameters
		if err != nil {
			continue // it lacks what it needs
		}
		require.GreaterOrEqual(t, best.GetGoodput(), outcome(t, b.Snapshot, plan).GetGoodput()*.995)
	}
	require.Equal(t, "app", best.GetModels()[0].GetModel())
	require.True(t, proto.Equal(p, ask(t, proto.CloneOf(b.Snapshot), 96)))
}

// TestStepsWithLargeTensorsShareANode: of plans that serve as much, the one under which the tensors between steps stay on a node.
func TestStepsWithLargeTensorsShareANode(t *testing.T) {
	for _, bytes := range []float64{1 << 20, 0} {
		b := packtest.World(4).Line("a", 1, 4, 200, 0).Line("b", 1, 4, 200, 0).Line("other", 1, 4, 200, 20)
		far := &policy.Node{Name: "far", Gpus: b.Nodes[0].Gpus[1:3]}
		b.Nodes[0].Gpus = []*policy.GPU{b.Nodes[0].Gpus[0], b.Nodes[0].Gpus[3]}
		b.Nodes = []*policy.Node{far, b.Nodes[0]}
		b.Pipelines = []*policy.Pipeline{{Name: "app", SloUs: 200_000, Rate: 20, Steps: []*policy.PipelineStep{
			{Model: "a"}, {Model: "b", After: []uint32{0}, TakenBytes: []float64{bytes}},
		}}}
		b.Pipelines[0].Load(map[string]*policy.Model{"a": b.Models[0], "b": b.Models[1]})
		// One place each; a is on the node n, and other on the node far.
		b.Constraints = []*policy.Constraint{{Model: "a", Gpus: []string{"gpu3"}}, {Model: "b", MaxInstances: 1}, {Model: "other", Gpus: []string{"gpu1"}}}
		p := ask(t, b.Snapshot, 96)
		require.Empty(t, conformance.Check(b.Snapshot, p))
		where := map[bool]string{true: "n", false: "far"}[bytes > 0]
		require.Equal(t, where, p.PartitionsOf("b")[0].GetNode(), "%v", p)
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package evaluate_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

const childVariable = "CONCH_TEST_EVALUATE"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		if err := evaluate.Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// world has GPUs of one type and models of l(b) = b + 5 ms, each with an SLO of 25 ms.
func world(gpus, models int, rate float64) *policy.Snapshot {
	s := &policy.Snapshot{Revision: 3, Seed: 7, Evaluations: 64, Nodes: []*policy.Node{{Name: "n"}}}
	for i := range gpus {
		s.Nodes[0].Gpus = append(s.Nodes[0].Gpus, &policy.GPU{Id: fmt.Sprintf("gpu%d", i), Type: "X", Index: uint32(i), CostPerHour: 2, Emulated: true})
	}
	for i := range models {
		name := fmt.Sprintf("m%d", i)
		s.Models = append(s.Models, &policy.Model{
			Name: name, SloUs: 25_000, MaxBatchSize: 16, Batchable: true, Rate: rate, RowRate: rate, Burstiness: 1, Late: policy.LatePolicy_LATE_POLICY_DROP,
		})
		s.Profiles = append(s.Profiles, line(name, 1000, 5000))
	}
	return s
}

func line(model string, alpha, beta float64) *policy.Profile {
	p := &policy.Profile{Model: model, GpuType: "X", Usable: true}
	for _, b := range []uint32{1, 16} {
		l := alpha*float64(b) + beta
		p.Points = append(p.Points, &policy.ProfilePoint{Batch: b, ThreadPercentage: 100, LatencyUs: &policy.Estimate{Value: l}, LatencyUpperUs: l})
	}
	return p
}

// everywhere has every model on the first so many GPUs.
func everywhere(s *policy.Snapshot, gpus int, models ...string) *policy.Plan {
	p := &policy.Plan{SnapshotRevision: s.GetRevision()}
	for i := range gpus {
		g := s.Nodes[0].Gpus[i].Id
		part := &policy.Partition{Id: g, Node: "n", Gpus: []string{g}, ThreadPercentage: 100, Rank: uint32(i)}
		for _, m := range models {
			part.Instances = append(part.Instances, policy.ModelInstance(m, 0))
		}
		p.Partitions = append(p.Partitions, part)
	}
	return p
}

func generate(t *testing.T, s *policy.Snapshot, length time.Duration) *evaluate.Traffic {
	t.Helper()
	traffic, err := evaluate.Generate(s, length)
	require.NoError(t, err)
	s.Traffic = traffic.Describe()
	return traffic
}

func TestMoreGPUsServeMore(t *testing.T) {
	s := world(4, 2, 600)
	e := evaluate.New(s, generate(t, s, 5*time.Second))
	got, err := e.Evaluate(t.Context(), everywhere(s, 1, "m0", "m1"), everywhere(s, 4, "m0", "m1"))
	require.NoError(t, err)
	require.Greater(t, got[0].GetBadRate(), .3, "one GPU carries at most 760 rows a second")
	require.Less(t, got[1].GetBadRate(), .01)
	require.InDelta(t, 1200, got[1].GetGoodput(), 60)
	require.Equal(t, uint32(4), got[1].GetGpus())
	require.InDelta(t, 8, got[1].GetCostPerHour(), 0)
	require.Len(t, got[1].GetModels(), 2)
	require.Len(t, got[1].GetPartitions(), 4)
}

func TestEqualQuestionsGetEqualAnswers(t *testing.T) {
	s := world(2, 2, 300)
	traffic, again := generate(t, s, 2*time.Second), generate(t, s, 2*time.Second)
	require.Equal(t, traffic.Describe().GetDigest(), again.Describe().GetDigest())
	p := everywhere(s, 2, "m0", "m1")
	first, err := evaluate.New(s, traffic).Evaluate(t.Context(), p)
	require.NoError(t, err)
	second, err := evaluate.New(s, again).Evaluate(t.Context(), everywhere(s, 1, "m0"), p)
	require.NoError(t, err)
	require.True(t, proto.Equal(first[0], second[1]), "neither what else is asked nor when matters")

	other := proto.CloneOf(s)
	other.Seed++
	require.NotEqual(t, traffic.Describe().GetDigest(), generate(t, other, 2*time.Second).Describe().GetDigest())
}

func TestAPromiseChangesWithAllThatArrivalsDependOn(t *testing.T) {
	s := world(1, 2, 100)
	digest := func() string { return evaluate.Promise(s, time.Second).GetDigest() }
	seen := map[string]bool{digest(): true}
	require.True(t, seen[digest()], "it is the same twice")
	for _, change := range []func(){
		func() { s.Seed++ }, func() { s.Models[0].Rate++ }, func() { s.Models[0].Burstiness = 9 }, func() { s.Models[1].Name = "other" },
		func() { s.Apps = []*policy.App{{Name: "app", Rate: 1}} },
	} {
		change()
		require.False(t, seen[digest()])
		seen[digest()] = true
	}
	require.Nil(t, evaluate.Promise(world(1, 1, 0), 0), "without load there is nothing to evaluate with")
}

// A request a day, or the last of a rate that fades, does not make the traffic of a snapshot end before it begins.
func TestTrafficOfNextToNothing(t *testing.T) {
	for _, rate := range []float64{1. / 86_400, 1e-9, 5e-324} {
		s := world(1, 1, rate)
		promise := evaluate.Promise(s, 2*time.Second)
		require.InDelta(t, 2, promise.GetSeconds(), 1e-9)
		require.Zero(t, promise.GetRequests())
		require.Equal(t, 2*time.Second, generate(t, s, 2*time.Second).Length)
	}
}

// What a plan has no route for is bad, whatever becomes of the rest.
func TestAnAppWithoutARouteIsBad(t *testing.T) {
	s := world(1, 2, 10)
	s.Apps = []*policy.App{{Name: "app", Rate: 40, Variants: []*policy.Variant{{Model: s.Models[0].GetName(), Accuracy: 1}}}}
	e := evaluate.New(s, generate(t, s, 10*time.Second))
	outcomes, err := e.Evaluate(t.Context(), everywhere(s, 1, s.Models[0].GetName(), s.Models[1].GetName()))
	require.NoError(t, err)
	require.Empty(t, outcomes[0].GetViolations())
	require.InDelta(t, 40./60, outcomes[0].GetBadRate(), .05)
	require.InDelta(t, 20, outcomes[0].GetGoodput(), 3)
}

func TestWhatCannotBeRunSaysWhy(t *testing.T) {
	s := world(1, 1, 10)
	bad := everywhere(s, 1, "m0", "nobody")
	got, err := evaluate.New(s, generate(t, s, time.Second)).Evaluate(t.Context(), bad)
	require.NoError(t, err)
	require.Equal(t, []string{`unknown: gpu0: the model "nobody" is not in the snapshot`}, got[0].GetViolations())

	_, err = evaluate.New(s, generate(t, s, time.Second)).Evaluate(t.Context(), make([]*policy.Plan, 65)...)
	require.ErrorIs(t, err, evaluate.ErrTooMany)
}

func TestModelsOfUnknownLatencyAreLeftOut(t *testing.T) {
	s := world(1, 2, 100)
	s.Profiles[1].Usable = false
	got, err := evaluate.New(s, generate(t, s, 2*time.Second)).Evaluate(t.Context(), everywhere(s, 1, "m0", "m1"))
	require.NoError(t, err)
	require.Empty(t, got[0].GetViolations())
	require.Len(t, got[0].GetModels(), 1)
	require.InDelta(t, 100, got[0].GetGoodput(), 25)
}

// Four fine-tunes that are merged share a batch, and with it its fixed cost.
func TestMembersQueueTogether(t *testing.T) {
	s := world(1, 4, 100)
	r := &policy.Recipe{Name: "g", Kind: policy.RecipeKind_RECIPE_KIND_MERGE, Mode: policy.MergeMode_MERGE_MODE_BACKBONE, Members: []string{"m0", "m1", "m2", "m3"}}
	s.Derived = []*policy.DerivedModel{{Recipe: r, Profiles: []*policy.Profile{line("g", 1000, 5000)}}}
	merged := everywhere(s, 1, "g")
	merged.Recipes = []*policy.Recipe{r}
	got, err := evaluate.New(s, generate(t, s, 3*time.Second)).Evaluate(t.Context(), everywhere(s, 1, r.Members...), merged)
	require.NoError(t, err)
	require.Empty(t, got[1].GetViolations())
	require.Less(t, got[1].GetBadRate(), .02)
	require.Greater(t, got[0].GetBadRate(), 5*got[1].GetBadRate())
	require.Equal(t, "g", got[1].GetModels()[0].GetModel())

	s.Derived[0].Profiles = nil
	got, err = evaluate.New(s, generate(t, s, 3*time.Second)).Evaluate(t.Context(), everywhere(s, 1, r.Members...), merged)
	require.NoError(t, err)
	require.True(t, proto.Equal(got[0], got[1]), "of a merge whose latency nobody knows the members are simulated")
}

func TestAppsGoToTheirVariantsByWeight(t *testing.T) {
	s := world(2, 2, 0)
	s.Apps = []*policy.App{{Name: "classify", Rate: 200, Variants: []*policy.Variant{{Model: "m0"}, {Model: "m1"}}}}
	p := everywhere(s, 2, "m0", "m1")
	p.AppRoutes = []*policy.AppRoute{{App: "classify", Variants: []*policy.WeightedVariant{{Model: "m0", Weight: 3}, {Model: "m1", Weight: 1}}}}
	got, err := evaluate.New(s, generate(t, s, 10*time.Second)).Evaluate(t.Context(), p)
	require.NoError(t, err)
	require.InDelta(t, 150, got[0].GetModels()[0].GetGoodput(), 15)
	require.InDelta(t, 50, got[0].GetModels()[1].GetGoodput(), 10)

	// The plan counts on the first for more than there is: it serves all.
	p.AppRoutes[0].Variants[0].Weight, p.AppRoutes[0].Variants[1].Weight = 400, 400
	got, err = evaluate.New(s, generate(t, s, 10*time.Second)).Evaluate(t.Context(), p)
	require.NoError(t, err)
	require.Len(t, got[0].GetModels(), 1)
	require.InDelta(t, 200, got[0].GetModels()[0].GetGoodput(), 15)
}

// A wish that no variant of the plan meets makes its requests bad: so a plan that leaves the accurate variant out is worse, and is seen to be.
func TestWishesThatThePlanDoesNotMeetAreBad(t *testing.T) {
	s := world(2, 2, 0)
	s.Apps = []*policy.App{{
		Name: "classify", Rate: 100, Variants: []*policy.Variant{{Model: "m0", Accuracy: .7}, {Model: "m1", Accuracy: .9}},
		Wishes: []*policy.Wish{{MinimumAccuracy: .8, Rate: 25}},
	}}
	route := func(variants ...*policy.WeightedVariant) *policy.Plan {
		p := everywhere(s, 2, "m0", "m1")
		p.AppRoutes = []*policy.AppRoute{{App: "classify", Variants: variants}}
		return p
	}
	cheap, good := &policy.WeightedVariant{Model: "m0", Accuracy: .7, LatencyUs: 50_000}, &policy.WeightedVariant{Model: "m1", Accuracy: .9, LatencyUs: 50_000}
	got, err := evaluate.New(s, generate(t, s, 10*time.Second)).Evaluate(t.Context(), route(cheap), route(cheap, good))
	require.NoError(t, err)
	require.InDelta(t, .25, got[0].GetBadRate(), .03)
	require.Less(t, got[1].GetBadRate(), .01)
	require.InDelta(t, 25, got[1].GetModels()[1].GetGoodput(), 4)
}

// What a variant gets by the app's name is the app's: it is not sent twice.
func TestRoutedRequestsAreSentOnce(t *testing.T) {
	s := world(1, 2, 0)
	s.Models[0].Rate, s.Models[0].RowRate, s.Models[0].RoutedRowRate = 100, 100, 100
	s.Apps = []*policy.App{{Name: "classify", Rate: 100, Variants: []*policy.Variant{{Model: "m0"}}}}
	traffic := generate(t, s, 10*time.Second)
	require.Equal(t, []string{"classify"}, traffic.Names)
	s.Models[0].RoutedRowRate = 60
	require.Equal(t, []string{"m0", "classify"}, generate(t, s, 10*time.Second).Names)
}

// Sub-clusters stay in what is simulated: a plan that breaks them is refused, and one that keeps them is served as it says.
func TestSubClustersAreSimulated(t *testing.T) {
	s := world(2, 2, 100)
	p := everywhere(s, 2, "m0", "m1")
	p.SubClusters = []*policy.SubCluster{{Name: "one", Models: []string{"m0", "m1"}, Partitions: []string{p.Partitions[0].GetId()}}}
	got, err := evaluate.New(s, generate(t, s, time.Second)).Evaluate(t.Context(), p)
	require.NoError(t, err)
	require.Contains(t, strings.Join(got[0].GetViolations(), " "), "sub-cluster")
	p.SubClusters[0].Partitions = []string{p.Partitions[0].GetId(), p.Partitions[1].GetId()}
	got, err = evaluate.New(s, generate(t, s, time.Second)).Evaluate(t.Context(), p)
	require.NoError(t, err)
	require.Empty(t, got[0].GetViolations())
	require.Positive(t, got[0].GetGoodput())
}

func TestPartitionsOnCPUs(t *testing.T) {
	s := world(1, 1, 100)
	s.Nodes[0].Cpu = &policy.CPU{Type: "cpu", Cores: 8}
	slow := line("m0", 2000, 6000)
	slow.GpuType = "cpu"
	s.Profiles = append(s.Profiles, slow)
	p := &policy.Plan{Partitions: []*policy.Partition{{Id: "cpu", Node: "n", ThreadPercentage: 100, Instances: []*policy.Instance{policy.ModelInstance("m0", 0)}}}}
	got, err := evaluate.New(s, generate(t, s, 5*time.Second)).Evaluate(t.Context(), p)
	require.NoError(t, err)
	require.Empty(t, got[0].GetViolations())
	require.Less(t, got[0].GetBadRate(), .02)
	require.Zero(t, got[0].GetGpus())
}

func TestTrafficSurvivesItsTrace(t *testing.T) {
	s := world(1, 3, 50)
	traffic := generate(t, s, time.Second)
	for i := range traffic.Arrivals {
		// A trace counts in microseconds.
		traffic.Arrivals[i].At = traffic.Arrivals[i].At.Truncate(time.Microsecond)
	}
	var trace bytes.Buffer
	require.NoError(t, traffic.Write(&trace))
	read, err := evaluate.Read(&trace)
	require.NoError(t, err)
	require.Equal(t, traffic.Names, read.Names)
	require.Equal(t, traffic.Arrivals, read.Arrivals)
	require.Equal(t, evaluate.SourceRecorded, read.Source)
	_, err = evaluate.Read(bytes.NewReader([]byte("no trace\n")))
	require.ErrorIs(t, err, workload.ErrNotATrace)
}

func child(t *testing.T) *evaluate.Child {
	t.Helper()
	c := evaluate.NewChild(func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), childVariable+"=1", "GORACE=atexit_sleep_ms=0")
		return cmd
	}, nil)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func TestChildAnswersAsTheProcessItself(t *testing.T) {
	s := world(2, 2, 200)
	traffic := generate(t, s, 0)
	plans := []*policy.Plan{everywhere(s, 1, "m0", "m1"), everywhere(s, 2, "m0", "m1")}
	want, err := evaluate.New(s, traffic).Evaluate(t.Context(), plans...)
	require.NoError(t, err)
	c := child(t)
	for range 2 {
		got, err := c.Evaluate(t.Context(), s, plans)
		require.NoError(t, err)
		for i := range want {
			require.True(t, proto.Equal(want[i], got[i]))
		}
	}
	other, err := evaluate.New(s, traffic).EvaluateDraw(t.Context(), 3, plans...)
	require.NoError(t, err)
	drawn, err := c.EvaluateDraw(t.Context(), s, 3, plans)
	require.NoError(t, err)
	for i := range other {
		require.True(t, proto.Equal(other[i], drawn[i]))
		require.False(t, proto.Equal(want[i], drawn[i]), "other arrivals")
	}
	next := proto.CloneOf(s)
	next.Revision++
	for _, p := range plans {
		p.SnapshotRevision++
	}
	got, err := c.Evaluate(t.Context(), next, plans)
	require.NoError(t, err)
	require.Empty(t, got[0].GetViolations(), "another snapshot, another child")
}

func TestChildsDeathIsOneError(t *testing.T) {
	s := world(1, 1, 100)
	traffic := generate(t, s, 0)
	_ = traffic
	broken := true
	c := evaluate.NewChild(func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), childVariable+"=1", "GORACE=atexit_sleep_ms=0")
		if broken {
			cmd = exec.CommandContext(ctx, "sh", "-c", "echo out of memory >&2; exit 3")
		}
		return cmd
	}, nil)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	_, err := c.Evaluate(t.Context(), s, []*policy.Plan{everywhere(s, 1, "m0")})
	require.Error(t, err)
	broken = false
	_, err = c.Evaluate(t.Context(), s, []*policy.Plan{everywhere(s, 1, "m0")})
	require.NoError(t, err)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Evaluate(ended, s, []*policy.Plan{everywhere(s, 1, "m0")})
	require.ErrorIs(t, err, context.Canceled)
}

// A process that reads nothing, such as a stopped one, holds no caller for longer than its context.
func TestChildThatReadsNothing(t *testing.T) {
	s := world(1, 1, 100)
	s.PolicyState = make([]byte, 1<<20) // more than a pipe holds
	c := evaluate.NewChild(func(ctx context.Context) *exec.Cmd { return exec.CommandContext(ctx, "sleep", "3600") }, nil)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	answers := make(chan error, 2)
	for range cap(answers) {
		go func() {
			_, err := c.Evaluate(ctx, s, []*policy.Plan{everywhere(s, 1, "m0")})
			answers <- err
		}()
	}
	for range cap(answers) {
		require.ErrorIs(t, <-answers, context.DeadlineExceeded)
	}
}

// BenchmarkSixtyFourPlans is what a policy may ask at once: 64 plans of 8 models on 8 partitions with 10 s of 2,000 requests a second.
func BenchmarkSixtyFourPlans(b *testing.B) {
	s := world(8, 8, 250)
	traffic, err := evaluate.Generate(s, 10*time.Second)
	require.NoError(b, err)
	var names []string
	for _, m := range s.Models {
		names = append(names, m.Name)
	}
	var plans []*policy.Plan
	for range 64 {
		plans = append(plans, everywhere(s, 8, names...))
	}
	e := evaluate.New(s, traffic)
	for b.Loop() {
		_, err := e.Evaluate(b.Context(), plans...)
		require.NoError(b, err)
	}
}

// TestARequestOfAPipelineIsOneArrival: not one for each of its steps' models, which have it in their rates.
func TestARequestOfAPipelineIsOneArrival(t *testing.T) {
	s := world(2, 3, 50)
	s.Models = append(s.Models, &policy.Model{Name: "whole", SloUs: 60_000, MaxBatchSize: 16, Rate: 100, RowRate: 100, Burstiness: 1, DependsOn: []string{"m0", "m1"}})
	s.Pipelines = []*policy.Pipeline{{Name: "whole", SloUs: 60_000, Rate: 100, Steps: []*policy.PipelineStep{{Model: "m0"}, {Model: "m1", After: []uint32{0}}}}}
	models := map[string]*policy.Model{}
	for _, m := range s.GetModels() {
		models[m.GetName()] = m
	}
	models["m1"].Rate, models["m1"].RowRate = 0, 0 // nobody else asks for it
	s.Pipelines[0].Load(models)
	traffic, err := evaluate.Generate(s, 20*time.Second)
	require.NoError(t, err)
	counts := map[string]int{}
	for _, a := range traffic.Arrivals {
		counts[traffic.Names[a.Model]]++
	}
	require.InEpsilon(t, 1000, counts["m0"], .15)
	require.InEpsilon(t, 2000, counts["whole"], .15)
	require.NotContains(t, counts, "m1")
	require.NotEqual(t, evaluate.Promise(world(2, 3, 50), 0).GetDigest(), evaluate.Promise(s, 0).GetDigest())

	plan := &policy.Plan{SnapshotRevision: s.GetRevision(), Policy: "p", PolicyVersion: "1"}
	for i := range 2 {
		part := &policy.Partition{Id: fmt.Sprint("p", i), Node: "n", Gpus: []string{fmt.Sprint("gpu", i)}, ThreadPercentage: 100}
		for _, m := range []string{"m0", "m1", "m2", "whole"} {
			part.Instances = append(part.Instances, policy.ModelInstance(m, 16))
		}
		plan.Partitions = append(plan.Partitions, part)
	}
	outcomes, err := evaluate.New(s, traffic).Evaluate(t.Context(), plan)
	require.NoError(t, err)
	require.Empty(t, outcomes[0].GetViolations())
	names := map[string]float64{}
	for _, m := range outcomes[0].GetModels() {
		names[m.GetModel()] = m.GetGoodput()
	}
	require.NotContains(t, names, "m1")
	require.InEpsilon(t, 100, names["whole"], .15)
	require.InEpsilon(t, 200, outcomes[0].GetGoodput(), .15, "of the pipeline and two models")

	// What was recorded is by the same names.
	recorded := &evaluate.Traffic{Names: []string{"whole"}, Length: time.Second, Source: evaluate.SourceRecorded}
	for i := range 100 {
		recorded.Arrivals = append(recorded.Arrivals, workload.Arrival{At: time.Duration(i) * 10 * time.Millisecond, Rows: 1})
	}
	outcomes, err = evaluate.New(s, recorded).Evaluate(t.Context(), plan)
	require.NoError(t, err)
	require.InDelta(t, 100, outcomes[0].GetGoodput(), 1)
}

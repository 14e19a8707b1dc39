// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// ensembleOf is a model whose steps map IN and OUT of these models: "a: x>y" is a step of model a from tensor x to tensor y.
func ensembleOf(name string, steps ...[3]string) *router.Model {
	config := modelConfig(name)
	schedule := &tritonpb.ModelEnsembling{}
	for _, s := range steps {
		schedule.Step = append(schedule.Step, &tritonpb.ModelEnsembling_Step{
			ModelName: s[0], ModelVersion: -1, InputMap: map[string]string{"IN": s[1]}, OutputMap: map[string]string{"OUT": s[2]},
		})
	}
	config.SchedulingChoice = &tritonpb.ModelConfig_EnsembleScheduling{EnsembleScheduling: schedule}
	return &router.Model{Name: name, Config: config, Versions: []string{"1"}, SLO: 10 * time.Second, PassThroughReason: "ensemble"}
}

// ensembleTable serves the models m and n, and the ensemble e: m, then n. All are on all partitions.
func ensembleTable(revision uint64, change func(t *router.Table), parts ...*triton) *router.Table {
	t := table(revision, func(m *router.Model) { m.SLO = 10 * time.Second }, parts...)
	m := t.Models["m"]
	t.Models["n"] = &router.Model{Name: "n", Config: modelConfig("n"), Versions: []string{"1"}, SLO: 10 * time.Second, Batchable: true, Places: m.Places}
	e := ensembleOf("e", [3]string{"m", "IN", "between"}, [3]string{"n", "between", "OUT"})
	e.Places = m.Places
	t.Models["e"] = e
	if change != nil {
		change(t)
	}
	return t
}

// toModel asks an ensemble.
func toModel(name string) func(*tritonpb.ModelInferRequest) {
	return func(r *tritonpb.ModelInferRequest) { r.ModelName = name }
}

// asks notes what a partition is asked for: model, id and rows.
func asks(p *triton) (list func() []string) {
	var mu sync.Mutex
	var all []string
	p.asked = func(_ context.Context, r *tritonpb.ModelInferRequest) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, fmt.Sprint(r.ModelName, " ", r.Inputs[0].Shape[0]))
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string(nil), all...)
	}
}

func TestStepsOfAnEnsembleAreExecuted(t *testing.T) {
	p := newTriton(t)
	asked := asks(p)
	d, r := newDispatcher(t, dispatch.Options{}, ensembleTable(1, nil, p))
	require.NoError(t, infer(t.Context(), t, d, 7, 3, toModel("e")))
	require.Equal(t, []string{"m 3", "n 3"}, asked())
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 1}, r.count(t), "a request of an ensemble is one arrival, and has one outcome")
	require.Equal(t, "e", r.outcomes[0].Model)
	require.Equal(t, 3, r.outcomes[0].Rows)
	for model, success := range map[string]uint64{"e": 1, "m": 1, "n": 1} {
		c := d.VersionCounts(model)[0]
		require.Equal(t, success, c.Success, model)
		require.Equal(t, uint64(3), c.Rows, model)
	}
	require.Equal(t, map[int]uint64{3: 1}, d.VersionCounts("e")[0].Walked)
	requests, bytes := d.UnderWay()
	require.Zero(t, requests)
	require.Zero(t, bytes, "tensors between steps are counted out")
	steps, reason, ok := d.Ensemble("e")
	require.Equal(t, []any{2, "", true}, []any{steps, reason, ok})
	_, _, ok = d.Ensemble("m")
	require.False(t, ok)
	require.Equal(t, []dispatch.Step{{Model: "m"}, {Model: "n", After: []int{0}}}, d.Pipeline("e"))
	require.Empty(t, d.Pipeline("m"))
	require.Len(t, r.walks, 1)
	walk := r.walks[0]
	require.Equal(t, "e", walk.Ensemble)
	require.Equal(t, 3, walk.Rows)
	parts := time.Duration(0)
	for _, step := range walk.Steps {
		require.True(t, step.Ran && step.Critical)
		require.Equal(t, 3, step.Rows)
		parts += step.Queue + step.Execution + step.HandOver
	}
	require.LessOrEqual(t, parts, walk.Took, "one step after the other")
	require.Empty(t, walk.Steps[0].Taken)
	require.Equal(t, []int64{3 * 4 * 4}, walk.Steps[1].Taken, "rows of four numbers of four bytes")
}

// TestStepsOfStepsAreReported: an ensemble that is a step of another one reports its own steps, and is one step of that.
func TestStepsOfStepsAreReported(t *testing.T) {
	p := newTriton(t)
	d, r := newDispatcher(t, dispatch.Options{}, ensembleTable(1, func(tb *router.Table) {
		tb.Models["outer"] = ensembleOf("outer", [3]string{"e", "IN", "between"}, [3]string{"m", "between", "OUT"})
		tb.Models["outer"].Places = tb.Models["m"].Places
	}, p))
	require.NoError(t, infer(t.Context(), t, d, 7, 2, toModel("outer")))
	require.Equal(t, []dispatch.Step{{Model: "e"}, {Model: "m", After: []int{0}}}, d.Pipeline("outer"))
	require.Len(t, r.walks, 2)
	require.Equal(t, []string{"e", "outer"}, []string{r.walks[0].Ensemble, r.walks[1].Ensemble})
	require.Equal(t, []int64{2 * 4 * 4}, r.walks[1].Steps[1].Taken)
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 1}, r.count(t))
}

func TestStepsShareExecutionsWithOtherRequests(t *testing.T) {
	p := newTriton(t)
	p.hold, p.passes, p.started = make(chan struct{}), "", make(chan string, 32)
	asked := asks(p)
	d, _ := newDispatcher(t, dispatch.Options{}, ensembleTable(1, func(tb *router.Table) {
		tb.Models["other"] = ensembleOf("other", [3]string{"m", "IN", "OUT"})
		tb.Models["other"].Places = tb.Models["m"].Places
	}, p))
	results := make(chan error, 6)
	go func() { results <- infer(t.Context(), t, d, 1, 1, nil) }()
	<-p.started
	for i, ensemble := range []string{"e", "other", "e"} {
		go func() { results <- infer(t.Context(), t, d, uint32(2+i), 1, toModel(ensemble)) }()
	}
	for i := range 2 {
		go func() { results <- infer(t.Context(), t, d, uint32(5+i), 1, nil) }()
	}
	require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == 5 }, 30*time.Second, time.Millisecond)
	_, bytes := d.UnderWay()
	close(p.hold)
	for range 6 {
		require.NoError(t, <-results)
	}
	require.Equal(t, []string{"m 1", "m 5"}, asked()[:2], "steps of three requests of two ensembles run with two requests of their model")
	require.Positive(t, bytes)
}

// TestBytesBetweenStepsAreAdmitted: as long as the step runs that takes them.
func TestBytesBetweenStepsAreAdmitted(t *testing.T) {
	p := newTriton(t)
	d, _ := newDispatcher(t, dispatch.Options{}, ensembleTable(1, nil, p))
	under := map[string]int64{}
	p.set(func() {
		p.asked = func(_ context.Context, r *tritonpb.ModelInferRequest) { _, under[r.ModelName] = d.UnderWay() }
	})
	require.NoError(t, infer(t.Context(), t, d, 7, 4, toModel("e")))
	require.Equal(t, int64(4*4*4), under["n"]-under["m"], "four rows of four numbers of four bytes")
	_, bytes := d.UnderWay()
	require.Zero(t, bytes)
}

// TestBytesThatAStepReadsAreAdmittedAfterTheAnswer: the answer does not wait for a step beside one that failed, and what that step reads is still there.
func TestBytesThatAStepReadsAreAdmittedAfterTheAnswer(t *testing.T) {
	begun, hold := make(chan struct{}), make(chan struct{})
	parts := []*triton{newTriton(t), newTriton(t)}
	for _, p := range parts {
		p.asked = func(_ context.Context, r *tritonpb.ModelInferRequest) {
			if r.ModelName == "slow" {
				close(begun)
				<-hold
			}
		}
		p.refuse = func(r *tritonpb.ModelInferRequest) error {
			if r.ModelName == "n" {
				<-begun
				return status.Error(codes.InvalidArgument, "not this one")
			}
			return nil
		}
	}
	d, _ := newDispatcher(t, dispatch.Options{}, ensembleTable(1, func(t *router.Table) {
		n := t.Models["n"]
		t.Models["slow"] = &router.Model{Name: "slow", Config: modelConfig("slow"), Versions: []string{"1"}, SLO: n.SLO, Batchable: true, Places: n.Places}
		e := ensembleOf("e", [3]string{"m", "IN", "between"}, [3]string{"n", "between", "OUT"}, [3]string{"slow", "between", "OTHER"})
		for _, name := range []string{"OTHER", "between"} {
			e.Config.Output = append(e.Config.Output, &tritonpb.ModelOutput{Name: name, DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{4}})
		}
		e.Places, t.Models["e"] = n.Places, e
	}, parts...))
	err := infer(t.Context(), t, d, 7, 4, toModel("e"))
	require.Equal(t, "in ensemble 'e', not this one", status.Convert(err).Message())
	_, bytes := d.UnderWay()
	require.Equal(t, int64(4*4*4), bytes, "four rows of four numbers of four bytes")
	close(hold)
	require.Eventually(t, func() bool { _, bytes := d.UnderWay(); return bytes == 0 }, 30*time.Second, time.Millisecond)
}

func TestAStepFails(t *testing.T) {
	p := newTriton(t)
	p.refuse = func(r *tritonpb.ModelInferRequest) error {
		if r.ModelName == "n" {
			return status.Error(codes.InvalidArgument, "not this one")
		}
		return nil
	}
	d, r := newDispatcher(t, dispatch.Options{}, ensembleTable(1, nil, p))
	err := infer(t.Context(), t, d, 7, 1, toModel("e"))
	requireCode(t, codes.InvalidArgument, err)
	require.Equal(t, "in ensemble 'e', not this one", status.Convert(err).Message())
	require.Equal(t, map[dispatch.Result]int{dispatch.Failed: 1}, r.count(t))
	require.Empty(t, r.walks, "its steps have not all run")
	require.Equal(t, uint64(1), d.VersionCounts("e")[0].Failed)
	require.Equal(t, uint64(1), d.VersionCounts("m")[0].Success)
}

func TestTheAnswerDoesNotWaitForStepsBesideOneThatFailed(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 8)
	p.refuse = func(r *tritonpb.ModelInferRequest) error {
		if r.ModelName == "n" {
			return status.Error(codes.Internal, "broken")
		}
		return nil
	}
	q := newTriton(t) // m's own
	q.hold, q.started = make(chan struct{}), make(chan string, 8)
	tbl := ensembleTable(1, func(tb *router.Table) {
		tb.Models["e"] = ensembleOf("e", [3]string{"m", "IN", "OUT"}, [3]string{"n", "IN", "OTHER"})
		tb.Models["e"].Config.Output = append(tb.Models["e"].Config.Output, &tritonpb.ModelOutput{Name: "OTHER", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{4}})
		tb.Models["e"].Places = tb.Models["m"].Places
		tb.Models["m"].Places, tb.Models["n"].Places = tb.Models["m"].Places[1:], tb.Models["n"].Places[:1]
	}, p, q)
	d, _ := newDispatcher(t, dispatch.Options{}, tbl)
	result := make(chan error, 1)
	go func() { result <- infer(t.Context(), t, d, 7, 1, toModel("e")) }()
	<-p.started
	<-q.started
	close(p.hold)
	err := <-result
	require.Equal(t, "in ensemble 'e', broken", status.Convert(err).Message())
	require.Zero(t, d.VersionCounts("m")[0].Success)
	close(q.hold)
	require.Eventually(t, func() bool { return d.VersionCounts("m")[0].Success == 1 }, 30*time.Second, time.Millisecond, "the step beside it goes on, and is counted")
}

func TestACallerThatLeavesEndsTheStepsThatHaveNotBegun(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started, p.cancelled = make(chan struct{}), make(chan string, 8), make(chan string, 8)
	asked := asks(p)
	d, r := newDispatcher(t, dispatch.Options{}, ensembleTable(1, nil, p))
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- infer(ctx, t, d, 7, 1, toModel("e")) }()
	<-p.started
	cancel()
	requireCode(t, codes.Canceled, <-result)
	require.Equal(t, "id7", <-p.cancelled)
	close(p.hold)
	require.NoError(t, d.Drain(t.Context()))
	require.Equal(t, []string{"m 1"}, asked())
	require.Equal(t, map[dispatch.Result]int{dispatch.Cancelled: 1}, r.count(t))
}

func TestAModelLeavesTheTableInTheMiddle(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 8)
	asked := asks(p)
	d, _ := newDispatcher(t, dispatch.Options{}, ensembleTable(1, nil, p))
	result := make(chan error, 1)
	go func() { result <- infer(t.Context(), t, d, 7, 1, toModel("e")) }()
	<-p.started
	require.NoError(t, d.Swap(t.Context(), ensembleTable(2, func(t *router.Table) { delete(t.Models, "e"); delete(t.Models, "n") }, p)))
	left := d.Drained("p"+p.address, "e")
	select {
	case <-left:
		t.Fatal("the ensemble may be unloaded, although a request is between its steps")
	default:
	}
	requireCode(t, codes.NotFound, infer(t.Context(), t, d, 8, 1, toModel("e")))
	close(p.hold)
	require.NoError(t, <-result, "what was accepted is answered, as Triton answers it")
	require.Equal(t, []string{"m 1", "n 1"}, asked())
	<-left
}

func TestAnEnsembleIsLeftToTriton(t *testing.T) {
	decoupled := func(t *router.Table) {
		t.Models["n"].Batchable, t.Models["n"].PassThroughReason = false, "decoupled"
	}
	for _, c := range []struct {
		name   string
		table  func(*router.Table)
		left   []string
		change func(*tritonpb.ModelInferRequest)
		reason string
		asked  []string
	}{
		{"it is split", nil, []string{"other"}, nil, "", []string{"m 1", "n 1"}},
		{"a step cannot be batched", decoupled, nil, nil, "step 2, model n: decoupled", []string{"e 1"}},
		{"the operator leaves it", nil, []string{"e"}, nil, "conch.yaml leaves it to Triton (ensemble: pass)", []string{"e 1"}},
		{"a request of a sequence", nil, nil, func(r *tritonpb.ModelInferRequest) {
			r.Parameters = map[string]*tritonpb.InferParameter{"sequence_id": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 3}}}
		}, "", []string{"e 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newTriton(t)
			asked := asks(p)
			d, _ := newDispatcher(t, dispatch.Options{}, ensembleTable(1, c.table, p))
			d.LeaveEnsembles(c.left)
			_, reason, ok := d.Ensemble("e")
			require.True(t, ok)
			require.Equal(t, c.reason, reason)
			require.NoError(t, infer(t.Context(), t, d, 7, 1, func(r *tritonpb.ModelInferRequest) {
				toModel("e")(r)
				if c.change != nil {
					c.change(r)
				}
			}))
			require.Equal(t, c.asked, asked())
		})
	}
}

// TestAStepWaitsOnceForItsModelsQueuePolicy: a step that its model's policy refuses after a time is not queued again, although its ensemble serves late requests,
// and one that is late before keeps what is left of that time.
func TestAStepWaitsOnceForItsModelsQueuePolicy(t *testing.T) {
	for name, slo := range map[string]time.Duration{"in time": 10 * time.Second, "late before": 60 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				parts, options := inBubble(t, 1)
				p := parts[0]
				p.hold = make(chan struct{})
				d, _ := newDispatcher(t, options, ensembleTable(1, func(t *router.Table) {
					n := t.Models["n"]
					n.Late, n.Written = policy.LatePolicy_LATE_POLICY_DROP, proto.CloneOf(n.Config)
					n.Written.SchedulingChoice = &tritonpb.ModelConfig_DynamicBatching{DynamicBatching: &tritonpb.ModelDynamicBatching{
						DefaultQueuePolicy: &tritonpb.ModelQueuePolicy{DefaultTimeoutMicroseconds: 100_000},
					}}
					t.Models["only"] = ensembleOf("only", [3]string{"n", "IN", "OUT"})
					t.Models["only"].Places, t.Models["only"].Late, t.Models["only"].SLO = n.Places, policy.LatePolicy_LATE_POLICY_SERVE, slo
				}, p))
				profile := linear(0, 10*time.Millisecond)
				profile.Model = "n"
				d.SetProfile(profile)
				var all sync.WaitGroup
				all.Go(func() { require.NoError(t, infer(t.Context(), t, d, 1, 1, nil)) })
				synctest.Wait()
				for i := range 3 {
					all.Go(func() {
						began := time.Now()
						requireCode(t, codes.Unavailable, infer(t.Context(), t, d, uint32(2+i), 1, toModel("only")))
						require.InDelta(t, 100, time.Since(began).Milliseconds(), 5)
					})
				}
				time.Sleep(time.Second)
				close(p.hold)
				all.Wait()
			})
		})
	}
}

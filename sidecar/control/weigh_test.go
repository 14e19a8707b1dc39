// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/control/events"
)

// withoutA takes a model's last place away.
func withoutA(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
	out, err := everywhere(ctx, s)
	for _, p := range out.Partitions {
		p.Instances = p.Instances[1:]
	}
	out.Dispatch = out.Dispatch[1:]
	out.Unplaced = []*policy.Unplaced{{Model: "a", Text: "0/2 partitions: 2 latency"}}
	return out, err
}

// goodput is an evaluator by the number of a plan's partitions.
type goodput map[int]float64

func (g goodput) Evaluate(_ context.Context, _ *policy.Snapshot, plans []*policy.Plan) ([]*policy.Outcome, error) {
	var all []*policy.Outcome
	for _, p := range plans {
		all = append(all, &policy.Outcome{Goodput: g[len(p.GetPartitions())]})
	}
	return all, nil
}

// TestPlansThatNobodyWantsAreHeldBack: a valid plan that takes a name from clients, or halves what is served, waits for an operator's consent;
// that is enough.
func TestPlansThatNobodyWantsAreHeldBack(t *testing.T) {
	for name, test := range map[string]struct {
		answer  func(context.Context, *policy.Snapshot) (*policy.Plan, error)
		verdict string
	}{
		"a model's last place": {withoutA, "consent"},
		"half of the goodput":  {firstOnly, "loss"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRigEvaluated(t, goodput{2: 100, 1: 50})
				stop := r.start()
				defer stop()
				before := r.CurrentPlan()
				r.policies.set(test.answer)
				r.load(100*time.Second, 5, 0, .1)
				require.Equal(t, before, r.CurrentPlan())
				held := r.lastEvent(events.PlanHeld)
				require.Equal(t, test.verdict, held.Fields["verdict"])
				count := 0
				for _, kind := range r.kinds() {
					if kind == events.PlanHeld {
						count++
					}
				}
				require.Equal(t, 1, count, "the same plan is held back once")

				p, err := r.Propose(t.Context(), api.DiffRequest{})
				require.NoError(t, err)
				require.Equal(t, test.verdict, string(p.Judgement.Verdict), "plan diff says what conch would do")
				result, err := r.Apply(t.Context(), api.ApplyRequest{Author: "ada", Reason: "it is wanted"})
				require.NoError(t, err)
				require.True(t, result.Changed)
			})
		})
	}
}

// TestWhatIsHeldBackIsShownAsLongAsItIs: a policy that gives no plan, or one that is held back or refused, and then again the one that serves.
func TestWhatIsHeldBackIsShownAsLongAsItIs(t *testing.T) {
	for kind, answer := range map[api.EventKind]func(context.Context, *policy.Snapshot) (*policy.Plan, error){
		events.PlanHeld:   withoutA,
		events.PlanFailed: func(context.Context, *policy.Snapshot) (*policy.Plan, error) { return nil, errBoom },
		events.PlanRejected: func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
			out, err := everywhere(ctx, s)
			out.Partitions[1].Gpus = []string{"gpu0"}
			return out, err
		},
	} {
		t.Run(string(kind), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRigEvaluated(t, goodput{2: 100, 1: 50})
				stop := r.start()
				defer stop()
				r.load(20*time.Second, 5, 0, .1)
				require.Nil(t, r.Held())
				r.policies.set(answer)
				began := time.Now()
				r.load(100*time.Second, 5, 0, .1)
				held := r.Held()
				require.NotNil(t, held)
				require.Equal(t, kind, held.Kind)
				require.Contains(t, held.Message, "plan 1 serves on")
				require.Less(t, held.Since.Sub(began), 50*time.Second, "the same again does not begin anew")
				_, err := r.Propose(t.Context(), api.DiffRequest{})
				if kind == events.PlanHeld {
					require.NoError(t, err)
				}
				require.Equal(t, held, r.Held(), "a question changes nothing")

				r.policies.set(everywhere)
				r.load(100*time.Second, 5, 0, .1)
				require.EqualValues(t, 1, r.CurrentPlan().Revision)
				require.Nil(t, r.Held(), "the policy plans what serves")
			})
		})
	}
}

// TestNothingIsHeldBackThatNobodyAsksFor: a plan is pinned, after which the policy is not asked; and an operator's file that is refused is no state.
func TestNothingIsHeldBackThatNobodyAsksFor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRigEvaluated(t, goodput{2: 100, 1: 50})
		stop := r.start()
		defer stop()
		_, err := r.Apply(t.Context(), filed(edited(r.file(), `"gpu1"`, `"gpu0"`)))
		require.ErrorContains(t, err, "gpu0")
		require.Nil(t, r.Held())

		r.load(20*time.Second, 5, 0, .1)
		r.policies.set(withoutA)
		r.load(100*time.Second, 5, 0, .1)
		require.NotNil(t, r.Held())
		_, err = r.Pin(t.Context(), api.PinRequest{})
		require.NoError(t, err)
		require.Nil(t, r.Held())
	})
}

// TestALittleBetterEverySecondIsAppliedOnce: a policy answers another plan each time, each a little better than the last. Only the first change is
// applied; the others are held.
func TestALittleBetterEverySecondIsAppliedOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRigEvaluated(t, goodput{2: 100, 1: 100.0001})
		stop := r.start()
		defer stop()
		var turn atomic.Int64
		r.policies.set(func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
			out, err := firstOnly(ctx, s)
			if turn.Add(1)%2 == 0 {
				out.Partitions[0].Id = "other"
			}
			return out, err
		})
		r.load(200*time.Second, 50, 0, .1)
		require.Greater(t, turn.Load(), int64(4))
		require.Equal(t, 2, r.reconciler.count(), "fewer partitions disturb nobody; from there on each plan moves everything for nothing")
		require.Equal(t, "gain", r.lastEvent(events.PlanHeld).Fields["verdict"])
	})
}

// down is an evaluator that gives no answers.
type down struct{}

func (down) Evaluate(context.Context, *policy.Snapshot, []*policy.Plan) ([]*policy.Outcome, error) {
	return nil, errBoom
}

// TestAFicklePlanIsNotFollowedBlindly: a plan that could not be evaluated waits until the plan in force had its horizon; a necessary change is made
// at once.
func TestAFicklePlanIsNotFollowedBlindly(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRigEvaluated(t, down{})
		stop := r.start()
		defer stop()
		var turn atomic.Int64
		r.policies.set(func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
			out, err := everywhere(ctx, s)
			if turn.Add(1)%2 == 0 {
				out.Partitions[0].Id = "other"
			}
			return out, err
		})
		r.load(200*time.Second, 50, 0, .1)
		require.Greater(t, turn.Load(), int64(4))
		require.Equal(t, 1, r.reconciler.count())
		require.Contains(t, r.lastEvent(events.PlanHeld).Message, "could not be evaluated")
		r.load(400*time.Second, 50, 0, .1)
		require.Equal(t, 2, r.reconciler.count(), "once in a horizon")
	})
}

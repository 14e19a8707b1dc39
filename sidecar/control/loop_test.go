// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/observe"
	"github.com/conch-serving/conch/sidecar/plan"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestPolicyFailuresChangeNothing: whatever a policy does wrong, the last good
// plan serves on, and it is written down once.
func TestPolicyFailuresChangeNothing(t *testing.T) {
	hang := func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Duration(s.GetPlanningBudgetUs()) * time.Microsecond):
			return nil, policyhost.ErrDeadline
		}
	}
	for name, test := range map[string]struct {
		answer func(context.Context, *policy.Snapshot) (*policy.Plan, error)
		event  api.EventKind
		text   string
	}{
		"hangs": {hang, events.PlanFailed, "did not answer in time"},
		"dies": {func(context.Context, *policy.Snapshot) (*policy.Plan, error) { return nil, policyhost.ErrCrashed },
			events.PlanFailed, "process died"},
		"names a model that is not there": {func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
			p, err := everywhere(ctx, s)
			p.Partitions[0].Instances = append(p.Partitions[0].Instances, policy.ModelInstance("ghost", 1))
			return p, err
		}, events.PlanRejected, "ghost"},
		"sets a discipline's parameter wrong": {func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
			p, err := everywhere(ctx, s)
			p.Dispatch[0].Parameters = map[string]string{"delay": "soon"}
			return p, err
		}, events.PlanRejected, "soon is no duration"},
		"has requests wait for hours": {func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
			p, err := everywhere(ctx, s)
			p.Dispatch[0].Discipline, p.Dispatch[0].Parameters = "timeout", map[string]string{"delay": "10h"}
			return p, err
		}, events.PlanRejected, "delay: 10h0m0s is longer than the SLO of a, 100ms"},
		"takes more than there is": {func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
			p, err := everywhere(ctx, s)
			p.Partitions[1].Gpus = []string{"gpu0"}
			return p, err
		}, events.PlanRejected, "gpu0"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t, "")
				stop := r.start()
				defer stop()
				before := r.CurrentPlan()
				r.policies.set(test.answer)
				pass(100 * time.Second)
				require.GreaterOrEqual(t, r.policies.calls(), 4)
				require.Equal(t, 1, r.reconciler.count())
				require.Equal(t, before, r.CurrentPlan())
				require.True(t, r.Ready()[0].OK)
				require.Contains(t, r.lastEvent(test.event).Message, test.text)
				require.Contains(t, r.lastEvent(test.event).Message, "plan 1 serves on")
				require.Len(t, r.Events(2), 1, "the same failure is written down once")

				r.policies.set(firstOnly)
				pass(31 * time.Second)
				require.Equal(t, 2, r.reconciler.count(), "the policy is heard again once it answers")
			})
		})
	}
}

// TestNothingToServe: a repository without models is served, truthfully.
func TestFailingApplyKeepsTheOldPlan(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		r.reconciler.fail(errBoom)
		r.policies.set(firstOnly)
		_, err := r.Apply(t.Context(), api.ApplyRequest{Author: "ada", Reason: "trying"})
		require.ErrorIs(t, err, errBoom)
		require.EqualValues(t, 1, r.CurrentPlan().Revision)
		require.Len(t, r.CurrentPlan().GetPartitions(), 2)
		e := r.lastEvent(events.ApplyFailed)
		require.Equal(t, "ada", e.Author)
		require.Equal(t, "trying", e.Reason)
		require.Contains(t, e.Message, "plan 1 serves on")

		r.reconciler.fail(nil)
		result, err := r.Apply(t.Context(), api.ApplyRequest{Author: "ada"})
		require.NoError(t, err)
		require.True(t, result.Changed)
		require.EqualValues(t, 2, result.Plan.Revision)
		require.Equal(t, "ada", result.Plan.AppliedBy)
		require.Equal(t, "gpu1", result.Proposal.Diff.Stop[0].GetId())
	})
}

// TestAModelThatLosesItsPlaceIsNamed: the event of the plan says which, and why.
func TestAModelThatLosesItsPlaceIsNamed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		require.NotContains(t, r.lastEvent(events.PlanApplied).Message, "no place")
		r.policies.set(withoutA)
		_, err := r.Apply(t.Context(), api.ApplyRequest{Author: "ada"})
		require.NoError(t, err)
		require.Contains(t, r.lastEvent(events.PlanApplied).Message, "; no place any more for a: 0/2 partitions: 2 latency")
	})
}

func TestCompareAndSet(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		_, err := r.Apply(t.Context(), api.ApplyRequest{IfRevision: 7})
		require.ErrorIs(t, err, control.ErrConflict)
		require.Equal(t, 1, r.policies.calls(), "a conflict costs no plan")
		result, err := r.Apply(t.Context(), api.ApplyRequest{IfRevision: 1})
		require.NoError(t, err)
		require.False(t, result.Changed, "the same plan is no change")
		require.EqualValues(t, 1, result.Plan.Revision)
	})
}

// TestProposeIsApplyWithoutApply: dry runs go the whole way and leave no trace.
func TestProposeIsApplyWithoutApply(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		events := len(r.Events(0))
		r.policies.set(firstOnly)
		p, err := r.Propose(t.Context(), api.DiffRequest{})
		require.NoError(t, err)
		require.Len(t, p.Diff.Stop, 1)
		require.EqualValues(t, 1, p.FromRevision)

		r.policies.set(func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
			out, err := everywhere(ctx, s)
			out.Partitions[0].ThreadPercentage = 130
			return out, err
		})
		p, err = r.Propose(t.Context(), api.DiffRequest{})
		require.NoError(t, err, "a refused plan is an answer")
		require.NotEmpty(t, p.Violations)
		require.NotNil(t, p.Plan)
		_, err = r.Apply(t.Context(), api.ApplyRequest{})
		var violations plan.Violations
		require.ErrorAs(t, err, &violations)

		require.Equal(t, 1, r.reconciler.count())
		require.Len(t, r.Events(0), events+1, "only the order was written down")
	})
}

// TestAnEndlessPlanIsNotShown: a plan that is too long to be judged is neither
// compared nor printed.
func TestAnEndlessPlanIsNotShown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		r.policies.set(func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
			out, err := everywhere(ctx, s)
			out.Partitions = slices.Repeat(out.Partitions, 500)
			return out, err
		})
		p, err := r.Propose(t.Context(), api.DiffRequest{})
		var violations plan.Violations
		require.ErrorAs(t, err, &violations)
		require.Equal(t, plan.CodeExcess, violations[0].Code)
		require.Nil(t, p)
		r.policies.set(nil)
	})
}

func TestModes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "mode: advise")
		stop := r.start()
		defer stop()
		require.EqualValues(t, 1, r.CurrentPlan().Revision, "the first plan is applied in every mode")
		r.policies.set(firstOnly)
		pass(65 * time.Second)
		require.EqualValues(t, 1, r.CurrentPlan().Revision)
		require.Equal(t, []api.EventKind{events.Started, events.PlanApplied, events.PlanProposed}, r.kinds(), "proposed once")
		_, err := r.Apply(t.Context(), api.ApplyRequest{})
		require.NoError(t, err)
		require.EqualValues(t, 2, r.CurrentPlan().Revision)
	})
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "mode: observe\nmodels: {a: {discipline: deferred}}")
		stop := r.start()
		defer stop()
		for _, d := range r.CurrentPlan().GetDispatch() {
			require.Equal(t, "eager", d.GetDiscipline())
			require.Equal(t, "none", d.GetDropPolicy())
		}
		_, err := r.Apply(t.Context(), api.ApplyRequest{})
		require.ErrorIs(t, err, control.ErrRefused)
		_, err = r.Propose(t.Context(), api.DiffRequest{})
		require.NoError(t, err)
	})
}

// TestOperatorsDiscipline: what conch.yaml says wins over the plan, what it
// does not say is the plan's.
func TestOperatorsDiscipline(t *testing.T) {
	for _, test := range []struct{ yaml, a, b, drop string }{
		{"", "adaptive", "adaptive", ""},
		{"models: {a: {discipline: timeout, parameters: {delay: 2ms}, dropPolicy: prefix}}", "timeout", "adaptive", "prefix"},
		{"defaults: {discipline: eager}\nmodels: {a: {discipline: deferred}}", "deferred", "eager", ""},
	} {
		bubble.Test(t, func(t *testing.T) {
			r := newRig(t, test.yaml)
			stop := r.start()
			defer stop()
			got := map[string]*policy.Dispatch{}
			for _, d := range r.CurrentPlan().GetDispatch() {
				got[d.GetModel()] = d
			}
			require.Equal(t, test.a, got["a"].GetDiscipline())
			require.Equal(t, test.b, got["b"].GetDiscipline())
			require.Equal(t, test.drop, got["a"].GetDropPolicy())
			if test.a == "timeout" {
				require.Equal(t, map[string]string{"delay": "2ms"}, got["a"].GetParameters())
			}
		})
	}
}

// TestRestart: numbers and events go on, and in mode advise the plan that
// served serves again.
// TestMistakenPolicyAtStart: conch does not start with a policy or a parameter that there is not, unless a plan from before serves meanwhile.
// TestTriggers: when a plan is made before the interval is over.
func TestTriggers(t *testing.T) {
	send := func(r *rig, model string, perSecond int, d time.Duration, result observe.Result) {
		for range int(d / time.Second * time.Duration(perSecond)) {
			now := time.Now()
			r.recorder.Arrived(model, 1, now)
			r.recorder.Finished(observe.Outcome{Model: model, Result: result, Reason: "late", At: now})
			time.Sleep(time.Second / time.Duration(perSecond))
		}
	}
	t.Run("rates", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			r := newRig(t, "interval: 10m")
			stop := r.start()
			defer stop()
			pass(20 * time.Second)
			require.Equal(t, 1, r.policies.calls(), "silence asks for nothing")
			send(r, "a", 100, 2*time.Second, observe.OK)
			require.Equal(t, 1, r.policies.calls(), "a rise must hold")
			send(r, "a", 100, 20*time.Second, observe.OK)
			pass(0)
			calls := r.policies.calls()
			require.Greater(t, calls, 1)
			require.InDelta(t, 100, r.policies.question(calls - 1).GetModels()[0].GetRate(), 5)
			send(r, "a", 100, 40*time.Second, observe.OK)
			require.Equal(t, calls, r.policies.calls(), "a steady rate asks for nothing more")
			pass(20 * time.Second)
			require.Greater(t, r.policies.calls(), calls, "and its end does")
		})
	})
	t.Run("rates, while an operator only looks", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			r := newRig(t, "interval: 10m")
			stop := r.start()
			defer stop()
			send(r, "a", 100, 2*time.Second, observe.OK)
			calls := 1
			for range 20 {
				_, err := r.Propose(t.Context(), api.DiffRequest{})
				require.NoError(t, err)
				calls++
				send(r, "a", 100, time.Second, observe.OK)
			}
			require.Greater(t, r.policies.calls(), calls, "the plan in force is none for these rates, whatever was asked meanwhile")
		})
	})
	t.Run("bad rate", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			r := newRig(t, "mode: advise\ninterval: 10m\ntriggers: {rateUp: 100, rateUpBy: 1000, rateDown: 1}")
			stop := r.start()
			defer stop()
			send(r, "a", 20, 40*time.Second, observe.OK)
			calls := r.policies.calls()
			r.policies.set(firstOnly)
			send(r, "a", 20, 12*time.Second, observe.Late)
			pass(0)
			require.Equal(t, calls+1, r.policies.calls(), "once within the cooldown")
			require.Contains(t, r.lastEvent(events.PlanProposed).Reason, "of the requests of a are bad")
		})
	})
	t.Run("partition death", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			r := newRig(t, "mode: advise\ninterval: 10m")
			stop := r.start()
			defer stop()
			r.policies.set(firstOnly)
			r.reconciler.setDown("gpu1", true)
			pass(time.Millisecond)
			require.Equal(t, 2, r.policies.calls())
			require.Equal(t, "partition gpu1 is down: killed", r.lastEvent(events.PlanProposed).Reason)
			require.False(t, r.policies.question(1).GetStatistics().GetPartitions()[1].GetUp())
			r.reconciler.setDown("gpu1", false)
			pass(2 * time.Second)
			require.Equal(t, 3, r.policies.calls())
		})
	})
	t.Run("drift", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			r := newRig(t, "interval: 10m")
			stop := r.start()
			defer stop()
			r.recorder.Calibrated("a", "T4", 100, []observe.Sample{{Rows: 1, Duration: 10 * time.Millisecond}})
			pass(time.Second)
			pushed := r.requests.pushed()
			require.Equal(t, 1, pushed, "the request path is told once")
			slow := func(seconds int) {
				for range 10 * seconds {
					now := time.Now()
					r.recorder.Executed(observe.Execution{Model: "a", Partition: "gpu0", GPUType: "T4", ThreadPercentage: 100, Rows: 1, Start: now, End: now.Add(20 * time.Millisecond)})
					pass(100 * time.Millisecond)
				}
			}
			slow(5)
			require.Greater(t, r.requests.pushed(), pushed)
			require.Equal(t, 1, r.policies.calls(), "what lasts a few seconds is no reason for another plan")
			slow(10)
			require.Contains(t, r.lastEvent(events.ModelInterfered).Message, "a on T4 is slower than its profile")
			pass(10 * time.Second)
			require.Equal(t, 2, r.policies.calls())
		})
	})
}

func TestRateChange(t *testing.T) {
	d := config.Triggers{RateUp: .05, RateUpBy: 10, RateDown: .1}
	for _, test := range []struct {
		planned, rate float64
		want          string
	}{
		{0, 0, ""}, {0, 5, "rose"}, {0, .2, ""}, {1000, 1040, "rose"}, {1000, 1005, ""}, {100, 106, ""}, {100, 112, "rose"},
		{100, 80, "fell"}, {100, 95, ""}, {5, 0, "fell"}, {1, 0, "fell"}, {.4, 0, ""}, {10_000, 10_100, "rose"},
	} {
		require.Equal(t, test.want, control.RateChange(test.planned, test.rate, d), "%v to %v", test.planned, test.rate)
	}
}

func TestEventsAfterAnID(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		pass(0)
		r.reconciler.setDown("gpu0", true)
		pass(time.Second)
		ids := func(since uint64) (all []uint64) {
			for _, e := range r.Events(since) {
				all = append(all, e.ID)
			}
			return all
		}
		require.Equal(t, []uint64{1, 2, 3}, ids(0))
		require.Equal(t, []uint64{2, 3}, ids(1))
		require.Empty(t, ids(3))
	})
}

func TestCancelledWaiterLeavesNoTurnTaken(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "interval: 10m")
		stop := r.start()
		defer stop()
		release := make(chan struct{})
		r.policies.set(func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
			<-release
			return everywhere(ctx, s)
		})
		slow := make(chan error, 1)
		go func() { _, err := r.Propose(t.Context(), api.DiffRequest{}); slow <- err }()
		pass(0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.Apply(ctx, api.ApplyRequest{})
		require.True(t, errors.Is(err, context.DeadlineExceeded), "%v", err)
		require.NotEmpty(t, r.Models(), "looking needs no turn")
		close(release)
		require.NoError(t, <-slow)
		r.policies.set(nil)
		_, err = r.Apply(t.Context(), api.ApplyRequest{})
		require.NoError(t, err)
	})
}

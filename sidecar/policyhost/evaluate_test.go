// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

// evaluator says how long a plan's policy is called, after a while.
type evaluator struct {
	takes time.Duration
	err   error
	asked []int
}

func (e *evaluator) EvaluateDraw(ctx context.Context, _ *policy.Snapshot, _ uint32, plans []*policy.Plan) ([]*policy.Outcome, error) {
	e.asked = append(e.asked, len(plans))
	select {
	case <-time.After(e.takes):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var outcomes []*policy.Outcome
	for _, p := range plans {
		outcomes = append(outcomes, &policy.Outcome{Goodput: float64(len(p.GetPolicy()))})
	}
	return outcomes, e.err
}

func evaluated(evaluations uint32) *policy.Snapshot {
	s := snapshot(5, 0)
	s.Evaluations = evaluations
	s.Traffic = &policy.Traffic{Digest: "d", Source: "generated"}
	return s
}

func TestEvaluate(t *testing.T) {
	e := &evaluator{}
	w := newWorld(t, func(o *policyhost.Options) { o.Evaluator = e })
	_, err := w.Use(t.Context(), mode(t, "evaluate"))
	require.NoError(t, err)

	p, err := w.Plan(t.Context(), evaluated(3))
	require.NoError(t, err)
	require.Equal(t, "5 6 5", p.GetReasons()[0].GetText(), "the outcomes are in the order of the plans")
	require.Equal(t, []int{2, 1}, e.asked)

	_, err = w.Plan(t.Context(), evaluated(2))
	require.ErrorIs(t, err, policyhost.ErrRefused)
	require.ErrorContains(t, err, "more plans than the snapshot's evaluations allow", "the third plan is one too many, and the policy learns it")

	_, err = w.Plan(t.Context(), evaluated(0))
	require.ErrorContains(t, err, "evaluates no plans")

	broken := errors.New("the child process died")
	e.err = broken
	_, err = w.Plan(t.Context(), evaluated(3))
	require.ErrorIs(t, err, policyhost.ErrEvaluation)
	require.ErrorIs(t, err, broken)
	e.err = nil
	require.Equal(t, policyhost.BreakerClosed, w.Status().Breaker)
	_, err = w.Plan(t.Context(), evaluated(3))
	require.NoError(t, err, "a failed evaluation is not the policy's fault: it is asked again at once")
}

func TestTimeOfTheEvaluatorIsNotThePolicys(t *testing.T) {
	e := &evaluator{takes: 1500 * time.Millisecond}
	w := newWorld(t, func(o *policyhost.Options) { o.Evaluator = e })
	_, err := w.Use(t.Context(), mode(t, "evaluate"))
	require.NoError(t, err)
	s := evaluated(3)
	s.PlanningBudgetUs = (2900 * time.Millisecond).Microseconds()
	_, err = w.Plan(t.Context(), s)
	require.NoError(t, err, "two questions take 3 s, more than the budget and the grace")
}

// An evaluator that hangs (its process may have been stopped) holds up no plan for
// ever, and is not the policy's fault.
func TestEvaluationsHaveALimit(t *testing.T) {
	e := &evaluator{takes: time.Hour}
	w := newWorld(t, func(o *policyhost.Options) { o.Evaluator, o.EvaluationTime = e, time.Second })
	_, err := w.Use(t.Context(), mode(t, "evaluate"))
	require.NoError(t, err)
	_, err = w.Plan(t.Context(), evaluated(3))
	require.ErrorIs(t, err, policyhost.ErrEvaluation)
	require.ErrorContains(t, err, "longer than 1s")
	require.Equal(t, policyhost.BreakerClosed, w.Status().Breaker)
	e.takes = 0
	_, err = w.Plan(t.Context(), evaluated(3))
	require.NoError(t, err, "the next plan has the whole time again")
}

func TestPolicyState(t *testing.T) {
	reject := true
	w := newWorld(t, func(o *policyhost.Options) {
		o.Check = func(*policy.Snapshot, *policy.Plan) error {
			if reject {
				return errors.New("no")
			}
			return nil
		}
	})
	_, err := w.Use(t.Context(), mode(t, "remember"))
	require.NoError(t, err)
	_, err = w.Plan(t.Context(), snapshot(1, 0))
	require.ErrorIs(t, err, policyhost.ErrRejected)
	reject = false
	for _, want := range []string{`"x"`, `"xx"`} {
		p, err := w.Plan(t.Context(), snapshot(1, 0))
		require.NoError(t, err)
		require.Equal(t, want, p.GetReasons()[0].GetText(), "the latest answer's state, refused or not")
	}
}

// A refused plan is no crash: the policy is asked again as soon as there is
// another snapshot, however often that happens.
func TestRefusedPlansDoNotOpenTheBreaker(t *testing.T) {
	w := newWorld(t, func(o *policyhost.Options) {
		o.Check = func(*policy.Snapshot, *policy.Plan) error { return errors.New("no") }
	})
	_, err := w.Use(t.Context(), mode(t, "good"))
	require.NoError(t, err)
	for range 10 {
		_, err = w.Plan(t.Context(), snapshot(1, 0))
		require.ErrorIs(t, err, policyhost.ErrRejected)
	}
	require.Equal(t, policyhost.BreakerClosed, w.Status().Breaker)
}

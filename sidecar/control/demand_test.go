// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/static"
	"github.com/conch-serving/conch/repo"
)

// want lets requests for a model wait from now on, and says so.
func (r *requests) want(model string, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wanted == nil {
		r.wanted, r.arrived = map[string]int{}, map[string]time.Time{}
	}
	r.wanted[model], r.arrived[model] = n, time.Now()
}

// answered ends the requests for a model.
func (r *requests) answered(model string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.wanted, model)
}

func (r *requests) refusals() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.refused)
}

// ask is want through the door that the request path has.
func (r *rig) ask(model string) {
	r.requests.want(model, 1)
	r.LoadWanted(model)
}

// placed are the models of the plan that is desired, sorted.
func (r *rig) placed() (models []string) {
	for _, p := range r.reconciler.last().Plan.GetPartitions() {
		for _, in := range p.GetInstances() {
			models = append(models, in.GetModel())
		}
	}
	slices.Sort(models)
	return slices.Compact(models)
}

// newRigOnDemand has the policy static, three models that load on demand (a, b and c of 10 GiB) and one GPU of 16 GiB that may be used.
func newRigOnDemand(t *testing.T, text string) *rig {
	r := newRig(t, "defaults: {load: demand}\n"+text)
	r.repository.hold(model("a", "d1", 8), model("b", "d1", 8), model("c", "d1", 8))
	r.policies.set(func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
		for _, g := range s.GetNodes()[0].GetGpus()[1:] {
			g.Unavailable = true
		}
		return static.New().Plan(ctx, s, policy.NoEvaluation{})
	})
	return r
}

const tenGiB = "models: {a: {memory: 10GiB}, b: {memory: 10GiB}, c: {memory: 10GiB}}\n"

func TestDemandLoadsAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRigOnDemand(t, tenGiB)
		defer r.start()()
		require.Empty(t, r.placed(), "nobody has asked for anything")
		pass(10 * time.Second)

		began := time.Now()
		r.ask("a")
		pass(time.Millisecond)
		require.Equal(t, []string{"a"}, r.placed())
		require.Less(t, time.Since(began), 10*time.Millisecond)
		require.Contains(t, r.reconciler.last().Reason, "requests wait for a")

		// It is in use: b has to wait, and is not refused.
		r.ask("b")
		pass(10 * time.Second)
		require.Equal(t, []string{"a"}, r.placed())
		require.Empty(t, r.requests.refusals())
		r.requests.answered("a")
		pass(time.Second)
		require.Equal(t, []string{"b"}, r.placed())
		require.Empty(t, r.requests.refusals())
	})
}

// TestALoadDoesNotWaitForAnother: while a model takes a minute to load, another that is asked for gets its plan.
func TestALoadDoesNotWaitForAnother(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRigOnDemand(t, "models: {a: {memory: 1GiB}, b: {memory: 1GiB}}\n")
		defer r.start()()
		r.reconciler.slow = time.Minute
		r.ask("a")
		pass(time.Second)
		r.ask("b")
		pass(100 * time.Millisecond)
		require.Equal(t, []string{"a", "b"}, r.placed())
	})
}

func TestDemandIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		then func(r *rig)
		want string
	}{
		"it fits nowhere": {
			text: "models: {a: {memory: 100GiB}}\n", want: "a: 0/2 partitions: 1 memory, 1 unavailable",
		},
		"its server does not load it": {
			then: func(r *rig) { r.reconciler.refuse = map[string]string{"a": "d1"} }, want: "a: its server does not load it: ",
		},
		"no plan is applied": {
			text: "mode: advise\n", want: "a: mode advise applies no plan without an operator's order",
		},
		"the policy says nothing of it": {
			then: func(r *rig) {
				r.policies.set(func(context.Context, *policy.Snapshot) (*policy.Plan, error) { return &policy.Plan{}, nil })
			},
			want: "a: the policy fake does not place it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRigOnDemand(t, test.text)
				defer r.start()()
				if test.then != nil {
					test.then(r)
				}
				r.ask("a")
				pass(time.Second)
				require.Len(t, r.requests.refusals(), 1)
				require.Contains(t, r.requests.refusals()[0], test.want)
			})
		})
	}
}

// TestPlansForTheUnplaceableArePaced: a flood of requests for what cannot be loaded does not make conch plan all the time.
func TestPlansForTheUnplaceableArePaced(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRigOnDemand(t, "models: {a: {memory: 100GiB}}\n")
		defer r.start()()
		before := r.policies.calls()
		for range 1000 {
			r.ask("a")
			pass(time.Millisecond)
		}
		require.LessOrEqual(t, r.policies.calls()-before, 3)
	})
}

func TestIdleModelsLeave(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRigOnDemand(t, "models: {a: {idle: 10m}}\n")
		defer r.start()()
		r.ask("a")
		r.ask("b")
		pass(time.Second)
		r.requests.answered("a")
		r.requests.answered("b")
		pass(9 * time.Minute)
		require.Equal(t, []string{"a", "b"}, r.placed())
		pass(2 * time.Minute)
		require.Equal(t, []string{"b"}, r.placed())
		snapshot := r.policies.question(r.policies.calls() - 1)
		require.InDelta(t, 600, snapshot.GetModels()[0].GetMaxIdleSeconds(), 0)
		require.InDelta(t, 660, snapshot.GetModels()[1].GetIdleSeconds(), 60, "b was used eleven minutes ago")
	})
}

func TestLoadNeverAndByOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRigOnDemand(t, "models: {a: {load: never}, b: {load: keep}}\n")
		defer r.start()()
		require.Equal(t, []string{"b"}, r.placed())
		require.ErrorContains(t, r.Load(t.Context(), repo.Order{Model: "a"}, client), "load: never")
		require.NoError(t, r.Load(t.Context(), repo.Order{Model: "c"}, client))
		require.Equal(t, []string{"b", "c"}, r.placed())
		pass(time.Hour)
		require.Equal(t, []string{"b", "c"}, r.placed(), "without an idle time it stays until others need its memory")
	})
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/observe"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

// TestTheLoopGoesOnWhileServersAreSlow: a server that takes long to load, or never comes, keeps nothing else waiting.
func TestTheLoopGoesOnWhileServersAreSlow(t *testing.T) {
	slow := func(t *testing.T, text string) (*rig, func()) {
		r := newRig(t, text)
		stop := r.start()
		r.reconciler.slow = time.Hour
		r.policies.set(firstOnly)
		require.NoError(t, r.Reload(t.Context(), settings(t, text)))
		pass(time.Second)
		require.Equal(t, 2, r.reconciler.count(), "its servers are slow")
		return r, stop
	}
	t.Run("a server dies", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			r, stop := slow(t, "interval: 2h")
			defer stop()
			asked := r.policies.calls()
			r.reconciler.setDown("gpu0", true)
			pass(2 * time.Second)
			require.Greater(t, r.policies.calls(), asked)
		})
	})
	t.Run("profiles change", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			r, stop := slow(t, "interval: 2h")
			defer stop()
			pushed := r.requests.pushed()
			r.recorder.Calibrated("a", "T4", 100, []observe.Sample{{Rows: 1, Duration: 10 * time.Millisecond}})
			pass(2 * time.Second)
			require.Greater(t, r.requests.pushed(), pushed)
		})
	})
	t.Run("the interval is over", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			r, stop := slow(t, "interval: 1m")
			defer stop()
			asked := r.policies.calls()
			pass(2 * time.Minute)
			require.GreaterOrEqual(t, r.policies.calls(), asked+1)
		})
	})
	t.Run("other servers serve another model", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			f := newFrontOn(t, "mode: advise\ninterval: 2h\n", filepath.Join(t.TempDir(), "state.db"), &servers{models: []*repo.Model{model("a", "d1", 8)}})
			f.reconciler.slow = time.Hour // one of them never answers again
			stop := f.start()
			defer stop()
			f.servers.serve(model("a", "d1", 8), model("b", "d1", 0))
			f.ServersChanged("gpu0 serves another model")
			pass(2 * time.Second)
			require.NotEmpty(t, f.CurrentPlan().PartitionsOf("b"))
		})
	})
}

// TestPlanningIsBounded: a server that comes and goes, however often, and a policy that needs longer than its interval leave
// time between two plans.
func TestPlanningIsBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "interval: 10m")
		stop := r.start()
		defer stop()
		before := r.policies.calls()
		for i := range 1000 {
			r.reconciler.setDown("gpu0", i%2 == 0)
			pass(10 * time.Millisecond)
		}
		require.LessOrEqual(t, r.policies.calls()-before, 12, "in ten seconds")
		pass(5 * time.Second)
		before = r.policies.calls()
		r.reconciler.setDown("gpu0", true)
		pass(10 * time.Millisecond)
		require.Equal(t, before+1, r.policies.calls(), "the first is answered at once")
	})
}

// TestAnOrderOutlivesAFailure: the policy is down when an operator's order comes. The plan is made once the policy answers
// again, long before the interval, and as it was ordered it is not held back.
func TestAnOrderOutlivesAFailure(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "interval: 10m")
		stop := r.start()
		defer stop()
		down := true
		r.policies.set(func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
			if down {
				return nil, policyhost.ErrBackoff
			}
			return firstOnly(ctx, s)
		})
		_, err := r.UsePolicy(t.Context(), api.UsePolicyRequest{Name: "other"})
		require.NoError(t, err)
		pass(5 * time.Second)
		require.Equal(t, 1, r.reconciler.count())
		r.policies.mu.Lock()
		down = false
		r.policies.mu.Unlock()
		pass(40 * time.Second)
		require.Equal(t, 2, r.reconciler.count())
		require.Len(t, r.CurrentPlan().GetPartitions(), 1)
	})
}

// TestTheModeCountsWhenTheTurnComes: a reload to mode observe comes before an order to apply that waits for its turn.
func TestTheModeCountsWhenTheTurnComes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "interval: 10m")
		stop := r.start()
		defer stop()
		asked, answer := make(chan struct{}), make(chan struct{})
		var again atomic.Bool
		r.policies.set(func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
			if !again.Swap(true) {
				close(asked)
				<-answer
			}
			return firstOnly(ctx, s)
		})
		go func() { _, _ = r.Propose(t.Context(), api.DiffRequest{}) }()
		<-asked
		reloaded, applied := make(chan error, 1), make(chan error, 1)
		go func() { reloaded <- r.Reload(t.Context(), settings(t, "interval: 10m\nmode: observe")) }()
		pass(0)
		go func() { _, err := r.Apply(t.Context(), api.ApplyRequest{}); applied <- err }()
		pass(0)
		close(answer)
		require.NoError(t, <-reloaded)
		require.ErrorIs(t, <-applied, control.ErrRefused)
		pass(time.Second)
		require.Len(t, r.CurrentPlan().GetPartitions(), 2)
	})
}

// TestEventsAreText: what a policy or a server says of a failure comes into the event log as one line that moves no cursor.
func TestEventsAreText(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		r.policies.set(func(context.Context, *policy.Snapshot) (*policy.Plan, error) {
			return nil, fmt.Errorf("%w: \x1b[2Jall is\n well\u202e", policyhost.ErrRefused)
		})
		_, err := r.Apply(t.Context(), api.ApplyRequest{})
		require.Error(t, err)
		require.Contains(t, r.lastEvent(events.PlanFailed).Message, ": [2Jall is well")
		require.NotContains(t, r.lastEvent(events.PlanFailed).Message, "\u202e")
	})
}

// TestFollowingIsBounded: servers of others whose index flaps are followed, the first time at once, and then once a second.
func TestFollowingIsBounded(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFront(t, "mode: advise\ninterval: 2h\n")
		stop := f.start()
		defer stop()
		pass(5 * time.Second)
		before := f.reconciler.count()
		for i := range 1000 {
			models := []*repo.Model{model("a", "d1", 8)}
			if i%2 > 0 {
				models = append(models, model("b", "d1", 0))
			}
			f.servers.serve(models...)
			f.ServersChanged("the index flaps")
			pass(10 * time.Millisecond)
			if i == 0 {
				require.Equal(t, before+1, f.reconciler.count())
			}
		}
		require.LessOrEqual(t, f.reconciler.count()-before, 12, "in ten seconds")
		pass(2 * time.Second)
		require.NotEmpty(t, f.CurrentPlan().PartitionsOf("b"), "the last state is followed")
	})
}

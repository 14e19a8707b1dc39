// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/orders"
	"github.com/conch-serving/conch/sidecar/observe"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

func TestStartServesThePolicysPlan(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		require.False(t, r.Ready()[0].OK)
		require.Equal(t, "not started yet", r.Ready()[0].Reason)
		stop := r.start()
		defer stop()
		p := r.CurrentPlan()
		require.EqualValues(t, 1, p.Revision)
		require.Equal(t, "conch", p.AppliedBy)
		require.Len(t, p.GetPartitions(), 2)
		require.Equal(t, []api.EventKind{events.Started, events.PlanApplied}, r.kinds())
		require.True(t, strings.HasSuffix(r.lastEvent(events.Started).Message, ", 2 models; replica conch-0 owns them"), r.lastEvent(events.Started).Message)
		applied := r.lastEvent(events.PlanApplied)
		require.Equal(t, "plan 1 serves: 2 partitions started, 4 loads, 2 disciplines changed", applied.Message)
		require.Equal(t, "1.000", applied.Fields["seconds.load"])
		for _, check := range r.Ready() {
			require.True(t, check.OK, "%+v", check)
		}
		s := r.policies.question(0)
		require.EqualValues(t, 5, s.GetSeed())
		require.EqualValues(t, 1e6, s.GetPlanningBudgetUs())
		require.Equal(t, "a", s.GetModels()[0].GetName())
		require.EqualValues(t, 16*4+4*4, s.GetModels()[0].GetActivationBytesPerRow())
		require.EqualValues(t, 100_000, s.GetModels()[0].GetSloUs())
		require.False(t, s.GetModels()[1].GetBatchable())
		require.NotEmpty(t, s.GetModels()[1].GetPassThroughReason())

		// The same plan again is no change, and what was learnt is passed on.
		pass(31 * time.Second)
		require.Equal(t, 2, r.policies.calls())
		require.Equal(t, 1, r.reconciler.count())
		second := r.policies.question(1)
		require.Len(t, second.GetCurrent().GetPartitions(), 2)
		require.Equal(t, 1.0, second.GetModels()[0].GetLoadSeconds())
		require.Equal(t, 2.0, second.GetChangeCost().GetPartitionStartSeconds())
		require.EqualValues(t, 3, second.GetStatistics().GetModels()[0].GetQueuedRequests())
	})
}

// TestTakeOver: what another conch has written to the store since this one was made is not overwritten, and goes on.
func TestTakeOver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		other := store.NewBolt(r.db)
		log, err := events.Open(other, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		log.Add(api.Event{Kind: events.Started})
		log.Add(api.Event{Kind: events.PlanPinned})
		declared, err := orders.Open(other)
		require.NoError(t, err)
		require.NoError(t, declared.Declare(func(d *orders.Declared) { d.Cordon("gpu1", &api.Cordon{Author: "ada"}) }))
		require.NoError(t, other.Write(store.Change{Bucket: "control.state", Key: "state", Value: []byte(`{"plan":7,"snapshot":9}`)}))
		require.Empty(t, r.kinds())
		require.NoError(t, r.TakeOver())
		r.policies.set(firstOnly)
		require.Equal(t, []api.EventKind{events.Started, events.PlanPinned}, r.kinds())
		stop := r.start()
		defer stop()
		require.EqualValues(t, 8, r.CurrentPlan().Revision, "plans are counted on")
		require.Greater(t, r.policies.question(0).GetRevision(), uint64(9))
		require.Contains(t, r.Look().Cordons, "gpu1")
		require.EqualValues(t, 3, r.Events(2)[0].ID, "events are, too")
	})
}

func TestNothingServesUntilAPlanDoes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		r.policies.set(func(context.Context, *policy.Snapshot) (*policy.Plan, error) { return nil, policyhost.ErrStart })
		stop := r.start()
		defer stop()
		require.Contains(t, r.Ready()[0].Reason, "did not start")
		_, err := r.Propose(t.Context(), api.DiffRequest{})
		require.ErrorIs(t, err, control.ErrUnavailable)
		r.policies.set(nil)
		pass(3 * time.Second)
		require.True(t, r.Ready()[0].OK)
		require.EqualValues(t, 1, r.CurrentPlan().Revision)
	})
}

func TestNothingToServe(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		r.repository.hold()
		stop := r.start()
		defer stop()
		require.EqualValues(t, 1, r.CurrentPlan().Revision)
		for _, check := range r.Ready() {
			require.True(t, check.OK, "%+v", check)
		}
		pass(31 * time.Second)
		require.Equal(t, 1, r.reconciler.count())
	})
}

func TestRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	var before apply.Desired
	bubble.Test(t, func(t *testing.T) {
		r := newRigOn(t, "mode: advise", path)
		r.policies.set(firstOnly)
		stop := r.start()
		r.recorder.Calibrated("a", "T4", 100, []observe.Sample{{Rows: 1, Duration: time.Millisecond}})
		before = r.reconciler.last()
		stop()
	})
	bubble.Test(t, func(t *testing.T) {
		r := newRigOn(t, "mode: advise", path)
		r.reconciler.resume = &before
		stop := r.start()
		defer stop()
		require.EqualValues(t, 1, r.CurrentPlan().Revision, "the same plan")
		require.Len(t, r.CurrentPlan().GetPartitions(), 1)
		require.Zero(t, r.policies.calls())
		require.Contains(t, r.kinds(), events.Stopping, "events from before are there")
		next, err := r.Snapshot(t.Context())
		require.NoError(t, err)
		require.Greater(t, next.GetRevision(), before.Snapshot.GetRevision())
		require.Len(t, r.recorder.Profiles(), 1, "what was learnt is there")
	})
	bubble.Test(t, func(t *testing.T) {
		r := newRigOn(t, "mode: advise", path)
		r.repository.hold(model("b", "d1", 0))
		r.reconciler.resume = &before
		stop := r.start()
		defer stop()
		require.Equal(t, 1, r.policies.calls(), "a plan that does not fit any more is made anew")
		require.Contains(t, r.lastEvent(events.PlanRejected).Message, "plan 1 serves on: plan rejected: unknown: gpu0: the model \"a\" is not in the snapshot")
		require.EqualValues(t, 2, r.CurrentPlan().Revision)
	})
	bubble.Test(t, func(t *testing.T) {
		r := newRigOn(t, "", path)
		r.reconciler.resume = &before
		r.policies.set(func(context.Context, *policy.Snapshot) (*policy.Plan, error) { return nil, policyhost.ErrCrashed })
		stop := r.start()
		defer stop()
		require.Equal(t, 1, r.reconciler.count(), "without a policy, the plan from before serves in mode control too")
	})
}

func TestRepositoryUnreadableAtStart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		r.repository.err = errBoom
		err := r.Run(t.Context())
		require.ErrorIs(t, err, errBoom)
		require.ErrorContains(t, err, "/models")
		require.NoError(t, r.db.Close())
	})
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		_, err := r.repository.ImportReporting(t.Context(), "/models", repo.Origin{}, nil)
		require.NoError(t, err)
		r.repository.err = errBoom
		stop := r.start()
		defer stop()
		require.EqualValues(t, 1, r.CurrentPlan().Revision, "the revision from before serves")
	})
}

func TestMistakenPolicyAtStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	var before apply.Desired
	for _, mistake := range []error{policyhost.ErrParameter, policyhost.ErrUnknownPolicy} {
		bubble.Test(t, func(t *testing.T) {
			r := newRigOn(t, "", path)
			r.policies.useErr = mistake
			err := r.Run(t.Context())
			require.ErrorIs(t, err, mistake)
			require.ErrorContains(t, err, "policy in conch.yaml")
			require.Zero(t, r.reconciler.count())
			require.NoError(t, r.db.Close())
		})
	}
	bubble.Test(t, func(t *testing.T) {
		r := newRigOn(t, "", path)
		stop := r.start()
		before = r.reconciler.last()
		stop()
	})
	bubble.Test(t, func(t *testing.T) {
		r := newRigOn(t, "", path)
		r.reconciler.resume = &before
		r.policies.useErr = policyhost.ErrParameter
		r.policies.set(func(context.Context, *policy.Snapshot) (*policy.Plan, error) { return nil, policyhost.ErrNoPolicy })
		stop := r.start()
		defer stop()
		require.EqualValues(t, 1, r.CurrentPlan().Revision, "what served serves")
		require.Contains(t, r.messages(events.PlanFailed)[0], "bad policy parameter")
	})
}

// TestReadinessSaysWhatTheFirstPlanWaitsFor: the readiness of a conch that is not ready names the model that it waits for.
func TestReadinessSaysWhatTheFirstPlanWaitsFor(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		r.reconciler.slow = time.Minute
		r.reconciler.refuse = map[string]string{"a": "d1"}
		stop := r.start()
		defer stop()
		require.False(t, r.Ready()[0].OK)
		require.Regexp(t, "^the first plan is being applied: it waits for a on gpu0 \\(.*no module named torch for .*\\), a on gpu1 ", r.Ready()[0].Reason)
		pass(2 * time.Minute)
		require.True(t, r.Ready()[0].OK)
	})
}

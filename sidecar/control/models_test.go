// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/control/events"
)

// TestAFailedReloadIsTakenBack: what served serves on, the caller hears why, and
// the repository is what it was.
func TestAFailedReloadIsTakenBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		r.reconciler.refuse = map[string]string{"a": "d2"}
		stop := r.start()
		defer stop()
		config := "d2"
		err := r.Load(t.Context(), repo.Order{Model: "a", Config: &config}, client)
		var refused *driver.LoadError
		require.ErrorAs(t, err, &refused)
		require.Len(t, r.CurrentPlan().PartitionsOf("a"), 2)
		require.Equal(t, "d1", r.reconciler.last().Revision.Model("a").Digest, "its old files are desired again")
		current, err := r.repository.Current()
		require.NoError(t, err)
		require.Equal(t, "d1", current.Model("a").Digest)
		require.Equal(t, "load of a with a config failed", current.Reason)
		m, err := r.Model("a")
		require.NoError(t, err)
		require.Equal(t, api.ModelReady, m.State)

		config = "d3"
		require.NoError(t, r.Load(t.Context(), repo.Order{Model: "a", Config: &config}, client))
		require.Equal(t, "d3", r.reconciler.last().Revision.Model("a").Digest)
		require.Equal(t, "client", r.reconciler.last().Revision.Author)
		applied := r.reconciler.count()
		require.NoError(t, r.Load(t.Context(), repo.Order{Model: "a", Config: &config}, client))
		require.Equal(t, applied, r.reconciler.count(), "what is loaded is loaded")

		// Where the model has its places they are not the policy's to take.
		config = "d4"
		r.policies.set(func(context.Context, *policy.Snapshot) (*policy.Plan, error) {
			return &policy.Plan{Unplaced: []*policy.Unplaced{{Model: "a", Text: "0/2 partitions: 2 memory"}, {Model: "b", Text: "0/2 partitions: 2 memory"}}}, nil
		})
		require.NoError(t, r.Load(t.Context(), repo.Order{Model: "a", Config: &config}, client))
		require.Len(t, r.CurrentPlan().PartitionsOf("a"), 2)
		require.Equal(t, "d4", r.reconciler.last().Revision.Model("a").Digest)
		r.policies.set(nil)
	})
}

// TestAFirstLoadThatFailsIsShown: the model is known then, and why it is absent.
func TestAFirstLoadThatFailsIsShown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		r.reconciler.refuse = map[string]string{"c": "d1"}
		stop := r.start()
		defer stop()
		r.repository.hold(model("a", "d1", 8), model("b", "d1", 0), model("c", "d1", 1))
		require.ErrorContains(t, r.Load(t.Context(), repo.Order{Model: "c"}, client), "no module named torch")
		require.Equal(t, []string{"1"}, r.Absent()["c"].Versions)
		require.Contains(t, r.Absent()["c"].Reason, "no module named torch")
		require.Len(t, r.CurrentPlan().PartitionsOf("a"), 2)
	})
}

// TestUnload: it is shown as unloaded, and the plan that serves goes on without.
func TestUnload(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		require.NoError(t, r.Unload(t.Context(), "a", client, false))
		require.Equal(t, []string{"1"}, r.Absent()["a"].Versions)
		require.Equal(t, "unloaded", r.Absent()["a"].Reason)
		require.NoError(t, r.Unload(t.Context(), "b", client, false))
		require.Empty(t, r.CurrentPlan().PartitionsOf("a"))
		require.Empty(t, r.CurrentPlan().PartitionsOf("b"))
	})
}

// TestNobodyWaitsForServers: while those of a plan are slow to come, the next plan
// is made at once.
func TestNobodyWaitsForServers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "interval: 10m")
		stop := r.start()
		defer stop()
		r.reconciler.slow = 5 * time.Minute
		slow := make(chan error, 1)
		r.policies.set(firstOnly)
		go func() { _, err := r.Apply(t.Context(), api.ApplyRequest{}); slow <- err }()
		pass(time.Second)
		require.Equal(t, 2, r.reconciler.count())
		began := time.Now()
		_, err := r.Propose(t.Context(), api.DiffRequest{})
		require.NoError(t, err)
		require.Zero(t, time.Since(began))
		require.NoError(t, <-slow)
		require.Contains(t, r.lastEvent(events.PlanApplied).Message, "not all of it serves yet")
		r.policies.set(nil)
	})
}

// TestEnsemblesGoWithTheirMembers: by Triton's rules about dependents.
func TestEnsemblesGoWithTheirMembers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		e := model("e", "d1", 0)
		e.Config.SchedulingChoice = &tritonpb.ModelConfig_EnsembleScheduling{EnsembleScheduling: &tritonpb.ModelEnsembling{
			Step: []*tritonpb.ModelEnsembling_Step{{ModelName: "a"}, {ModelName: "b"}}}}
		b := model("b", "d1", 0)
		b.Dependent = true
		r.repository.hold(model("a", "d1", 8), b, e)
		stop := r.start()
		defer stop()
		unloaded := func() (names []string) {
			for _, m := range r.Models() {
				if m.State == api.ModelUnloaded {
					names = append(names, m.Name)
				}
			}
			return names
		}
		require.NoError(t, r.Unload(t.Context(), "a", client, false))
		synctest.Wait()
		require.Equal(t, []string{"a", "e"}, unloaded(), "what calls it cannot serve")
		require.NoError(t, r.Load(t.Context(), repo.Order{Model: "a"}, client))
		require.Empty(t, unloaded())
		require.Len(t, r.CurrentPlan().PartitionsOf("e"), 2, "it serves again")
		require.NoError(t, r.Unload(t.Context(), "e", client, true))
		synctest.Wait()
		require.Equal(t, []string{"b", "e"}, unloaded(), "a was loaded for its own sake")
	})
}

// TestWhoComesWhileAPlanIsMadeDoesNotWaitForItsServers: the order of coming and
// planning does not matter.
func TestWhoComesWhileAPlanIsMadeDoesNotWaitForItsServers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "interval: 10m")
		stop := r.start()
		defer stop()
		r.reconciler.slow = 5 * time.Minute
		r.policies.set(func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
			time.Sleep(time.Second)
			return firstOnly(ctx, s)
		})
		slow := make(chan error, 1)
		go func() { _, err := r.Apply(t.Context(), api.ApplyRequest{}); slow <- err }()
		pass(time.Second / 2) // the policy thinks
		began := time.Now()
		_, err := r.Propose(t.Context(), api.DiffRequest{})
		require.NoError(t, err)
		require.Equal(t, 1500*time.Millisecond, time.Since(began), "two answers of the policy")
		require.NoError(t, <-slow)
		r.policies.set(nil)
	})
}

// TestAFailedLoadTakesBackItsModelAlone: what others ordered meanwhile stays.
func TestAFailedLoadTakesBackItsModelAlone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "interval: 10m")
		r.reconciler.refuse = map[string]string{"a": "d2"}
		stop := r.start()
		defer stop()
		r.reconciler.slow = time.Minute
		config := "d2"
		bad := make(chan error, 1)
		go func() { bad <- r.Load(t.Context(), repo.Order{Model: "a", Config: &config}, client) }()
		pass(time.Second)
		r.repository.hold(model("a", "d1", 8), model("b", "d1", 0), model("c", "d1", 1))
		require.NoError(t, r.Load(t.Context(), repo.Order{Model: "c"}, repo.Origin{Author: "another client"}))
		var refused *driver.LoadError
		require.ErrorAs(t, <-bad, &refused)
		current, err := r.repository.Current()
		require.NoError(t, err)
		require.Equal(t, "d1", current.Model("a").Digest, "its old files are back")
		require.NotNil(t, current.Model("c"), "another client's model stays")
		require.Len(t, r.CurrentPlan().PartitionsOf("c"), 2)
		require.NotNil(t, r.reconciler.last().Revision.Model("c"))
	})
}

// TestAClientsLoadMovesNobodyElse: in whatever mode, and however different the policy's plan is by now.
func TestAClientsLoadMovesNobodyElse(t *testing.T) {
	for _, mode := range []string{"observe", "advise", "control"} {
		t.Run(mode, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t, "mode: "+mode+"\ninterval: 10h\n")
				defer r.start()()
				r.repository.hold(model("a", "d1", 8), model("b", "d1", 0), model("c", "d1", 1))
				r.policies.set(firstOnly) // which would take a and b off the second GPU
				require.NoError(t, r.Load(t.Context(), repo.Order{Model: "c"}, client))
				require.Len(t, r.CurrentPlan().PartitionsOf("a"), 2)
				require.Len(t, r.CurrentPlan().PartitionsOf("b"), 2)
				require.Len(t, r.CurrentPlan().PartitionsOf("c"), 1)
				require.NoError(t, r.Unload(t.Context(), "c", client, false))
				require.Len(t, r.CurrentPlan().PartitionsOf("a"), 2)
				require.Empty(t, r.CurrentPlan().PartitionsOf("c"))
			})
		})
	}
}

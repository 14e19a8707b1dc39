// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

// crash is what a conch leaves that dies right after its desired state came to be on disk: the state as it was then, and no more.
type crash struct {
	path       string
	desired    apply.Desired
	repository *repository
}

// crashed runs a conch and has it die after the n-th plan was written down, before anything else is.
func crashed(t *testing.T, text string, n int, then func(r *rig)) crash {
	c := crash{path: filepath.Join(t.TempDir(), "crashed.db")}
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, text)
		r.reconciler.set = func(d apply.Desired) {
			if d.Generation != uint64(n) {
				return
			}
			c.desired = d
			require.NoError(t, r.db.View(func(tx *bbolt.Tx) error { return tx.CopyFile(c.path, 0o600) }))
		}
		stop := r.start()
		defer stop()
		then(r)
		c.repository = r.repository
	})
	require.NotZero(t, c.desired.Generation, "no such plan came to be")
	return c
}

// again starts a conch on what is left.
func (c crash) again(t *testing.T, text string) *rig {
	path := filepath.Join(t.TempDir(), "state.db")
	state, err := os.ReadFile(c.path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, state, 0o600))
	r := newRigOn(t, text, path)
	r.reconciler.resume = &c.desired
	r.repository.log, r.repository.made, r.repository.next = c.repository.log, c.repository.made, c.repository.next
	return r
}

// TestACrashAfterAPlanWasWrittenDown: what is desired has its number, and is in the history.
func TestACrashAfterAPlanWasWrittenDown(t *testing.T) {
	two := func(r *rig) {
		r.policies.set(firstOnly)
		_, err := r.Apply(r.t.Context(), api.ApplyRequest{Author: "ada", Reason: "less"})
		require.NoError(r.t, err)
	}
	c := crashed(t, "", 2, two)
	bubble.Test(t, func(t *testing.T) {
		r := c.again(t, "")
		r.policies.set(firstOnly)
		stop := r.start()
		defer stop()
		now := r.CurrentPlan()
		require.EqualValues(t, 2, now.Revision, "plan 1 had two partitions")
		require.Equal(t, "ada", now.AppliedBy)
		all, err := r.History()
		require.NoError(t, err)
		require.Len(t, all, 2)
		require.EqualValues(t, 2, all[0].Revision)
		require.True(t, all[0].Current)
		require.Equal(t, "less", all[0].Reason)
		back, err := r.Apply(t.Context(), api.ApplyRequest{DiffRequest: api.DiffRequest{RollbackLast: true}})
		require.NoError(t, err)
		require.EqualValues(t, 3, back.Plan.Revision)
		require.Len(t, back.Plan.GetPartitions(), 2, "plan 1 is the one before")
	})
}

// TestAPlanThatServesOnIsNoNewPlan: a restart that changes nothing is no plan of the history.
func TestAPlanThatServesOnIsNoNewPlan(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	var before apply.Desired
	bubble.Test(t, func(t *testing.T) {
		r := newRigOn(t, "mode: advise", path)
		stop := r.start()
		before = r.reconciler.last()
		stop()
	})
	for range 3 {
		bubble.Test(t, func(t *testing.T) {
			r := newRigOn(t, "mode: advise", path)
			r.reconciler.resume = &before
			stop := r.start()
			before = r.reconciler.last()
			all, err := r.History()
			require.NoError(t, err)
			require.Len(t, all, 1)
			require.LessOrEqual(t, strings.Count(r.CurrentPlan().Reason, "restart"), 1)
			stop()
		})
	}
}

// TestARestartIntoModeObserve: in mode observe no request waits, whatever the plan from before says.
func TestARestartIntoModeObserve(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	var before apply.Desired
	bubble.Test(t, func(t *testing.T) {
		r := newRigOn(t, "", path)
		stop := r.start()
		before = r.reconciler.last()
		stop()
	})
	require.Equal(t, "adaptive", before.Plan.GetDispatch()[0].GetDiscipline())
	bubble.Test(t, func(t *testing.T) {
		r := newRigOn(t, "mode: observe", path)
		r.reconciler.resume = &before
		stop := r.start()
		defer stop()
		require.Equal(t, "eager", r.CurrentPlan().GetDispatch()[0].GetDiscipline())
	})
}

// TestAStartThatCanChangeNothingServes: a conch that serves what served before is ready, though neither the policy nor the disk
// lets it make another plan.
func TestAStartThatCanChangeNothingServes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	var before apply.Desired
	bubble.Test(t, func(t *testing.T) {
		r := newRigOn(t, "", path)
		stop := r.start()
		before = r.reconciler.last()
		stop()
	})
	bubble.Test(t, func(t *testing.T) {
		r := newRigOn(t, "", path)
		r.reconciler.resume = &before
		r.reconciler.fail(errBoom)
		r.policies.set(func(context.Context, *policy.Snapshot) (*policy.Plan, error) { return nil, policyhost.ErrCrashed })
		r.repository.hold(model("a", "d1", 8), model("b", "d1", 0), model("c", "d1", 0))
		stop := r.start()
		defer stop()
		require.NotZero(t, r.CurrentPlan().Revision)
		require.True(t, r.Ready()[0].OK, r.Ready()[0].Reason)
	})
}

// TestARestartKeepsAModelWhoseFilesWereSpoilt: a mistake in the files of a model that serves does not take it out at a restart,
// as it does not with an import.
func TestARestartKeepsAModelWhoseFilesWereSpoilt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	spoilt := model("a", "spoilt", 8)
	spoilt.Problems = []repo.Problem{{File: "a/config.pbtxt", Line: 2, Severity: repo.SeverityError, Text: "no such type"}}
	var before apply.Desired
	var files *repository
	bubble.Test(t, func(t *testing.T) {
		r := newRigOn(t, "", path)
		stop := r.start()
		before, files = r.reconciler.last(), r.repository
		stop()
	})
	for name, imported := range map[string]bool{"changed while conch was away": false, "conch died in the import": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRigOn(t, "", filepath.Join(t.TempDir(), "state.db"))
				r.reconciler.resume = &before
				r.repository.log, r.repository.made = files.log, files.made
				r.repository.hold(spoilt, model("b", "d2", 0))
				if imported {
					_, err := r.repository.ImportReporting(t.Context(), "/models", repo.Origin{}, nil)
					require.NoError(t, err)
				}
				stop := r.start()
				defer stop()
				require.Len(t, r.CurrentPlan().PartitionsOf("a"), 2)
				require.Contains(t, r.lastEvent(events.Repository).Message, "a/config.pbtxt:2: no such type")
				require.Equal(t, before.Revision.ID, r.CurrentRevision())
			})
		})
	}
}

// TestARestartUnderLoadMovesNothing: right after a restart the load is not known, and no policy plans for none.
func TestARestartUnderLoadMovesNothing(t *testing.T) {
	byRate := func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
		if s.GetModels()[0].GetRate() == 0 {
			return firstOnly(ctx, s)
		}
		return everywhere(ctx, s)
	}
	load := func(r *rig) {
		for range 600 {
			r.recorder.Arrived("a", 1, time.Now())
			pass(100 * time.Millisecond)
		}
	}
	path := filepath.Join(t.TempDir(), "state.db")
	var before apply.Desired
	bubble.Test(t, func(t *testing.T) {
		r := newRigOn(t, "", path)
		r.policies.set(byRate)
		stop := r.start()
		load(r)
		require.Len(t, r.CurrentPlan().GetPartitions(), 2)
		before = r.reconciler.last()
		stop()
	})
	bubble.Test(t, func(t *testing.T) {
		r := newRigOn(t, "", path)
		r.reconciler.resume = &before
		r.policies.set(byRate)
		stop := r.start()
		defer stop()
		require.Len(t, r.CurrentPlan().GetPartitions(), 2)
		load(r)
		require.Len(t, r.CurrentPlan().GetPartitions(), 2)
		require.Equal(t, 1, r.reconciler.count(), "nothing changed")
		pass(2 * time.Minute)
		require.Len(t, r.CurrentPlan().GetPartitions(), 1, "the load has gone")
	})
}

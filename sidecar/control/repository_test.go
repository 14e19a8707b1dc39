// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/control/events"
)

func TestImport(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		events := len(r.Events(0))
		same, err := r.Import(t.Context(), api.ImportRequest{}, func(api.ImportProgress) {})
		require.NoError(t, err)
		require.Equal(t, "r1", same.ID)
		require.True(t, same.Unchanged)
		require.Empty(t, same.Added, "what it changed when it was made is not of this import")
		require.Len(t, r.Events(0), events, "nothing changed")

		r.repository.hold(model("a", "d2", 8), model("c", "d1", 8))
		next, err := r.Import(t.Context(), api.ImportRequest{Directory: "/elsewhere", Author: "ada", Reason: "new weights"}, nil)
		require.NoError(t, err)
		require.True(t, next.Current)
		require.False(t, next.Unchanged)
		require.Equal(t, []string{"a", "c"}, next.Models)
		pass(time.Second)
		for _, p := range r.reconciler.last().Plan.GetPartitions() {
			require.Len(t, p.GetInstances(), 2, "a and c on both, and no b")
			require.Equal(t, "c", p.GetInstances()[1].GetModel())
		}
		require.Equal(t, "d2", r.reconciler.last().Revision.Model("a").Digest)
		require.Equal(t, "r2", r.reconciler.last().Revision.ID)
		list, err := r.Revisions(t.Context())
		require.NoError(t, err)
		require.Equal(t, "r2", list[0].ID)
		require.False(t, list[1].Current)

		// A mistake in a model that serves must not remove it; in one that is new it holds up no other model.
		spoilt := func(name string) *repo.Model {
			m := model(name, "spoilt", 8)
			m.Problems = []repo.Problem{{File: name + "/config.pbtxt", Line: 2, Severity: repo.SeverityError, Text: "no such type"}}
			return m
		}
		applied := r.reconciler.count()
		r.repository.hold(spoilt("a"), model("c", "d1", 8))
		_, err = r.Import(t.Context(), api.ImportRequest{}, func(api.ImportProgress) {})
		require.ErrorIs(t, err, control.ErrRefused)
		require.ErrorContains(t, err, "a/config.pbtxt:2: no such type")
		pass(time.Second)
		require.Equal(t, applied, r.reconciler.count())
		require.Len(t, r.CurrentPlan().PartitionsOf("a"), 2)
		list, err = r.Revisions(t.Context())
		require.NoError(t, err)
		require.Equal(t, "r2", list[0].ID, "a refused import is no revision")
		require.True(t, list[0].Current)
		r.repository.hold(model("a", "d2", 8), model("c", "d1", 8), spoilt("d"), model("e", "d1", 8))
		_, err = r.Import(t.Context(), api.ImportRequest{}, func(api.ImportProgress) {})
		require.NoError(t, err)
		pass(time.Second)
		require.Empty(t, r.CurrentPlan().PartitionsOf("d"))
		require.Len(t, r.CurrentPlan().PartitionsOf("e"), 2)

		// A directory with nothing to serve is the wrong one.
		for _, models := range [][]*repo.Model{{spoilt("x"), spoilt("y")}, {}} {
			r.repository.hold(models...)
			_, err = r.Import(t.Context(), api.ImportRequest{Directory: "/tmp"}, nil)
			require.ErrorIs(t, err, control.ErrRefused)
			require.ErrorContains(t, err, "/tmp has no model that could be served")
			pass(time.Second)
			require.Len(t, r.CurrentPlan().PartitionsOf("e"), 2)
		}

		r.repository.err = errBoom
		_, err = r.Import(t.Context(), api.ImportRequest{}, func(api.ImportProgress) {})
		require.ErrorIs(t, err, control.ErrRefused)
	})
}

// TestOldRevisionsGo: a conch that runs for long does not keep every file that was ever loaded, and never forgets what it serves.
func TestOldRevisionsGo(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		most := 0
		for i := range 250 {
			r.repository.hold(model("a", fmt.Sprint("d", i), 8))
			_, err := r.Import(t.Context(), api.ImportRequest{}, func(api.ImportProgress) {})
			require.NoError(t, err)
			pass(time.Second)
			all, err := r.Revisions(t.Context())
			require.NoError(t, err)
			require.True(t, all[0].Current)
			require.Equal(t, all[0].ID, r.reconciler.last().Revision.ID)
			most = max(most, len(all))
		}
		require.Equal(t, 100, most)
		all, err := r.Revisions(t.Context())
		require.NoError(t, err)
		require.GreaterOrEqual(t, len(all), 50, "as many can be gone back to")
	})
}

// TestRollback is a revision too, and is planned for like an import.
func TestRollback(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		r.repository.hold(model("c", "d1", 8))
		_, err := r.Import(t.Context(), api.ImportRequest{}, func(api.ImportProgress) {})
		require.NoError(t, err)
		pass(time.Second)
		require.Empty(t, r.CurrentPlan().PartitionsOf("a"))

		back, err := r.Rollback(t.Context(), api.RollbackRequest{Revision: "r1", Author: "ada"})
		require.NoError(t, err)
		require.Equal(t, "r3", back.ID)
		require.True(t, back.Current)
		require.Equal(t, "rollback to r1", back.Reason)
		pass(time.Second)
		require.Len(t, r.CurrentPlan().PartitionsOf("a"), 2)
		require.Empty(t, r.CurrentPlan().PartitionsOf("c"))
		require.Equal(t, "ada", r.lastEvent(events.Repository).Author)

		_, err = r.Rollback(t.Context(), api.RollbackRequest{Revision: "r9"})
		require.ErrorIs(t, err, control.ErrNotFound)
		require.ErrorContains(t, err, "r9")
	})
}

// A rollback holds over a restart of conch, which would take it back by reading the directory again, and until the next import.
func TestARollbackSurvivesARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	var before *repository
	bubble.Test(t, func(t *testing.T) {
		r := newRigOn(t, "", path)
		stop := r.start()
		defer stop()
		r.repository.hold(model("a", "d2", 8))
		_, err := r.Import(t.Context(), api.ImportRequest{}, func(api.ImportProgress) {})
		require.NoError(t, err)
		pass(time.Second)
		back, err := r.Rollback(t.Context(), api.RollbackRequest{Revision: "r1"})
		require.NoError(t, err)
		require.True(t, back.Held)
		pass(time.Second)
		require.Equal(t, "d1", r.reconciler.last().Revision.Model("a").Digest)
		before = r.repository
	})
	bubble.Test(t, func(t *testing.T) {
		r := newRigOn(t, "", path)
		r.repository.log, r.repository.made = before.log, before.made
		r.repository.hold(model("a", "d3", 8))
		stop := r.start()
		defer stop()
		require.Equal(t, "d1", r.reconciler.last().Revision.Model("a").Digest)
		require.Contains(t, r.lastEvent(events.Repository).Message, "a rollback holds: repository revision r3 serves")
		imported, err := r.Import(t.Context(), api.ImportRequest{}, func(api.ImportProgress) {})
		require.NoError(t, err)
		require.False(t, imported.Held)
		pass(time.Second)
		require.Equal(t, "d3", r.reconciler.last().Revision.Model("a").Digest)
	})
}

// Old revisions go by order, but for those that serve or served last.
func TestCollectKeepsWhatServes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		for _, digest := range []string{"d2", "d3", "d4"} {
			r.repository.hold(model("a", digest, 8))
			_, err := r.Import(t.Context(), api.ImportRequest{}, func(api.ImportProgress) {})
			require.NoError(t, err)
			pass(time.Second)
		}
		want := repo.Collected{Revisions: []string{"r2", "r1"}, Kept: []repo.Kept{{Revision: "r4", For: "it serves"}, {Revision: "r3", For: "models of it may still be loaded"}}, Models: []string{"a"}}
		done, err := r.Collect(t.Context(), api.CollectRequest{Keep: 1, DryRun: true})
		require.NoError(t, err)
		require.Equal(t, want, done)
		done, err = r.Collect(t.Context(), api.CollectRequest{Keep: 1, Author: "ada"})
		require.NoError(t, err)
		require.Equal(t, want, done)
		require.Equal(t, "2 revisions of the repository were removed, with 0 files", r.lastEvent(events.Repository).Message)
		_, err = r.Collect(t.Context(), api.CollectRequest{Keep: -1})
		require.ErrorIs(t, err, control.ErrRefused)

		found, err := r.Verify(t.Context(), api.VerifyRequest{Author: "ada"})
		require.NoError(t, err)
		require.Equal(t, r.CurrentRevision(), found.Damaged[0].Revision)
		require.Equal(t, "content of the repository is damaged: a of r4", r.lastEvent(events.Repository).Message)
	})
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/control/events"
)

// file is what the policy proposes, as tritonctl plan diff -o keeps it.
func (r *rig) file() *api.PlanFile {
	p, err := r.Propose(r.t.Context(), api.DiffRequest{})
	require.NoError(r.t, err)
	f, err := p.File()
	require.NoError(r.t, err)
	return f
}

// edited is a file with one text in its plan replaced.
func edited(f *api.PlanFile, from, to string) *api.PlanFile {
	next := *f
	next.Plan = json.RawMessage(strings.ReplaceAll(string(f.Plan), from, to))
	return &next
}

func filed(f *api.PlanFile) api.ApplyRequest {
	return api.ApplyRequest{DiffRequest: api.DiffRequest{File: f}, Author: "ada"}
}

func TestAPlanFileIsAppliedAsItWasShown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "mode: advise\n")
		stop := r.start()
		defer stop()
		r.policies.set(firstOnly)
		f := r.file()
		r.policies.set(everywhere) // what the policy says by now plays no part
		result, err := r.Apply(t.Context(), filed(edited(f, `"thread_percentage":100`, `"thread_percentage":60`)))
		require.NoError(t, err)
		require.True(t, result.Changed)
		placed := r.reconciler.last().Plan.GetPartitions()
		require.Len(t, placed, 1)
		require.EqualValues(t, 60, placed[0].GetThreadPercentage(), "as it was edited")
		require.Equal(t, "ada", r.reconciler.last().Author)
	})
}

func TestAPlanFileThatDoesNotFitIsRefusedWithWords(t *testing.T) {
	for name, c := range map[string]struct {
		// change the world between diff and apply, or the file.
		change func(*rig)
		edit   func(*api.PlanFile) *api.PlanFile
		is     error
		text   string
	}{
		"another plan serves": {change: func(r *rig) {
			_, err := r.Apply(r.t.Context(), api.ApplyRequest{})
			require.NoError(r.t, err)
		}, is: control.ErrConflict, text: "plan 2 serves and plan 1 did when the file was made"},
		"files changed": {change: func(r *rig) {
			r.repository.hold(model("a", "d2", 8), model("b", "d1", 0))
			_, err := r.Import(r.t.Context(), api.ImportRequest{}, nil)
			require.NoError(r.t, err)
		}, is: control.ErrConflict, text: "the files of model a changed"},
		"an SLO changed": {change: func(r *rig) {
			require.NoError(r.t, r.Reload(r.t.Context(), settings(r.t, "mode: advise\nmodels: {a: {slo: 5ms}}")))
		}, is: control.ErrConflict, text: "the SLO of model a is 5ms and was 100ms"},
		"not a plan":   {edit: func(f *api.PlanFile) *api.PlanFile { return edited(f, "thread_percentage", "threads") }, is: control.ErrInvalid, text: `unknown field "threads"`},
		"another kind": {edit: func(*api.PlanFile) *api.PlanFile { return &api.PlanFile{Kind: "conch/plan/v9"} }, is: control.ErrInvalid, text: `kind "conch/plan/v9"`},
		"an impossible plan": {edit: func(f *api.PlanFile) *api.PlanFile {
			return edited(f, `"thread_percentage":100`, `"thread_percentage":170`)
		}, text: "170"},
		"a model nobody has": {edit: func(f *api.PlanFile) *api.PlanFile { return edited(f, `"model":"a"`, `"model":"ghost"`) }, text: "ghost"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t, "mode: advise\n")
				stop := r.start()
				defer stop()
				r.policies.set(firstOnly)
				f := r.file()
				if c.change != nil {
					c.change(r)
				} else {
					f = c.edit(f)
				}
				count := r.reconciler.count()
				_, err := r.Apply(t.Context(), filed(f))
				require.Error(t, err)
				require.ErrorContains(t, err, c.text)
				if c.is != nil {
					require.ErrorIs(t, err, c.is)
				}
				require.Equal(t, count, r.reconciler.count(), "what serves goes on serving")
			})
		})
	}
}

// TestAPinnedPlanStays over triggers, policies and restarts; new files of its models are loaded nevertheless.
func TestAPinnedPlanStays(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "state.db")
		r := newRigOn(t, "interval: 10s\n", path)
		stop := r.start()
		require.Equal(t, 1, r.reconciler.count())
		p, err := r.Pin(t.Context(), api.PinRequest{Author: "ada", Reason: "the trial"})
		require.NoError(t, err)
		require.Equal(t, "ada", p.Pin.Author)
		require.Equal(t, "the trial", r.lastEvent(events.PlanPinned).Reason)

		r.policies.set(firstOnly)
		pass(time.Minute)
		require.Equal(t, 1, r.reconciler.count(), "the policy has another plan, and the pinned one stays")
		shown, err := r.Propose(t.Context(), api.DiffRequest{})
		require.NoError(t, err)
		require.False(t, shown.Diff.Empty(), "what the policy would do is shown")
		require.EqualValues(t, "pinned", shown.Judgement.Verdict)
		_, err = r.Apply(t.Context(), api.ApplyRequest{})
		require.ErrorIs(t, err, control.ErrRefused)
		require.ErrorContains(t, err, "plan 1 is pinned by ada (the trial); tritonctl plan unpin")

		r.repository.hold(model("a", "d2", 8), model("b", "d1", 0), model("c", "d1", 1))
		_, err = r.Import(t.Context(), api.ImportRequest{}, func(api.ImportProgress) {})
		require.NoError(t, err)
		pass(time.Second)
		require.Equal(t, 2, r.reconciler.count())
		require.Equal(t, "d2", r.reconciler.last().Revision.Model("a").Digest)
		require.Len(t, r.reconciler.last().Plan.GetPartitions(), 2, "where the pinned plan has them")
		c, err := r.Model("c")
		require.NoError(t, err)
		require.Equal(t, api.ModelUnplaced, c.State)
		require.Contains(t, c.StateReason, "is pinned by ada and has no place for it")
		desired := r.reconciler.last()
		stop()

		again := newRigOn(t, "interval: 10s\n", path)
		again.repository, again.reconciler.resume = r.repository, &desired
		again.policies.set(firstOnly)
		stop = again.start()
		defer stop()
		require.Equal(t, "ada", again.CurrentPlan().Pin.Author)
		pass(time.Minute)
		require.Len(t, again.CurrentPlan().GetPartitions(), 2, "a restart does not unpin")
		_, err = again.Pin(t.Context(), api.PinRequest{Unpin: true})
		require.NoError(t, err)
		require.Nil(t, again.CurrentPlan().Pin)
		pass(time.Minute)
		require.Len(t, again.CurrentPlan().GetPartitions(), 1, "the policy decides again")
	})
}

func TestHistoryAndRollback(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "mode: advise\n")
		stop := r.start()
		defer stop()
		_, err := r.Apply(t.Context(), api.ApplyRequest{DiffRequest: api.DiffRequest{RollbackLast: true}})
		require.ErrorIs(t, err, control.ErrNotFound, "there is nothing to go back to")
		r.policies.set(firstOnly)
		_, err = r.Apply(t.Context(), api.ApplyRequest{Author: "ada", Reason: "less"})
		require.NoError(t, err)

		all, err := r.History()
		require.NoError(t, err)
		require.Len(t, all, 2)
		require.EqualValues(t, 2, all[0].Revision)
		require.True(t, all[0].Current)
		require.Equal(t, []string{"ada", "less", "1 partition stopped", "conch"}, []string{all[0].AppliedBy, all[0].Reason, all[0].Summary, all[1].AppliedBy})

		shown, err := r.Propose(t.Context(), api.DiffRequest{RollbackLast: true})
		require.NoError(t, err)
		require.Len(t, shown.Diff.Start, 1)
		result, err := r.Apply(t.Context(), api.ApplyRequest{DiffRequest: api.DiffRequest{RollbackLast: true}, Author: "ada", Pin: true})
		require.NoError(t, err)
		require.EqualValues(t, 3, result.Plan.Revision, "going back is a new plan")
		require.Equal(t, "rollback to plan 1", result.Plan.Reason)
		require.NotNil(t, result.Plan.Pin)
		require.Len(t, r.CurrentPlan().GetPartitions(), 2)

		_, err = r.Propose(t.Context(), api.DiffRequest{Rollback: 9})
		require.ErrorIs(t, err, control.ErrNotFound)
		_, err = r.Propose(t.Context(), api.DiffRequest{Rollback: 1, File: &api.PlanFile{}})
		require.ErrorIs(t, err, control.ErrInvalid)
	})
}

func TestAnotherPolicyIsAskedAndDoesNotComeIntoUse(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "mode: advise\n")
		stop := r.start()
		defer stop()
		var asked string
		r.policies.try = func(name string, s *policy.Snapshot) (*policy.Plan, error) {
			asked = name
			return firstOnly(t.Context(), s)
		}
		r.policies.set(everywhere)
		before := len(r.Events(0))
		p, err := r.Propose(t.Context(), api.DiffRequest{Policy: "other"})
		require.NoError(t, err)
		require.Equal(t, "other", asked)
		require.Len(t, p.Plan.GetPartitions(), 1)
		require.Len(t, r.Events(0), before, "a question is no event")
		_, err = r.Apply(t.Context(), api.ApplyRequest{DiffRequest: api.DiffRequest{Policy: "other"}})
		require.ErrorIs(t, err, control.ErrInvalid)
		_, err = r.Propose(t.Context(), api.DiffRequest{Policy: "other", RollbackLast: true})
		require.ErrorIs(t, err, control.ErrInvalid)
		r.policies.try = nil
		_, err = r.Propose(t.Context(), api.DiffRequest{Policy: "nobody"})
		require.Error(t, err)
	})
}

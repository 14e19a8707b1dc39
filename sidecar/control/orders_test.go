// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/observe"
	"github.com/conch-serving/conch/sidecar/observe/recent"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

func TestModelsAndGPUs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "models: {a: {slo: 25ms, late: drop, priority: 2, memory: 1GiB}}")
		broken := model("broken", "d1", 1)
		broken.Problems = []repo.Problem{{Severity: repo.SeverityError, File: "broken/config.pbtxt", Line: 3, Text: "no such field"}}
		ensemble := model("z", "d1", 1)
		r.repository.hold(model("a", "d1", 8), model("b", "d1", 0), broken, ensemble)
		r.policies.set(func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
			p, err := firstOnly(ctx, s)
			p.Partitions[0].Instances = p.Partitions[0].Instances[:2]
			p.Dispatch = p.Dispatch[:2]
			p.Unplaced = []*policy.Unplaced{{Model: "z", Tried: 2, Text: "0/2 partitions: 2 memory", Refusals: []*policy.Refusal{{Cause: "memory", Count: 2}}}}
			return p, err
		})
		require.Empty(t, r.Models(), "before the repository is read")
		stop := r.start()
		defer stop()
		now := time.Now()
		r.recorder.Arrived("a", 2, now)
		r.recorder.Calibrated("a", "T4", 100, []observe.Sample{{Rows: 1, Duration: time.Millisecond}})

		models := r.Models()
		require.Len(t, models, 4)
		a := models[0]
		require.Equal(t, api.ModelReady, a.State)
		require.InDelta(t, .025, a.SLOSeconds, 1e-12)
		require.Equal(t, "drop", a.Late)
		require.Equal(t, []string{"1"}, a.Versions)
		require.Equal(t, []string{"gpu0"}, a.Partitions)
		require.Equal(t, "python", a.Backend)
		require.Equal(t, "adaptive", a.Discipline)
		require.EqualValues(t, 3, a.Queued)
		require.Len(t, a.Profiles, 1)
		require.Positive(t, a.Rate)
		require.False(t, models[1].Batchable)
		require.Equal(t, api.ModelInvalid, models[2].State)
		require.Contains(t, models[2].StateReason, "broken/config.pbtxt:3: no such field")
		require.Equal(t, api.ModelUnplaced, models[3].State)
		require.Equal(t, "0/2 partitions: 2 memory", models[3].StateReason)
		s, err := r.Snapshot(t.Context())
		require.NoError(t, err)
		require.Len(t, s.GetModels(), 3, "a model that would not load is not planned for")
		require.EqualValues(t, 1<<30, s.GetModels()[0].GetMemoryBytes())
		require.EqualValues(t, 2, s.GetModels()[0].GetPriority())

		gpus := r.GPUs()
		require.Len(t, gpus, 2)
		require.Len(t, gpus[0].Partitions, 1)
		require.True(t, gpus[0].Partitions[0].Up)
		require.Equal(t, "127.0.0.1:1", gpus[0].Partitions[0].GRPC)
		require.Empty(t, gpus[1].Partitions)

		r.reconciler.setDown("gpu0", true)
		m, err := r.Model("a")
		require.NoError(t, err)
		require.Equal(t, api.ModelDown, m.State)
		require.Equal(t, "gpu0: killed", m.StateReason)
		require.Equal(t, "none of 1 partitions is up; gpu0: killed", r.Ready()[1].Reason)
		_, err = r.Model("nobody")
		require.ErrorIs(t, err, control.ErrNotFound)
		require.ErrorContains(t, err, "tritonctl model ls shows those there are")

		e, err := r.Explain(t.Context(), "z")
		require.NoError(t, err)
		require.Contains(t, e.Refusals, "0/2 partitions: 2 memory")
		_, err = r.Explain(t.Context(), "broken")
		require.ErrorIs(t, err, control.ErrNotFound)
		require.ErrorContains(t, err, "no such field")
		_, err = r.Explain(t.Context(), "nobody")
		require.ErrorIs(t, err, control.ErrNotFound)
		require.ErrorContains(t, err, `no model is called "nobody" in the repository; tritonctl model ls shows those there are`)
	})
}

// TestEventsAreOneLine: a server's traceback must not break a table.
func TestEventsAreOneLine(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		r.PartitionChanged("gpu0", false, "died\n\tat line 1\n"+strings.Repeat("x ", 2000))
		message := r.lastEvent(events.PartitionDown).Message
		require.Contains(t, message, "partition gpu0 is down: died at line 1 x x")
		require.Less(t, len(message), 700)
	})
}

func TestReadyWhileDraining(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		r.requests.draining = true
		stop := r.start()
		defer stop()
		require.False(t, r.Ready()[2].OK)
	})
}

// A plan that serves takes no request before its routes are in force, as for a moment after a restart.
func TestReadyBeforeRoutes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		r.requests.unready = errors.New("no route table yet")
		stop := r.start()
		defer stop()
		require.Equal(t, "the routes of the plan are not in force yet", r.Ready()[0].Reason)
		r.requests.unready = nil
		require.True(t, r.Ready()[0].OK)
	})
}

func TestUsePolicy(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "policy: {parameters: {k: v}}")
		stop := r.start()
		defer stop()
		require.Equal(t, "static", r.policies.ref.Name)
		require.Equal(t, map[string]string{"k": "v"}, r.policies.ref.Parameters)
		p, err := r.UsePolicy(t.Context(), api.UsePolicyRequest{Name: "other", Parameters: map[string]string{"x": "1"}, Author: "ada", Reason: "faster"})
		require.NoError(t, err)
		require.Equal(t, "other", p.Name)
		require.True(t, p.InUse)
		require.Equal(t, "running", p.State)
		e := r.lastEvent(events.PolicyChanged)
		require.Equal(t, "policy other 1 is in use in place of static", e.Message)
		require.Equal(t, "ada", e.Author)
		require.Equal(t, "faster", e.Reason)
		pass(time.Second)
		require.Equal(t, 2, r.policies.calls(), "the new policy is asked at once")

		for err, want := range map[error]error{
			policyhost.ErrUnknownPolicy: control.ErrNotFound,
			policyhost.ErrParameter:     control.ErrRefused,
			policyhost.ErrStart:         control.ErrUnavailable,
		} {
			r.policies.useErr = err
			_, got := r.UsePolicy(t.Context(), api.UsePolicyRequest{Name: "third"})
			require.ErrorIs(t, got, want)
			require.ErrorIs(t, got, err)
		}
		all, err := r.Policies(t.Context(), true)
		require.NoError(t, err)
		require.Len(t, all, 2)
		require.Contains(t, all[1].LastError, "did not start", "a policy that cannot be described is listed with the reason")
		_, err = r.Policy(t.Context(), "fourth", true)
		require.ErrorIs(t, err, control.ErrNotFound)
	})
}

// TestLoadAndUnload is Triton's explicit model control in front of the plan.
func TestLoadAndUnload(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "mode: advise")
		stop := r.start()
		defer stop()
		require.NoError(t, r.Unload(t.Context(), "a", repo.Origin{Author: "ada", Reason: "it is\nwrong"}, false))
		e := r.lastEvent(events.ModelUnloaded)
		require.Equal(t, []string{"ada", "it is wrong"}, []string{e.Author, e.Reason})
		require.Equal(t, "it is wrong", r.lastEvent(events.Repository).Reason)
		m, err := r.Model("a")
		require.NoError(t, err)
		require.Equal(t, api.ModelUnloaded, m.State)
		require.Empty(t, r.CurrentPlan().PartitionsOf("a"))
		require.Len(t, r.CurrentPlan().PartitionsOf("b"), 2)
		require.Equal(t, 1, r.policies.calls(), "taking away needs no policy")
		require.NoError(t, r.Unload(t.Context(), "a", client, false), "once more is no error")
		require.NoError(t, r.Unload(t.Context(), "nobody", client, false), "as with Triton")
		pass(40 * time.Second)
		require.Empty(t, r.CurrentPlan().PartitionsOf("a"), "and it stays away")

		require.NoError(t, r.Load(t.Context(), repo.Order{Model: "a"}, client))
		require.Len(t, r.CurrentPlan().PartitionsOf("a"), 2)
		require.Equal(t, "model a is loaded", r.lastEvent(events.ModelLoaded).Message)
		require.NoError(t, r.Load(t.Context(), repo.Order{Model: "a"}, client), "what is loaded is loaded")

		require.ErrorIs(t, r.Load(t.Context(), repo.Order{Model: "nobody"}, client), control.ErrNotFound)
		r.reconciler.fail(errBoom)
		require.ErrorIs(t, r.Unload(t.Context(), "a", client, false), errBoom)
		m, err = r.Model("a")
		require.NoError(t, err)
		require.Equal(t, api.ModelReady, m.State, "an unload that failed changed nothing")
		r.reconciler.fail(nil)
		broken := model("c", "d1", 1)
		broken.Problems = []repo.Problem{{Severity: repo.SeverityError, Text: "bad"}}
		r.repository.hold(model("a", "d1", 8), broken)
		require.ErrorIs(t, r.Load(t.Context(), repo.Order{Model: "c"}, client), repo.ErrInvalidModel)
	})
}

// TestBrokenModelHoldsUpNobody: what a server refuses to load is shown with its
// reason and stays desired, and the rest serves.
func TestBrokenModelHoldsUpNobody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		r.reconciler.refuse = map[string]string{"b": "d1"}
		stop := r.start()
		defer stop()
		require.EqualValues(t, 1, r.CurrentPlan().Revision)
		require.Len(t, r.CurrentPlan().PartitionsOf("a"), 2)
		require.Contains(t, r.lastEvent(events.PlanApplied).Message, "not all of it serves yet")
		for _, check := range r.Ready() {
			require.True(t, check.OK, "%+v", check)
		}
		b, err := r.Model("b")
		require.NoError(t, err)
		require.Equal(t, api.ModelFailed, b.State)
		require.Contains(t, b.StateReason, "no module named torch")
		calls := r.policies.calls()
		pass(31 * time.Second)
		require.Equal(t, calls+1, r.policies.calls())
		require.Equal(t, 1, r.reconciler.count(), "the same is desired")
		require.ErrorContains(t, r.Load(t.Context(), repo.Order{Model: "b"}, client), "no module named torch")

		r.repository.hold(model("a", "d1", 8), model("b", "d2", 0))
		_, err = r.Import(t.Context(), api.ImportRequest{}, nil)
		require.NoError(t, err)
		pass(time.Second)
		b, err = r.Model("b")
		require.NoError(t, err)
		require.Equal(t, api.ModelReady, b.State)
	})
}

func TestReload(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		require.ErrorContains(t, r.Reload(t.Context(), settings(t, "state: /elsewhere")), "state cannot change")
		r.policies.useErr = policyhost.ErrStart
		err := r.Reload(t.Context(), settings(t, "models: {a: {slo: 5ms}}\npolicy: {name: next}"))
		require.ErrorContains(t, err, "nothing was changed")
		m, _ := r.Model("a")
		require.InDelta(t, .1, m.SLOSeconds, 1e-12, "all or nothing")

		r.policies.useErr = nil
		require.NoError(t, r.Reload(t.Context(), settings(t, "models: {a: {slo: 5ms, profile: {alpha: 1ms, beta: 2ms}}}\npolicy: {name: next}")))
		pass(time.Second)
		require.Equal(t, "next", r.policies.ref.Name)
		require.Equal(t, 2, r.reconciler.count(), "an SLO is not in the plan, but it must reach the request path")
		require.EqualValues(t, 5000, r.reconciler.last().Snapshot.GetModels()[0].GetSloUs())
		require.Equal(t, policy.ProfileSource_PROFILE_SOURCE_DECLARED, r.reconciler.last().Snapshot.GetProfiles()[0].GetSource())
		require.Contains(t, r.kinds(), events.Reloaded)
	})
}

// TestObserver: what the request path reports arrives with the same names.
func TestObserver(t *testing.T) {
	recorder, err := observe.New(nil)
	require.NoError(t, err)
	now := time.Unix(1000, 0)
	last := recent.New(recent.Options{Window: observe.Window, Now: now})
	o := control.Observer(recorder, last)
	for result := range dispatch.Cold + 1 {
		o.Finished(dispatch.Outcome{Model: "m", Result: result, Latency: time.Millisecond, Ended: now})
	}
	o.Arrived("m", 4, now)
	o.Executed(dispatch.Execution{Model: "m", Partition: "p", GPUType: "T4", ThreadPercentage: 50, Rows: 2, Start: now.Add(-time.Second), End: now})
	o.Busy("p", now.Add(-time.Second), now)
	require.Zero(t, recorder.PartitionStatistics("p", now).GetIdleShare())
	s := recorder.Statistics("m", now)
	require.InDelta(t, 2./3, s.GetBadRate(), 1e-9, "ok, late and dropped count")
	require.InDelta(t, 1./3, s.GetDropRate(), 1e-9)
	// Who left, and who waited for a load, counts for nothing.
	require.InDelta(t, 4./5, recorder.Bad("m", now), 1e-9, "late, dropped, refused, failed")
	o.Finished(dispatch.Outcome{Model: "m", Result: dispatch.Cancelled, Reason: dispatch.GoneDeadline, Ended: now})
	o.Finished(dispatch.Outcome{Model: "m", Early: true, Result: dispatch.Refused, Reason: "queue_requests", Ended: now})
	o.Finished(dispatch.Outcome{Model: "stranger", Early: true, Result: dispatch.Refused, Ended: now})
	require.InDelta(t, 6./7, recorder.Bad("m", now), 1e-9, "a deadline that passed, and a refusal before it was queued")
	require.Zero(t, recorder.Bad("stranger", now))
	require.InDelta(t, 2./3, recorder.Statistics("m", now).GetBadRate(), 1e-9)
	seen := last.Models(now)[0].Now
	require.InDelta(t, recorder.Bad("m", now), 1-float64(seen.InTime)/float64(seen.Requests), 1e-9, "the console counts as tritonctl")
	require.Equal(t, 2.0, s.GetMeanBatch())
	require.EqualValues(t, 50, recorder.Profiles()[0].GetPoints()[0].GetThreadPercentage())
	require.Equal(t, 4*recorder.Rates("m", now).Window, recorder.Rates("m", now).Rows)
}

// TestAnOperatorsPolicySurvivesRestarts until conch.yaml names another one than it did.
func TestAnOperatorsPolicySurvivesRestarts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "state.db")
		r := newRigOn(t, "", path)
		stop := r.start()
		_, err := r.UsePolicy(t.Context(), api.UsePolicyRequest{Name: "other", Parameters: map[string]string{"x": "1"}, Author: "ada"})
		require.NoError(t, err)
		require.NoError(t, r.Reload(t.Context(), settings(t, "models: {a: {slo: 5ms}}")), "conch.yaml says nothing new of the policy")
		require.Equal(t, "other", r.policies.ref.Name)
		stop()

		r = newRigOn(t, "", path)
		stop = r.start()
		require.Equal(t, "other", r.policies.ref.Name)
		require.Equal(t, map[string]string{"x": "1"}, r.policies.ref.Parameters)
		stop()

		r = newRigOn(t, "policy: {parameters: {k: v}}", path)
		stop = r.start()
		require.Equal(t, "static", r.policies.ref.Name, "conch.yaml says something else by now")
		require.Contains(t, r.lastEvent(events.PolicyChanged).Message, "since ada chose other")
		_, err = r.UsePolicy(t.Context(), api.UsePolicyRequest{Name: "other"})
		require.NoError(t, err)
		require.NoError(t, r.Reload(t.Context(), settings(t, "policy: {parameters: {k: w}}")))
		require.Equal(t, "static", r.policies.ref.Name)
		stop()

		r = newRigOn(t, "policy: {parameters: {k: w}}", path)
		stop = r.start()
		defer stop()
		require.Equal(t, "static", r.policies.ref.Name)
	})
}

// TestAReloadTakesItsTurnFirst: a plan that is being made is the old policy's, and the new one is put in use only when no caller plans.
func TestAReloadTakesItsTurnFirst(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "mode: advise\n")
		stop := r.start()
		defer stop()
		r.policies.set(func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
			time.Sleep(time.Second)
			return firstOnly(ctx, s)
		})
		asked, reloaded := make(chan error, 1), make(chan error, 1)
		go func() { _, err := r.Propose(t.Context(), api.DiffRequest{}); asked <- err }()
		pass(100 * time.Millisecond)
		go func() { reloaded <- r.Reload(t.Context(), settings(t, "mode: advise\npolicy: {name: next}")) }()
		pass(100 * time.Millisecond)
		require.Equal(t, "static", r.policies.Status().Name, "somebody plans")
		require.NoError(t, <-asked)
		require.NoError(t, <-reloaded)
		require.Equal(t, "next", r.policies.Status().Name)
	})
}

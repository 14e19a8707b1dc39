// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

// servers are two servers that others run, gpu0 and gpu1, both with the same models.
type servers struct {
	mu       sync.Mutex
	models   []*repo.Model
	revision *repo.Revision
	reads    int
	readErr  error
	remarks  []string
	writable bool
	// calls are what was asked of them besides reading, in order.
	calls []string
	// trouble is what a handover ends with.
	trouble error
	handErr error
	// changed are the models whose batching conch took.
	changed []string
}

func (s *servers) Read(_ context.Context, by repo.Origin) (*repo.Revision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	if s.readErr != nil {
		return nil, s.readErr
	}
	if s.revision == nil || !slices.Equal(s.revision.Models, s.models) {
		diff := repo.Diff{}
		for _, m := range s.models {
			diff.Added = append(diff.Added, m.Name)
		}
		s.revision = &repo.Revision{ID: fmt.Sprint("s", s.reads), Origin: by, Models: slices.Clone(s.models), Diff: diff}
	}
	return s.revision, nil
}

func (s *servers) Partitions() []*policy.Partition {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*policy.Partition
	for i, gpu := range []string{"gpu0", "gpu1"} {
		p := &policy.Partition{Id: gpu, Node: "n", Gpus: []string{gpu}, ThreadPercentage: 100, Rank: uint32(i)}
		for _, m := range s.revision.Models {
			p.Instances = append(p.Instances, policy.ModelInstance(m.Name, uint32(m.Config.GetMaxBatchSize())))
		}
		all = append(all, p)
	}
	return all
}

func (s *servers) Batching(string) *tritonpb.ModelDynamicBatching {
	return &tritonpb.ModelDynamicBatching{MaxQueueDelayMicroseconds: 700}
}

func (s *servers) Remarks() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remarks
}

func (s *servers) Writable() bool { return s.writable }

func (s *servers) TakeOver(context.Context) []driver.Handover {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, "take over")
	if s.trouble != nil {
		return []driver.Handover{{GPU: "gpu0", Endpoint: "one:8001", Model: "a", Err: s.trouble}}
	}
	if slices.Contains(s.changed, "a") {
		return nil
	}
	s.changed = []string{"a"}
	return []driver.Handover{{GPU: "gpu0", Endpoint: "one:8001", Model: "a", Change: "the delay of dynamic_batching taken out"}}
}

func (s *servers) HandBack(_ context.Context, dry bool, delay func(string) time.Duration) ([]driver.Handover, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, strings.TrimSpace("hand back "+map[bool]string{true: "dry"}[dry]))
	var done []driver.Handover
	for _, name := range s.changed {
		done = append(done, driver.Handover{GPU: "gpu0", Endpoint: "one:8001", Model: name, Change: fmt.Sprint("dynamic_batching with ", delay(name)), Err: s.trouble})
	}
	if !dry {
		s.changed = nil
	}
	return done, s.handErr
}

// serve gives the servers other models.
func (s *servers) serve(models ...*repo.Model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.models = models
}

func (s *servers) failReading(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readErr = err
}

func (s *servers) called() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// front is a conch in front of attached servers with models a and b, of which a has an SLO of 50 ms.
type front struct {
	*rig
	servers *servers
}

func attachSettings(t *testing.T, text string) *config.Config {
	c, err := config.Parse("conch.yaml", []byte("driver: {kind: attach, endpoints: [{grpc: one:8001}, {grpc: two:8001}]}\nmodels: {a: {slo: 50ms}}\n"+text))
	require.NoError(t, err)
	c.Provision(config.Environment{})
	return c
}

func newFront(t *testing.T, text string) *front {
	return newFrontOn(t, text, filepath.Join(t.TempDir(), "state.db"), &servers{})
}

func newFrontOn(t *testing.T, text, path string, s *servers) *front {
	if s.models == nil {
		s.models = []*repo.Model{model("a", "d1", 8), model("b", "d1", 0)}
	}
	f := &front{rig: newRigWith(t, attachSettings(t, text), s, path), servers: s}
	return f
}

// messages of the events of a kind.
func (r *rig) messages(kind api.EventKind) (all []string) {
	for _, e := range r.Events(0) {
		if e.Kind == kind {
			all = append(all, e.Message)
		}
	}
	return all
}

// TestObserveServesWhatTheServersServe at once, as it comes, and changes nothing on them.
func TestObserveServesWhatTheServersServe(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFront(t, "")
		require.Equal(t, "observe", f.Version().Mode)
		stop := f.start()
		defer stop()
		p := f.CurrentPlan()
		require.EqualValues(t, 1, p.Revision)
		require.Equal(t, "plan 1 serves: 2 servers followed, 4 instances found loaded, 2 disciplines changed", f.lastEvent(events.PlanApplied).Message, "conch started and loaded nothing")
		require.Equal(t, "attach", p.GetPolicy(), "no policy was asked")
		require.Len(t, p.GetPartitions(), 2)
		for _, d := range p.GetDispatch() {
			require.Equal(t, "eager", d.GetDiscipline())
			require.Equal(t, "none", d.GetDropPolicy())
		}
		target := f.reconciler.last()
		require.True(t, target.Given)
		require.Contains(t, target.PassThrough, "mode is observe")
		require.True(t, f.Given())
		require.Equal(t, []string{"hand back"}, f.servers.called(), "what an earlier mode changed is not left behind")
		m, err := f.Model("a")
		require.NoError(t, err)
		require.True(t, m.DynamicBatching, "as those who run the servers want it")
		require.InDelta(t, 700e-6, m.MaxQueueDelaySeconds, 1e-12)
		require.False(t, m.Batchable)
		require.Contains(t, m.PassThroughReason, "mode is observe")
		require.Equal(t, api.ModelReady, m.State)
		_, err = f.Apply(t.Context(), api.ApplyRequest{})
		require.ErrorIs(t, err, control.ErrRefused)
		for _, directory := range []string{"", "/models"} {
			_, err = f.Import(t.Context(), api.ImportRequest{Directory: directory}, nil)
			require.ErrorIs(t, err, control.ErrRefused, "which models there are is up to the servers")
		}
		_, err = f.Rollback(t.Context(), api.RollbackRequest{Revision: "r1"})
		require.ErrorIs(t, err, control.ErrRefused)
		require.Equal(t, []string{"a", "b"}, f.Names())

		pass(2 * time.Minute)
		require.Equal(t, 1, f.reconciler.count(), "plans are made and none is applied")
		require.Greater(t, f.policies.calls(), 1)
	})
}

// TestAdviseBatchesOnOrder: requests pass as they came until an operator applies the first plan, which decides how they get there and not what is
// where.
func TestAdviseBatchesOnOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFront(t, "mode: advise\n")
		f.policies.set(firstOnly)
		stop := f.start()
		defer stop()
		require.Contains(t, f.reconciler.last().PassThrough, "no plan was applied yet")
		pass(40 * time.Second)
		require.Equal(t, 1, f.reconciler.count())
		require.Empty(t, f.servers.called(), "neither taken nor handed back")

		result, err := f.Apply(t.Context(), api.ApplyRequest{Author: "ada"})
		require.NoError(t, err)
		require.True(t, result.Changed)
		target := f.reconciler.last()
		require.Empty(t, target.PassThrough)
		require.True(t, target.Given)
		require.Len(t, target.Plan.GetPartitions(), 2, "the servers' own placement, whatever the policy says")
		require.Equal(t, "adaptive", target.Plan.GetDispatch()[0].GetDiscipline())
		m, err := f.Model("a")
		require.NoError(t, err)
		require.True(t, m.Batchable)

		require.NoError(t, f.Mirror(t.Context(), "to be sure"))
		require.Equal(t, 2, f.reconciler.count(), "an applied plan is not taken back")
	})
}

// TestServersAreFollowed: the servers' own loads and unloads of models are followed, in every mode.
func TestServersAreFollowed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFront(t, "")
		stop := f.start()
		defer stop()
		f.servers.serve(model("a", "d1", 8), model("c", "d1", 4))
		f.ServersChanged("gpu0 serves something else")
		pass(time.Second)
		require.Equal(t, 2, f.reconciler.count())
		require.Equal(t, []string{"a", "c"}, f.Names())
		_, err := f.Model("b")
		require.ErrorIs(t, err, control.ErrNotFound)
		e := f.lastEvent(events.Repository)
		require.Equal(t, "servers", e.Author)
		require.Equal(t, "gpu0 serves something else", e.Reason)

		f.ServersChanged("gpu0 blinked")
		pass(time.Second)
		require.Equal(t, 2, f.reconciler.count(), "the same again is no change")
		require.Equal(t, 3, f.servers.reads)
	})
}

// TestServersThatCannotBeRead are asked again every tick; until then nothing serves, or what did serves on.
func TestServersThatCannotBeRead(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFront(t, "")
		f.servers.readErr = errors.New("one:8001: connection refused")
		stop := f.start()
		defer stop()
		pass(5 * time.Second)
		require.False(t, f.Ready()[0].OK)
		require.Equal(t, "no plan serves yet: one:8001: connection refused", f.Ready()[0].Reason)
		require.Greater(t, f.servers.reads, 5)
		require.Zero(t, f.policies.calls(), "a policy has nothing to plan with")
		require.Equal(t, []string{"one:8001: connection refused"}, f.messages(events.Handover), "it is said once")

		f.servers.failReading(nil)
		pass(time.Second)
		require.True(t, f.Ready()[0].OK)
		reads := f.servers.reads

		f.servers.failReading(errBoom)
		f.ServersChanged("gpu1 is back")
		pass(2 * time.Second)
		require.True(t, f.Ready()[0].OK, "what served serves on")
		require.Greater(t, f.servers.reads, reads+2)
		f.servers.serve(model("a", "d1", 8))
		f.servers.failReading(nil)
		pass(time.Second)
		require.Equal(t, []string{"a"}, f.Names())
	})
}

// TestAPolicyThatDoesNotStart holds up nothing that is served already.
func TestAPolicyThatDoesNotStart(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFront(t, "")
		f.policies.useErr = errBoom
		stop := f.start()
		defer stop()
		require.True(t, f.Ready()[0].OK)
		require.Contains(t, f.lastEvent(events.PlanFailed).Message, "could not be put in use: boom")
	})
}

// TestAMistakenPolicyInFrontOfServers ends the first start, as a mistake in conch.yaml does; in front of servers that were served before it holds
// up nothing.
func TestAMistakenPolicyInFrontOfServers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	bubble.Test(t, func(t *testing.T) {
		f := newFrontOn(t, "", path, &servers{})
		f.policies.useErr = policyhost.ErrParameter
		err := f.Run(t.Context())
		require.ErrorIs(t, err, policyhost.ErrParameter)
		require.ErrorContains(t, err, "conch.yaml")
		require.NoError(t, f.db.Close())
	})
	bubble.Test(t, func(t *testing.T) { newFrontOn(t, "", path, &servers{}).start()() })
	bubble.Test(t, func(t *testing.T) {
		f := newFrontOn(t, "", path, &servers{})
		f.policies.useErr = policyhost.ErrParameter
		stop := f.start()
		defer stop()
		require.True(t, f.Ready()[0].OK)
	})
}

// TestControlTakesBatchingOver where the servers' repositories are not conch's to write: models stay where they are.
func TestControlTakesBatchingOver(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFront(t, "mode: control\n")
		f.servers.remarks = []string{"two:8001 does not say its GPU"}
		f.policies.set(firstOnly)
		stop := f.start()
		defer stop()
		pass(time.Second)
		require.True(t, f.Given())
		target := f.reconciler.last()
		require.Empty(t, target.PassThrough)
		require.Len(t, target.Plan.GetPartitions(), 2)
		require.Equal(t, []string{"take over"}, f.servers.called())
		f.ServersChanged("once more")
		pass(time.Second)
		require.Equal(t, []string{"take over", "take over"}, f.servers.called())
		require.Equal(t, []string{"two:8001 does not say its GPU", "model a at one:8001: the delay of dynamic_batching taken out"}, f.messages(events.Handover), "each is said once")
	})
}

// TestAServerThatCannotBeTaken: such a server is left as it is, and one event reports it.
func TestAServerThatCannotBeTaken(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFront(t, "mode: control\n")
		f.servers.trouble = driver.ErrNoControl
		stop := f.start()
		defer stop()
		f.ServersChanged("once more")
		pass(time.Second)
		require.True(t, f.Ready()[0].OK)
		require.Equal(t, []string{"model a at one:8001 is left as its server has it: " + driver.ErrNoControl.Error()}, f.messages(events.Handover))
	})
}

// TestControlPlaces where conch may write the servers' repositories: what is there is served first, then as the policy says.
func TestControlPlaces(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFront(t, "mode: control\nrepository: /models\n")
		f.servers.writable = true
		f.policies.set(firstOnly)
		stop := f.start()
		defer stop()
		pass(time.Second)
		require.False(t, f.Given())
		require.Equal(t, 2, f.reconciler.count())
		require.True(t, f.reconciler.applied[0].Given)
		target := f.reconciler.last()
		require.False(t, target.Given)
		require.Len(t, target.Plan.GetPartitions(), 1)
		require.Empty(t, f.servers.called(), "models that conch loads itself need no handover")
		require.Contains(t, f.lastEvent(events.PlanApplied).Reason, "conch places the models of /models")

		f.ServersChanged("gpu1 is back")
		pass(time.Second)
		require.Equal(t, 2, f.reconciler.count())
		require.False(t, f.Given())
	})
}

// TestAStrayModelStays: placing would take a model away that the servers serve and the repository does not have.
func TestAStrayModelStays(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFront(t, "mode: control\nrepository: /models\n")
		f.servers.writable = true
		f.servers.serve(model("a", "d1", 8), model("stray", "d1", 8))
		stop := f.start()
		defer stop()
		pass(time.Second)
		require.True(t, f.Given())
		require.Equal(t, []string{"a", "stray"}, f.Names())
		require.Contains(t, f.messages(events.Handover)[0], "the servers serve stray, which repository /models does not have")

		f.servers.serve(model("a", "d1", 8))
		f.ServersChanged("stray was unloaded")
		pass(time.Second)
		require.False(t, f.Given())
		require.Equal(t, []string{"a", "b"}, f.Names())
	})
}

// TestAnotherMode: after a change of the mode in conch.yaml, requests that were passed through are batched by a discipline for batching, from the
// first plan on. A placement that was conch's own is the servers' again, even where it is the same.
func TestAnotherMode(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFront(t, "")
		stop := f.start()
		defer stop()
		require.NoError(t, f.Reload(t.Context(), attachSettings(t, "mode: control\n")))
		pass(time.Second)
		second := f.reconciler.applied[1]
		require.Empty(t, second.PassThrough)
		for _, d := range second.Plan.GetDispatch() {
			require.Equal(t, "adaptive", d.GetDiscipline())
			require.Empty(t, d.GetDropPolicy())
		}
	})
	bubble.Test(t, func(t *testing.T) {
		f := newFront(t, "mode: control\nrepository: /models\n")
		f.servers.writable = true
		stop := f.start()
		defer stop()
		pass(time.Second)
		require.False(t, f.reconciler.last().Given)
		require.NoError(t, f.Reload(t.Context(), attachSettings(t, "mode: advise\nrepository: /models\n")))
		pass(time.Second)
		require.True(t, f.reconciler.last().Given)
		require.Empty(t, f.reconciler.last().PassThrough, "it was batched, and stays so")
	})
}

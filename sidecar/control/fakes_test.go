// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/control/conditions"
	"github.com/conch-serving/conch/sidecar/control/estimates"
	"github.com/conch-serving/conch/sidecar/control/planner"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/observe"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

// policies is a policy host without processes. It judges plans as the real one
// does: by the hooks' Check.
type policies struct {
	hooks control.Hooks
	mu    sync.Mutex
	// answer makes the plans; nil is everywhere.
	answer func(context.Context, *policy.Snapshot) (*policy.Plan, error)
	asked  []*policy.Snapshot
	ref    policyhost.Ref
	useErr error
	// try answers for policies that are not in use.
	try func(name string, s *policy.Snapshot) (*policy.Plan, error)
}

func (p *policies) Use(_ context.Context, ref policyhost.Ref) (*policy.Description, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.useErr != nil {
		return nil, p.useErr
	}
	p.ref = ref
	return &policy.Description{Name: ref.Name, Version: "1"}, nil
}

func (p *policies) Plan(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
	p.mu.Lock()
	p.asked = append(p.asked, s)
	answer := p.answer
	p.mu.Unlock()
	if answer == nil {
		answer = everywhere
	}
	out, err := answer(ctx, s)
	if err != nil {
		return nil, err
	}
	out.SnapshotRevision, out.Policy = s.GetRevision(), "fake"
	if err := p.hooks.Check(s, out); err != nil {
		return nil, fmt.Errorf("%w: %w", policyhost.ErrRejected, err)
	}
	return out, nil
}

func (p *policies) Try(ctx context.Context, ref policyhost.Ref, s *policy.Snapshot) (*policy.Plan, error) {
	if p.try == nil {
		return nil, policyhost.ErrUnknownPolicy
	}
	return p.try(ref.Name, s)
}

func (p *policies) Describe(context.Context, policyhost.Ref) (*policy.Description, error) {
	return nil, policyhost.ErrStart
}

func (p *policies) List(context.Context) ([]policyhost.Known, error) {
	return []policyhost.Known{{Name: p.Status().Name, InUse: true}, {Name: "other", Builtin: true}}, nil
}

func (p *policies) Status() policyhost.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return policyhost.Status{Name: p.ref.Name, State: policyhost.StateRunning, Breaker: policyhost.BreakerClosed, Description: &policy.Description{Name: p.ref.Name}}
}

func (p *policies) set(answer func(context.Context, *policy.Snapshot) (*policy.Plan, error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

func (p *policies) question(i int) *policy.Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[i]
}

func (p *policies) calls() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.asked)
}

// everywhere puts every model on every GPU.
func everywhere(_ context.Context, s *policy.Snapshot) (*policy.Plan, error) {
	out := &policy.Plan{}
	for _, n := range s.GetNodes() {
		for i, g := range n.GetGpus() {
			part := &policy.Partition{Id: g.GetId(), Node: n.GetName(), Gpus: []string{g.GetId()}, ThreadPercentage: 100, Rank: uint32(i)}
			for _, m := range s.GetModels() {
				part.Instances = append(part.Instances, policy.ModelInstance(m.GetName(), m.GetMaxBatchSize()))
			}
			if len(part.Instances) > 0 {
				out.Partitions = append(out.Partitions, part)
			}
		}
	}
	for _, m := range s.GetModels() {
		out.Dispatch = append(out.Dispatch, &policy.Dispatch{Model: m.GetName(), Discipline: "adaptive"})
	}
	return out, nil
}

// firstOnly puts every model on the first GPU.
func firstOnly(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
	out, err := everywhere(ctx, s)
	out.Partitions = out.Partitions[:min(1, len(out.Partitions))]
	return out, err
}

// reconciler takes what is desired, and is there at once.
type reconciler struct {
	hooks   control.Hooks
	mu      sync.Mutex
	applied []apply.Desired
	err     error
	resume  *apply.Desired
	down    map[string]bool
	// restarted are the orders to start a server anew.
	restarted []string
	// refuse are models that fail to load, by the digest of their files.
	refuse map[string]string
	// slow is how long the servers take to come to what is desired.
	slow time.Duration
	// seen is called once, after the next observation, with mu held.
	seen func()
	// set is called with every state that came to be desired, with mu held.
	set func(apply.Desired)
}

// Start finds the servers as what is resumed desires them.
func (a *reconciler) Start(context.Context) (*apply.Desired, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.resume != nil {
		a.applied = append(a.applied, *a.resume)
	}
	return a.resume, nil
}

func (a *reconciler) Set(_ context.Context, d apply.Desired, _ uint64) (uint64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return 0, a.err
	}
	d.Generation = uint64(len(a.applied) + 1)
	a.applied = append(a.applied, d)
	if a.set != nil {
		a.set(d)
	}
	return d.Generation, nil
}

func (a *reconciler) Settle(ctx context.Context, _ uint64, _ ...string) error {
	a.hooks.ActionDone(apply.Action{Kind: decide.Start, Partition: "gpu0", Duration: 2 * time.Second})
	a.hooks.ActionDone(apply.Action{Kind: decide.LoadIt, Model: "a", Duration: time.Second})
	select {
	case <-time.After(a.slow):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	for _, c := range a.Observed().Conditions {
		return c.Err
	}
	return nil
}

func (a *reconciler) Retry(...string) {}

func (a *reconciler) BreakFirst(*policy.Plan, *policy.Plan, *policy.Snapshot) []string { return nil }

func (a *reconciler) StartAnew(partition, reason string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.restarted = append(a.restarted, partition+": "+reason)
	return a.err
}

func (a *reconciler) Observed() apply.Observed {
	a.mu.Lock()
	defer a.mu.Unlock()
	var o apply.Observed
	if len(a.applied) == 0 {
		return o
	}
	d := a.applied[len(a.applied)-1]
	for _, p := range d.Plan.GetPartitions() {
		s := apply.PartitionState{ID: p.GetId(), Up: !a.down[p.GetId()], Endpoint: driver.Endpoint{GRPC: "127.0.0.1:1"}}
		if !s.Up {
			s.Reason = "killed"
		}
		for _, in := range p.GetInstances() {
			name := in.GetModel()
			if m := d.Revision.Model(name); a.refuse[name] == "" || m.Digest != a.refuse[name] {
				s.Models = append(s.Models, name)
				continue
			}
			err := &driver.LoadError{Model: name, Err: errors.New("no module named torch")}
			o.Conditions = append(o.Conditions, apply.Condition{Err: err, Condition: decide.Condition{Partition: p.GetId(), Model: name, Kind: decide.IsFailing, Reason: err.Error()}})
		}
		o.Partitions = append(o.Partitions, s)
	}
	if a.seen != nil {
		a.seen()
		a.seen = nil
	}
	return o
}

func (a *reconciler) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

func (a *reconciler) setDown(id string, down bool) {
	a.mu.Lock()
	a.down = map[string]bool{id: down}
	a.mu.Unlock()
	a.hooks.PartitionChanged(id, !down, "killed")
}

func (a *reconciler) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.applied)
}

func (a *reconciler) last() apply.Desired {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.applied[len(a.applied)-1]
}

type requests struct {
	unhealthy []router.PlaceHealth
	mu        sync.Mutex
	profiles  []*policy.Profile
	draining  bool
	unready   error
	// wanted are the requests that wait for models to be loaded, refused why they do
	// not any more, and arrived when models were used last.
	wanted  map[string]int
	refused []string
	arrived map[string]time.Time
	// pipelines are the steps of ensembles that the request path executes.
	pipelines map[string][]dispatch.Step
}

func (r *requests) SetProfile(p *policy.Profile) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.profiles = append(r.profiles, proto.CloneOf(p))
}

func (r *requests) Counts(model string) (dispatch.ModelCounts, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return dispatch.ModelCounts{Waiting: 3, UnderWay: r.wanted[model], LastArrival: r.arrived[model]}, true
}

func (r *requests) LeaveEnsembles([]string) {}

func (r *requests) Pipeline(model string) []dispatch.Step { return r.pipelines[model] }

func (r *requests) Ensemble(string) (steps int, reason string, ok bool) { return 0, "", false }

func (r *requests) Wanted() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.wanted))
}

func (r *requests) FailLoad(model, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.wanted, model)
	r.refused = append(r.refused, model+": "+why)
}

// Unhealthy implements control.Requests.
func (r *requests) Unhealthy() []router.PlaceHealth { return r.unhealthy }

func (r *requests) Draining() bool { return r.draining }

// Ready implements control.Requests.
func (r *requests) Ready() error { return r.unready }

func (r *requests) pushed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.profiles)
}

// profile is what the request path knows of a model.
func (r *requests) profile(model string) *policy.Profile {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range slices.Backward(r.profiles) {
		if p.GetModel() == model {
			return p
		}
	}
	return nil
}

// rig is a loop with fakes around it, in virtual time.
type rig struct {
	*control.Control
	t          *testing.T
	policies   *policies
	reconciler *reconciler
	repository *repository
	requests   *requests
	recorder   *observe.Recorder
	db         *bbolt.DB
	disk       *disk
	nodes      atomic.Pointer[[]*policy.Node]
	cluster    atomic.Pointer[conditions.Cluster]
	done       chan error
}

const base = "repository: /models\ndriver: {kind: embedded}\ngpus: [{type: T4, count: 2, emulated: true}]\nseed: 5\n"

func settings(t *testing.T, text string) *config.Config {
	c, err := config.Parse("conch.yaml", []byte(base+text))
	require.NoError(t, err)
	c.Provision(config.Environment{})
	require.NoError(t, c.Validate(config.Environment{}))
	return c
}

// newRig makes a loop that does not run yet; change its parts, then start.
func newRig(t *testing.T, text string) *rig {
	return newRigOn(t, text, filepath.Join(t.TempDir(), "state.db"))
}

func newRigOn(t *testing.T, text, path string) *rig {
	return newRigWith(t, settings(t, text), nil, path)
}

// newRigEvaluated makes one whose plans are weighed.
func newRigEvaluated(t *testing.T, e control.Evaluator) *rig {
	return newRigWith(t, settings(t, ""), nil, filepath.Join(t.TempDir(), "state.db"), e)
}

// newRigWith makes one in front of attached servers, if there are any.
func newRigWith(t *testing.T, configuration *config.Config, attached control.Attached, path string, evaluators ...control.Evaluator) *rig {
	var evaluator control.Evaluator
	if len(evaluators) > 0 {
		evaluator = evaluators[0]
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true})
	require.NoError(t, err)
	recorder, err := observe.New(nil)
	require.NoError(t, err)
	metrics, err := observe.NewPlanMetrics(nil)
	require.NoError(t, err)
	r := &rig{
		t: t, policies: &policies{}, reconciler: &reconciler{}, repository: &repository{}, requests: &requests{},
		recorder: recorder, db: db, disk: &disk{Store: store.NewBolt(db)}, done: make(chan error, 1),
	}
	r.nodes.Store(&[]*policy.Node{{Name: "n", Gpus: []*policy.GPU{{Id: "gpu0", Type: "T4", MemoryBytes: 1 << 34}, {Id: "gpu1", Type: "T4", MemoryBytes: 1 << 34}}}})
	r.repository.hold(model("a", "d1", 8), model("b", "d1", 0))
	r.Control, err = control.New(control.Options{
		Config:     configuration,
		Nodes:      func() []*policy.Node { return *r.nodes.Load() },
		Repository: r.repository, Attached: attached, Requests: r.requests, Recorder: recorder, Metrics: metrics, Store: r.disk,
		Policies:   func(h control.Hooks) (planner.Host, error) { r.policies.hooks = h; return r.policies, nil },
		Reconciler: func(h control.Hooks) (control.Reconciler, error) { r.reconciler.hooks = h; return r.reconciler, nil },
		Version:    api.Version{Version: "test", Replica: "conch-0"},
		Evaluator:  evaluator,
		Cluster: func() (string, time.Time, string) {
			if c := r.cluster.Load(); c != nil {
				return c.Release, c.Silent, c.Cause
			}
			return "", time.Time{}, ""
		},
		Estimates: estimates.New(estimates.Options{Open: r.repository.open, Now: time.Now, After: time.After}),
		CheckDispatch: func(d *policy.Dispatch) error {
			if d.GetParameters()["delay"] == "soon" {
				return errors.New("delay: soon is no duration")
			}
			return nil
		},
	})
	require.NoError(t, err)
	return r
}

// start runs the loop and waits for its first plan; stop must be called.
func (r *rig) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { r.done <- r.Run(ctx) }()
	synctest.Wait()
	return func() {
		cancel()
		require.NoError(r.t, <-r.done)
		require.NoError(r.t, r.db.Close())
	}
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (r *rig) kinds() []api.EventKind {
	events := r.Events(0)
	kinds := make([]api.EventKind, 0, len(events))
	for _, e := range events {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

func (r *rig) lastEvent(kind api.EventKind) api.Event {
	events := r.Events(0)
	for i := len(events) - 1; i >= 0; i-- {
		if events[i].Kind == kind {
			return events[i]
		}
	}
	r.t.Fatalf("no event %s in %v", kind, r.kinds())
	return api.Event{}
}

var errBoom = errors.New("boom")

// client orders through Triton's protocol.
var client = repo.Origin{Author: "client"}

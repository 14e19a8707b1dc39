// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// world stands for everything around a reconciler, and outlives it: servers go on
// when conch dies. It takes virtual time for what takes time, and watches what
// must hold at every moment: no request is routed to where its model is not, and
// nothing is unloaded or stopped while it is routed to or leased.
type world struct {
	t *testing.T

	mu        sync.Mutex
	revisions map[string]*repo.Revision
	staged    map[string]map[string]string // dir, model, staged revision
	servers   map[string]*fakeServer       // by endpoint, those that run
	started   int
	table     *router.Table
	states    map[string]bool
	saved     []byte
	log       []string // what was done, in order
	events    []driver.Event
	measured  []string
	leases    map[string]chan struct{} // by endpoint
	lasting   bool

	// Faults and times; any may be changed while a test runs.
	startsFor time.Duration
	loadsFor  map[string]time.Duration
	startErr  map[string]error // by partition
	loadErr   map[string]error // by model, or model@revision
	kills     map[string]bool  // models in whose load a server dies
	warmErr   map[string]error
	warmsFor  map[string]time.Duration // by model; a millisecond
	saveErr   error
	swapErr   error
	stageErr  error
}

func newWorld(t *testing.T) *world {
	return &world{
		t: t, revisions: map[string]*repo.Revision{}, staged: map[string]map[string]string{}, servers: map[string]*fakeServer{}, states: map[string]bool{},
		leases: map[string]chan struct{}{}, startsFor: 100 * time.Millisecond, loadsFor: map[string]time.Duration{}, startErr: map[string]error{},
		loadErr: map[string]error{}, kills: map[string]bool{}, warmErr: map[string]error{},
	}
}

// reconciler is a conch of this world, started.
func (w *world) reconciler(change ...func(*apply.Options)) *apply.Reconciler {
	w.t.Helper()
	o := apply.Options{
		Dir: filepath.Join(w.t.TempDir(), "partitions"), Store: w, Driver: w, Repository: w, Router: w, Recorder: w, WarmUp: w.warmUp,
		OnPartition: func(e driver.Event) { w.mu.Lock(); w.events = append(w.events, e); w.mu.Unlock() },
	}
	for _, c := range change {
		c(&o)
	}
	r, err := apply.New(o)
	require.NoError(w.t, err)
	_, err = r.Start(w.t.Context())
	require.NoError(w.t, err)
	return r
}

func (w *world) note(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

// did returns what was done since it was called last.
func (w *world) did() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.log
	w.log = nil
	return all
}

// Store.

func (w *world) Save(desired []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.saveErr == nil {
		w.saved = desired
	}
	return w.saveErr
}

func (w *world) Load() ([]byte, error) { return w.saved, nil }

// Repository.

func (w *world) Get(id string) (*repo.Revision, error) {
	if r := w.revisions[id]; r != nil {
		return r, nil
	}
	return nil, repo.ErrNoRevision
}

func (w *world) Stage(_ context.Context, revision string, models []string, dir string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stageErr != nil {
		return w.stageErr
	}
	if w.staged[dir] == nil {
		w.staged[dir] = map[string]string{}
	}
	for _, m := range models {
		w.staged[dir][m] = w.revisions[revision].Model(m).StagedRevision()
	}
	return nil
}

func (w *world) Unstage(_ context.Context, dir string, models ...string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var runs *fakeServer
	for _, s := range w.servers {
		if s.spec.RepositoryDir == dir {
			runs = s
		}
	}
	if len(models) == 0 {
		if runs != nil {
			w.t.Errorf("the directory of %s is removed while its server runs", runs.spec.Partition.GetId())
		}
		delete(w.staged, dir)
	}
	for _, m := range models {
		if runs != nil && runs.models[m] != "" {
			w.t.Errorf("the files of %s are removed while it is loaded", m)
		}
		delete(w.staged[dir], m)
	}
	return nil
}

// Driver.

func (w *world) Close() error             { return nil }
func (w *world) Lasting() bool            { return w.lasting }
func (w *world) Repository(string) string { return "" }

func (w *world) Hash(p *policy.Partition, g *policy.GPU) string {
	return fmt.Sprintf("%s-%d-%d", g.GetId(), p.GetThreadPercentage(), p.GetMemoryLimitBytes())
}

func (w *world) Find(context.Context) ([]driver.Server, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []driver.Server
	for _, address := range slices.Sorted(maps.Keys(w.servers)) {
		all = append(all, w.servers[address])
	}
	return all, nil
}

func (w *world) Start(ctx context.Context, spec driver.Spec) (driver.Server, error) {
	if !wait(ctx, w.startsFor) {
		return nil, context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	id := spec.Partition.GetId()
	w.note("start %s", id)
	if err := w.startErr[id]; err != nil {
		return nil, err
	}
	for _, s := range w.servers {
		if s.spec.RepositoryDir == spec.RepositoryDir {
			w.t.Errorf("two servers of %s have one directory", id)
		}
	}
	w.started++
	s := &fakeServer{w: w, spec: spec, at: fmt.Sprintf("host:%d", w.started), models: map[string]string{}, over: make(chan struct{}), began: time.Now()}
	w.servers[s.at] = s
	return s, nil
}

func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// names reports that the table in force sends a model (any, if empty) there.
func (w *world) names(address, model string) bool {
	if w.table == nil {
		return false
	}
	for _, p := range w.table.Partitions {
		if p.Endpoint.GRPC != address {
			continue
		}
		if model == "" {
			return true
		}
		if m := w.table.Models[model]; m != nil && m.Membership == nil { // a member runs as rows of its group
			return slices.ContainsFunc(m.Places, func(pl router.Place) bool { return pl.Partition == p.ID })
		}
	}
	return false
}

// Router.

func (w *world) Swap(_ context.Context, t *router.Table) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.swapErr != nil {
		return w.swapErr
	}
	if err := t.Check(); err != nil {
		w.t.Errorf("%v", err)
	}
	w.table = t
	return nil
}

func (w *world) Drained(partition, model string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	for address, lease := range w.leases {
		if s := w.servers[address]; s != nil && (strings.HasPrefix(partition, s.spec.Partition.GetId())) && !w.names(address, model) {
			return lease
		}
	}
	idle := make(chan struct{})
	close(idle)
	return idle
}

func (w *world) SetPartitionState(id string, up bool, _ string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.states[id] = up
}

// Warm-up.

func (w *world) warmUp(ctx context.Context, address string, c *tritonpb.ModelConfig, o warmup.Options) (warmup.Result, error) {
	w.mu.Lock()
	takes := cmp.Or(w.warmsFor[c.GetName()], time.Millisecond)
	w.mu.Unlock()
	if !wait(ctx, takes) {
		return warmup.Result{}, ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.warmErr[c.GetName()]; err != nil || !o.Measure {
		return warmup.Result{}, err
	}
	return warmup.Result{Samples: []warmup.Sample{{Rows: 1, Duration: time.Millisecond}}}, nil
}

func (w *world) Record(model, gpuType string, share uint32, _ []warmup.Sample) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.measured = append(w.measured, fmt.Sprintf("%s %s %d", model, gpuType, share))
}

// routes are the places of a model that requests go to, by partition; nil where
// it is not in the table.
func (w *world) routes(model string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := []string{}
	if m := w.table.Models[model]; m != nil {
		for _, p := range m.Places {
			all = append(all, p.Partition)
		}
		return all
	}
	return nil
}

// serves reports that a request for the model would be answered now.
func (w *world) serves(model string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.table == nil || w.table.Models[model] == nil {
		return false
	}
	for _, place := range w.table.Models[model].Places {
		for _, p := range w.table.Partitions {
			if s := w.servers[p.Endpoint.GRPC]; p.ID == place.Partition && w.states[p.ID] && s != nil && s.models[model] != "" && !s.hangs {
				return true
			}
		}
	}
	return false
}

// loaded says what runs where, in words.
func (w *world) loaded() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := []string{}
	for _, s := range w.servers {
		all = append(all, fmt.Sprintf("%s %v", s.spec.Partition.GetId(), slices.Sorted(maps.Keys(s.models))))
	}
	slices.Sort(all)
	return all
}

// at is the server of a partition; nil where none runs.
func (w *world) at(partition string) *fakeServer {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.servers {
		if s.spec.Partition.GetId() == partition {
			return s
		}
	}
	return nil
}

// revision makes a repository revision of models with a version of their files
// each; the version is also their largest batch.
func (w *world) revision(id string, versions map[string]int) *repo.Revision {
	r := &repo.Revision{ID: id}
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		digest := fmt.Sprintf("%s-%d", name, versions[name])
		r.Models = append(r.Models, &repo.Model{
			Name: name, Digest: digest, Managed: repo.File{Digest: digest}, Versions: []int64{1},
			Config: &tritonpb.ModelConfig{Name: name, MaxBatchSize: int32(versions[name])},
		})
	}
	w.revisions[id] = r
	return r
}

// desired is a plan of partitions over the models of a revision, on two GPUs of
// one type and one of another.
func desired(number uint64, r *repo.Revision, partitions ...*policy.Partition) apply.Desired {
	s := &policy.Snapshot{Revision: number, Nodes: []*policy.Node{{Name: "n", Gpus: []*policy.GPU{
		{Id: "g0", Type: "A", Emulated: true, MemoryBytes: 100}, {Id: "g1", Type: "A", Emulated: true, MemoryBytes: 100}, {Id: "g2", Type: "B", Emulated: true, MemoryBytes: 100},
	}}}}
	for _, m := range r.Models {
		s.Models = append(s.Models, &policy.Model{Name: m.Name, SloUs: 25_000, Late: policy.LatePolicy_LATE_POLICY_DROP})
	}
	return apply.Desired{
		Snapshot: s, Plan: &policy.Plan{SnapshotRevision: number, Partitions: partitions}, Revision: r, Author: "test", Reason: fmt.Sprintf("plan %d", number),
	}
}

func partition(id, gpu string, share uint32, models ...string) *policy.Partition {
	p := &policy.Partition{Id: id, Node: "n", Gpus: []string{gpu}, ThreadPercentage: share}
	for _, m := range models {
		p.Instances = append(p.Instances, policy.ModelInstance(m, 0))
	}
	return p
}

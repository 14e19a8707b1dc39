// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// errInjected is the failure of an operation that a test chose.
var errInjected = errors.New("injected")

// fatal is what a test fails with; *testing.T and *rapid.T both do.
type fatal interface {
	Fatalf(format string, args ...any)
	Helper()
}

// world stands for everything around an Applier. Each of its operations that
// can fail counts; the one with number failAt does. It watches what must hold
// at every moment: the table in force only names what is served.
type world struct {
	t fatal

	mu        sync.Mutex
	failAt    int
	ops       []string
	revisions map[string]*repo.Revision
	staged    map[string]map[string]string // dir, model, digest
	processes map[string]*fakeProcess      // by endpoint
	started   int
	table     *router.Table
	states    map[string]bool
	measured  []string
	drained   []string
	steps     []apply.StepEvent
	events    []driver.Event
	own       map[string]string
	lasting   bool
	calls     map[string][]string      // by ensemble
	loadsFor  map[string]time.Duration // how long loads take, where they do
}

func newWorld(t fatal) *world {
	return &world{t: t, revisions: map[string]*repo.Revision{}, staged: map[string]map[string]string{}, processes: map[string]*fakeProcess{}, states: map[string]bool{}}
}

func (w *world) applier(dir string, db *bbolt.DB) *apply.Applier {
	now := time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)
	a, err := apply.New(apply.Options{
		Dir: filepath.Join(dir, "partitions"), DB: db, Driver: w, Repository: w, Router: w, Recorder: w, WarmUp: w.warmUp,
		OnStep:      func(e apply.StepEvent) { w.mu.Lock(); w.steps = append(w.steps, e); w.mu.Unlock() },
		OnPartition: func(e driver.Event) { w.mu.Lock(); w.events = append(w.events, e); w.mu.Unlock() },
		Now:         func() time.Time { return now },
	})
	if err != nil {
		w.t.Fatalf("New: %v", err)
	}
	return a
}

// op counts an operation and says whether it fails. w.mu is held.
func (w *world) op(format string, args ...any) error {
	w.ops = append(w.ops, fmt.Sprintf(format, args...))
	if len(w.ops) == w.failAt {
		return errInjected
	}
	return nil
}

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
	if err := w.op("stage %v", models); err != nil {
		return err
	}
	if w.staged[dir] == nil {
		w.staged[dir] = map[string]string{}
	}
	for _, m := range models {
		w.staged[dir][m] = w.revisions[revision].Model(m).Digest
	}
	return nil
}

func (w *world) Unstage(_ context.Context, dir string, models ...string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var runs *fakeProcess
	for _, p := range w.processes {
		if p.spec.RepositoryDir == dir {
			runs = p
		}
	}
	if len(models) == 0 {
		if runs != nil {
			w.t.Fatalf("the directory of %s is removed while its server runs", runs.spec.Partition.GetId())
		}
		delete(w.staged, dir)
	}
	for _, m := range models {
		if runs != nil && runs.models[m] != "" {
			w.t.Fatalf("the files of %s are removed while it is loaded", m)
		}
		delete(w.staged[dir], m)
	}
	return nil
}

// Driver.

type fakeProcess struct {
	w        *world
	spec     driver.Spec
	endpoint driver.Endpoint
	models   map[string]string // model, digest
	adopted  map[string]bool
}

func (w *world) Kind() string { return "fake" }
func (w *world) Close() error { return nil }

// Repository and Lasting make the world one of servers that others run, where
// own names their repositories by GPU.
func (w *world) Repository(gpu string) string { return w.own[gpu] }
func (w *world) Lasting() bool                { return w.lasting }

func (w *world) Start(_ context.Context, s driver.Spec) (driver.Process, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.op("start %s", s.Partition.GetId()); err != nil {
		return nil, err
	}
	if w.staged[s.RepositoryDir] == nil && !w.lasting {
		w.t.Fatalf("a server is started on a directory that is not staged")
	}
	w.started++
	p := &fakeProcess{w: w, spec: s, endpoint: driver.Endpoint{GRPC: fmt.Sprintf("host:%d", w.started)}, models: map[string]string{}, adopted: map[string]bool{}}
	w.processes[p.endpoint.GRPC] = p
	return p, nil
}

func (p *fakeProcess) Endpoint() driver.Endpoint {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	return p.endpoint
}

func (p *fakeProcess) Adopt(model string) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.adopted[model], p.models[model] = true, "others'"
}

func (p *fakeProcess) Abandon(model string) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.w.names(p.endpoint.GRPC, model) {
		p.w.t.Fatalf("%s is abandoned on %s while the table in force names it", model, p.spec.Partition.GetId())
	}
	delete(p.adopted, model)
	delete(p.models, model)
}

func (p *fakeProcess) Load(_ context.Context, model string) error {
	time.Sleep(p.w.loadsFor[model])
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if err := p.w.op("load %s on %s", model, p.spec.Partition.GetId()); err != nil {
		return err
	}
	digest, ok := p.w.staged[p.spec.RepositoryDir][model]
	if !ok {
		p.w.t.Fatalf("load of %s, which is not staged", model)
	}
	for _, step := range p.w.calls[model] {
		if p.models[step] == "" {
			p.w.t.Fatalf("load of %s, which calls %s, which is not loaded", model, step)
		}
	}
	p.models[model] = digest
	return nil
}

func (p *fakeProcess) Unload(_ context.Context, model string) error {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.w.names(p.endpoint.GRPC, model) {
		p.w.t.Fatalf("%s is unloaded from %s while the table in force names it", model, p.spec.Partition.GetId())
	}
	delete(p.models, model)
	return nil
}

func (p *fakeProcess) Restart(reason string) error {
	p.spec.Notify(driver.Event{Partition: p.spec.Partition.GetId(), Reason: reason})
	return nil
}

func (p *fakeProcess) Stop(context.Context) error {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.w.names(p.endpoint.GRPC, "") {
		p.w.t.Fatalf("%s is stopped while the table in force names it", p.spec.Partition.GetId())
	}
	delete(p.w.processes, p.endpoint.GRPC)
	return nil
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
		if m := w.table.Models[model]; m != nil {
			return slices.ContainsFunc(m.Places, func(pl router.Place) bool { return pl.Partition == p.ID })
		}
	}
	return false
}

// Router.

func (w *world) Swap(_ context.Context, t *router.Table) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.op("swap"); err != nil {
		return err
	}
	at := map[string]*fakeProcess{}
	for _, p := range t.Partitions {
		process := w.processes[p.Endpoint.GRPC]
		if process == nil {
			w.t.Fatalf("the table names partition %s, whose process does not run", p.ID)
		}
		at[p.ID] = process
	}
	for _, m := range t.Models {
		for _, pl := range m.Places {
			if _, loaded := at[pl.Partition].models[m.Name]; !loaded {
				w.t.Fatalf("the table names %s on %s, where it is not loaded", m.Name, pl.Partition)
			}
		}
	}
	w.table = t
	return nil
}

func (w *world) Drained(partition, model string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drained = append(w.drained, partition+"/"+model)
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

func (w *world) warmUp(_ context.Context, address string, c *tritonpb.ModelConfig, o warmup.Options) (warmup.Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.processes[address].models[c.GetName()]; !ok {
		w.t.Fatalf("%s is warmed up where it is not loaded", c.GetName())
	}
	if !o.Measure {
		return warmup.Result{}, nil
	}
	return warmup.Result{Samples: []warmup.Sample{{Rows: 1, Duration: time.Millisecond}}}, nil
}

func (w *world) Record(model, gpuType string, share uint32, _ []warmup.Sample) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.measured = append(w.measured, fmt.Sprintf("%s %s %d", model, gpuType, share))
}

// snapshotOf is what the world looks like: which models with which files run
// where, and what the table says. Two equal ones are the same state.
func (w *world) state() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var text strings.Builder
	for _, address := range slices.Sorted(maps.Keys(w.processes)) {
		p := w.processes[address]
		fmt.Fprintf(&text, "%s %s %v staged %v\n", address, p.spec.Partition.GetId(), p.models, w.staged[p.spec.RepositoryDir])
	}
	fmt.Fprintf(&text, "%d directories\n", len(w.staged))
	if w.table == nil {
		return text.String()
	}
	for _, name := range slices.Sorted(maps.Keys(w.table.Models)) {
		m := w.table.Models[name]
		fmt.Fprintf(&text, "%s %v max %d of %d batchable %t\n", name, m.Places, m.MaxBatch, m.Config.GetMaxBatchSize(), m.Batchable)
	}
	for _, p := range w.table.Partitions {
		fmt.Fprintf(&text, "%+v\n", *p)
	}
	return text.String()
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
		if steps := w.calls[name]; len(steps) > 0 {
			ensemble := &tritonpb.ModelEnsembling{}
			for _, step := range steps {
				ensemble.Step = append(ensemble.Step, &tritonpb.ModelEnsembling_Step{ModelName: step})
			}
			r.Models[len(r.Models)-1].Config.SchedulingChoice = &tritonpb.ModelConfig_EnsembleScheduling{EnsembleScheduling: ensemble}
		}
	}
	w.revisions[id] = r
	return r
}

// snapshot has two GPUs of one type and one of another.
func snapshot(revision uint64, r *repo.Revision) *policy.Snapshot {
	s := &policy.Snapshot{Revision: revision, Nodes: []*policy.Node{{Name: "n", Gpus: []*policy.GPU{
		{Id: "g0", Type: "A", Emulated: true}, {Id: "g1", Type: "A", Emulated: true}, {Id: "g2", Type: "B", Emulated: true},
	}}}}
	for _, m := range r.Models {
		s.Models = append(s.Models, &policy.Model{Name: m.Name, SloUs: 25_000, Late: policy.LatePolicy_LATE_POLICY_DROP})
	}
	return s
}

func partition(id, gpu string, share uint32, models ...string) *policy.Partition {
	p := &policy.Partition{Id: id, Node: "n", Gpus: []string{gpu}, ThreadPercentage: share}
	for _, m := range models {
		p.Instances = append(p.Instances, policy.ModelInstance(m, 0))
	}
	return p
}

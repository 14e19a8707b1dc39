// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/plan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openDB(t fatal, dir string) *bbolt.DB {
	db, err := bbolt.Open(filepath.Join(dir, "state.db"), 0o600, &bbolt.Options{NoSync: true, Timeout: time.Second})
	if err != nil {
		t.Fatalf("open the journal: %v", err)
	}
	return db
}

// setUp is a world with an applier in it.
func setUp(t *testing.T) (*world, *apply.Applier) {
	w, dir := newWorld(t), t.TempDir()
	db := openDB(t, dir)
	a := w.applier(dir, db)
	t.Cleanup(func() {
		w.table = nil
		require.NoError(t, a.Close(context.Background()))
		require.Empty(t, w.processes)
		require.NoError(t, db.Close())
	})
	return w, a
}

// to applies a plan of partitions over revision r.
func to(a *apply.Applier, number uint64, r *repo.Revision, partitions ...*policy.Partition) (*apply.Result, error) {
	t := apply.Target{Snapshot: snapshot(number, r), Plan: &policy.Plan{SnapshotRevision: number, Partitions: partitions}, Revision: r, Author: "test", Reason: fmt.Sprintf("plan %d", number)}
	var current *policy.Plan
	var reload []string
	if serving := a.Current(); serving != nil {
		current = serving.Plan
		reload = plan.Changed(serving.Snapshot, t.Snapshot)
	}
	return a.Apply(context.Background(), t, plan.Compute(current, t.Plan, reload...))
}

func kinds(r *apply.Result) []string {
	var names []string
	for _, s := range r.Steps {
		name := string(s.Kind)
		if s.Undo {
			name = "undo " + name
		}
		names = append(names, name)
	}
	return slices.Compact(names)
}

func TestTheStepsOfAPlan(t *testing.T) {
	w, a := setUp(t)
	r := w.revision("r1", map[string]int{"a": 8, "b": 8})
	first, err := to(a, 1, r, partition("p0", "g0", 100, "a"), partition("p1", "g1", 100, "a", "b"))
	require.NoError(t, err)
	require.Equal(t, []string{"stage", "start", "load", "warm_up", "swap"}, kinds(first))
	require.Equal(t, []string{"a A 100", "b A 100"}, w.measured, "each model once for each GPU type and share")
	require.Equal(t, map[string]bool{"p0": true, "p1": true}, w.states)
	require.Equal(t, []string{"a", "b"}, a.Partitions()[1].Models)
	require.False(t, a.Partitions()[1].SharesEnforced)

	// p0 changes its share, p1 exchanges b for c, p2 is new.
	r = w.revision("r2", map[string]int{"a": 8, "b": 8, "c": 8})
	second, err := to(a, 2, r, partition("p0", "g0", 50, "a"), partition("p1", "g1", 100, "a", "c"), partition("p2", "g0", 50, "b"))
	require.NoError(t, err)
	require.Equal(t, []string{"stage", "start", "load", "warm_up", "swap", "drain", "unload", "stop"}, kinds(second))
	require.ElementsMatch(t, []string{"p1/b", "p0/"}, w.drained)
	require.Len(t, w.processes, 3)
	require.Empty(t, second.Warnings)
	require.Equal(t, uint64(2), w.table.Revision)
	require.Equal(t, 25*time.Millisecond, w.table.Models["a"].SLO)
	require.Equal(t, policy.LatePolicy_LATE_POLICY_DROP, w.table.Models["a"].Late)

	// Nothing places b any more: it is refused, not unknown.
	_, err = to(a, 3, r, partition("p1", "g1", 100, "a", "c"))
	require.NoError(t, err)
	require.NotNil(t, w.table.Models["b"])
	require.Empty(t, w.table.Models["b"].Places)
	require.Len(t, w.processes, 1)
}

// A server asked for an ensemble loads what that calls, and finds no files where they are not staged yet.
func TestWhatAnEnsembleCallsIsLoadedFirst(t *testing.T) {
	w, a := setUp(t)
	w.calls = map[string][]string{"a_outer": {"b_inner", "d"}, "b_inner": {"c", "d"}}
	w.loadsFor = map[string]time.Duration{"b_inner": 10 * time.Millisecond, "c": 20 * time.Millisecond, "d": 10 * time.Millisecond}
	models := []string{"a_outer", "b_inner", "c", "d", "e"}
	first := w.revision("r1", map[string]int{"e": 8, "d": 8, "c": 8, "b_inner": 8, "a_outer": 8})
	_, err := to(a, 1, first, partition("p0", "g0", 100, "e"))
	require.NoError(t, err)
	_, err = to(a, 2, first, partition("p0", "g0", 100, models...), partition("p1", "g1", 100, models...))
	require.NoError(t, err)
	_, err = to(a, 3, w.revision("r2", map[string]int{"e": 8, "d": 4, "c": 4, "b_inner": 4, "a_outer": 4}), partition("p0", "g0", 100, models...), partition("p1", "g1", 100, models...))
	require.NoError(t, err)
	var reloads []string
	for _, op := range w.ops {
		if name, ok := strings.CutPrefix(op, "load "); ok && strings.HasSuffix(name, " on p0") {
			reloads = append(reloads, strings.TrimSuffix(name, " on p0"))
		}
	}
	reloads = reloads[len(reloads)-4:]
	require.ElementsMatch(t, []string{"c", "d"}, reloads[:2])
	require.Equal(t, []string{"b_inner", "a_outer"}, reloads[2:])
}

// Ensembles that call each other are written by mistake: a server refuses them, and nothing may run for ever on the way there.
func TestEnsemblesThatCallEachOtherAreLeftToTheServer(t *testing.T) {
	w, a := setUp(t)
	w.calls = map[string][]string{"a": {"b", "a"}, "b": {"a", "a"}}
	r := w.revision("r1", map[string]int{"a": 8, "b": 8})
	w.calls = nil
	_, err := to(a, 1, r, partition("p0", "g0", 100, "a", "b"))
	require.NoError(t, err)
}

func TestChangedFilesAreLoadedAgainBetweenSafeTables(t *testing.T) {
	w, a := setUp(t)
	_, err := to(a, 1, w.revision("r1", map[string]int{"a": 16, "b": 4}), partition("p0", "g0", 100, "a", "b"))
	require.NoError(t, err)
	result, err := to(a, 2, w.revision("r2", map[string]int{"a": 8, "b": 4}), partition("p0", "g0", 100, "a", "b"))
	require.NoError(t, err)
	require.Equal(t, []string{"narrow", "reload", "swap"}, kinds(result))
	require.Equal(t, 1, w.started, "in the process that runs")
	require.Contains(t, w.state(), "a:a-8")

	// Growing needs no care: the old limit holds until the swap.
	result, err = to(a, 3, w.revision("r3", map[string]int{"a": 32, "b": 4}), partition("p0", "g0", 100, "a", "b"))
	require.NoError(t, err)
	require.Equal(t, "not needed", result.Steps[0].Text)

	// A caller who forgot to say that files changed is not believed.
	r := w.revision("r4", map[string]int{"a": 32, "b": 7})
	p := &policy.Plan{SnapshotRevision: 4, Partitions: []*policy.Partition{partition("p0", "g0", 100, "a", "b")}}
	_, err = a.Apply(t.Context(), apply.Target{Snapshot: snapshot(4, r), Plan: p, Revision: r}, plan.Compute(a.Current().Plan, p))
	require.NoError(t, err)
	require.Contains(t, w.state(), "b:b-7")
}

func TestAReloadThatFailsIsTakenBack(t *testing.T) {
	w, a := setUp(t)
	_, err := to(a, 1, w.revision("r1", map[string]int{"a": 16}), partition("p0", "g0", 100, "a"))
	require.NoError(t, err)
	before := w.state()
	next := w.revision("r2", map[string]int{"a": 8})
	for failAt, step := range map[int]string{1: "narrow", 2: "reload a on p0", 3: "reload a on p0", 4: "swap"} {
		w.ops, w.failAt = nil, failAt
		result, err := to(a, 2, next, partition("p0", "g0", 100, "a"))
		require.ErrorContains(t, err, "step \""+step+"\" failed")
		require.ErrorIs(t, err, errInjected)
		require.Empty(t, result.Warnings)
		require.Equal(t, before, w.state(), "%s, operations %v", step, w.ops)
	}
}

func TestWhatCannotBeServedIsRefusedBeforeAnythingStarts(t *testing.T) {
	w, a := setUp(t)
	r := w.revision("r1", map[string]int{"a": 8, "broken": 8})
	r.Model("broken").Problems = []repo.Problem{{Severity: repo.SeverityError, File: "broken/1", Text: "model.py is missing"}}
	for _, c := range []struct {
		p    *policy.Partition
		want error
	}{{partition("p0", "g0", 100, "unknown"), repo.ErrNoModel}, {partition("p0", "g0", 100, "broken"), repo.ErrInvalidModel}} {
		_, err := to(a, 1, r, c.p)
		require.ErrorIs(t, err, c.want)
	}
	_, err := to(a, 1, r, partition("p0", "g9", 100, "a"))
	require.ErrorContains(t, err, "g9")
	require.Empty(t, w.ops)

	_, err = to(a, 1, r, partition("p0", "g0", 100, "a"))
	require.NoError(t, err)
	p := &policy.Plan{SnapshotRevision: 3}
	_, err = a.Apply(t.Context(), apply.Target{Snapshot: snapshot(3, r), Plan: p, Revision: r}, plan.Compute(nil, p))
	require.ErrorIs(t, err, apply.ErrStale)
}

func TestAServerThatComesBackElsewhereIsFollowed(t *testing.T) {
	w, a := setUp(t)
	r := w.revision("r1", map[string]int{"a": 8, "b": 8})
	_, err := to(a, 1, r, partition("p0", "g0", 100, "a", "b"), partition("p1", "g1", 100, "a"))
	require.NoError(t, err)
	index := slices.IndexFunc(w.table.Partitions, func(p *router.Partition) bool { return p.ID == "p0" })
	process := w.processes[w.table.Partitions[index].Endpoint.GRPC]
	process.spec.Notify(driver.Event{Partition: "p0", Reason: "killed", Endpoint: process.endpoint})
	require.False(t, w.states["p0"])
	require.False(t, a.Partitions()[0].Up)
	require.Equal(t, "killed", a.Partitions()[0].Reason)

	delete(w.processes, process.endpoint.GRPC)
	delete(process.models, "b")
	process.endpoint = driver.Endpoint{GRPC: "host:new"}
	w.processes["host:new"] = process
	process.spec.Notify(driver.Event{Partition: "p0", Up: true, Restarts: 1, Endpoint: process.endpoint, Missing: []string{"b"}})
	require.True(t, w.states["p0"])
	require.Equal(t, "host:new", w.table.Partitions[index].Endpoint.GRPC)
	require.Len(t, w.table.Models["a"].Places, 2)
	require.Empty(t, w.table.Models["b"].Places, "what did not load again gets no requests")
	require.Equal(t, []string{"a"}, a.Partitions()[0].Models)
	require.Equal(t, []string{"b"}, a.Partitions()[0].Missing)
	require.Len(t, w.events, 2)
	require.NoError(t, a.Restart("p1", "a stub died"))
	require.Equal(t, "a stub died", a.Partitions()[1].Reason)
	require.ErrorContains(t, a.Restart("p9", ""), "p9")
}

func TestAnApplyIsGivenUpWhenItsCallerIs(t *testing.T) {
	w, a := setUp(t)
	r := w.revision("r1", map[string]int{"a": 8})
	p := &policy.Plan{SnapshotRevision: 1, Partitions: []*policy.Partition{partition("p0", "g0", 100, "a")}}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("changed my mind"))
	_, err := a.Apply(ctx, apply.Target{Snapshot: snapshot(1, r), Plan: p, Revision: r}, plan.Compute(nil, p))
	require.ErrorContains(t, err, "changed my mind")
	require.Nil(t, a.Current())
	require.Empty(t, w.processes)
}

func TestACrashIsResumedFromTheJournal(t *testing.T) {
	dir := t.TempDir()
	w := newWorld(t)
	db := openDB(t, dir)
	a := w.applier(dir, db)
	resumed, err := a.Resume(t.Context())
	require.NoError(t, err)
	require.Nil(t, resumed.Target)
	require.Nil(t, resumed.Interrupted)
	r1 := w.revision("r1", map[string]int{"a": 8})
	_, err = to(a, 1, r1, partition("p0", "g0", 100, "a"))
	require.NoError(t, err)

	// The second apply stops dead in a start, as in a crash: nothing after it runs
	// before all is over, not even the undo.
	stuck := &stuckDriver{world: w, reached: make(chan struct{}), release: make(chan struct{})}
	b, err := apply.New(apply.Options{Dir: filepath.Join(dir, "partitions"), DB: db, Driver: stuck, Repository: w, Router: w, WarmUp: w.warmUp})
	require.NoError(t, err)
	ended := make(chan error)
	go func() {
		_, err := to(b, 1, r1, partition("p1", "g1", 100, "a"))
		ended <- err
	}()
	<-stuck.reached
	left, err := os.ReadDir(filepath.Join(dir, "partitions"))
	require.NoError(t, err)
	require.Len(t, left, 2, "what served, and what the crash left")

	again := newWorld(t)
	again.revisions = w.revisions
	c := again.applier(dir, db)
	resumed, err = c.Resume(t.Context())
	require.NoError(t, err)
	require.Equal(t, "plan 1", resumed.Target.Reason)
	require.Equal(t, "p0", resumed.Target.Plan.GetPartitions()[0].GetId())
	require.Equal(t, "r1", resumed.Target.Revision.ID)
	require.Equal(t, "start p1", resumed.Interrupted.Last)
	left, err = os.ReadDir(filepath.Join(dir, "partitions"))
	require.NoError(t, err)
	require.Empty(t, left)

	_, err = c.Apply(t.Context(), *resumed.Target, plan.Compute(nil, resumed.Target.Plan))
	require.NoError(t, err)
	require.Len(t, again.processes, 1)
	close(stuck.release)
	require.ErrorIs(t, <-ended, errInjected)
	require.NoError(t, db.Close())
}

// stuckDriver does not come out of a start until it is released.
type stuckDriver struct {
	*world
	reached, release chan struct{}
}

func (d *stuckDriver) Start(context.Context, driver.Spec) (driver.Process, error) {
	close(d.reached)
	<-d.release
	return nil, errInjected
}

// Whatever fails, wherever: either all of the new state serves, or all of the
// old one does, and nothing else is left. The world itself fails the test when
// a table names what is not served, or when what a table names is taken away.
func TestAFailureAtAnyStepLeavesTheOldStateServing(t *testing.T) {
	t.Parallel()
	models := []string{"a", "b", "c", "d"}
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "conch-apply")
		if err != nil {
			t.Fatalf("%v", err)
		}
		defer os.RemoveAll(dir)
		w := newWorld(t)
		db := openDB(t, dir)
		defer db.Close() //nolint:errcheck // of a test
		a := w.applier(dir, db)
		steps := rapid.IntRange(1, 8).Draw(t, "applies")
		number := uint64(0)
		versions := map[string]int{"a": 1, "b": 1, "c": 1, "d": 1}
		last := map[string]*policy.Partition{}
		for range steps {
			number++
			if rapid.Bool().Draw(t, "files change") {
				versions[rapid.SampledFrom(models).Draw(t, "model")] = rapid.IntRange(1, 3).Draw(t, "version")
			}
			r := w.revision(fmt.Sprintf("r%d", number), versions)
			var partitions []*policy.Partition
			for _, id := range []string{"p0", "p1", "p2", "p3"} {
				if !rapid.Bool().Draw(t, "has "+id) {
					continue
				}
				gpu := rapid.SampledFrom([]string{"g0", "g1", "g2"}).Draw(t, "gpu")
				share := rapid.SampledFrom([]uint32{20, 50}).Draw(t, "share")
				if was := last[id]; was != nil && rapid.Bool().Draw(t, "keeps its process") {
					gpu, share = was.GPU(), was.GetThreadPercentage()
				}
				placed := rapid.SliceOfNDistinct(rapid.SampledFrom(models), 0, 3, rapid.ID[string]).Draw(t, "models")
				slices.Sort(placed)
				last[id] = partition(id, gpu, share, placed...)
				partitions = append(partitions, last[id])
			}
			before := w.state()
			w.ops, w.failAt = nil, rapid.IntRange(0, 20).Draw(t, "fails at")
			result, err := to(a, number, r, partitions...)
			failed := w.failAt > 0 && w.failAt <= len(w.ops)
			w.failAt = 0
			var step *apply.StepError
			switch {
			case err == nil && failed && len(result.Warnings) == 0:
				t.Fatalf("operation %q failed and nobody said so", w.ops)
			case err == nil:
				check(t, w, r, partitions)
			case !errors.As(err, &step) || !errors.Is(err, errInjected):
				t.Fatalf("unexpected error: %v", err)
			case w.state() != before:
				t.Fatalf("after %v:\n%s\nbefore:\n%s", err, w.state(), before)
			}
			if len(w.staged) != len(w.processes) {
				t.Fatalf("%d directories for %d processes", len(w.staged), len(w.processes))
			}
			left, err := os.ReadDir(filepath.Join(dir, "partitions"))
			if err == nil && len(left) != len(w.processes) {
				t.Fatalf("%d directories on disk for %d processes", len(left), len(w.processes))
			}
		}
		w.table = nil
		if err := a.Close(context.Background()); err != nil || len(w.processes) > 0 {
			t.Fatalf("close: %v, %d processes left", err, len(w.processes))
		}
	})
}

// check compares the world with the plan that was applied.
func check(t *rapid.T, w *world, r *repo.Revision, partitions []*policy.Partition) {
	if len(w.processes) != len(partitions) || len(w.table.Partitions) != len(partitions) {
		t.Fatalf("%d processes for %d partitions, %d in the table", len(w.processes), len(partitions), len(w.table.Partitions))
	}
	for i, p := range partitions {
		process := w.processes[w.table.Partitions[i].Endpoint.GRPC]
		want := map[string]string{}
		for _, in := range p.GetInstances() {
			want[in.GetModel()] = r.Model(in.GetModel()).Digest
		}
		if fmt.Sprint(process.models) != fmt.Sprint(want) {
			t.Fatalf("partition %s holds %v, want %v", p.GetId(), process.models, want)
		}
		if process.spec.Partition.GetThreadPercentage() != p.GetThreadPercentage() || process.spec.GPU.GetId() != p.GPU() {
			t.Fatalf("partition %s runs with another share or GPU", p.GetId())
		}
	}
	for _, m := range w.table.Models {
		if m.MaxBatch != 0 || !m.Batchable || m.Config.GetMaxBatchSize() != r.Model(m.Name).Config.GetMaxBatchSize() {
			t.Fatalf("%s is still narrowed, or has another configuration", m.Name)
		}
	}
}

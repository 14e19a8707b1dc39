// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/apply/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inTime runs a test in virtual time, with a world and a conch in it.
func inTime(t *testing.T, test func(t *testing.T, w *world, r *apply.Reconciler)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.reconciler()
		test(t, w, r)
		require.NoError(t, r.Close(context.Background(), true))
	})
}

// set sets a state and waits until it is reached.
func set(t *testing.T, r *apply.Reconciler, d apply.Desired) error {
	t.Helper()
	generation, err := r.Set(t.Context(), d, 0)
	require.NoError(t, err)
	return r.Settle(t.Context(), generation)
}

// after lets time pass, and what happens in it.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// condition of a partition and model.
func condition(r *apply.Reconciler, partition, model string) decide.ConditionKind {
	for _, c := range r.Observed().Conditions {
		if c.Partition == partition && c.Model == model {
			return c.Kind
		}
	}
	return ""
}

func TestFromNothing(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8, "b": 8})
		require.NoError(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a", "b"), partition("q", "g1", 50, "b"))))
		require.Equal(t, []string{"p [a b]", "q [b]"}, w.loaded())
		require.Equal(t, []string{"p"}, w.routes("a"))
		require.Equal(t, []string{"p", "q"}, w.routes("b"))
		o := r.Observed()
		require.True(t, o.Settled)
		require.Empty(t, o.Conditions)
		require.Equal(t, uint64(1), o.Generation)
		require.Len(t, o.Partitions, 2)
		require.Equal(t, []string{"a", "b"}, o.Partitions[0].Models)
		require.True(t, o.Partitions[0].Up)
		// The first of each GPU type and share are measured.
		slices.Sort(w.measured)
		require.Equal(t, []string{"a A 50", "b A 50"}, slices.Compact(w.measured), "b twice where its two places were ready at the same time")
	})
}

func TestAPlanMovesModels(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8, "b": 8})
		require.NoError(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a", "b"))))
		w.did()
		generation, err := r.Set(t.Context(), desired(2, files, partition("p", "g0", 50, "b"), partition("q", "g1", 50, "a")), 1)
		require.NoError(t, err)
		for range 50 { // at every moment both are served
			after(10 * time.Millisecond)
			require.True(t, w.serves("a") && w.serves("b"))
		}
		require.NoError(t, r.Settle(t.Context(), generation))
		require.Equal(t, []string{"start q", "load a on q", "unload a on p"}, w.did())
		require.Equal(t, []string{"q"}, w.routes("a"))
	})
}

// A partition with another share is another process, which starts beside the old
// one under the same name.
func TestAPartitionIsResized(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8, "b": 8})
		require.NoError(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a", "b"))))
		w.did()
		w.loadsFor["b"] = time.Second
		_, err := r.Set(t.Context(), desired(2, files, partition("p", "g0", 100, "a", "b")), 0)
		require.NoError(t, err)
		after(500 * time.Millisecond)
		require.Equal(t, []string{"p"}, w.routes("a"), "the new server has it")
		require.Equal(t, []string{"p (old 1)"}, w.routes("b"), "the new server loads it")
		require.True(t, w.serves("a") && w.serves("b"))
		after(2 * time.Second)
		require.Equal(t, []string{"p"}, w.routes("b"))
		require.Equal(t, []string{"p [a b]"}, w.loaded())
		require.Equal(t, "stop p", w.did()[3])
	})
}

// A load of five minutes that is no longer desired is not waited for.
func TestANewPlanSupersedesAnOldOne(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"slow": 8, "a": 8})
		w.loadsFor["slow"] = 5 * time.Minute
		first, err := r.Set(t.Context(), desired(1, files, partition("p", "g0", 50, "slow")), 0)
		require.NoError(t, err)
		waited := make(chan error, 1)
		go func() { waited <- r.Settle(t.Context(), first) }()
		after(10 * time.Second)
		require.Equal(t, decide.IsLoading, condition(r, "p", "slow"))

		began := time.Now()
		require.NoError(t, set(t, r, desired(2, files, partition("p", "g0", 50, "a"))))
		require.Less(t, time.Since(began), time.Second)
		require.ErrorIs(t, <-waited, apply.ErrSuperseded)
		require.Equal(t, []string{"a"}, r.Observed().Partitions[0].Models)
	})
}

func TestAGenerationThatWasNotSeenIsNotReplaced(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8})
		require.NoError(t, set(t, r, desired(1, files)))
		require.NoError(t, set(t, r, desired(2, files)))
		_, err := r.Set(t.Context(), desired(3, files), 1)
		require.ErrorIs(t, err, apply.ErrConflict)
	})
}

func TestWhatCannotBeServedIsRefused(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8})
		_, err := r.Set(t.Context(), desired(1, files, partition("p", "nowhere", 50, "a")), 0)
		require.ErrorIs(t, err, apply.ErrUnsupported)
		_, err = r.Set(t.Context(), desired(1, files, partition("p", "g0", 50, "unknown")), 0)
		require.ErrorIs(t, err, repo.ErrNoModel)
		require.Empty(t, w.did())
	})
}

// The disk is full: nothing changes, and what serves serves on.
func TestWhatCannotBeWrittenDownIsNotDone(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8, "b": 8})
		require.NoError(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a"))))
		w.did()
		w.saveErr = errors.New("no space left on device")
		_, err := r.Set(t.Context(), desired(2, files, partition("p", "g0", 50, "b")), 0)
		require.ErrorContains(t, err, "no space left on device")
		after(time.Minute)
		require.Empty(t, w.did())
		require.Equal(t, uint64(1), r.Desired().Generation)

		// Or it is full where files are staged: the instance fails, and is tried again.
		w.saveErr, w.stageErr = nil, errors.New("no space left on device")
		require.ErrorContains(t, set(t, r, desired(2, files, partition("p", "g0", 50, "a", "b"))), "no space left on device")
		require.True(t, w.serves("a"))
		w.mu.Lock()
		w.stageErr = nil
		w.mu.Unlock()
		after(time.Minute)
		require.True(t, w.serves("b"))
	})
}

// One model that does not load is a condition; the 200 beside it serve.
func TestOneModelThatDoesNotLoad(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		versions := map[string]int{"bad": 8}
		names := []string{"bad"}
		for i := range 200 {
			name := "m" + string(rune('a'+i/26)) + string(rune('a'+i%26))
			versions[name], names = 8, append(names, name)
			w.loadsFor[name] = 200 * time.Millisecond
		}
		files := w.revision("r1", versions)
		w.loadErr["bad"] = errors.New("unreadable")
		began := time.Now()
		err := set(t, r, desired(1, files, partition("p", "g0", 100, names...)))
		var refused *driver.LoadError
		require.ErrorAs(t, err, &refused)
		require.Equal(t, "bad", refused.Model)
		require.Less(t, time.Since(began), 200*200*time.Millisecond/3+20*time.Second)
		for _, name := range names[1:] {
			require.True(t, w.serves(name), name)
		}
		require.Nil(t, w.routes("bad"), "it is refused as Triton refuses what it could not load")
		require.Equal(t, decide.IsFailing, condition(r, "p", "bad"))

		// Its files are mended: it is loaded at once, whatever the back-off says.
		after(10 * time.Minute)
		w.did()
		versions["bad"] = 4
		w.mu.Lock()
		delete(w.loadErr, "bad")
		w.mu.Unlock()
		began = time.Now()
		require.NoError(t, set(t, r, desired(2, w.revision("r2", versions), partition("p", "g0", 100, names...))))
		require.Less(t, time.Since(began), time.Second)
		require.Equal(t, []string{"load bad on p"}, w.did())
	})
}

// What fails is tried again less and less often, and at once on an order.
func TestBackoff(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"bad": 8})
		w.loadErr["bad"] = errors.New("unreadable")
		require.Error(t, set(t, r, desired(1, files, partition("p", "g0", 50, "bad"))))
		w.did()
		after(10 * time.Minute)
		tries := len(w.did())
		require.Greater(t, tries, 10)
		require.Less(t, tries, 18)
		w.mu.Lock()
		delete(w.loadErr, "bad")
		w.mu.Unlock()
		r.Retry("bad")
		after(10 * time.Millisecond)
		require.True(t, w.serves("bad"))
	})
}

func TestChangedFilesAreCanaried(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8})
		parts := func() []string { return []string{"p", "q", "r"} }
		place := func(d uint64, f *repo.Revision) apply.Desired {
			return desired(d, f, partition("p", "g0", 50, "a"), partition("q", "g1", 50, "a"), partition("r", "g2", 50, "a"))
		}
		require.NoError(t, set(t, r, place(1, files)))
		w.did()
		w.loadsFor["a"] = 100 * time.Millisecond
		generation, err := r.Set(t.Context(), place(2, w.revision("r2", map[string]int{"a": 4})), 0)
		require.NoError(t, err)
		after(50 * time.Millisecond)
		require.Len(t, w.did(), 1, "one goes first")
		require.Equal(t, 4, w.table.Models["a"].MaxBatch, "batches suit old and new files")
		require.Equal(t, int32(8), w.table.Models["a"].Config.GetMaxBatchSize())
		require.Equal(t, parts(), w.routes("a"), "all serve meanwhile")
		require.NoError(t, r.Settle(t.Context(), generation))
		require.Len(t, w.did(), 2)
		require.Equal(t, int32(4), w.table.Models["a"].Config.GetMaxBatchSize())
		require.Zero(t, w.table.Models["a"].MaxBatch)

		// New files that do not load stop at the canary.
		w.mu.Lock()
		w.loadErr["a"] = errors.New("broken")
		w.mu.Unlock()
		require.Error(t, set(t, r, place(3, w.revision("r3", map[string]int{"a": 2}))))
		after(time.Minute)
		for _, done := range w.did() {
			require.Equal(t, "load a on r", done)
		}
		require.Equal(t, parts(), w.routes("a"))
		require.Equal(t, int32(4), w.table.Models["a"].Config.GetMaxBatchSize())

		// And so do those that load and do not answer.
		w.mu.Lock()
		delete(w.loadErr, "a")
		w.warmErr["a"] = status.Error(codes.Internal, "raised")
		w.mu.Unlock()
		require.Error(t, set(t, r, place(4, w.revision("r4", map[string]int{"a": 3}))))
		after(time.Minute)
		require.Equal(t, []string{"load a on r"}, w.did())
	})
}

// The end of an old server waits for the last request on it.
func TestTeardownWaitsForTheLastLease(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8})
		require.NoError(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a"))))
		lease := make(chan struct{})
		w.leases[w.at("p").at] = lease
		require.NoError(t, set(t, r, desired(2, files, partition("q", "g1", 50, "a"))))
		w.did()
		after(20 * time.Second)
		require.Empty(t, w.did())
		require.Equal(t, decide.IsStopping, condition(r, "p", ""))
		w.mu.Lock()
		clear(w.leases)
		w.mu.Unlock()
		close(lease)
		after(time.Second)
		require.Equal(t, []string{"stop p"}, w.did())
	})
}

// Without a route table in force nothing is taken down.
func TestARouteTableThatIsRefused(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8})
		require.NoError(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a"))))
		w.did()
		w.mu.Lock()
		w.swapErr = errors.New("refused")
		w.mu.Unlock()
		_, err := r.Set(t.Context(), desired(2, files, partition("q", "g1", 50, "a")), 0)
		require.NoError(t, err)
		after(time.Minute)
		require.NotContains(t, w.did(), "stop p")
		w.mu.Lock()
		w.swapErr = nil
		w.mu.Unlock()
		after(10 * time.Second)
		require.Equal(t, []string{"q [a]"}, w.loaded())
	})
}

// The GPU holds one server: the old one goes first, and requests wait.
func TestBreakBeforeMake(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8})
		old, next := partition("p", "g0", 50, "a"), partition("p", "g0", 100, "a")
		old.MemoryLimitBytes, next.MemoryLimitBytes = 60, 60
		require.NoError(t, set(t, r, desired(1, files, old)))
		w.did()
		d := desired(2, files, next)
		require.Equal(t, []string{"p"}, r.BreakFirst(desired(1, files, old).Plan, d.Plan, d.Snapshot), "it is said beforehand")
		_, err := r.Set(t.Context(), d, 0)
		require.NoError(t, err)
		after(50 * time.Millisecond)
		require.Equal(t, []string{"p (to come)"}, w.routes("a"))
		after(10 * time.Second)
		require.Equal(t, []string{"stop p", "start p", "load a on p"}, w.did())
		require.True(t, w.serves("a"))
	})
}

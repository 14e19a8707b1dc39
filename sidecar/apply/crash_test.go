// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply"
)

// another ends a conch as a crash does, as far as its servers can tell, and
// starts the next one.
func another(t *testing.T, w *world, r *apply.Reconciler, dir string) *apply.Reconciler {
	t.Helper()
	require.NoError(t, r.Close(context.Background(), true))
	return w.reconciler(func(o *apply.Options) { o.Dir = dir })
}

// A new conch serves what the last one left, without starting or loading
// anything, and goes on with what was under way.
func TestAnotherConchGoesOn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, dir := newWorld(t), t.TempDir()
		r := w.reconciler(func(o *apply.Options) { o.Dir = dir })
		files := w.revision("r1", map[string]int{"a": 8, "b": 8})
		require.NoError(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a"), partition("q", "g1", 50, "b"))))
		w.did()
		began := time.Now()
		var took []apply.TakeOver
		require.NoError(t, r.Close(context.Background(), true))
		r = w.reconciler(func(o *apply.Options) { o.Dir, o.OnTakeOver = dir, func(t apply.TakeOver) { took = append(took, t) } })
		require.Equal(t, []apply.TakeOver{{Kept: []string{"p", "q"}}}, took)
		require.Equal(t, uint64(1), r.Desired().Generation)
		require.Equal(t, "plan 1", r.Desired().Reason)
		require.NoError(t, r.Settle(t.Context(), 1))
		require.Less(t, time.Since(began), 100*time.Millisecond)
		require.Empty(t, w.did())
		require.True(t, w.serves("a") && w.serves("b"))

		// In the middle of a change: q's model moves to p, whose files change as well.
		w.loadsFor["b"] = 10 * time.Second
		_, err := r.Set(t.Context(), desired(2, w.revision("r2", map[string]int{"a": 4, "b": 8}), partition("p", "g0", 50, "a", "b")), 0)
		require.NoError(t, err)
		after(time.Second)
		r = another(t, w, r, dir)
		require.NoError(t, r.Settle(t.Context(), 2))
		after(time.Second)
		require.Equal(t, []string{"p [a b]"}, w.loaded())
		require.Equal(t, int32(4), w.table.Models["a"].Config.GetMaxBatchSize())

		// The desired state has files that are gone: servers stay as they are until
		// another state is desired.
		delete(w.revisions, "r2")
		require.NoError(t, r.Close(context.Background(), true))
		took = nil
		next, err := apply.New(apply.Options{Dir: dir, Store: w, Driver: w, Repository: w, Router: w, WarmUp: w.warmUp, OnTakeOver: func(t apply.TakeOver) { took = append(took, t) }})
		require.NoError(t, err)
		_, err = next.Start(t.Context())
		require.ErrorIs(t, err, repo.ErrNoRevision)
		require.Equal(t, []apply.TakeOver{{Unwanted: []string{"p"}}}, took)
		after(time.Minute)
		require.Equal(t, []string{"p [a b]"}, w.loaded())
		require.NoError(t, set(t, next, desired(3, files, partition("p", "g0", 50, "a"))))
		require.Equal(t, uint64(3), next.Desired().Generation)
		w.table = nil
		require.NoError(t, next.Close(context.Background(), false))
		require.Empty(t, w.loaded(), "a stop ends the servers")
	})
}

// TestCrashes is a soak in virtual time: conch dies at random times while random
// plans come and servers, loads and disks fail, while requests come for every model.
// No request is refused that a plan has a place for. In the end the servers have
// what was desired last, and nothing else; what need not have been
// restarted was not. A seed is run again with -run TestCrashes/SEED$.
func TestCrashes(t *testing.T) {
	seeds := 200
	if testing.Short() {
		seeds = 40
	}
	for seed := range seeds {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { crashes(t, rand.New(rand.NewPCG(uint64(seed), 1))) })
		})
	}
}

func crashes(t *testing.T, random *rand.Rand) {
	w, dir := newWorld(t), t.TempDir()
	r := w.reconciler(func(o *apply.Options) { o.Dir = dir })
	names := []string{"a", "b", "c", "d"}
	var last apply.Desired
	// kept are models that the last plans had without a break. Those of which a load
	// was made to fail may be refused.
	kept, asked := map[string]bool{}, 0
	load := func(d time.Duration) {
		const every = 50 * time.Millisecond
		for ; d > 0; d -= every {
			after(min(d, every))
			for m := range kept {
				asked++
				require.NotEmpty(t, w.routes(m), "a request for %s is refused", m)
			}
		}
	}
	for step := range 30 {
		for _, m := range names {
			w.mu.Lock()
			w.loadsFor[m] = time.Duration(random.IntN(3000)) * time.Millisecond
			w.mu.Unlock()
		}
		switch random.IntN(6) {
		case 0, 1:
			versions := map[string]int{}
			for _, m := range names {
				versions[m] = 1 + random.IntN(3)
			}
			var parts []*policy.Partition
			for i, id := range []string{"p", "q", "r"} {
				var models []string
				for _, m := range names {
					if random.IntN(2) == 0 {
						models = append(models, m)
					}
				}
				if random.IntN(4) > 0 {
					parts = append(parts, partition(id, fmt.Sprintf("g%d", i), uint32(50+50*random.IntN(2)), models...))
				}
			}
			d := desired(uint64(step+1), w.revision(fmt.Sprintf("r%d", step), versions), parts...)
			w.mu.Lock()
			w.saveErr = nil
			if random.IntN(10) == 0 {
				w.saveErr = errors.New("no space left on device")
			}
			w.mu.Unlock()
			if _, err := r.Set(t.Context(), d, 0); err == nil {
				last = d
				has := map[string]bool{}
				for _, p := range parts {
					for _, in := range p.GetInstances() {
						has[in.GetModel()] = in.GetModel() != "d"
					}
				}
				maps.DeleteFunc(kept, func(m string, _ bool) bool { return !has[m] })
				after(time.Millisecond) // the table follows
				for m, safe := range has {
					if safe {
						kept[m] = true
					}
				}
			}
		case 2:
			r = another(t, w, r, dir)
		case 3:
			w.mu.Lock()
			for _, s := range w.servers {
				s.die("SIGKILL")
				break
			}
			w.mu.Unlock()
		case 4:
			w.mu.Lock()
			for _, s := range w.servers {
				delete(s.models, names[random.IntN(len(names))])
			}
			w.mu.Unlock()
		case 5:
			w.mu.Lock()
			w.loadErr["d"] = nil
			if random.IntN(2) == 0 {
				w.loadErr["d"] = errors.New("broken")
			}
			w.mu.Unlock()
		}
		load(time.Duration(random.IntN(4000)) * time.Millisecond)
	}
	require.True(t, last.Plan == nil || asked > 0)
	w.mu.Lock()
	clear(w.loadErr)
	w.mu.Unlock()
	if last.Plan == nil {
		w.table = nil
		require.NoError(t, r.Close(context.Background(), false))
		return
	}
	after(5 * time.Minute)
	want := []string{}
	for _, p := range last.Plan.GetPartitions() {
		models := []string{}
		for _, in := range p.GetInstances() {
			models = append(models, in.GetModel())
			require.True(t, w.serves(in.GetModel()))
			require.Equal(t, last.Revision.Model(in.GetModel()).StagedRevision(), w.at(p.GetId()).models[in.GetModel()])
		}
		want = append(want, fmt.Sprintf("%s %v", p.GetId(), models))
		require.Equal(t, p.GetThreadPercentage(), w.at(p.GetId()).spec.Partition.GetThreadPercentage())
	}
	slices.Sort(want)
	require.Equal(t, want, w.loaded())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, len(want), "directories of servers that are gone are gone")
	o := r.Observed()
	require.True(t, o.Settled)
	require.Empty(t, o.Conditions)

	// Nothing is to be done, and a crash changes nothing of that.
	w.did()
	r = another(t, w, r, dir)
	after(time.Minute)
	require.Empty(t, w.did())
	w.table = nil
	require.NoError(t, r.Close(context.Background(), false))
	require.Empty(t, w.loaded())
	entries, err = os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

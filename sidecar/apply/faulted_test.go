// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// A merge group whose executions fail gives way to its members, and comes back with a growing delay; where it has served for longer than
// it was out, the delay begins anew.
func TestAGroupWhoseExecutionsFail(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8, "b": 8, "g": 8})
		files.Models[2].Derived = &repo.Derivation{
			Recipe: "g", Members: map[string]string{"a": "a-8", "b": "b-8"}, Parts: []string{"g"}, RowInput: "whose", Rows: []repo.RowOf{{Name: "a", Version: "1"}, {Name: "b", Version: "1"}},
		}
		d := desired(1, files, partition("p", "g0", 100, "g"))
		d.Snapshot.Models = d.Snapshot.Models[:2]
		d.Plan.Recipes = []*policy.Recipe{{Name: "g", Kind: policy.RecipeKind_RECIPE_KIND_MERGE, Members: []string{"a", "b"}}}
		require.NoError(t, set(t, r, d))
		require.Equal(t, []string{"p [g]"}, w.loaded())
		failed := errors.New("out of memory")
		isOut := func(is string) bool {
			after(100 * time.Millisecond)
			return w.loaded()[0] == is
		}
		pauses := []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second}
		for _, pause := range pauses {
			r.GroupChanged(router.PlaceHealth{Partition: "p", Model: "g", Ejected: true, Cause: "out of memory"})
			r.GroupChanged(router.PlaceHealth{Partition: "p", Model: "g", Ejected: true, Cause: "out of memory"}) // a repeated report changes nothing
			r.GroupChanged(router.PlaceHealth{Partition: "p", Model: "nobody", Ejected: true, Cause: "out of memory"})
			require.True(t, isOut("p [a b]"), "its members serve: %v", w.loaded())
			require.Equal(t, decide.IsFailing, condition(r, "p", "g"))
			after(pause - time.Second)
			require.Equal(t, []string{"p [a b]"}, w.loaded(), "for %v", pause)
			after(2 * time.Second)
			require.Equal(t, []string{"p [g]"}, w.loaded())
			require.Empty(t, condition(r, "p", "g"))
		}
		// While a request holds it up on its server, it does not count as serving there.
		s, lease := w.at("p"), make(chan struct{})
		w.mu.Lock()
		w.leases[s.at] = lease
		w.mu.Unlock()
		r.GroupChanged(router.PlaceHealth{Partition: "p", Model: "g", Ejected: true, Cause: "out of memory"})
		after(time.Second)
		require.ErrorContains(t, r.Settle(t.Context(), 0, "g"), "out of memory")
		require.NotContains(t, r.Observed().Partitions[0].Models, "g")
		require.Contains(t, r.Observed().Partitions[0].Missing, "g")
		w.mu.Lock()
		delete(w.leases, s.at)
		w.mu.Unlock()
		close(lease)
		after(2 * time.Minute)
		require.Equal(t, []string{"p [g]"}, w.loaded())
		// It is tried with a request of Conch's own before clients' go there.
		r.GroupChanged(router.PlaceHealth{Partition: "p", Model: "g", Ejected: true, Cause: "out of memory"})
		w.mu.Lock()
		w.warmErr = map[string]error{"g": failed}
		w.mu.Unlock()
		after(90 * time.Second)
		require.True(t, isOut("p [a b]"), "%v", w.loaded())
		w.mu.Lock()
		w.warmErr = nil
		w.mu.Unlock()
		after(10 * time.Minute)
		require.Equal(t, []string{"p [g]"}, w.loaded())
		after(20 * time.Minute)
		r.GroupChanged(router.PlaceHealth{Partition: "p", Model: "g", Ejected: true, Cause: "out of memory"})
		after(12 * time.Second)
		require.Equal(t, []string{"p [g]"}, w.loaded(), "the first pause again")
		// What turns out to be a request's fault is taken back, and makes no later pause longer.
		after(20 * time.Minute)
		for range 3 {
			r.GroupChanged(router.PlaceHealth{Partition: "p", Model: "g", Ejected: true, Cause: "out of memory"})
			require.True(t, isOut("p [a b]"), "%v", w.loaded())
			r.GroupChanged(router.PlaceHealth{Partition: "p", Model: "a", Excused: true})
			r.GroupChanged(router.PlaceHealth{Partition: "nowhere", Model: "g", Excused: true})
			require.True(t, isOut("p [a b]"), "%v", w.loaded())
			r.GroupChanged(router.PlaceHealth{Partition: "p", Model: "g", Excused: true})
			after(time.Second)
			require.Equal(t, []string{"p [g]"}, w.loaded())
			require.Empty(t, condition(r, "p", "g"))
		}
		r.GroupChanged(router.PlaceHealth{Partition: "p", Model: "g", Ejected: true, Cause: "out of memory"})
		after(12 * time.Second)
		require.Equal(t, []string{"p [g]"}, w.loaded(), "the first pause")
	})
}

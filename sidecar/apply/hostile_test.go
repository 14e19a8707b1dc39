// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/sidecar/apply"
)

// TestASickModelHidesNoOther: a server that an earlier conch left has a model whose configuration cannot be read. The others serve.
func TestASickModelHidesNoOther(t *testing.T) {
	for _, how := range []string{"error", "silent"} {
		t.Run(how, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				w, dir := newWorld(t), t.TempDir()
				r := w.reconciler(func(o *apply.Options) { o.Dir = dir })
				files := w.revision("r1", map[string]int{"a": 8, "b": 8})
				require.NoError(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a", "b"))))
				s := w.at("p")
				w.mu.Lock()
				s.unread = map[string]string{"b": how}
				for i := range 40 {
					s.models[fmt.Sprint("foreign", i)] = "" // which somebody else loaded
					s.unread[fmt.Sprint("foreign", i)] = how
				}
				w.mu.Unlock()
				r = another(t, w, r, dir)
				after(time.Minute)
				require.True(t, w.serves("a"))
				require.Same(t, s, w.at("p"), "its server was not started anew")
				w.mu.Lock()
				s.unread = nil
				w.mu.Unlock()
				after(10 * time.Minute) // a load of it is under way, which has its time
				require.True(t, w.serves("b"))
				require.NoError(t, r.Close(t.Context(), true))
			})
		})
	}
}

// TestManyModels: the index of a server that is found names two thousand models, and each configuration takes a while.
func TestManyModels(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, dir := newWorld(t), t.TempDir()
		r := w.reconciler(func(o *apply.Options) { o.Dir = dir })
		files := w.revision("r1", map[string]int{"a": 8})
		require.NoError(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a"))))
		s := w.at("p")
		w.mu.Lock()
		s.unread = map[string]string{}
		for i := range 2000 {
			s.models[fmt.Sprint("foreign", i)] = ""
			s.unread[fmt.Sprint("foreign", i)] = "slow"
		}
		w.mu.Unlock()
		r = another(t, w, r, dir)
		after(3 * time.Minute)
		require.True(t, w.serves("a"))
		require.NoError(t, r.Close(t.Context(), true))
	})
}

// TestALongErrorIsCut: what a server says of a model is kept for as long as the model fails, and shown in many places.
func TestALongErrorIsCut(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		text := "no module named torch" + strings.Repeat(" and more", 1<<20)
		w.loadErr["a"] = errors.New(text)
		w.startErr["q"] = errors.New(text)
		require.Error(t, set(t, r, desired(1, w.revision("r1", map[string]int{"a": 8, "b": 8}), partition("p", "g0", 50, "a"), partition("q", "g1", 50, "b"))))
		require.Len(t, r.Observed().Conditions, 2)
		for _, c := range r.Observed().Conditions {
			require.Contains(t, c.Reason, "no module named torch")
			require.Less(t, len(c.Reason), 64<<10)
		}
	})
}

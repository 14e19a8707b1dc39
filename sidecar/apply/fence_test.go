// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/sidecar/apply"
)

// fence says whether servers are this conch's to change.
type fence struct{ down atomic.Bool }

var errDown = errors.New("another conch may have the servers")

func (f *fence) check() error {
	if f.down.Load() {
		return errDown
	}
	return nil
}

// slowFiles is a repository during whose staging the fence comes down.
type slowFiles struct {
	*world
	f *fence
	// falls is how often that happens from now on.
	falls atomic.Int32
}

func (s *slowFiles) Stage(ctx context.Context, revision string, models []string, dir string) error {
	if s.falls.Add(-1) >= 0 {
		s.f.down.Store(true)
	}
	return s.world.Stage(ctx, revision, models, dir)
}

// While servers may be another conch's, none is started, no model is loaded and none unloaded. Nothing counts as failed for that, and requests go on. What is desired is
// done as soon as they are this conch's again.
func TestServersMayBeAnothersForAWhile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w, f := newWorld(t), &fence{}
		files := &slowFiles{world: w, f: f}
		r := w.reconciler(func(o *apply.Options) { o.Fence, o.Repository = f.check, files })
		r1, r2 := w.revision("r1", map[string]int{"a": 8, "b": 8}), w.revision("r2", map[string]int{"a": 8, "c": 8})
		require.NoError(t, set(t, r, desired(1, r1, partition("p", "g0", 50, "a", "b"))))
		w.did()

		f.down.Store(true)
		next := desired(2, r2, partition("p", "g0", 50, "a", "c"), partition("q", "g1", 50, "c"))
		generation, err := r.Set(t.Context(), next, 0)
		require.NoError(t, err)
		after(time.Hour)
		require.Empty(t, w.did(), "nothing of the servers is changed")
		require.Equal(t, []string{"p [a b]"}, w.loaded())
		require.True(t, w.serves("a"))

		f.down.Store(false)
		files.falls.Store(1) // and comes down again while the files of a model are put where its server reads them
		after(time.Minute)
		require.NotContains(t, w.loaded(), "p [a c]")
		for _, c := range r.Observed().Conditions {
			require.Zero(t, c.Attempts, "%v", c)
		}

		f.down.Store(false)
		begin := time.Now()
		require.NoError(t, r.Settle(t.Context(), generation))
		require.Less(t, time.Since(begin), 10*time.Second)
		require.Equal(t, []string{"p [a c]", "q [c]"}, w.loaded())
		require.NoError(t, r.Close(context.Background(), true))
	})
}

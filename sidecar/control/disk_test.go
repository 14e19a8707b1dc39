// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/observe"
)

// disk is a store that may be full.
type disk struct {
	store.Store
	full atomic.Bool
}

func (d *disk) Write(changes ...store.Change) error {
	if d.full.Load() {
		return syscall.ENOSPC
	}
	return d.Store.Write(changes...)
}

// A choice that cannot be written down is not made: it would not outlive a restart.
func TestAPolicyThatCannotBeWrittenDown(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "policy: {parameters: {k: v}}")
		stop := r.start()
		defer stop()
		r.disk.full.Store(true)
		_, err := r.UsePolicy(t.Context(), api.UsePolicyRequest{Name: "other", Parameters: map[string]string{"x": "1"}})
		require.ErrorIs(t, err, syscall.ENOSPC)
		require.ErrorContains(t, err, "nothing was changed")
		require.Equal(t, "static", r.policies.ref.Name)
		require.Equal(t, map[string]string{"k": "v"}, r.policies.ref.Parameters)
		require.Equal(t, "an order could not be written down", r.lastEvent(events.PolicyChanged).Reason)

		require.ErrorIs(t, r.Reload(t.Context(), settings(t, "policy: {name: gpulet}")), syscall.ENOSPC)
		require.Equal(t, "static", r.policies.ref.Name, "the configuration before is in force")
		require.Equal(t, map[string]string{"k": "v"}, r.policies.ref.Parameters)
		r.disk.full.Store(false)
		require.NoError(t, r.Reload(t.Context(), settings(t, "policy: {name: gpulet}")))
		require.Equal(t, "gpulet", r.policies.ref.Name)
	})
}

// A client that orders again and again what no plan has a place for fills no disk, nor do models under ever new names.
func TestRevisionsOfOrdersThatFail(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "interval: 10h")
		stop := r.start()
		defer stop()
		learnt := func() []string {
			keys, err := r.disk.Keys("observe.curves")
			require.NoError(t, err)
			return keys
		}
		for i := range 200 {
			name := fmt.Sprintf("z%d", i)
			large := model(name, "d1", 1)
			large.Files = []repo.File{{Path: "1/model.py", Digest: "d", Size: 1 << 40}}
			r.repository.hold(model("a", "d1", 8), model("b", "d1", 0), large)
			require.NoError(t, r.disk.Later(store.Change{Bucket: "observe.curves", Key: name, Value: []byte("{}")}))
			require.Error(t, r.Load(t.Context(), repo.Order{Model: name}, client))
			require.LessOrEqual(t, len(r.repository.log), 102)
			require.LessOrEqual(t, len(learnt()), 102)
		}
		require.EqualValues(t, 1, r.CurrentPlan().Revision, "no plan is made anew for them, which would displace those that can be gone back to")
		require.NotContains(t, learnt(), "z0")
		require.Contains(t, learnt(), "z199")
		require.NotEmpty(t, r.CurrentPlan().PartitionsOf("a"))
	})
}

// A client that has gone before its model is loaded is no reason to say that it is.
func TestALoadWhoseClientHasGone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "interval: 10h")
		stop := r.start()
		defer stop()
		r.reconciler.slow = time.Minute
		config := "d2"
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, r.Load(ctx, repo.Order{Model: "a", Config: &config}, client), context.DeadlineExceeded)
		require.NotContains(t, r.kinds(), events.ModelLoaded)
		require.Equal(t, "d2", r.reconciler.last().Revision.Model("a").Digest, "it is desired")
	})
}

// Models that are copies of one another have estimates of their own, and so has one that was given another name.
func TestCopiesAreEstimated(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		r.holdGraph("one")
		first := r.repository.next[0]
		second := *first
		second.Name = "two"
		r.repository.hold(first, &second)
		stop := r.start()
		defer stop()
		pass(time.Minute)
		usable := func(name string) {
			t.Helper()
			s := r.policies.question(r.policies.calls() - 1)
			require.True(t, profileOf(t, s, name, "T4").GetUsable())
			require.Empty(t, r.recorder.Unusable(name, "T4"), "its requests are batched by it, too")
		}
		usable("one")
		usable("two")

		third := *first
		third.Name = "three"
		r.repository.hold(&third)
		_, err := r.Import(t.Context(), api.ImportRequest{}, nil)
		require.NoError(t, err)
		pass(time.Minute)
		usable("three")
	})
}

// What was learnt of a model that is taken away, and comes back as it was, is known at once.
func TestAModelThatComesBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		r.recorder.Calibrated("a", "T4", 100, []observe.Sample{{Rows: 1, Duration: time.Millisecond}, {Rows: 8, Duration: 2 * time.Millisecond}})
		require.Empty(t, r.recorder.Unusable("a", "T4"))
		bring := func(models ...*repo.Model) {
			r.repository.hold(models...)
			_, err := r.Import(t.Context(), api.ImportRequest{}, nil)
			require.NoError(t, err)
			pass(time.Second)
		}
		bring(model("b", "d1", 0))
		require.Empty(t, r.recorder.Profiles(), "it is forgotten")
		bring(model("a", "d2", 8), model("b", "d1", 0))
		require.NotEmpty(t, r.recorder.Unusable("a", "T4"), "another one of its name is unknown")
		bring(model("b", "d1", 0))
		bring(model("a", "d1", 8), model("b", "d1", 0))
		require.Empty(t, r.recorder.Unusable("a", "T4"))
	})
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/control/events"
)

// TestRelease: a release gives the servers back for good. A restart does not take them again, an order does.
func TestRelease(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "state.db")
		f := newFrontOn(t, "mode: control\n", path, &servers{})
		stop := f.start()
		pass(time.Second)
		require.Empty(t, f.reconciler.last().PassThrough)

		dry, err := f.Release(t.Context(), api.ReleaseRequest{DryRun: true})
		require.NoError(t, err)
		require.Equal(t, api.ReleaseResult{DryRun: true, Mode: "control", Changes: []api.Released{
			{Partition: "gpu0", Endpoint: "one:8001", Model: "a", Change: "dynamic_batching with 5ms"},
		}}, dry, "a tenth of the SLO is left for Triton's batching")
		require.Equal(t, "control", f.Version().Mode)
		require.NotContains(t, f.kinds(), events.Released)

		done, err := f.Release(t.Context(), api.ReleaseRequest{Author: "ada", Reason: "the trial is over"})
		require.NoError(t, err)
		require.Equal(t, "observe", done.Mode)
		require.Len(t, done.Changes, 1)
		require.Equal(t, "observe", f.Version().Mode)
		require.Contains(t, f.reconciler.last().PassThrough, "mode is observe")
		e := f.lastEvent(events.Released)
		require.Equal(t, "ada", e.Author)
		require.Equal(t, "the trial is over", e.Reason)

		again, err := f.Release(t.Context(), api.ReleaseRequest{})
		require.NoError(t, err)
		require.Empty(t, again.Changes)
		require.Len(t, f.messages(events.Released), 1)
		stop()

		f = newFrontOn(t, "mode: control\n", path, f.servers)
		require.Equal(t, "observe", f.Version().Mode)
		stop = f.start()
		require.Contains(t, f.reconciler.last().PassThrough, "mode is observe")
		require.Contains(t, f.lastEvent(events.Released).Message, "were released before the restart")
		would, err := f.Release(t.Context(), api.ReleaseRequest{Undo: true, DryRun: true})
		require.NoError(t, err)
		require.Equal(t, "control", would.Mode)
		require.Equal(t, "observe", f.Version().Mode)
		back, err := f.Release(t.Context(), api.ReleaseRequest{Undo: true})
		require.NoError(t, err)
		require.Equal(t, "control", back.Mode)
		pass(time.Second)
		require.Empty(t, f.reconciler.last().PassThrough)
		calls := f.servers.called()
		require.Equal(t, "take over", calls[len(calls)-1])
		again, err = f.Release(t.Context(), api.ReleaseRequest{Undo: true})
		require.NoError(t, err, "nothing is left to undo")
		require.Equal(t, "control", again.Mode)
		stop()

		f = newFrontOn(t, "mode: control\n", path, f.servers)
		require.Equal(t, "control", f.Version().Mode, "the undo is remembered too")
		f.start()()
	})
}

// TestReleaseEndsWithTheConfiguration: reading conch.yaml again restores its mode.
func TestReleaseEndsWithTheConfiguration(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFront(t, "mode: control\n")
		stop := f.start()
		defer stop()
		_, err := f.Release(t.Context(), api.ReleaseRequest{})
		require.NoError(t, err)
		require.NoError(t, f.Reload(t.Context(), attachSettings(t, "mode: control\n")))
		pass(time.Second)
		require.Equal(t, "control", f.Version().Mode)
		require.Empty(t, f.reconciler.last().PassThrough)
	})
}

// TestReleaseWhileAServerIsAway: the release takes effect although a server cannot be read, and a restart keeps it.
func TestReleaseWhileAServerIsAway(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "state.db")
		f := newFrontOn(t, "mode: control\n", path, &servers{})
		stop := f.start()
		f.servers.failReading(errBoom)
		_, err := f.Release(t.Context(), api.ReleaseRequest{})
		require.ErrorIs(t, err, errBoom)
		require.Equal(t, "observe", f.Version().Mode)
		require.Empty(t, f.reconciler.last().PassThrough)
		f.servers.failReading(nil)
		pass(2 * time.Second)
		require.Contains(t, f.reconciler.last().PassThrough, "mode is observe", "nobody had to ask again")
		stop()
		f = newFrontOn(t, "mode: control\n", path, f.servers)
		require.Equal(t, "observe", f.Version().Mode)
		f.start()()
	})
}

// TestReleaseThatFails: it does not change the mode, and reports the error of each model.
func TestReleaseThatFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newFront(t, "mode: control\n")
		stop := f.start()
		defer stop()
		f.servers.trouble, f.servers.handErr = errors.New("read-only"), errBoom
		r, err := f.Release(t.Context(), api.ReleaseRequest{})
		require.ErrorIs(t, err, errBoom)
		require.Equal(t, "read-only", r.Changes[0].Error)
		require.Equal(t, "control", f.Version().Mode)
		require.Empty(t, f.reconciler.last().PassThrough)
	})
}

// TestReleaseOfOwnServers: the order is refused, because conch's own servers end with it.
func TestReleaseOfOwnServers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		require.False(t, r.Given())
		_, err := r.Release(t.Context(), api.ReleaseRequest{})
		require.ErrorIs(t, err, control.ErrRefused)
		require.ErrorContains(t, err, "driver embedded starts servers of conch's own")
	})
}

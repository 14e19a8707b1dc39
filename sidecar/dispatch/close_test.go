// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/clock"
)

// watchedClock counts the timers that are set once it is closed.
type watchedClock struct {
	clock.Clock
	closed atomic.Bool
	late   atomic.Int32
}

func (c *watchedClock) After(wait time.Duration, ring func()) clock.Timer {
	if c.closed.Load() {
		c.late.Add(1)
	}
	return c.Clock.After(wait, ring)
}

// TestNothingBeginsAfterClose: a request that fails in a merge group just when the dispatcher has closed does not wait, and is answered.
func TestNothingBeginsAfterClose(t *testing.T) {
	p, now := newTriton(t), &watchedClock{Clock: clock.Timers()}
	p.refuse = func(*tritonpb.ModelInferRequest) error {
		return status.Error(codes.Internal, "Stub process 'g_0' is not healthy.")
	}
	var d *dispatch.Dispatcher
	closes := func(string) { // called on the caller's goroutine, which executes the run
		require.NoError(t, d.Close())
		now.closed.Store(true)
	}
	var seen *recorder
	d, seen = newDispatcher(t, dispatch.Options{Clock: now, PlaceChanged: ejects(closes)}, merged(1, p))
	err := infer(t.Context(), t, d, 1, 1, of(0))
	requireCode(t, codes.Unavailable, err)
	require.True(t, now.closed.Load())
	require.Zero(t, now.late.Load(), "a task waits beyond the end of its dispatcher")
	require.Equal(t, map[dispatch.Result]int{dispatch.Failed: 1}, seen.count(t))
}

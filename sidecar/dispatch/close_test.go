// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
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
	ended := make(chan error, 1)
	closes := func(string) { // Close waits for the attempt, which calls this
		go func() { ended <- d.Close() }()
		for !dispatch.Closing(d) {
			runtime.Gosched()
		}
		now.closed.Store(true)
	}
	var seen *recorder
	d, seen = newDispatcher(t, dispatch.Options{Clock: now, PlaceChanged: ejects(closes)}, merged(1, p))
	err := infer(t.Context(), t, d, 1, 1, of(0))
	require.Error(t, err, "it has failed in the group, and nothing serves its model any more")
	require.NoError(t, <-ended)
	require.True(t, now.closed.Load())
	require.Zero(t, now.late.Load(), "a task waits beyond the end of its dispatcher")
	require.Equal(t, map[dispatch.Result]int{dispatch.Failed: 1}, seen.count(t))
}

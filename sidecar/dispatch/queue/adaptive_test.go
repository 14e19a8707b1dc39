// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// TestLowLoadStaysOnOneExecutor: a lone request does not wait, and the next
// one does not take a second executor as long as it can wait for the first.
func TestLowLoadStaysOnOneExecutor(t *testing.T) {
	f := newFixture(t)
	m := f.model("adaptive", "reserve", queue.LateDrop, linear)
	low := f.executor(0, 0, m)
	f.executor(1, 0, m)
	f.executor(2, 0, m)
	f.enqueue(0, m, 1) // so that the rate is known
	f.Complete(6, low)
	now := queue.Time(100)
	for range 10 {
		f.enqueue(now, m, 1)
		require.Equal(t, now, f.last().Start, "at once")
		f.enqueue(now+4, m, 1)
		require.Equal(t, now, f.last().Start, "the second waits")
		f.Complete(now+6, low)
		require.Equal(t, now+6, f.last().Start, "for the first")
		require.True(t, f.last().Hurried)
		require.Equal(t, low, f.last().Executor)
		f.Complete(now+12, low)
		now += 100
	}
	f.enqueue(now, m, 1)
	f.enqueue(now+1, m, 1)
	require.Equal(t, now, f.last().Start)
	f.Advance(now + 13 - 7) // it does not end in time
	require.Equal(t, now+6, f.last().Start, "d - l(2): the second executor is opened for the deadline")
	require.NotEqual(t, low, f.last().Executor)
	require.Empty(t, f.dropped)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

func TestMarginFollowsTheTail(t *testing.T) {
	var m Margin
	now, plenty := queue.Time(0), time.Hour
	see := func(n int, every time.Duration, lateness time.Duration) {
		for range n {
			now += queue.Time(every)
			m.Add(lateness, now)
		}
	}
	see(marginAfter-1, time.Millisecond, time.Second)
	require.Zero(t, m.Of(plenty), "too few to tell")
	see(1000, time.Millisecond, -time.Second)
	require.Zero(t, m.Of(plenty), "all are early")
	for range 500 {
		see(9, time.Millisecond, 0)
		see(1, time.Millisecond, 20*time.Millisecond)
	}
	require.InDelta(t, 20, m.Of(plenty).Milliseconds(), 5, "one in ten is this late")
	for range 50 {
		see(49, time.Millisecond, 0)
		see(1, time.Millisecond, time.Second)
	}
	require.Zero(t, m.Of(plenty), "one in fifty is not worth a margin")
	see(300, time.Millisecond, time.Hour)
	require.Greater(t, m.Of(plenty), time.Second)
	see(8, marginLife, 0)
	require.Zero(t, m.Of(plenty), "what is long ago says nothing")
}

// TestMarginGivesNobodyUp: the margin is at most a fifth of the time that a request has, and a request that can be served alone still can.
func TestMarginGivesNobodyUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		duration := func(name string) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(10*time.Second)).Draw(t, name))
		}
		var m Margin
		alone, left, late := duration("alone"), duration("left"), duration("late")
		m.Sets([]queue.Table{nil, queue.Linear(0, queue.Time(alone), 4), queue.Linear(0, queue.Time(2*alone), 4)})
		for range 100 {
			m.Add(late, 1)
		}
		got := m.Of(left)
		require.GreaterOrEqual(t, got, time.Duration(0))
		require.LessOrEqual(t, got, left/marginShare)
		if left >= alone {
			require.GreaterOrEqual(t, left-got, alone)
		}
	})
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/observe"
)

// set is a moment as a machine tells it whose clock was set by so much since it started: its wall clock reads otherwise, the clock that nobody sets does not.
func set(t *testing.T, at time.Time, by time.Duration) time.Time {
	t.Helper()
	told := at
	*(*uint64)(unsafe.Pointer(&told)) += uint64(by/time.Second) << 30 // the seconds of a time that has both clocks lie above its nanoseconds
	require.Equal(t, by, told.Round(0).Sub(at.Round(0)))
	require.Zero(t, told.Sub(at))
	return told
}

// A clock that is set, by a time server that the machine reaches late, makes no load go away, and none come.
func TestTheClockIsSet(t *testing.T) {
	for _, by := range []time.Duration{-2 * time.Hour, 2 * time.Hour, -3 * time.Second} {
		t.Run(by.String(), func(t *testing.T) {
			r := recorder(t)
			began := time.Now()
			now := began
			for i := range 1000 { // 50 a second, in the middle of which the clock is set
				now = began.Add(time.Duration(i) * 20 * time.Millisecond)
				if i >= 500 {
					now = set(t, now, by)
				}
				r.Arrived("m", 1, now)
				r.Executed(observe.Execution{
					Model: "m", Partition: "p", GPUType: "t", ThreadPercentage: 100, Rows: 1, Requests: 1, Start: now, End: now.Add(10 * time.Millisecond),
				})
				r.Busy("p", now, now.Add(10*time.Millisecond))
				r.Finished(observe.Outcome{Model: "m", Result: observe.OK, Latency: 10 * time.Millisecond, At: now})
				if i < 400 {
					continue
				}
				require.InDelta(t, 50, r.Rates("m", now).Window, 2, i)
				require.InDelta(t, 50, r.Statistics("m", now).GetGoodput(), 2, i)
				require.InDelta(t, .5, r.PartitionStatistics("p", now).GetIdleShare(), .05, i)
				require.InDelta(t, 50, r.Instance("p", "m", now).GetRowRate(), 2, i)
			}
			require.InEpsilon(t, 10_000, r.Profiles()[0].GetPoints()[0].GetLatencyUs().GetValue(), 1e-6)
		})
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package clock_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/clock"
)

func TestAlarms(t *testing.T) {
	for name, clock := range map[string]clock.Clock{"system": clock.System(), "timer": clock.Timers()} {
		t.Run(name, func(t *testing.T) {
			rang := make(chan time.Time, 10)
			a := clock.Alarm(func() { rang <- time.Now() })
			defer a.Stop()
			at := time.Now().Add(20 * time.Millisecond)
			a.Set(at.Add(time.Hour))
			a.Set(at)
			require.False(t, (<-rang).Before(at))
			a.Set(time.Now().Add(-time.Second)) // a moment that has passed rings at once
			<-rang
			for off := false; !off; {
				at = time.Now().Add(10 * time.Millisecond)
				a.Set(at)
				a.Set(time.Time{})
				off = time.Now().Before(at) // else it may have rung before it was switched off, which is no fault
				time.Sleep(30 * time.Millisecond)
				select {
				case <-rang:
					require.False(t, off, "an alarm that was switched off rang")
				default:
				}
			}
			stopped := clock.Alarm(func() { assert.Fail(t, "a stopped alarm rings no more") })
			stopped.Stop()
			stopped.Set(time.Now())
			stopped.Stop() // nothing rings it once this has returned
		})
	}
}

// TestSystemSleepsExactly: a busy machine may be late most of the time, a clock of whole milliseconds always is.
func TestSystemSleepsExactly(t *testing.T) {
	system := clock.System()
	const want = 2300 * time.Microsecond
	early, near := 0, 0
	for tries := 0; near < 5 && tries < 5000; tries++ {
		began := time.Now()
		system.Sleep(want)
		d := time.Since(began)
		if d < want {
			early++
		}
		if d < want+400*time.Microsecond {
			near++
		}
	}
	require.Zero(t, early)
	require.Equal(t, 5, near)
}

func TestTimerClockFollowsVirtualTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		rang := make(chan time.Time, 1)
		a := clock.Timers().Alarm(func() { rang <- time.Now() })
		defer a.Stop()
		at := time.Now().Add(time.Hour)
		a.Set(at)
		require.Equal(t, at, <-rang)
	})
}

// BenchmarkAlarm reports by how much alarms are late.
func BenchmarkAlarm(b *testing.B) {
	for _, c := range []struct {
		name  string
		clock clock.Clock
	}{{"system", clock.System()}, {"timer", clock.Timers()}} {
		b.Run(c.name, func(b *testing.B) {
			rang := make(chan time.Time, 1)
			a := c.clock.Alarm(func() { rang <- time.Now() })
			defer a.Stop()
			var late []time.Duration
			for b.Loop() {
				at := time.Now().Add(1300 * time.Microsecond)
				a.Set(at)
				late = append(late, (<-rang).Sub(at))
			}
			slices.Sort(late)
			b.ReportMetric(float64(late[len(late)/2].Nanoseconds())/1e3, "late-p50-us")
			b.ReportMetric(float64(late[len(late)*99/100].Nanoseconds())/1e3, "late-p99-us")
		})
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forecast_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

func TestPace(t *testing.T) {
	var p forecast.Pace
	require.Equal(t, 3*time.Millisecond, p.Or(3*time.Millisecond), "what is known before")
	for range 300 {
		p.Add(8 * time.Millisecond)
	}
	require.InDelta(t, 8e6, float64(p.Or(0)), 1e4)
	for range 300 {
		p.Add(20 * time.Millisecond)
	}
	require.InDelta(t, 20e6, float64(p.Or(0)), 1e4)
}

// TestLately: one that was held up is forgotten, also where what is known from it keeps off all but a few.
func TestLately(t *testing.T) {
	var l forecast.Lately
	at := func(d time.Duration) queue.Time { return queue.Time(d) }
	require.Equal(t, 3*time.Millisecond, l.Or(3*time.Millisecond, at(time.Hour)), "what is known before")
	l.Add(5*time.Second, at(time.Hour))
	l.Add(8*time.Millisecond, at(time.Hour+5*time.Second))
	require.InDelta(t, 5e9, float64(l.Or(0, at(time.Hour+10*time.Second))), 2e8)
	require.Equal(t, 3*time.Millisecond, l.Or(3*time.Millisecond, at(time.Hour+11*time.Second)))
	l.Add(8*time.Millisecond, at(time.Hour+11*time.Second))
	require.Equal(t, 8*time.Millisecond, l.Or(0, at(time.Hour+11*time.Second)))
}

func TestReserve(t *testing.T) {
	var none forecast.Losses
	require.Zero(t, forecast.Reserve(0, 10, 100, none), "nothing follows")
	require.EqualValues(t, 4+9, forecast.Reserve(4, 10, 100, none), "its time, and a quarter of two fifths of 90")
	require.EqualValues(t, 4, forecast.Reserve(4, 10, 10, none), "nothing is to spare")
	require.EqualValues(t, 4, forecast.Reserve(4, 10, 3, none), "less than nothing")
}

func TestReserveGrowsWithLosses(t *testing.T) {
	losses := func(lostOfTwenty int) (l forecast.Losses) {
		for i := range 2000 {
			l.Add(i%20 < lostOfTwenty, queue.Time(i))
		}
		return l
	}
	after := func(lostOfTwenty int) time.Duration {
		return forecast.Reserve(4000, 10_000, 100_000, losses(lostOfTwenty))
	}
	require.EqualValues(t, 4000+9000, after(0))
	require.EqualValues(t, 4000+9000, after(1), "a few are lost in any case")
	require.InDelta(t, 4000+.55*36_000, float64(after(4)), 1000, "a quarter, and three times one in ten")
	require.EqualValues(t, 4000+36_000, after(8), "never more than what follows has as its part")
	require.EqualValues(t, 9900+81_000, forecast.Reserve(9900, 10_000, 100_000, losses(8)), "a step that takes next to nothing keeps a tenth of what is to spare")
	l := losses(8)
	for i := range 3000 {
		l.Add(false, queue.Time(2000+i))
	}
	require.EqualValues(t, 4000+9000, forecast.Reserve(4000, 10_000, 100_000, l), "what was lost is forgotten once others come to their ends")
	l = losses(8).At(queue.Time(time.Hour))
	require.EqualValues(t, 4000+9000, forecast.Reserve(4000, 10_000, 100_000, l), "and after a while in any case")
}

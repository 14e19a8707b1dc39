// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forecast_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// line executes n batches one after the other, each sent at the lead before the end of the one before it: alone each takes l, more or less, of which overlap runs
// beside others. The profile says l times off.
func line(l *forecast.Lead, n int, took, overlap queue.Time, off float64, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	profile := queue.Time(off * float64(took))
	early := queue.Time(0)
	for range n {
		this := queue.Time((1 + .03*random.NormFloat64()) * float64(took))
		from := this - min(early, overlap)
		if early == 0 {
			l.Alone(from, profile)
		} else {
			l.After(early, from, profile)
		}
		predicted := l.Ends(profile, early)
		early = max(0, min(from, from-predicted+l.Length(profile)))
	}
}

// TestALeadIsAsLongAsWhatOverlaps: whatever the profile's error, the lead becomes a little longer than what runs beside others, and none where nothing does.
func TestALeadIsAsLongAsWhatOverlaps(t *testing.T) {
	const ms = queue.Time(1e6)
	for name, c := range map[string]struct {
		overlap, least, most queue.Time
		off                  float64
	}{
		"nothing":                         {0, 0, 2 * ms, 1},
		"a quarter":                       {10 * ms, 9 * ms, 17 * ms, 1},
		"half":                            {20 * ms, 18 * ms, 28 * ms, 1},
		"nothing, the profile is too low": {0, 0, 2 * ms, .8},
		"half, the profile is too low":    {20 * ms, 18 * ms, 28 * ms, .8},
		"nothing, and it is too high":     {0, 0, 2 * ms, 1.3},
		"half, and it is too high":        {20 * ms, 18 * ms, 28 * ms, 1.3},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				var l forecast.Lead
				line(&l, 400, 40*ms, c.overlap, c.off, seed)
				require.GreaterOrEqual(t, l.Held(), c.least)
				require.LessOrEqual(t, l.Held(), c.most)
				require.InDelta(t, float64(c.overlap), float64(l.Overlap()), float64(4*ms))
			}
		})
	}
}

// TestALeadFollowsAChange: what overlapped does no more, and the other way around.
func TestALeadFollowsAChange(t *testing.T) {
	const ms = queue.Time(1e6)
	var l forecast.Lead
	line(&l, 400, 40*ms, 20*ms, 1, 1)
	require.Greater(t, l.Held(), 18*ms)
	line(&l, 400, 40*ms, 0, 1, 2)
	require.Less(t, l.Held(), 2*ms)
	line(&l, 400, 40*ms, 20*ms, 1, 3)
	require.Greater(t, l.Held(), 18*ms)
}

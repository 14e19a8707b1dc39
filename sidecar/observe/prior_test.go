// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/observe"
)

// An estimate is the profile of a model that has not run yet, and yields to measurements once it runs.
func TestPriors(t *testing.T) {
	estimate := func(rows, share uint32, us float64) *policy.ProfilePoint {
		return &policy.ProfilePoint{Batch: rows, ThreadPercentage: share, LatencyUs: &policy.Estimate{Value: us, ErrorBound: .4 * us}}
	}
	prior := observe.PriorOf(&policy.Profile{
		Source: policy.ProfileSource_PROFILE_SOURCE_ESTIMATED,
		Points: []*policy.ProfilePoint{estimate(8, 100, 24_000), estimate(1, 100, 10_000), estimate(1, 50, 18_000), estimate(8, 50, 44_000)},
	})
	require.InDelta(t, .2, prior.Points[0].Bound, .01, "an error bound is 1.96 standard errors")
	r := recorder(t)
	r.SetModel("m", "r1", 8, nil)
	require.NoError(t, r.SetPrior("m", "T4", prior))
	p := profile(t, r)
	require.True(t, p.GetUsable())
	require.Equal(t, policy.ProfileSource_PROFILE_SOURCE_ESTIMATED, p.GetSource())
	l4, ok := p.Latency(4, 100)
	require.True(t, ok)
	require.InDelta(t, 16_000, l4, 1)
	bound, _ := p.Bound(4, 100)
	require.InEpsilon(t, .4*16_000, bound, .03)

	steadily(r, "m", start, 20, 4, always(12*time.Millisecond))
	p = profile(t, r)
	require.Equal(t, policy.ProfileSource_PROFILE_SOURCE_OBSERVED, p.GetSource())
	l4, _ = p.Latency(4, 100)
	require.InEpsilon(t, 12_000, l4, .01)
	l8, _ := p.Latency(8, 100)
	require.Less(t, l8, 21_000., "its neighbours follow")

	// On a share that was never executed, the nearest estimate in proportion.
	require.NoError(t, r.SetPrior("n", "T4", observe.Prior{Source: policy.ProfileSource_PROFILE_SOURCE_ESTIMATED, Points: prior.Points[2:]}))
	r.SetModel("n", "", 8, nil)
	for _, q := range r.Profiles() {
		if q.GetModel() == "n" {
			l1, _ := q.Latency(1, 50)
			require.InDelta(t, 18_000, l1, 1)
		}
	}

	for name, wrong := range map[string]observe.Prior{
		"only estimates are priors":     {Source: policy.ProfileSource_PROFILE_SOURCE_DECLARED},
		"latency of 0s":                 {Source: policy.ProfileSource_PROFILE_SOURCE_ESTIMATED, Points: []observe.PriorPoint{{Rows: 1, Share: 100, Bound: .1}}},
		"with an error of 0":            {Source: policy.ProfileSource_PROFILE_SOURCE_ESTIMATED, Points: []observe.PriorPoint{{Rows: 1, Share: 100, Latency: 1}}},
		"the share is not 1 to 100":     {Source: policy.ProfileSource_PROFILE_SOURCE_ESTIMATED, Points: []observe.PriorPoint{{Rows: 1, Share: 101, Latency: 1, Bound: .1}}},
		"point of 0 rows at 100%: a la": {Source: policy.ProfileSource_PROFILE_SOURCE_ESTIMATED, Points: []observe.PriorPoint{{Share: 100, Latency: 1, Bound: .1}}},
	} {
		require.ErrorContains(t, r.SetPrior("m", "T4", wrong), name)
	}
	require.NoError(t, r.SetPrior("m", "T4", observe.Prior{Source: policy.ProfileSource_PROFILE_SOURCE_ESTIMATED}))
}

// A model that is slow for twenty seconds, fast for twenty, and so on for ten minutes, is interfered, or not, but
// does not change its mind more than once a minute.
func TestInterferedDoesNotFlap(t *testing.T) {
	r := recorder(t)
	r.SetModel("m", "r1", 1, nil)
	r.Calibrated("m", "T4", 100, []observe.Sample{{Rows: 1, Duration: 10 * time.Millisecond}})
	before, changed := false, start.Add(-time.Hour)
	for second := range 600 {
		now := start.Add(time.Duration(second) * time.Second)
		slow := second/20%2 == 1
		steadily(r, "m", now, 1, 1, always(map[bool]time.Duration{false: 9, true: 21}[slow]*time.Millisecond))
		if is := profile(t, r).GetInterfered(); is != before {
			require.GreaterOrEqual(t, now.Sub(changed), 59*time.Second)
			before, changed = is, now
		}
	}
	require.NotEqual(t, start.Add(-time.Hour), changed, "twenty seconds are long enough")
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

func point(batch, share uint32, us float64) *policy.ProfilePoint {
	return &policy.ProfilePoint{Batch: batch, ThreadPercentage: share, LatencyUpperUs: us}
}

func TestTableFromProfile(t *testing.T) {
	us := queue.Time(time.Microsecond)
	cases := []struct {
		name   string
		points []*policy.ProfilePoint
		share  uint32
		want   []queue.Time // l(1..4) in microseconds
	}{
		{"between batches", []*policy.ProfilePoint{point(1, 100, 10), point(3, 100, 30)}, 100, []queue.Time{10, 20, 30, 40}},
		{"below the first batch", []*policy.ProfilePoint{point(2, 100, 20), point(4, 100, 40)}, 100, []queue.Time{20, 20, 30, 40}},
		{"one point", []*policy.ProfilePoint{point(2, 100, 20)}, 100, []queue.Time{20, 20, 30, 40}},
		{"never decreasing", []*policy.ProfilePoint{point(1, 100, 10), point(2, 100, 8), point(3, 100, 12), point(4, 100, 11)}, 100, []queue.Time{10, 10, 12, 12}},
		{"unsorted", []*policy.ProfilePoint{point(4, 100, 40), point(1, 100, 10)}, 100, []queue.Time{10, 20, 30, 40}},
		{"between shares, linear in 1/p", []*policy.ProfilePoint{point(1, 40, 20), point(4, 40, 80), point(1, 60, 10), point(4, 60, 40)}, 50, []queue.Time{14, 28, 42, 56}},
		{"below all shares", []*policy.ProfilePoint{point(1, 50, 10), point(4, 50, 40)}, 25, []queue.Time{20, 40, 60, 80}},
		{"above all shares", []*policy.ProfilePoint{point(1, 50, 10), point(4, 50, 40)}, 100, []queue.Time{10, 20, 30, 40}},
		{"value and bound where no quantile", []*policy.ProfilePoint{{Batch: 1, ThreadPercentage: 100, LatencyUs: &policy.Estimate{Value: 8, ErrorBound: 2}}, point(4, 100, 40)}, 100, []queue.Time{10, 20, 30, 40}},
		{"nothing to go by", []*policy.ProfilePoint{point(1, 100, 0), point(0, 100, 5)}, 100, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := Table(&policy.Profile{Points: c.points}, c.share, 3, 0)
			if c.want == nil {
				require.Nil(t, got)
				return
			}
			require.Len(t, got, 5)
			for i, want := range c.want {
				require.Equal(t, want*us, got[i+1], "l(%d)", i+1)
			}
			more := Table(&policy.Profile{Points: c.points}, c.share, 3, 7)
			require.Equal(t, got[1]+7, more[1])
		})
	}
}

// TestTableIsAlwaysUsable: for any profile, the table that the queue gets never
// decreases and is positive.
func TestTableIsAlwaysUsable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &policy.Profile{Points: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *policy.ProfilePoint {
			return point(rapid.Uint32Range(0, 20).Draw(t, "batch"), rapid.Uint32Range(0, 100).Draw(t, "share"), rapid.Float64Range(-1, 1e6).Draw(t, "us"))
		}), 0, 12).Draw(t, "points")}
		got := Table(p, rapid.Uint32Range(0, 120).Draw(t, "share"), 16, 0)
		if got == nil {
			return
		}
		require.Len(t, got, 18)
		require.True(t, slices.IsSorted(got))
		require.Positive(t, got[1])
	})
}

func TestBudgetFollowsWhatIsMeasured(t *testing.T) {
	var b Budget
	require.Zero(t, b.Current())
	stale := false
	for range 500 {
		stale = b.Add(200*time.Microsecond) || stale
	}
	require.True(t, stale)
	require.InDelta(t, 200, b.Current().Microseconds(), 50)
	require.False(t, b.Add(210*time.Microsecond), "small changes are not worth new tables")
	b.Add(time.Hour) // one stall
	require.Less(t, b.Current(), time.Millisecond)
}

// TestOptimistic: a second table where the error bounds leave room, and none where they do not.
func TestOptimistic(t *testing.T) {
	us := queue.Time(time.Microsecond)
	with := func(batch uint32, upper, bound float64) *policy.ProfilePoint {
		q := point(batch, 100, upper)
		q.LatencyUs = &policy.Estimate{Value: upper, ErrorBound: bound}
		return q
	}
	sure := &policy.Profile{Points: []*policy.ProfilePoint{with(1, 10, .5), with(3, 30, 2)}}
	require.Nil(t, Optimistic(sure, 100, 2, 0))
	unsure := &policy.Profile{Points: []*policy.ProfilePoint{with(3, 30, 15), with(1, 10, .5)}}
	require.Equal(t, queue.Table{0, 10*us - 500, 20*us - 7750, 15 * us}, Optimistic(unsure, 100, 2, 0))
	require.Nil(t, Optimistic(&policy.Profile{}, 100, 2, 0))
}

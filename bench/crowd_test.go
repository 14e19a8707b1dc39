// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// TestCrowd: every request is inside, good or bad, and at the load that is measured nearly all are good.
func TestCrowd(t *testing.T) {
	c, err := newCrowd(6, 20, 1)
	require.NoError(t, err)
	const n = 50_000
	for i := range n {
		c.arrive(i % 6)
	}
	require.Equal(t, n, c.good+c.bad+c.inside)
	require.Greater(t, float64(c.good), .97*float64(c.good+c.bad))
	st := c.s.Stats()
	running := 0
	for _, e := range c.ends {
		running += len(e.batch.Requests)
	}
	require.Equal(t, c.inside, running+st.QueuedRequests+st.LateRequests)
	for i, e := range c.ends {
		require.LessOrEqual(t, c.ends[max(0, i-1)/2].at, e.at, "the heap's order")
		require.GreaterOrEqual(t, e.at, c.now)
	}
}

// TestDoor: a request that is refused at the door never reaches the scheduler, every other does, and none is refused where all may wait.
func TestDoor(t *testing.T) {
	for _, bounded := range []bool{true, false} {
		d, err := newDoor(1000, bounded, 6, 20, 20_000, 1)
		require.NoError(t, err)
		inside := d.s.Stats().Enqueued
		for range 2 {
			require.NoError(t, d.open(10, 2*time.Millisecond))
		}
		refused := 0
		for _, n := range d.refused {
			refused += n
		}
		require.Positive(t, d.offered)
		require.EqualValues(t, d.offered-refused, d.s.Stats().Enqueued-inside)
		require.Equal(t, bounded, refused > 0)
		require.Len(t, d.perSecond, 2)
	}
}

// TestOffers: as many come as were drawn, in their order, lap after lap.
func TestOffers(t *testing.T) {
	o := newOffers([]queue.Time{10, 30, 20}, 2, 2, 100)
	at := []queue.Time{105, 120, 130, 135, 150, 160}
	require.Zero(t, o.come(104))
	for i, n := range []queue.Time{105, 119, 120, 130, 134, 135, 160, 189} {
		require.Equal(t, []int{1, 1, 2, 3, 3, 4, 6, 7 + 1}[i], o.come(n), "until %d", n)
	}
	for i, want := range at {
		got, model := o.take()
		require.Equal(t, want, got)
		require.EqualValues(t, []int{0, 1, 0, 0, 1, 0}[i], model)
		require.Equal(t, 0, o.come(want))
	}
	require.Equal(t, 3, o.come(190))
}

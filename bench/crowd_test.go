// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
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

// TestIntakes: whichever way requests take, each arrives once.
func TestIntakes(t *testing.T) {
	for _, kind := range intakes() {
		t.Run(kind.name, func(t *testing.T) {
			in, err := kind.make(6, 20, 1)
			require.NoError(t, err)
			const each = 200
			h, err := handIn(in, 6, each*callers, 3)
			require.NoError(t, err)
			require.Positive(t, h.perSecond)
			require.Positive(t, h.cpu)
			in.close()
			var crowds []*crowd
			switch in := in.(type) {
			case shards:
				for _, s := range in {
					crowds = append(crowds, s.crowd)
				}
			case *stripes:
				crowds = append(crowds, in.crowd)
			}
			total := 0
			for _, c := range crowds {
				total += c.good + c.bad + c.inside
				require.EqualValues(t, c.good+c.bad+c.inside, c.s.Stats().Enqueued)
				require.Equal(t, int(c.s.Stats().Enqueued), each*callers/len(crowds), "models are dealt out evenly")
			}
			require.Equal(t, each*callers, total)
		})
	}
}

// TestDoor: what is refused at the door never reaches the scheduler, what is not does, and nobody is refused where there is room for all.
func TestDoor(t *testing.T) {
	for _, room := range []int{1, 64, math.MaxInt} {
		d, err := newDoor(3, room, 6, 20, 20_000, 1)
		require.NoError(t, err)
		inside := d.s.Stats().Enqueued
		require.NoError(t, d.open(10, 10_000))
		require.NoError(t, d.open(10, 10_000))
		require.GreaterOrEqual(t, d.offered, 20_000)
		require.EqualValues(t, d.offered-d.refused, d.s.Stats().Enqueued-inside)
		require.Positive(t, d.took)
		require.Positive(t, d.scheduled())
		if room == math.MaxInt {
			require.Zero(t, d.refused)
		}
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
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

// TestIntakes: whichever way requests take, each arrives once.
func TestIntakes(t *testing.T) {
	for _, kind := range intakes() {
		t.Run(kind.name, func(t *testing.T) {
			in, err := kind.make(6, 20, 1)
			require.NoError(t, err)
			const each = 200
			h, err := handIn(in, kind, 6, each*callers, 3)
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
			case *owned:
				for _, o := range in.all {
					crowds = append(crowds, o.crowd)
				}
			case pinned:
				crowds = in
			}
			require.NotEmpty(t, crowds)
			total := 0
			for _, c := range crowds {
				require.Len(t, c.models, 6/len(crowds))
				total += c.good + c.bad + c.inside
				require.EqualValues(t, c.good+c.bad+c.inside, c.s.Stats().Enqueued)
				require.Equal(t, int(c.s.Stats().Enqueued), each*callers/len(crowds), "models are dealt out evenly")
			}
			require.Equal(t, each*callers, total)
		})
	}
}

// TestCoresReport: every intake has its rows on one core and on two, and what is set against what is divided the right way round.
func TestCoresReport(t *testing.T) {
	was := runtime.GOMAXPROCS(0)
	b := &bench{rounds: 1, seed: 1, progress: io.Discard}
	r := &figure.Report{}
	require.NoError(t, b.intakes(t.Context(), r, "core.sharded.x", 6, 20, 50*callers, 3, "; note"))
	require.Equal(t, was, runtime.GOMAXPROCS(0))
	value := map[string]float64{}
	for _, f := range r.Figures {
		require.Positive(t, f.Value, f.Name)
		value[strings.TrimPrefix(f.Name, "core.sharded.x.")] = f.Value
	}
	speed := func(kind string, cores int) float64 {
		return value[fmt.Sprintf("%s.%dcore.requests_per_second", kind, cores)]
	}
	for _, kind := range intakes() {
		require.InEpsilon(t, speed(kind.name, 2)/speed(kind.name, 1), value[kind.name+".two_cores_over_one"], 1e-9)
		require.Contains(t, value, kind.name+".2core.cpu_microseconds")
		if kind.name != "lock" {
			require.InEpsilon(t, speed(kind.name, 2)/speed("lock", 2), value[kind.name+"_over_lock"], 1e-9)
		}
	}
	require.Contains(t, value, "spinning.two_cores_over_one")
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

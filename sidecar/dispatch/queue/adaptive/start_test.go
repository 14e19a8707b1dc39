// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package adaptive_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
	"github.com/conch-serving/conch/sidecar/dispatch/queue/latency"
)

// situation is, at 5,000, a batch of 3 rows that would start at 10,000 under deferred, on
// 8 executors, 1 of which is free, with l(reach) = 2,000; what is left zero is as
// unremarkable as can be.
type situation struct {
	need, allNeed, crowd float64
	// ends are when the batches that run end; each counts as a share of l(reach).
	ends         []latency.Time
	dispersion   float64
	newest       latency.Time
	alone        latency.Time // l(1), where another counts
	saved        float64
	free, usable int
	worth        int
	idle         float64
}

func (s situation) load() *adaptive.Load {
	or := func(v, usual int) int {
		if v == 0 {
			return usual
		}
		return v
	}
	table := latency.Linear(0, 2000, 8)
	if s.alone > 0 {
		table = latency.Linear(0, s.alone, 8)
	}
	l := &adaptive.Load{
		Batch: adaptive.Batch{Rows: 3, Requests: 3, Newest: s.newest, Frontrun: 10000, Latest: 12000},
		Model: &adaptive.Model{Table: table, Reach: 4, Need: s.need, Known: true, Dispersion: max(1, s.dispersion), Saved: s.saved, Worth: or(s.worth, 4)},
		Pool:  &adaptive.Pool{Free: or(s.free, 1), Usable: or(s.usable, 8), Need: s.allNeed, Crowd: s.crowd},
	}
	for _, end := range s.ends {
		l.Pool.Running.Add(adaptive.WorkOf(end, 2000))
	}
	return l
}

// half is n batches that have half of their time left at 5,000.
func half(n int) (ends []latency.Time) {
	for range n {
		ends = append(ends, 6000)
	}
	return ends
}

func TestStartAt(t *testing.T) {
	for _, c := range []struct {
		name string
		s    situation
		want latency.Time
	}{
		{"evenly staggered: as deferred, but what runs goes on while it waits", situation{need: 8, allNeed: 8, ends: half(8)}, 7501},
		{"executors are ahead by a quarter of a batch", situation{need: 8, allNeed: 8, ends: half(4)}, 8001},
		{"nothing runs", situation{need: 8, allNeed: 8}, 9001},
		{"executors are behind: the exec comes first", situation{need: 8, allNeed: 8, ends: []latency.Time{15000, 15000, 15000, 15000}}, 11000},
		{"a model without two executors to itself", situation{need: 1, allNeed: 8, ends: half(8)}, 5000},
		{"nor with its share of them", situation{need: 2, allNeed: 16, ends: half(8)}, 5000},
		{"just enough to stagger", situation{need: 1.5, allNeed: 8}, 9001},
		{"half of the load does not wait", situation{need: 4, allNeed: 8, crowd: 4}, 8001},
		{"arrivals in bursts", situation{need: 8, allNeed: 8, dispersion: 5}, 8401},
		{"in short ones", situation{need: 8, allNeed: 8, dispersion: 3}, 9001},
		{"a burst that goes on", situation{need: 1, allNeed: 8, dispersion: 20, newest: 5000, alone: 10000, saved: 1}, 5540},
		{"a burst that may be chance", situation{need: 1, allNeed: 8, dispersion: 3, newest: 5000, alone: 10000, saved: 1}, 5200},
		{"on few executors it is not taken for chance", situation{need: 1, allNeed: 8, dispersion: 3, newest: 5000, alone: 10000, saved: 1, usable: 2, free: 2}, 5500},
		{"a burst whose rows gain little by company", situation{need: 1, allNeed: 8, dispersion: 20, newest: 5000, alone: 10000, saved: .5}, 5135},
		{"a burst that is over", situation{need: 1, allNeed: 8, dispersion: 20, newest: 4000, alone: 10000, saved: 1}, 5000},
		{"the first of a burst under low load", situation{free: 8, dispersion: 20, newest: 5000, alone: 10000, saved: 1}, 5540},
		{"its rate is not known yet", situation{allNeed: 8}, 9001},
		{"large enough", situation{need: 8, allNeed: 8, worth: 3}, 5000},
		{"nobody to stagger with", situation{need: 8, allNeed: 8, usable: 1}, 5000},
		{"low load that asks for a fourth executor", situation{need: 3.2, allNeed: 3.2, free: 5}, 5000},
		{"low load that does not", situation{need: 3, allNeed: 3, free: 5}, latency.Never},
		{"a lone request", situation{free: 8}, 5000},
		{"load is never low", situation{need: 3, allNeed: 3, free: 5, idle: 1}, 9001},
		{"load is low while one is free", situation{need: 8, allNeed: 7, worth: 3, idle: 1e-9}, latency.Never},
	} {
		params := adaptive.Defaults()
		if c.s.idle > 0 {
			params.Idle = c.s.idle
		}
		require.Equal(t, c.want, params.StartAt(5000, c.s.load()), c.name)
	}
}

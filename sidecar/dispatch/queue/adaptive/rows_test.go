// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package adaptive_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
	"github.com/conch-serving/conch/sidecar/dispatch/queue/latency"
)

// demand is a model of up to 64 rows, and what it shares the executors with.
type demand struct {
	Table      latency.Table
	SLO        latency.Time
	Dispersion float64
	Load       float64
	Around     latency.Time
	Executors  int
	Rate       float64
}

func (d demand) load() *adaptive.Load {
	return &adaptive.Load{
		Model: &adaptive.Model{Table: d.Table, MaxBatch: 64, SLO: d.SLO, Known: d.Rate > 0, Rate: d.Rate, Dispersion: d.Dispersion, Executors: d.Executors},
		Pool:  &adaptive.Pool{Usable: d.Executors, Need: d.Load * float64(d.Executors), Flow: float64(d.Around), Urgency: 1},
	}
}

// TestMaxRows checks how many rows a batch has at most, of 64, on 8
// executors that are shared with requests whose SLO is 40 ms on average.
func TestMaxRows(t *testing.T) {
	const ms = 1e6
	strong := latency.Linear(1*ms, 15*ms, 64) // 15 of 16 ms saved by company
	weak := latency.Linear(7.353*ms, .222*ms, 64)
	heavy := latency.Linear(23*ms, 15*ms, 64)
	params := adaptive.Defaults()
	for _, c := range []struct {
		name string
		d    demand
		want int
	}{
		{"rows gain much by company: as many as the SLO allows", demand{Table: strong, SLO: 60 * ms, Dispersion: 1, Load: .9}, 45},
		{"even in bursts", demand{Table: strong, SLO: 60 * ms, Dispersion: 10, Load: .9}, 45},
		{"they gain little", demand{Table: weak, SLO: 59 * ms, Dispersion: 1, Load: .9}, 3},
		{"more is to spare", demand{Table: weak, SLO: 59 * ms, Dispersion: 1, Load: .3}, 1},
		{"others would wait for a burst", demand{Table: weak, SLO: 59 * ms, Dispersion: 10, Load: .9}, 1},
		{"any batch takes too long for others: the cheapest", demand{Table: latency.Linear(40*ms, 28*ms, 64), SLO: 378 * ms, Dispersion: 10, Load: .5}, 2},
		{"others can wait for one of its rows, and no longer", demand{Table: heavy, SLO: 420 * ms, Dispersion: 10, Load: .9, Around: 60 * ms}, 1},
		{"but a burst would take longer than the SLO, one row at a time", demand{Table: heavy, SLO: 420 * ms, Dispersion: 12, Load: .9, Around: 60 * ms}, 3},
		{"but there is no time to lose", demand{Table: heavy, SLO: 420 * ms, Dispersion: 1, Load: 1, Around: 60 * ms}, 9},
		{"others who have time", demand{Table: weak, SLO: 59 * ms, Dispersion: 1, Load: .9, Around: 4000 * ms}, 7},
	} {
		c.d.Rate = 100
		if c.d.Executors == 0 {
			c.d.Executors = 8
		}
		if c.d.Around == 0 {
			c.d.Around = 40 * ms
		}
		require.Equal(t, c.want, params.MaxRows(c.d.load()), c.name)
		c.d.Rate = 0
		require.Equal(t, 64, params.MaxRows(c.d.load()), "%s, while no rate is known", c.name)
	}
}

func TestBurst(t *testing.T) {
	table := latency.Linear(1e6, 3e6, 8) // 4 ms for a row, 6 ms for three
	for _, c := range []struct {
		name       string
		maxBatch   int
		dispersion float64
		want       float64
	}{
		{"Poisson arrivals", 8, 1, 1},
		{"arrivals at even distances", 8, .2, 1},
		{"a burst that is a batch", 8, 3, 1.5},
		{"one that takes two batches of three rows", 3, 6, 3},
		{"a model that cannot batch", 1, 6, 6},
	} {
		require.InDelta(t, c.want, adaptive.Burst(table, c.maxBatch, c.dispersion), 1e-9, c.name)
	}
}

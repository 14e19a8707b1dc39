// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package adaptive_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
	"github.com/conch-serving/conch/sidecar/dispatch/queue/latency"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const us = latency.Time(1000)

// scene is a load at the moment 50 ms; times are in microseconds.
type scene struct {
	name string
	load adaptive.Load
	// tighter are other models of the pool, as slack in milliseconds and need, and ends when batches end.
	tighter [][2]float64
	ends    []latency.Time
	waiting int
}

// model is l(b) = row b + fixed with an SLO; what a rate means for it is up to the scene.
func model(row, fixed, slo latency.Time, reach int, rate, need float64) *adaptive.Model {
	t := latency.Linear(row*us, fixed*us, 64)
	return &adaptive.Model{
		Table: t, MaxBatch: 64, SLO: slo * us, Slack: slo*us - t.At(1), Usual: 1, Alone: t.At(1), Capacity: int(64 * slo * us / t.At(64)), Known: rate > 0, Rate: rate, Dispersion: 1, Executors: 8,
		Reach: reach, Need: need, Saved: 1 - float64(row)/float64(row+fixed), Worth: 64,
	}
}

// batch of so many rows of a model, the first of which arrived at a moment, the last at another.
func batch(m *adaptive.Model, rows int, first, last latency.Time) adaptive.Batch {
	d := first*us + m.SLO
	return adaptive.Batch{Rows: rows, Requests: rows, Arrival: first * us, Newest: last * us, Deadline: d, Latest: d - m.Table.At(rows), Frontrun: d - m.Table.At(rows+1)}
}

func scenes() []scene {
	resnet := func() *adaptive.Model { return model(1053, 5072, 25000, 12, 5000, 7) }
	with := func(m *adaptive.Model, change func(*adaptive.Model)) *adaptive.Model { change(m); return m }
	busy := func(need, crowd float64) *adaptive.Pool {
		return &adaptive.Pool{Free: 1, Usable: 8, Need: need, Crowd: crowd, Flow: 5000, Urgency: 5000 / 25e6}
	}
	free := func(n, usable int, need float64) *adaptive.Pool {
		return &adaptive.Pool{Free: n, Usable: usable, Need: need, Flow: 5000, Urgency: 5000 / 25e6}
	}
	staggered, bursty := resnet(), with(resnet(), func(m *adaptive.Model) { m.Dispersion = 5 })
	burst := with(model(100, 20000, 60000, 12, 500, 1), func(m *adaptive.Model) { m.Dispersion = 3 })
	alone := with(model(1053, 5072, 25000, 8, 900, 1.2), func(m *adaptive.Model) { m.Executors = 2 })
	bursts := with(model(1053, 5072, 60000, 12, 900, 3), func(m *adaptive.Model) { m.Dispersion = 60 })
	flat := model(1, 12000, 40000, 8, 900, 3)
	weak := with(model(7353, 222, 59000, 4, 900, 6), func(m *adaptive.Model) { m.Dispersion = 2.5 })
	weakBurst := with(model(7353, 222, 400000, 4, 900, 6), func(m *adaptive.Model) { m.Dispersion = 60 })
	heavy := model(2000, 25000, 200000, 30, 500, 3)
	heavyBursts := with(model(2000, 25000, 200000, 30, 500, 3), func(m *adaptive.Model) { m.Dispersion = 250 })
	tight := model(300, 4000, 15000, 4, 900, 1.5)
	loose := model(23000, 8000, 420000, 9, 200, 6)
	return []scene{
		{name: "staggered", load: adaptive.Load{Batch: batch(staggered, 6, 45000, 49000), Model: staggered, Pool: busy(7.5, 0)}, ends: []latency.Time{52000, 55000, 58000, 60000}},
		{name: "among light models", load: adaptive.Load{Batch: batch(staggered, 6, 49000, 49000), Model: staggered, Pool: busy(7.5, 1)}, ends: []latency.Time{52000, 55000, 58000, 60000}},
		{name: "after a long burst", load: adaptive.Load{Batch: batch(bursty, 6, 49500, 49500), Model: bursty, Pool: busy(7.5, 0)}, ends: []latency.Time{52000, 55000, 58000, 60000}},
		{name: "in a burst", load: adaptive.Load{Batch: batch(burst, 6, 49000, 50000), Model: burst, Pool: busy(7.5, 0)}},
		{name: "in a burst on two", load: adaptive.Load{Batch: batch(burst, 6, 49000, 50000), Model: burst, Pool: free(1, 2, 1.9)}},
		{name: "light", load: adaptive.Load{Batch: batch(alone, 2, 49000, 50000), Model: alone, Pool: busy(7.5, 0)}},
		{name: "nearly idle", load: adaptive.Load{Batch: batch(alone, 2, 49000, 50000), Model: alone, Pool: free(3, 8, 2.5)}},
		{name: "spare executors", load: adaptive.Load{Batch: batch(staggered, 6, 45000, 49000), Model: staggered, Pool: busy(5.5, 0)}},
		{name: "a little to spare", load: adaptive.Load{Batch: batch(staggered, 6, 45000, 49000), Model: staggered, Pool: busy(7.2, 0)}},
		{name: "rows nearly free", load: adaptive.Load{Batch: batch(flat, 2, 49000, 50000), Model: flat, Pool: busy(7.5, 0)}},
		{name: "rows gain little", load: adaptive.Load{Batch: batch(weak, 2, 49000, 50000), Model: weak, Pool: busy(7, 0)}},
		{name: "and come in bursts", load: adaptive.Load{Batch: batch(weakBurst, 2, 49000, 50000), Model: weakBurst, Pool: busy(3.9, 0)}},
		{name: "in many bursts", load: adaptive.Load{Batch: batch(bursts, 6, 49500, 49500), Model: bursts, Pool: &adaptive.Pool{Free: 1, Usable: 8, Need: 4, Flow: 1000, Urgency: 1000 / 60e6}}},
		{name: "longer than others wait", load: adaptive.Load{Batch: batch(loose, 2, 49000, 50000), Model: loose, Pool: &adaptive.Pool{Free: 1, Usable: 8, Need: 6, Flow: 1000, Urgency: 1000 / 60e6}}},
		{name: "blocking", load: adaptive.Load{Batch: batch(heavy, 10, 30000, 50000), Model: heavy, Pool: busy(7, 0)}, tighter: [][2]float64{{10, 4}}, ends: []latency.Time{90000, 80000, 75000, 70000, 65000}},
		{name: "blocking a little", load: adaptive.Load{Batch: batch(heavy, 10, 30000, 50000), Model: heavy, Pool: busy(4, 0)}, tighter: [][2]float64{{25, 1.5}}, ends: []latency.Time{95000, 90000, 85000, 80000, 78000}},
		{name: "likewise under load", load: adaptive.Load{Batch: batch(heavy, 10, 30000, 50000), Model: heavy, Pool: busy(7, 0)}, tighter: [][2]float64{{25, 4}}, ends: []latency.Time{90000, 85000, 80000, 78000, 77000}},
		{name: "blocking, in bursts", load: adaptive.Load{Batch: batch(heavyBursts, 10, 30000, 50000), Model: heavyBursts, Pool: busy(7, 0)}, tighter: [][2]float64{{10, 4}}, ends: []latency.Time{90000, 80000, 75000, 70000, 65000}},
		{name: "hardly blocking", load: adaptive.Load{Batch: batch(heavy, 10, 30000, 50000), Model: heavy, Pool: busy(2.5, 0)}, tighter: [][2]float64{{13, .5}, {60, 2}}, ends: []latency.Time{95000, 90000, 85000, 80000, 78000}},
		{name: "blocked", load: adaptive.Load{Batch: batch(tight, 1, 49000, 49000), Model: tight, Pool: free(4, 8, 2.5)}, tighter: [][2]float64{{100, 1}}},
		{name: "a surge", load: adaptive.Load{Batch: batch(staggered, 6, 35000, 49000), Model: staggered, Pool: busy(7, 0)}, waiting: 300},
		{name: "at the peak", load: adaptive.Load{Batch: batch(staggered, 6, 45000, 49000), Model: staggered, Pool: busy(7.9, 0)}},
		{name: "overload", load: adaptive.Load{Batch: batch(alone, 6, 45000, 49000), Model: with(model(1053, 5072, 60000, 4, 900, 6), func(*adaptive.Model) {}), Pool: busy(14, 0)}},
		{name: "far overload", load: adaptive.Load{Batch: batch(alone, 6, 45000, 49000), Model: model(1053, 5072, 60000, 4, 900, 6), Pool: busy(30, 0)}},
		{name: "time to gather", load: adaptive.Load{Batch: batch(staggered, 6, 45000, 49000), Model: model(1053, 5072, 25000, 11, 1500, 2.3), Pool: busy(8.9, 0)}},
		{name: "on many", load: adaptive.Load{Batch: batch(staggered, 6, 45000, 49000), Model: model(1053, 5072, 25000, 11, 1500, 24), Pool: &adaptive.Pool{Free: 1, Usable: 16, Need: 17.7, Flow: 5000, Urgency: 5000 / 25e6}}},
	}
}

// decisions is a line for each scene with the results of all rules, times in microseconds.
func decisions(p adaptive.Params) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-24s %7s %7s %9s %5s %4s %5s %6s %6s\n", "", "exec", "start", "unblocked", "worth", "rows", "hold", "edge", "surge")
	for _, s := range scenes() {
		l := s.load
		for _, end := range s.ends {
			l.Pool.Running.Add(adaptive.WorkOf(end*us, l.Model.Table.At(l.Model.Reach)))
		}
		for i := range s.tighter {
			slack := latency.Time(s.tighter[i][0]) * 1000 * us
			l.Pool.Kept.Claim(slack, &adaptive.Share{Need: s.tighter[i][1], Flow: 2000, Urgency: 2000 / 15e6, Alone: slack / 2, Long: slack, Burst: 1, Executors: 8}, p.Keep, p.Chance)
		}
		l.Pool.Kept.Renew(l.Pool.Need, l.Pool.Usable)
		l.Model.Worth = p.Worth(&l)
		now := 50000 * us
		start := "never"
		if at := p.StartAt(now, &l); at < latency.Never {
			start = fmt.Sprint(at / us)
		}
		load := l.Pool.Load()
		if s.waiting > 0 {
			load = p.SurgeLoad(now, &l, s.waiting)
		}
		hold, edge := p.Hold(&l, load)
		fmt.Fprintf(&b, "%-24s %7d %7s %9d %5d %4d %5d %6d %6.2f\n", s.name, p.Exec(now, &l)/us, start, p.Unblocked(now, &l)/us, l.Model.Worth, p.MaxRows(&l), hold, edge/us, load)
	}
	return b.String()
}

// TestDecisions compares the results of the rules, with the constants in use, with the golden file.
func TestDecisions(t *testing.T) {
	path := filepath.Join("testdata", "decisions.golden")
	got := decisions(adaptive.Defaults())
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// TestEveryConstantDecides: no constant can be halved, nor its rule taken away, without
// another decision in the golden file.
func TestEveryConstantDecides(t *testing.T) {
	usual := decisions(adaptive.Defaults())
	fields := reflect.TypeFor[adaptive.Params]()
	for i := range fields.NumField() {
		for _, times := range []float64{.5, 0} {
			p := adaptive.Defaults()
			v := reflect.ValueOf(&p).Elem().Field(i)
			v.SetFloat(v.Float() * times)
			require.NotEqual(t, usual, decisions(p), "%s times %g", fields.Field(i).Name, times)
		}
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/bound"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

// contestant is a rule by the name that figures have; overall has all requests together decide.
type contestant struct {
	name, discipline, drop string
	overall                bool
}

// over is the goodput of one cell over that of another, seed by seed.
func over(x, of *cell) func() []float64 {
	return func() []float64 {
		all, by := x.all(), of.all()
		for i := range all {
			if by[i] > 0 {
				all[i] /= by[i]
			}
		}
		return all
	}
}

// timeouts is Symphony's figure 6b: timeout-based batching with a timeout that is a part of each model's SLO, over deferred. The paper says that the
// best timeout reaches deferred with one model, and stays well below with the 37 A100 models.
func (b *bench) timeouts(c zoo.Case) ([]*row, error) {
	mixed, err := zoo.Profiles(zoo.A100)
	if err != nil {
		return nil, err
	}
	single := c.Profile
	single.SLO = 50 * time.Millisecond
	var rows []*row
	for _, setup := range []struct {
		name     string
		profiles []zoo.Profile
		gpus     int
		guess    float64
		seconds  float64
	}{{"resnet50", []zoo.Profile{single}, 8, 6000, 10}, {"a100", mixed, 64, 15000, 3}} {
		searched := func(name string, dispatch func(zoo.Profile) scenario.Dispatch) *cell {
			var models []scenario.Model
			for _, p := range setup.profiles {
				d := dispatch(p)
				m := profiled(p)
				m.Dispatch = &d
				models = append(models, m)
			}
			return &cell{name: name, guess: setup.guess, scenario: world(setup.gpus, b.simulated(setup.seconds), scenario.Dispatch{}, models...)}
		}
		n := "fig6b." + setup.name + "."
		deferred := searched(n+"deferred.goodput", func(zoo.Profile) scenario.Dispatch { return rule("deferred", "window", nil) })
		rows = append(rows, &row{figure: deferred.name, cell: deferred, hidden: true})
		var best []*cell
		for _, percent := range []int{0, 10, 20, 30, 40, 80} {
			waits := searched(fmt.Sprintf("%stimeout%d.goodput", n, percent), func(p zoo.Profile) scenario.Dispatch {
				return rule("timeout", "window", map[string]string{"max_queue_delay": (p.SLO * time.Duration(percent) / 100).String()})
			})
			best = append(best, waits)
			rows = append(rows, &row{figure: waits.name, cell: waits, hidden: true})
		}
		known := published{}
		if setup.name == "resnet50" {
			known.paper = 1
		}
		rows = append(rows, &row{figure: n + "best_timeout.of_deferred", unit: "ratio", published: known, rest: func() []float64 {
			top := slices.MaxFunc(best, func(x, y *cell) int { return int(x.found.Rate - y.found.Rate) })
			return over(top, deferred)()
		}})
	}
	return rows, nil
}

// profiled is a model of the zoo that drops what is late.
func profiled(p zoo.Profile) scenario.Model {
	return scenario.Model{
		Name: p.Model, Profile: &scenario.Profile{Alpha: scenario.Duration(p.Alpha), Beta: scenario.Duration(p.Beta)}, SLO: scenario.Duration(p.SLO), Late: "drop",
	}
}

// zoos are mixes of Symphony's figure 9 on 64 GPUs with equal rates: all models of the A100, and of both GPUs those with beta/alpha above 2. The figure has no
// numbers; its text says how many times the best of the others Symphony holds.
func (b *bench) zoos() ([]*row, error) {
	const gpus, least = 64, 2
	var rows []*row
	search := func(part string, profiles []zoo.Profile, rules ...contestant) map[string]*cell {
		most := gathered(profiles, gpus)
		var models []scenario.Model
		for _, p := range profiles {
			models = append(models, profiled(p))
		}
		cells := map[string]*cell{}
		for _, x := range rules {
			cells[x.name] = &cell{
				name: part + x.name + ".goodput", guess: .8 * most, overall: x.overall, scenario: world(gpus, b.simulated(6e4)/most, rule(x.discipline, x.drop, nil), models...),
			}
			rows = append(rows, &row{figure: cells[x.name].name, unit: "req/s", cell: cells[x.name]})
		}
		return cells
	}
	for _, kind := range []struct {
		name, gpuType string
		paper         float64
	}{{"a100", zoo.A100, 5.7}, {"gtx1080ti", zoo.GTX1080Ti, 3.5}} {
		all, err := zoo.Profiles(kind.gpuType)
		if err != nil {
			return nil, err
		}
		if kind.gpuType == zoo.A100 {
			const mixed = "fig9.a100.mixed."
			rows = append(rows, &row{figure: mixed + "gather.bound", unit: "req/s", runs: []float64{gathered(all, gpus)}, note: fmt.Sprintf("%d models", len(all))})
			search(mixed, all, contestant{name: "adaptive", discipline: "adaptive"}, contestant{name: "adaptive.overall", discipline: "adaptive", overall: true},
				contestant{name: "deferred", discipline: "deferred", drop: "window"},
				contestant{name: "eager_prefix", discipline: "eager", drop: "prefix"}, contestant{name: "eager_prefix.overall", discipline: "eager", drop: "prefix", overall: true})
		}
		n := "fig9." + kind.name + ".strong."
		strong := slices.DeleteFunc(slices.Clone(all), func(p zoo.Profile) bool { return p.Beta <= least*p.Alpha })
		cells := search(n, strong, contestant{name: "deferred", discipline: "deferred", drop: "window"}, contestant{name: "earliest_latest", discipline: "earliest-latest"},
			contestant{name: "duty_cycle", discipline: "duty-cycle"}, contestant{name: "flex", discipline: "flex"})
		rows = append(rows, &row{
			figure: n + "deferred.of_best_system", unit: "ratio", published: published{paper: kind.paper}, note: "over the best of earliest_latest, duty_cycle and flex",
			rest: func() []float64 {
				best := cells["flex"]
				for _, x := range []string{"earliest_latest", "duty_cycle"} {
					if cells[x].found.Rate > best.found.Rate {
						best = cells[x]
					}
				}
				return over(cells["deferred"], best)()
			},
		})
	}
	return rows, nil
}

// gathered is what no rule can exceed with these models at equal rates.
func gathered(profiles []zoo.Profile, gpus int) float64 {
	var bounds []bound.Model
	for _, p := range profiles {
		bounds = append(bounds, bound.Model{Latency: func(n int) float64 { return p.Latency(n).Seconds() }, SLO: p.SLO.Seconds(), MaxBatch: 64, Share: 1})
	}
	return bound.Gather(bounds, gpus)
}

// fewGPUs has copies of table 2's ResNet50 on few GPUs, where deferring alone collapses; plain simulations are in the notes.
func (b *bench) fewGPUs(c zoo.Case) []*row {
	var rows []*row
	for _, x := range []struct {
		models, gpus    int
		deferred, eager string
	}{
		{1, 8, "5316", "3825"}, {1, 4, "2489", "2081"}, {2, 2, "816", "914"}, {4, 4, "1786", "1997"}, {8, 8, "3938", "4191"}, {8, 4, "475", "1434"},
		{20, 8, "1645", "2728"}, {8, 2, "7", "359"}, {8, 16, "9844", "9056"}, {16, 32, "20475", "18338"},
	} {
		model := alone(c)
		model.Count = x.models
		most := gathered(slices.Repeat([]zoo.Profile{c.Profile}, x.models), x.gpus)
		for _, r := range []struct{ discipline, note string }{{"deferred", x.deferred}, {"eager", x.eager}, {"adaptive", ""}} {
			n := fmt.Sprintf("few.%don%d.%s.goodput", x.models, x.gpus, r.discipline)
			note := ""
			if r.note != "" {
				note = "a plain simulation " + r.note
			}
			rows = append(rows, &row{figure: n, unit: "req/s", note: note, cell: &cell{name: n, guess: .7 * most, scenario: world(x.gpus, max(3, b.simulated(6e4)/most), rule(r.discipline, "", nil), model)}})
		}
	}
	return rows
}

// aroundThePeak are section 3.5's two properties: past the peak goodput p, at a load o, a bad share like (o-p)/o, and below it an idle share like
// (p-o)/p. Loads are in percent of what the discipline itself holds, seed by seed.
func (b *bench) aroundThePeak(c zoo.Case) []*row {
	var rows []*row
	for _, discipline := range []string{"deferred", "adaptive", "eager"} {
		s := world(c.GPUs, b.simulated(10), rule(discipline, "", nil), alone(c))
		peak := &cell{name: "overload.resnet50." + discipline + ".peak.goodput", guess: c.Goodput["symphony"], scenario: s}
		rows = append(rows, &row{figure: peak.name, cell: peak, hidden: true}) // its p of section 3.5
		if discipline != "eager" {
			rows = append(rows, &row{
				figure: "overload.resnet50." + discipline + ".load125.bad", unit: "ratio", run: peak.offering(1.25, bad), published: published{paper: .25 / 1.25},
				note: "of requests, at 125% of its own peak; the paper's relation is (o-p)/o",
			})
		}
		for _, percent := range []int{25, 50, 75, 100} {
			n, o := fmt.Sprintf("idle.resnet50.%s.load%d.", discipline, percent), float64(percent)/100
			rows = append(rows,
				&row{
					figure: n + "share", unit: "ratio", run: peak.offering(o, idle), published: published{paper: 1 - o},
					note: fmt.Sprintf("of GPU time, at %d%% of its own peak; the paper's relation is (p-o)/p", percent),
				},
				&row{figure: n + "gpus_used", unit: "GPUs", run: peak.offering(o, used), note: fmt.Sprintf("of %d, that ran anything at all", c.GPUs)},
				&row{figure: n + "p50", unit: "ms", run: peak.offering(o, func(r *sim.Result) float64 { return r.Latency.P50Us / 1e3 })})
		}
	}
	return rows
}

// offering runs a scenario at a rate, and looks at one thing.
func offering(s *scenario.Scenario, rate float64, of func(*sim.Result) float64) func(context.Context, uint64) (float64, error) {
	return func(ctx context.Context, seed uint64) (float64, error) {
		r, err := s.Run(ctx, scenario.Options{Rate: rate, Seed: seed})
		if err != nil {
			return 0, err
		}
		return of(r), nil
	}
}

// offering runs a cell's scenario at so many times the goodput that was found for the seed.
func (c *cell) offering(times float64, of func(*sim.Result) float64) func(context.Context, uint64) (float64, error) {
	return func(ctx context.Context, seed uint64) (float64, error) {
		for _, h := range c.found.All {
			if h.Seed == seed && h.Rate > 0 {
				return offering(c.scenario, times*h.Rate, of)(ctx, seed)
			}
		}
		return 0, fmt.Errorf("%s: nothing is held with seed %d, so there is no load to offer in parts of it", c.name, seed)
	}
}

// answered is how many requests a second were answered in time.
func answered(r *sim.Result) float64 { return r.Total.Goodput }

// bad is the share of requests that were not answered in time.
func bad(r *sim.Result) float64 { return r.Total.BadRate }

// used is how many partitions ran a batch.
func used(r *sim.Result) (n float64) {
	for _, p := range r.Partitions {
		if p.Batches > 0 {
			n++
		}
	}
	return n
}

// idle is the share of the time that partitions had nothing to run, over all of them.
func idle(r *sim.Result) float64 {
	share := 1.0
	for _, p := range r.Partitions {
		share -= p.BusyShare / float64(len(r.Partitions))
	}
	return share
}

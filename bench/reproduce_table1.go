// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/bound"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

// load is a workload of Symphony's table 1: models that are alike, or, where none is named, the 35 of its table 3 under their own SLOs.
type load struct {
	model  string
	slo    int // ms
	models int
	gpus   float64 // per model
	shape  float64 // of the Gamma distribution of gaps; 1 is Poisson

	kept    time.Duration // of the SLO, for delays
	overall bool          // all requests together have at most 1% bad ones, not each model's
}

// draws are so many workloads of the 7,560 that the columns of table 1 span with models that are alike. Every option of a column is drawn as
// often as the others, once more or less.
func draws(n int, seed uint64) []load {
	rng := rand.New(rand.NewPCG(seed, 0))
	all := make([]load, n)
	deal(rng, all, []string{"DenseNet121", "InceptionV3", "ResNet50V2", "VGG16", "Xception", "BERT"}, func(l *load, v string) { l.model = v })
	deal(rng, all, []int{8, 16, 24, 32, 48, 64}, func(l *load, v int) { l.models = v })
	deal(rng, all, []float64{1, 1.5, 2, 2.5, 3, 3.5, 4}, func(l *load, v float64) { l.gpus = v })
	deal(rng, all, []int{20, 25, 30, 40, 50}, func(l *load, v int) { l.slo = v })
	deal(rng, all, []float64{.1, .2, .3, .5, .7, 1}, func(l *load, v float64) { l.shape = v })
	return all
}

// deal gives every load one of the options, in an order that is drawn.
func deal[T any](rng *rand.Rand, all []load, options []T, set func(*load, T)) {
	for i, k := range rng.Perm(len(all)) {
		set(&all[k], options[i%len(options)])
	}
}

// requests that a run of a model simulates at least: bursts come in tens, so that it takes more of them.
func (l load) requests() float64 {
	if l.shape <= .2 {
		return 3000
	}
	return 1500
}

// rivalry has a search for each of some rules, under a load with so many requests a model.
func (b *bench) rivalry(name string, l load, requests float64, rules []contestant) ([]*cell, error) {
	profiles, copies := []zoo.Profile{}, l.models
	if l.model == "" {
		all, err := zoo.Profiles(zoo.GTX1080Ti)
		if err != nil {
			return nil, err
		}
		profiles, l.models, copies = all, len(all), 1
	} else {
		p, err := zoo.Lookup(zoo.GTX1080Ti, l.model)
		if err != nil {
			return nil, err
		}
		p.SLO = time.Duration(l.slo)*time.Millisecond - l.kept
		profiles = append(profiles, p)
	}
	var models []scenario.Model
	var bounds []bound.Model
	for _, p := range profiles {
		m := profiled(p)
		m.Count, m.Arrivals = copies, &scenario.Arrivals{Shape: l.shape}
		models = append(models, m)
		analytic := bound.Model{Latency: func(n int) float64 { return p.Latency(n).Seconds() }, SLO: p.SLO.Seconds(), MaxBatch: 64, Share: 1}
		bounds = append(bounds, slices.Repeat([]bound.Model{analytic}, copies)...)
	}
	gpus := int(l.gpus * float64(l.models))
	most := max(float64(l.models), bound.Gather(bounds, gpus))
	var cells []*cell
	for _, x := range rules {
		cells = append(cells, &cell{
			name: "table1." + name + "." + x.name, guess: .8 * most, requests: b.simulated(requests * float64(l.models)),
			overall: l.overall, scenario: world(gpus, 1, rule(x.discipline, x.drop, nil), models...),
		})
	}
	return cells, nil
}

// rivals are what table 1 compares: deferred with eager, and, which the paper has not, with eager under prefix drop.
func rivals() []contestant {
	return []contestant{{"deferred", "deferred", "window"}, {"eager", "eager", "window"}, {"eager_prefix", "eager", "prefix"}}
}

// pair is a workload under rivals.
type pair struct {
	load
	panel string // of figure 7; empty: one that was drawn
	cells []*cell
}

// gain of deferred over eager (1) or eager with prefix drop (2), and whether both hold anything.
func (p pair) gain(eager int) (float64, bool) {
	d, e := p.cells[0].found.Rate, p.cells[eager].found.Rate
	if d == 0 || e == 0 {
		return 0, false
	}
	return d / e, true
}

// synthetic are workloads of Symphony's table 1: some that are drawn from all of them, for its figure 7d, some of each of figure 7's
// other panels. One seed each: there are many of them.
func (b *bench) synthetic() ([]*row, error) {
	var pairs []pair
	add := func(name, panel string, l load) error {
		cells, err := b.rivalry(name, l, l.requests(), rivals())
		for _, c := range cells {
			c.seeds = 1
		}
		pairs = append(pairs, pair{load: l, panel: panel, cells: cells})
		return err
	}
	drawn := 126
	if b.quick {
		drawn = 6
	}
	for i, l := range draws(drawn, b.seed) {
		if err := add(fmt.Sprintf("drawn%d", i), "", l); err != nil {
			return nil, err
		}
	}
	for _, shape := range []float64{.1, .3, 1} {
		for _, gpus := range []float64{1, 2, 3, 4} {
			if err := add(fmt.Sprintf("mixed.gpus%g.gamma%g", gpus, 10*shape), "mixed", load{gpus: gpus, shape: shape}); err != nil {
				return nil, err
			}
		}
	}
	for _, slo := range []int{30, 50} {
		for _, shape := range []float64{.1, 1} {
			for _, gpus := range []float64{1, 2, 4} {
				name := fmt.Sprintf("densenet121_slo%d", slo)
				l := load{model: "DenseNet121", slo: slo, models: 32, gpus: gpus, shape: shape}
				if err := add(fmt.Sprintf("%s.gpus%g.gamma%g", name, gpus, 10*shape), name, l); err != nil {
					return nil, err
				}
			}
		}
	}
	return panels(pairs), nil
}

// panels are what figure 7 and its text say of the workloads. The cells are no figures of their own: there are too many to read.
func panels(pairs []pair) []*row {
	var rows []*row
	for _, p := range pairs {
		for _, c := range p.cells {
			rows = append(rows, &row{figure: c.name, cell: c, hidden: true})
		}
	}
	gains := func(eager int, of func(pair) bool) func() []float64 {
		return func() (all []float64) {
			for _, p := range pairs {
				if g, ok := p.gain(eager); ok && of(p) {
					all = append(all, g)
				}
			}
			return all
		}
	}
	panel := func(name string) func(pair) bool { return func(p pair) bool { return p.panel == name } }
	drawn := func(of func(load) bool) func(pair) bool {
		return func(p pair) bool { return p.panel == "" && of(p.load) }
	}
	anyOf := drawn(func(load) bool { return true })
	for i, name := range []string{"eager", "eager_prefix"} {
		eager := i + 1
		share := func(from float64) func() []float64 {
			return func() []float64 {
				n, all := 0., gains(eager, anyOf)()
				for _, g := range all {
					if g >= from {
						n++
					}
				}
				return []float64{n / float64(max(1, len(all)))}
			}
		}
		paper := func(v float64) published {
			if eager == 2 {
				return published{} // the paper's eager has window drop
			}
			return published{paper: v}
		}
		n := "table1.deferred_over_" + name + "."
		rows = append(rows,
			&row{figure: n + "mixed", unit: "ratio", note: "paper 1.35 to 2.02; median and range of the workloads", rest: gains(eager, panel("mixed"))},
			&row{figure: n + "densenet121_slo30", unit: "ratio", note: "32 models; paper 1.34 to 3.34", rest: gains(eager, panel("densenet121_slo30"))},
			&row{figure: n + "densenet121_slo50", unit: "ratio", note: "32 models; paper: less than at 30 ms", rest: gains(eager, panel("densenet121_slo50"))},
			&row{figure: n + "bert", unit: "ratio", note: "of those drawn", published: paper(1), rest: gains(eager, drawn(func(l load) bool { return l.model == "BERT" }))},
			&row{figure: n + "all", unit: "ratio", note: "workloads drawn from all of table 1", rest: gains(eager, anyOf)},
			&row{figure: n + "share_from_95_percent", unit: "ratio", note: "of those drawn, in which deferred holds at least .95 of eager; paper: almost all", rest: share(.95)},
			&row{figure: n + "share_from_90_percent", unit: "ratio", note: "of those drawn, in which deferred holds at least .9 of eager", rest: share(.9)},
			&row{figure: n + "share_from_half_more", unit: "ratio", note: "of those drawn, in which deferred holds at least 1.5 times eager", published: paper(.16), rest: share(1.5)},
		)
	}
	for _, part := range []struct {
		name string
		of   func(load) bool
	}{
		{"models8", func(l load) bool { return l.models == 8 }}, {"models64", func(l load) bool { return l.models == 64 }},
		{"gpus1", func(l load) bool { return l.gpus == 1 }}, {"gpus4", func(l load) bool { return l.gpus == 4 }},
		{"slo20", func(l load) bool { return l.slo == 20 }}, {"slo50", func(l load) bool { return l.slo == 50 }},
		{"gamma1", func(l load) bool { return l.shape == .1 }}, {"poisson", func(l load) bool { return l.shape == 1 }},
	} {
		rows = append(rows, &row{figure: "table1.deferred_over_eager." + part.name, unit: "ratio", note: "of those drawn", rest: gains(1, drawn(part.of))})
	}
	for _, row := range rows {
		if !row.hidden {
			row.note += "; one seed for each workload, the spread is over workloads"
		}
	}
	slices.SortStableFunc(rows, func(x, y *row) int { return strings.Compare(x.figure, y.figure) })
	return rows
}

// bursts look for why deferred falls behind eager: a workload in which it does, under other rules, and with one thing changed at a time.
func (b *bench) bursts() ([]*row, error) {
	var rows []*row
	hard := load{model: "Xception", slo: 50, models: 8, gpus: 1, shape: .1}
	const long, short = 6000, 1500
	changed := func(change func(*load)) load {
		l := hard
		change(&l)
		return l
	}
	for _, x := range []struct {
		name, note string
		load       load
		requests   float64
	}{
		{"hard", "8 Xception on 8 GPUs, 50 ms, Gamma .1", hard, long},
		{"short", "with 1,500 requests a model, not 6,000", hard, short},
		{"overall", "with at most 1% bad of all requests together", changed(func(l *load) { l.overall = true }), long},
		{"delays", "with 2.8 ms of the SLO kept back for Symphony's default delays", changed(func(l *load) { l.kept = 2800 * time.Microsecond }), long},
		{"slo20", "with SLOs of 20 ms", changed(func(l *load) { l.slo = 20 }), long},
		{"poisson", "with Poisson arrivals", changed(func(l *load) { l.shape = 1 }), long},
		{"gpus4", "on 32 GPUs", changed(func(l *load) { l.gpus = 4 }), long},
		{"models64", "64 models on 64 GPUs", changed(func(l *load) { l.models = 64 }), long / 2},
		{"models64_gpus4", "64 models on 256 GPUs", changed(func(l *load) { l.models, l.gpus = 64, 4 }), long / 2},
	} {
		rules := rivals()[:2]
		if x.name == "hard" {
			rules = append(rivals(), contestant{"deferred_prefix", "deferred", "prefix"}, contestant{"adaptive_window", "adaptive", "window"})
		}
		n := "bursts." + x.name
		cells, err := b.rivalry(n, x.load, x.requests, rules)
		if err != nil {
			return nil, err
		}
		for _, c := range cells {
			rows = append(rows, &row{figure: c.name, cell: c, hidden: true})
		}
		ratio := func(what string, c, of *cell, note string) {
			rows = append(rows, &row{figure: "table1." + n + "." + what, unit: "ratio", note: note, rest: over(c, of)})
		}
		ratio("deferred_over_eager", cells[0], cells[1], x.note)
		if x.name != "hard" {
			continue
		}
		ratio("deferred_over_eager_prefix_drop", cells[3], cells[2], "both with prefix drop")
		ratio("adaptive_over_eager", cells[4], cells[1], "adaptive with window drop, too")
		rows = append(rows, atTheSame("table1."+n, cells[0], cells[1])...)
	}
	return rows, nil
}

// atTheSame load, that of what eager holds, deferred and eager: how much is bad, and how much GPUs idle nevertheless.
func atTheSame(name string, deferred, eager *cell) []*row {
	var rows []*row
	for _, x := range []struct {
		name string
		cell *cell
	}{{"deferred", deferred}, {"eager", eager}} {
		measure := func(of func(*sim.Result) float64) func(context.Context, uint64) (float64, error) {
			return func(ctx context.Context, seed uint64) (float64, error) {
				r, err := x.cell.run(ctx, eager.found.Rate, seed)
				if err != nil {
					return 0, err
				}
				return of(r), nil
			}
		}
		const note = "at the goodput of eager, the median of its seeds"
		rows = append(rows,
			&row{figure: name + "." + x.name + ".bad", unit: "ratio", note: "of all requests, " + note, run: measure(func(r *sim.Result) float64 { return r.Total.BadRate })},
			&row{figure: name + "." + x.name + ".idle", unit: "ratio", note: "of GPU time, " + note, run: measure(idle)})
	}
	return rows
}

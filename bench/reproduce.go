// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/sim/bound"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

// published is a number of Symphony's to compare with: what the paper prints, and what the scheduler that its authors published gave when it was
// built and run alone, in virtual time and without delays. Zero where there is none.
type published struct {
	paper     float64
	low, high float64
}

// row is a line of what is printed.
type row struct {
	figure, unit, note string
	published
	cell *cell
	runs []float64 // instead of a cell
}

// rule of a discipline's name, with a drop policy or its own.
func rule(discipline, drop string, parameters map[string]string) scenario.Dispatch {
	return scenario.Dispatch{Discipline: discipline, DropPolicy: drop, Parameters: parameters}
}

// rules that Symphony's own scheduler was measured with, by model.
func ownScheduler() map[string]map[string]published {
	return map[string]map[string]published{
		"ResNet50": {
			"deferred": {low: 5317, high: 5341}, "eager": {low: 3749, high: 3749}, "target": {low: 5140, high: 5140}, "deferred_prefix": {low: 4539, high: 4539},
		},
		"InceptionResNetV2": {
			"deferred": {low: 941, high: 954}, "eager": {low: 603, high: 603}, "deferred_prefix": {low: 835, high: 835},
		},
	}
}

// reproduce compares the simulator with what Symphony's paper and its published scheduler say, wherever that needs no GPU.
func (b *bench) reproduce(ctx context.Context, r *figure.Report) error {
	seeds := b.roundsOr(3)
	cases, err := zoo.Cases()
	if err != nil {
		return err
	}
	var rows []*row
	for _, c := range cases {
		rows = append(rows, b.table2(c)...)
	}
	rows = append(rows, b.batching()...)
	var cells []*cell
	for _, one := range rows {
		if one.cell != nil {
			cells = append(cells, one.cell)
		}
	}
	if err := b.search(ctx, cells, seeds); err != nil {
		return err
	}
	more, err := b.aroundThePeak(ctx, cases[0], seeds)
	if err != nil {
		return err
	}
	b.print(append(rows, more...), r)
	r.Emulated = "everything: simulated time, Poisson arrivals, no delays; at most 1% bad of the worst model; " + fmt.Sprintf("%d seeds", seeds)
	return nil
}

// simulated is how many seconds a row simulates; --quick is for tests.
func (b *bench) simulated(seconds float64) float64 {
	if b.quick {
		return seconds / 20
	}
	return seconds
}

// table2 are the rows of Symphony's table 2: every discipline under its own drop policy, and deferred without window drop.
func (b *bench) table2(c zoo.Case) []*row {
	name := c.Profile.Model
	prefix := "table2." + strings.ToLower(name) + "."
	model := scenario.Model{Name: name, Profile: &scenario.Profile{Alpha: scenario.Duration(c.Profile.Alpha), Beta: scenario.Duration(c.Profile.Beta)}, SLO: scenario.Duration(c.Profile.SLO), Late: "drop"}
	analytic := bound.Model{Latency: func(n int) float64 { return c.Profile.Latency(n).Seconds() }, SLO: c.Profile.SLO.Seconds(), MaxBatch: 64, Share: 1}
	_, apart := bound.Uncoordinated(analytic, c.GPUs)
	_, staggered := bound.Staggered(analytic, c.GPUs)
	rows := []*row{
		{figure: prefix + "uncoordinated.bound", unit: "req/s", runs: []float64{apart}, published: published{paper: c.Uncoordinated.Goodput}},
		{figure: prefix + "staggered.bound", unit: "req/s", runs: []float64{staggered}, published: published{paper: c.Staggered.Goodput}},
	}
	papers := map[string]float64{
		"deferred": c.Goodput["symphony"], "earliest-latest": c.Goodput["clockwork"], "duty-cycle": c.Goodput["nexus"], "flex": c.Goodput["shepherd"],
	}
	add := func(figureName, discipline, drop, note string) {
		one := ownScheduler()[name][figureName]
		one.paper = papers[figureName]
		n := prefix + strings.ReplaceAll(figureName, "-", "_") + ".goodput"
		rows = append(rows, &row{figure: n, unit: "req/s", note: note, published: one, cell: &cell{
			name: n, guess: .8 * staggered, scenario: world(c.GPUs, b.simulated(20), rule(discipline, drop, nil), model),
		}})
	}
	for _, d := range queue.DescribeDisciplines() {
		drop, note := d.DefaultDrop, ""
		switch d.Name {
		case "timeout":
			note = "Triton's rule drops nothing"
		case "earliest-latest":
			note = "the rule alone, without Clockwork's delays and its scheduling ahead"
		case "duty-cycle":
			note = "the rule alone, on one central queue; Nexus deals requests out to GPUs in advance"
		case "flex":
			note = "preempts at no cost but the lost work"
		}
		add(d.Name, d.Name, drop, note)
	}
	add("deferred_prefix", "deferred", "prefix", "in Symphony's code: timeout drop")
	add("eager_prefix", "eager", "prefix", "")
	return rows
}

// batching is Symphony's figure 6a: 10 models of l(b) = b + beta ms on 32 GPUs with an SLO of 2 l(8).
func (b *bench) batching() []*row {
	var rows []*row
	for _, beta := range []int{1, 5, 10, 15} {
		model := scenario.Model{Name: "m", Count: 10, Profile: &scenario.Profile{Alpha: duration(.001), Beta: duration(float64(beta) / 1e3)},
			SLO: duration(2 * float64(8+beta) / 1e3), Late: "drop"}
		for _, x := range []struct{ name, discipline, drop string }{{"deferred", "deferred", "window"}, {"eager", "eager", "window"}, {"eager_prefix", "eager", "prefix"}} {
			n := fmt.Sprintf("fig6a.beta%d.%s.goodput", beta, x.name)
			rows = append(rows, &row{figure: n, unit: "req/s", cell: &cell{name: n, guess: 32 * 8 / (float64(8+beta) / 1e3) * .8, scenario: world(32, b.simulated(5), rule(x.discipline, x.drop, nil), model)}})
		}
	}
	return rows
}

// aroundThePeak are section 3.5's two properties: good requests past the peak (flat top), and idle GPUs below it.
func (b *bench) aroundThePeak(ctx context.Context, c zoo.Case, seeds int) ([]*row, error) {
	model := scenario.Model{Name: c.Profile.Model, Profile: &scenario.Profile{Alpha: scenario.Duration(c.Profile.Alpha), Beta: scenario.Duration(c.Profile.Beta)}, SLO: scenario.Duration(c.Profile.SLO), Late: "drop"}
	own := map[int]float64{6000: 5468, 10000: 5650, 20000: 5750}
	var rows []*row
	for _, discipline := range []string{"deferred", "adaptive", "eager"} {
		s := world(c.GPUs, b.simulated(10), rule(discipline, "", nil), model)
		measure := func(rate float64, of func(goodput, busy float64) float64) (all []float64, err error) {
			for k := range seeds {
				result, err := s.Run(ctx, scenario.Options{Rate: rate, Seed: b.seed + uint64(k)})
				if err != nil {
					return nil, err
				}
				busy := 0.0
				for _, p := range result.Partitions {
					busy += p.BusyShare / float64(len(result.Partitions))
				}
				all = append(all, of(result.Total.Goodput, busy))
			}
			return all, nil
		}
		for _, offered := range []int{6000, 10000, 20000} {
			runs, err := measure(float64(offered), func(goodput, _ float64) float64 { return goodput })
			if err != nil {
				return nil, err
			}
			one := &row{figure: fmt.Sprintf("overload.resnet50.%s.offered%d.goodput", discipline, offered), unit: "req/s", runs: runs, note: "flat top: more load, no fewer answers in time"}
			if discipline == "deferred" {
				one.low, one.high = own[offered], own[offered]
			}
			rows = append(rows, one)
		}
		for _, percent := range []int{25, 50, 75} {
			peak := c.Goodput["symphony"]
			runs, err := measure(peak*float64(percent)/100, func(_, busy float64) float64 { return 1 - busy })
			if err != nil {
				return nil, err
			}
			rows = append(rows, &row{figure: fmt.Sprintf("idle.resnet50.%s.load%d.share", discipline, percent), unit: "ratio", runs: runs,
				published: published{paper: 1 - float64(percent)/100}, note: fmt.Sprintf("of GPU time, at %d%% of the paper's peak; load-proportional is (p-o)/p", percent)})
		}
	}
	return rows, nil
}

// print writes the comparison, and the figures into the report.
func (b *bench) print(rows []*row, r *figure.Report) {
	w := tabwriter.NewWriter(b.out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "figure\tpaper\tSymphony's code\tours\tspread\tours/paper\tours/code\t")
	number := func(v float64) string {
		if v == 0 {
			return "-"
		}
		return figure.Number(v)
	}
	for _, one := range rows {
		runs := one.runs
		if one.cell != nil {
			runs = rates(one.cell.found)
		}
		note := one.note
		if one.paper > 0 {
			note = strings.TrimPrefix(note+"; paper "+figure.Number(one.paper), "; ")
		}
		if one.low > 0 {
			note = strings.TrimPrefix(note+"; Symphony's code "+span(one.low, one.high), "; ")
		}
		r.AddRuns(one.figure, runs, one.unit, note)
		f := r.Figures[len(r.Figures)-1]
		ratio := func(to float64) string {
			if to == 0 {
				return "-"
			}
			return fmt.Sprintf("%.2f", f.Value/to)
		}
		code := "-"
		if one.low > 0 {
			code = span(one.low, one.high)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", one.figure, number(one.paper), code, figure.Number(f.Value), span(f.Low, f.High), ratio(one.paper), ratio((one.low+one.high)/2))
	}
	_ = w.Flush()
}

func span(low, high float64) string {
	if low == high {
		return figure.Number(low)
	}
	return figure.Number(low) + " to " + figure.Number(high)
}

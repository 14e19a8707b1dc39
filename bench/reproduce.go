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
	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

// published is a number of Symphony's to compare with: what the paper prints, and what the scheduler that its authors published gave when it was
// built and run alone in virtual time. Zero where there is none.
type published struct {
	paper     float64
	low, high float64
}

// row is a line of what is printed.
type row struct {
	figure, unit, note string
	published
	cell   *cell
	runs   []float64                                               // instead of a cell, or what measure gave
	run    func(ctx context.Context, seed uint64) (float64, error) // is asked for every seed, instead of a cell
	rest   func() []float64                                        // is asked when all else is known
	hidden bool                                                    // it is no figure, others are made of it
}

// rule of a discipline's name, with a drop policy or its own.
func rule(discipline, drop string, parameters map[string]string) scenario.Dispatch {
	return scenario.Dispatch{Discipline: discipline, DropPolicy: drop, Parameters: parameters}
}

// section is a part of reproduce, by the name that --only looks in.
type section struct {
	name string
	rows func() ([]*row, error)
}

// sections are all of reproduce's parts.
func (b *bench) sections(cases []zoo.Case) []section {
	return []section{
		{"table2", func() ([]*row, error) { return b.table2(cases), nil }},
		{"reference", func() ([]*row, error) { return b.references(cases), nil }},
		{"budget", func() ([]*row, error) { return b.budgets(cases), nil }},
		{"fig6b", func() ([]*row, error) { return b.timeouts(cases[0]) }},
		{"fig9", b.zoos},
		{"few", func() ([]*row, error) { return b.fewGPUs(cases[0]), nil }},
		{"overload and idle", func() ([]*row, error) { return b.aroundThePeak(cases[0]), nil }},
	}
}

// reproduce compares the simulator with what papers and published schedulers say, wherever that needs no GPU.
func (b *bench) reproduce(ctx context.Context, r *figure.Report) error {
	seeds := b.roundsOr(3)
	cases, err := zoo.Cases()
	if err != nil {
		return err
	}
	var rows []*row
	for _, part := range b.sections(cases) {
		if !strings.Contains(part.name, b.only) {
			continue
		}
		more, err := part.rows()
		if err != nil {
			return err
		}
		rows = append(rows, more...)
	}
	if len(rows) == 0 {
		return fmt.Errorf("reproduce: no part is called %s", b.only)
	}
	if err := b.measure(ctx, rows, seeds); err != nil {
		return err
	}
	b.print(rows, r)
	r.Emulated = "everything: simulated time, Poisson arrivals unless a figure says otherwise, no delays; at most 1% bad of the worst model; " +
		fmt.Sprintf("%d seeds", seeds)
	return nil
}

// simulated is how many seconds a row simulates; --quick is for tests.
func (b *bench) simulated(seconds float64) float64 {
	if b.quick {
		return seconds / 20
	}
	return seconds
}

// measure fills in every row: searches, then single runs, on all cores, then what follows from them.
func (b *bench) measure(ctx context.Context, rows []*row, seeds int) error {
	var cells []*cell
	for _, row := range rows {
		if row.cell != nil {
			cells = append(cells, row.cell)
		}
	}
	if err := b.search(ctx, cells, seeds); err != nil {
		return err
	}
	if err := b.runAll(ctx, rows, seeds); err != nil {
		return err
	}
	for _, row := range rows {
		switch {
		case row.cell != nil:
			row.runs = row.cell.all()
		case row.rest != nil:
			row.runs = row.rest()
		}
	}
	return nil
}

// runAll asks the rows that are functions of a seed.
func (b *bench) runAll(ctx context.Context, rows []*row, seeds int) error {
	type job struct {
		row  *row
		seed int
	}
	var jobs []job
	for _, row := range rows {
		if row.run == nil {
			continue
		}
		row.runs = make([]float64, seeds)
		for k := range seeds {
			jobs = append(jobs, job{row, k})
		}
	}
	return onAllCores(ctx, jobs, func(ctx context.Context, j job) error {
		v, err := j.row.run(ctx, b.seed+uint64(j.seed)) //nolint:gosec // few
		if err != nil {
			return fmt.Errorf("%s: %w", j.row.figure, err)
		}
		j.row.runs[j.seed] = v
		b.say(fmt.Sprintf("%s, seed %d: %s %s", j.row.figure, b.seed+uint64(j.seed), figure.Number(v), j.row.unit)) //nolint:gosec // few
		return nil
	})
}

// all are what a cell's searches found, seed by seed; of one of several equal parts, what all of them hold.
func (c *cell) all() []float64 {
	found := rates(c.found)
	for i := range found {
		found[i] *= max(1, c.parts)
	}
	return found
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
	for _, row := range rows {
		if row.hidden || len(row.runs) == 0 {
			continue
		}
		note := row.note
		if row.paper > 0 {
			note = strings.TrimPrefix(note+"; paper "+figure.Number(row.paper), "; ")
		}
		if row.low > 0 {
			note = strings.TrimPrefix(note+"; Symphony's code "+span(row.low, row.high), "; ")
		}
		r.AddRuns(row.figure, row.runs, row.unit, note)
		f := &r.Figures[len(r.Figures)-1]
		ratio := func(to float64) string {
			if to == 0 {
				return "-"
			}
			return fmt.Sprintf("%.2f", f.Value/to)
		}
		code := "-"
		if row.low > 0 {
			code = span(row.low, row.high)
		}
		if row.paper > 0 || row.low > 0 {
			f.Note += "; ratio " + strings.Join(available(ratio(row.paper), ratio((row.low+row.high)/2)), " and ")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", row.figure, number(row.paper), code, figure.Number(f.Value), span(f.Low, f.High), ratio(row.paper), ratio((row.low+row.high)/2))
	}
	_ = w.Flush()
}

// available are those that there are.
func available(all ...string) (some []string) {
	for _, r := range all {
		if r != "-" {
			some = append(some, r)
		}
	}
	return some
}

func span(low, high float64) string {
	if low == high {
		return figure.Number(low)
	}
	return figure.Number(low) + " to " + figure.Number(high)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/conch-serving/conch/internal/look"
	"github.com/conch-serving/conch/sidecar/sim"
)

//go:embed page.html
var page string

// Judgement is what a page's verdict comes to, for its colour.
type Judgement string

// Judgements.
const (
	Good   Judgement = "good"
	Bad    Judgement = "bad"
	Unsure Judgement = "unsure"
)

// Verdict is one sentence with its uncertainty, and the same in two or three words.
type Verdict struct {
	Text, Label string
	Judgement   Judgement
}

// Page is a report that can stand alone, in a ticket say: the question, the answer, and what it rests on. Texts of others may be in every
// string; none of them is read as markup.
type Page struct {
	Title, Question string
	Verdict         Verdict
	// Setup says in words what was simulated.
	Setup []Fact
	Sides []Side
	// Asked is the rate that the question is about, in requests per second; 0 where it is about none.
	Asked float64
	// NoCurves says why there are no curves over the rate; empty where there are.
	NoCurves string
	Tables   []Table
	// Notes are what a reader must know to judge the figures.
	Notes []string
	// Unknown is what the figures do not know.
	Unknown []string
	// Command makes the page again.
	Command string
}

// Fact is one thing of the set-up.
type Fact struct{ Name, Text string }

// Side is one of what is compared.
type Side struct {
	Name string
	// Curve is which part of the requests was bad, at rates that were tried.
	Curve []Trial
	// Result is that of the rate that was asked about; nil where there is none.
	Result *sim.Result
	// Held is the highest rate that holds; nil where it was not searched.
	Held *sim.Found
}

// Trial is one run at a rate, in requests per second: Bad is the bad rate of the model that fares worst.
type Trial struct {
	Seed      uint64
	Rate, Bad float64
}

// Hopeless is the bad rate beyond which higher rates add nothing to a curve.
const Hopeless = .3

// Trials are those of a search.
func Trials(f *sim.Found) (all []Trial) {
	if f == nil {
		return nil
	}
	for _, h := range f.All {
		for _, t := range h.Trials {
			all = append(all, Trial{h.Seed, t.Rate, t.BadRate})
		}
	}
	return all
}

// Table is figures that are no drawing. The first Text columns are words, the others numbers.
type Table struct {
	Title, Caption string
	Head           []string
	Text           int
	Rows           [][]string
}

// colours of sides and models; beyond them they repeat.
const colours = 8

// HTML writes one file with everything in it: it loads nothing and runs no script.
func (p *Page) HTML(w io.Writer) error {
	t, err := template.New("report").Funcs(template.FuncMap{
		"colour": func(i int) int { return i % colours },
		"text":   func(t Table, column int) bool { return column < t.Text },
	}).Parse(page)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	v := struct {
		*Page
		Style     template.CSS
		Colours   []int
		Summary   Table
		Charts    []chart
		GPUs      *gpuTable
		Timelines []timeline
		Models    []string
	}{Page: p, Style: template.CSS(look.CSS), Summary: summary(p.Sides), Charts: p.charts(), GPUs: gpus(p.Sides)} //nolint:gosec // our own style sheet
	for i := range colours {
		v.Colours = append(v.Colours, i)
	}
	for _, s := range p.Sides {
		if s.Result == nil || len(s.Result.Timeline) == 0 {
			continue
		}
		v.Timelines = append(v.Timelines, timelineOf(s))
		if names := modelNames(s.Result); len(v.Models) == 0 && len(names) <= colours {
			v.Models = names
		} else if !slices.Equal(v.Models, names) {
			v.Models = nil
		}
	}
	var b strings.Builder
	if err := t.Execute(&b, v); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	_, err = io.WriteString(w, b.String())
	return err
}

func modelNames(r *sim.Result) (all []string) {
	for i := range r.Models {
		all = append(all, r.Models[i].Name)
	}
	return all
}

// charts are the drawings of which there is something to draw.
func (p *Page) charts() (all []chart) {
	var curves []series
	for i, s := range p.Sides {
		for k, line := range bySeed(s.Curve) {
			one := series{name: s.Name, side: i, dots: true, thin: k > 0}
			for _, t := range line {
				one.x, one.y = append(one.x, t.Rate), append(one.y, t.Bad)
			}
			curves = append(curves, one)
		}
	}
	add := func(l plot, any bool) {
		if any {
			all = append(all, l.draw())
		}
	}
	curve := plot{
		title: "Bad requests by rate, worst model", note: "A line for each side and repetition. The dashed line is the 1% up to which a rate is held.",
		xUnit: "requests per second, all models", y: shares, level: .01, levelName: "1%", all: curves, large: true,
	}
	if p.Asked > 0 {
		curve.at, curve.atName = p.Asked, "asked"
	}
	add(curve, len(curves) > 0)
	over := func(value func(h sim.Interval, width float64) float64) (lines []series) {
		for i, s := range p.Sides {
			if s.Result != nil && len(s.Result.History) > 1 {
				lines = append(lines, history(s.Name, i, s.Result.History, value))
			}
		}
		return lines
	}
	p99 := over(func(h sim.Interval, _ float64) float64 { return unknownIfZero(h.LatencyP99Us / 1e3) })
	slo := commonSLO(p.Sides)
	latency := plot{title: "Latency over time, p99 of all models, ms", xUnit: "seconds", all: p99}
	if slo > 0 {
		latency.level, latency.levelName = slo, "SLO"
	}
	add(latency, some(p99))
	bad := over(func(h sim.Interval, _ float64) float64 { return float64(h.Bad) / max(1, float64(h.Good+h.Bad)) })
	add(plot{title: "Bad requests over time, by when they arrived", xUnit: "seconds", y: shares, level: .01, levelName: "1%", all: bad}, some(bad))
	busy := over(func(h sim.Interval, _ float64) float64 { return h.Busy })
	add(plot{title: "GPUs that execute", xUnit: "seconds", all: busy}, some(busy))
	sizes := batches(p.Sides)
	add(plot{title: "Batch sizes, % of executions", xUnit: "rows of an execution", whole: true, all: sizes}, some(sizes))
	return all
}

// bySeed are the trials of each seed in order of rate, in the order in which seeds first appear.
func bySeed(trials []Trial) (all [][]Trial) {
	index := map[uint64]int{}
	for _, t := range trials {
		i, known := index[t.Seed]
		if !known {
			i = len(all)
			index[t.Seed] = i
			all = append(all, nil)
		}
		all[i] = append(all[i], t)
	}
	for _, line := range all {
		slices.SortStableFunc(line, func(a, b Trial) int {
			switch {
			case a.Rate < b.Rate:
				return -1
			case a.Rate > b.Rate:
				return 1
			}
			return 0
		})
	}
	return all
}

// commonSLO is that of all models, in milliseconds; 0 where they have several or none.
func commonSLO(sides []Side) float64 {
	slo := int64(-1)
	for _, s := range sides {
		if s.Result == nil {
			continue
		}
		for i := range s.Result.Models {
			if m := s.Result.Models[i].SLOUs; slo >= 0 && m != slo {
				return 0
			}
			slo = s.Result.Models[i].SLOUs
		}
	}
	return float64(max(0, slo)) / 1e3
}

// summary is a row for each side.
func summary(sides []Side) Table {
	t := Table{Caption: "All models together, at the rate that was asked about", Text: 1,
		Head: []string{"", "offered, req/s", "good, req/s", "bad", "bad, worst model", "p50", "p99", "GPUs busy, mean"}}
	held := slices.ContainsFunc(sides, func(s Side) bool { return s.Held != nil })
	if held {
		t.Head = append(t.Head, "highest rate held, req/s", "over seeds")
	}
	for _, s := range sides {
		row := []string{s.Name}
		if r := s.Result; r != nil {
			row = append(row, Rate(r.Total.Rate), Rate(r.Total.Goodput), percent(r.Total.BadRate), percent(r.WorstBadRate()), ms(r.Latency.P50Us), ms(r.Latency.P99Us), busy(r))
		} else {
			row = append(row, "-", "-", "-", "-", "-", "-", "-")
		}
		switch {
		case s.Held != nil:
			row = append(row, Rate(s.Held.Rate), Rate(s.Held.Low)+" to "+Rate(s.Held.High))
		case held:
			row = append(row, "-", "-")
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// mostEvents are shown.
const mostEvents = 40

// EventTable is what happened: plans, failures and the like.
func EventTable(sides []Side) Table {
	t := Table{Title: "Events", Text: 4, Head: []string{"side", "at, s", "event", "what"}}
	more := 0
	for _, s := range sides {
		if s.Result == nil {
			continue
		}
		for i, e := range s.Result.Events {
			if i >= mostEvents/len(sides) {
				more += len(s.Result.Events) - i
				break
			}
			t.Rows = append(t.Rows, []string{s.Name, fmt.Sprintf("%.2f", e.At), strings.ReplaceAll(string(e.Kind), "_", " "), e.Text})
		}
	}
	if more > 0 {
		t.Caption = fmt.Sprintf("The first ones; %d more are in the JSON.", more)
	}
	return t
}

// ModelTable is a row for each model and side.
func ModelTable(sides []Side) Table {
	t := Table{
		Title: "Models", Caption: "Latency from arrival to answer, queueing included, of answered requests", Text: 2,
		Head: []string{"model", "side", "offered, req/s", "good, req/s", "bad", "p50", "p95", "p99", "SLO", "p99 / SLO", "mean batch, rows"},
	}
	at := map[string]int{}
	var grouped [][][]string
	for _, s := range sides {
		if s.Result == nil {
			continue
		}
		add := func(name string, slo int64, totals *sim.Totals, latency *sim.Latency, batch string) {
			k, known := at[name]
			if !known {
				k = len(grouped)
				at[name] = k
				grouped = append(grouped, nil)
			}
			over := "-"
			if slo > 0 && latency.P99Us > 0 {
				over = fmt.Sprintf("%.2f", latency.P99Us/float64(slo))
				if latency.P99Us > float64(slo) {
					over += " over"
				}
			}
			grouped[k] = append(grouped[k], []string{
				name, s.Name, Rate(totals.Rate), Rate(totals.Goodput), percent(totals.BadRate), ms(latency.P50Us), ms(latency.P95Us), ms(latency.P99Us),
				ms(float64(slo)), over, batch,
			})
		}
		for i := range s.Result.Models {
			m := &s.Result.Models[i]
			add(m.Name, m.SLOUs, &m.Totals, &m.Latency, fmt.Sprintf("%.1f", m.MeanBatch))
		}
		for i := range s.Result.Pipelines {
			p := &s.Result.Pipelines[i]
			add(p.Name, p.SLOUs, &p.Totals, &p.Latency, "-")
		}
	}
	for _, g := range grouped {
		t.Rows = append(t.Rows, g...)
	}
	return t
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/sidecar/sim/segment"
)

// abacusQueries is how many queries a pair is sent; the paper's runs have 1,000.
const abacusQueries = 4000

// abacusContestants are what the paper compares: Abacus, and its three baselines as its authors' code has them. Those that end in `in_time` are what
// a user without Abacus would run: they drop what cannot be finished in time, as Abacus does, and look at all that waits. Two are Abacus
// without one thing, and one is Abacus as the authors' code runs it: without a margin, with two ways, and with features in another order than in training.
func abacusContestants() map[string]segment.Scheduler {
	paper := segment.Paper()
	whole, bold, asRun := paper, paper, paper
	whole.Whole, bold.Margin = true, 0
	asRun.Ways, asRun.Margin = 2, 0
	baseline := func(order segment.Order, deciding time.Duration) segment.Scheduler {
		return segment.Sequential{Order: order, Rounds: true, Deciding: deciding}
	}
	inTime := func(order segment.Order) segment.Scheduler {
		return segment.Sequential{Order: order, Hopeless: true, Margin: paper.Margin}
	}
	return map[string]segment.Scheduler{
		"abacus": paper, "abacus_whole": whole, "abacus_no_margin": bold, abacusAsRun: asRun,
		"fcfs": baseline(segment.FCFS, 0), "edf": baseline(segment.EDF, 0),
		"sjf":         baseline(segment.SJF, 88*time.Microsecond), // a prediction of several at once (section 7.7), not hidden
		"edf_in_time": inTime(segment.EDF), "sjf_in_time": inTime(segment.SJF),
	}
}

// abacusAsRun is the contestant whose predictor is asked with mistaken features.
const abacusAsRun = "abacus_as_run"

// abacusOthers are those that Abacus is compared with, in the order of rows.
func abacusOthers() []string { return []string{"fcfs", "sjf", "edf", "edf_in_time", "sjf_in_time"} }

// abacusLoad is one of the paper's two.
type abacusLoad struct {
	name    string
	rate    float64
	targets map[[2]int]time.Duration
}

// abacus measures pairs, each seed and load once, however many figures ask for it.
type abacus struct {
	x       *segment.Experiment
	queries int
	mutex   sync.Mutex
	known   map[string]func() (abacusRuns, error)
}

// abacusRuns are the outcomes of all pairs by contestant, in the order of abacus.pairs.
type abacusRuns map[string][]*segment.Result

func (a *abacus) pairs() (all [][2]int) {
	for i := range a.x.Models {
		for j := i + 1; j < len(a.x.Models); j++ {
			all = append(all, [2]int{i, j})
		}
	}
	return all
}

func (a *abacus) runs(l abacusLoad, seed uint64) (abacusRuns, error) {
	a.mutex.Lock()
	key := fmt.Sprint(l.name, seed)
	once, ok := a.known[key]
	if !ok {
		once = sync.OnceValues(func() (abacusRuns, error) { return a.simulate(l, seed) })
		a.known[key] = once
	}
	a.mutex.Unlock()
	return once()
}

func (a *abacus) simulate(l abacusLoad, seed uint64) (abacusRuns, error) {
	all := abacusRuns{}
	for _, pair := range a.pairs() {
		world := a.x.World(pair)
		mistaken := a.x.World(pair)
		mistaken.Predictor, mistaken.Truth = a.x.ServingAsRun(pair), world.Predictor
		queries := a.x.Queries(segment.Load{Pair: pair, Rate: l.rate, Target: l.targets[pair], Queries: a.queries, Seed: seed})
		for name, s := range abacusContestants() {
			w := world
			if name == abacusAsRun {
				w = mistaken
			}
			r, err := w.Run(context.Background(), queries, s, seed)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			all[name] = append(all[name], r)
		}
	}
	return all, nil
}

// reproduceAbacus compares the discipline segment with what Abacus's paper says.
func (b *bench) reproduceAbacus(ctx context.Context, r *figure.Report) error {
	seeds := b.roundsOr(3)
	rows, err := b.pairsOfAbacus()
	if err != nil {
		return fmt.Errorf("reproduce-abacus: %w", err)
	}
	rows = slices.DeleteFunc(rows, func(row *row) bool { return !strings.Contains(row.figure, b.only) })
	if len(rows) == 0 {
		return fmt.Errorf("reproduce-abacus: no figure has %s in its name", b.only)
	}
	if err := b.measure(ctx, rows, seeds); err != nil {
		return err
	}
	b.print(rows, r)
	r.Emulated = fmt.Sprintf("everything: simulated time, groups take what the published predictor says, give or take its error; Poisson arrivals, %d queries a pair, %d seeds", int(b.simulated(abacusQueries)), seeds)
	return nil
}

// pairsOfAbacus are the rows of Abacus (SC'21): its 21 pairs of models at 50 queries per second (section 7.2) and at 100 (7.3). They need what the paper's
// authors published, which has no licence and is read from a directory.
func (b *bench) pairsOfAbacus() ([]*row, error) {
	if b.abacus == "" {
		return nil, errors.New("--abacus names no directory with the published predictor; sidecar/sim/segment/README.md says how to make one")
	}
	x, err := segment.ReadExperiment(os.DirFS(b.abacus))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", b.abacus, err)
	}
	a := &abacus{x: x, queries: int(b.simulated(abacusQueries)), known: map[string]func() (abacusRuns, error){}}
	calm, peak := abacusLoad{"qps50", 50, x.QoS}, abacusLoad{"qps100", 100, x.Peak}
	papers := map[string]map[string]float64{ // sections 7.2 and 7.3
		"qps50.p99_reduction":         {"fcfs": 23.1, "sjf": 34.1, "edf": 23.8},
		"qps50.violations_reduction":  {"fcfs": 38.8, "sjf": 71.0, "edf": 44.0},
		"qps100.violations_reduction": {"fcfs": 55.7, "sjf": 63.2, "edf": 54.3},
		"qps100.answered_gain":        {"fcfs": 25.7, "sjf": 38.1, "edf": 25.7},
	}
	var rows []*row
	for _, gain := range []struct {
		load   abacusLoad
		figure string
		by     func(a, other []*segment.Result, l abacusLoad) float64
		note   string
	}{
		{calm, "p99_reduction", latencyReduction, "99th percentile of answered queries, mean over pairs of the reduction"},
		{calm, "violations_reduction", violationsReduction, "late or dropped queries of all pairs"},
		{peak, "violations_reduction", violationsReduction, "late or dropped queries of all pairs"},
		{peak, "answered_gain", answeredGain, "queries answered, late or not, mean over pairs of the gain"},
		{peak, "in_time_gain", inTimeGain, "queries answered in time of all pairs"},
	} {
		for _, other := range abacusOthers() {
			name := gain.load.name + "." + gain.figure
			for _, who := range [][2]string{{"abacus"}, {abacusAsRun, ".as_run"}} {
				end := who[1]
				if end != "" && papers[name][other] == 0 {
					continue
				}
				rows = append(rows, a.row("abacus."+name+"."+other+end, "%", gain.note, papers[name][other], gain.load, func(r abacusRuns) float64 { return 100 * gain.by(r[who[0]], r[other], gain.load) }))
			}
		}
	}
	for _, l := range []abacusLoad{calm, peak} {
		for _, name := range slices.Sorted(maps.Keys(abacusContestants())) {
			prefix := "abacus." + l.name + "." + name
			rows = append(rows,
				a.row(prefix+".violations", "share", "late or dropped", 0, l, func(r abacusRuns) float64 { return meanOver(r[name], violations) }),
				a.row(prefix+".in_time", "queries/s", "", 0, l, func(r abacusRuns) float64 { return meanOver(r[name], inTime) }),
				a.row(prefix+".p99_of_target", "ratio", "mean over pairs", 0, l, func(r abacusRuns) float64 { return meanOfTargets(r[name], l, a.pairs()) }))
		}
		rows = append(rows, a.row("abacus."+l.name+".asked_per_group", "rounds", "how often the predictor is asked; the paper: most groups in less than three", 0, l, asked))
	}
	return append(rows, a.rowsOfPairs(calm, peak)...), nil
}

// rowsOfPairs are rows for each pair.
func (a *abacus) rowsOfPairs(calm, peak abacusLoad) (rows []*row) {
	for i, pair := range a.pairs() {
		name := fmt.Sprintf("abacus.pairs.%s_%s.", a.x.Models[pair[0]].Name, a.x.Models[pair[1]].Name)
		rows = append(rows,
			a.row(name+"p99_of_fcfs", "ratio", "50 queries per second", 0, calm, func(r abacusRuns) float64 {
				return 1 - latencyReduction(r["abacus"][i:i+1], r["fcfs"][i:i+1], calm)
			}),
			a.row(name+"answered_of_fcfs", "ratio", "100 queries per second", 0, peak, func(r abacusRuns) float64 { return 1 + answeredGain(r["abacus"][i:i+1], r["fcfs"][i:i+1], peak) }),
			a.row(name+"in_time_of_edf_in_time", "ratio", "100 queries per second", 0, peak, func(r abacusRuns) float64 { return 1 + inTimeGain(r["abacus"][i:i+1], r["edf_in_time"][i:i+1], peak) }))
	}
	return rows
}

func (a *abacus) row(name, unit, note string, paper float64, l abacusLoad, value func(abacusRuns) float64) *row {
	return &row{figure: name, unit: unit, note: note, published: published{paper: paper}, run: func(ctx context.Context, seed uint64) (float64, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		r, err := a.runs(l, seed)
		if err != nil {
			return 0, err
		}
		return value(r), nil
	}}
}

func meanOver(all []*segment.Result, of func(segment.Outcomes) float64) (sum float64) {
	for _, r := range all {
		sum += of(r.Outcomes) / float64(len(all))
	}
	return sum
}

func violations(o segment.Outcomes) float64 { return o.Violations() }
func inTime(o segment.Outcomes) float64     { return o.Throughput() }

func meanOfTargets(all []*segment.Result, l abacusLoad, pairs [][2]int) (sum float64) {
	for i, r := range all {
		sum += r.Outcomes.Percentile(.99).Seconds() / l.targets[pairs[i]].Seconds() / float64(len(all))
	}
	return sum
}

func asked(r abacusRuns) float64 {
	rounds, groups := 0, 0
	for _, result := range r["abacus"] {
		rounds, groups = rounds+result.Asked, groups+result.Groups
	}
	return float64(rounds) / float64(max(1, groups))
}

func latencyReduction(a, other []*segment.Result, _ abacusLoad) (sum float64) {
	for i := range a {
		if p := other[i].Outcomes.Percentile(.99); p > 0 {
			sum += (1 - a[i].Outcomes.Percentile(.99).Seconds()/p.Seconds()) / float64(len(a))
		}
	}
	return sum
}

func answeredGain(a, other []*segment.Result, _ abacusLoad) (sum float64) {
	for i := range a {
		if n := other[i].Outcomes.Answered(); n > 0 {
			sum += (a[i].Outcomes.Answered()/n - 1) / float64(len(a))
		}
	}
	return sum
}

// violationsReduction is of the sums: single pairs have baselines without violations.
func violationsReduction(a, other []*segment.Result, _ abacusLoad) float64 {
	if n := meanOver(other, violations); n > 0 {
		return 1 - meanOver(a, violations)/n
	}
	return 0
}

// inTimeGain is of the sums: a baseline that answers hardly anything in time on a pair would be most of a mean of ratios.
func inTimeGain(a, other []*segment.Result, _ abacusLoad) float64 {
	if n := meanOver(other, inTime); n > 0 {
		return meanOver(a, inTime)/n - 1
	}
	return 0
}

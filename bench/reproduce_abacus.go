// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
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

// abacusContestants are what is compared: Abacus, two of the paper's baselines as its authors' code has them, and what a user without Abacus would run: it
// drops what cannot be finished in time, as Abacus does, and looks at all that waits. One is Abacus as the authors' code runs it: without a margin, with two
// ways, and with features in another order than in training.
func abacusContestants() map[string]segment.Scheduler {
	paper := segment.Paper()
	asRun := paper
	asRun.Ways, asRun.Margin = 2, 0
	return map[string]segment.Scheduler{
		"abacus": paper, abacusAsRun: asRun,
		"fcfs":        segment.Sequential{Order: segment.FCFS, Rounds: true},
		"sjf":         segment.Sequential{Order: segment.SJF, Rounds: true, Deciding: 88 * time.Microsecond}, // a prediction of several at once (section 7.7), not hidden
		"edf_in_time": segment.Sequential{Order: segment.EDF, Hopeless: true, Margin: paper.Margin},
	}
}

// abacusAsRun is the contestant whose predictor is asked with mistaken features.
const abacusAsRun = "abacus_as_run"

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
	type gain struct {
		name, note string
		by         func(a, other []*segment.Result) float64
	}
	latency := gain{"p99_reduction", "99th percentile of answered queries, mean over pairs of the reduction", latencyReduction}
	violated := gain{"violations_reduction", "late or dropped queries of all pairs", violationsReduction}
	more := gain{"answered_gain", "queries answered, late or not, mean over pairs of the gain", answeredGain}
	timely := gain{"in_time_gain", "queries answered in time of all pairs", inTimeGain}
	var rows []*row
	for _, c := range []struct {
		load       abacusLoad
		gain       gain
		who, other string
		paper      float64 // sections 7.2 and 7.3
	}{
		{calm, latency, "abacus", "fcfs", 23.1}, {calm, latency, "abacus", "sjf", 34.1}, {calm, latency, "abacus", "edf_in_time", 0},
		{calm, violated, "abacus", "fcfs", 38.8}, {calm, violated, abacusAsRun, "fcfs", 38.8}, {calm, violated, "abacus", "edf_in_time", 0},
		{peak, more, "abacus", "fcfs", 25.7}, {peak, more, "abacus", "sjf", 38.1}, {peak, timely, "abacus", "edf_in_time", 0},
	} {
		name := "abacus." + c.load.name + "." + c.gain.name + "." + c.other
		if c.who == abacusAsRun {
			name += ".as_run"
		}
		rows = append(rows, a.row(name, "%", c.gain.note, c.paper, c.load, func(r abacusRuns) float64 { return 100 * c.gain.by(r[c.who], r[c.other]) }))
	}
	return rows, nil
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

func latencyReduction(a, other []*segment.Result) (sum float64) {
	for i := range a {
		if p := other[i].Outcomes.Percentile(.99); p > 0 {
			sum += (1 - a[i].Outcomes.Percentile(.99).Seconds()/p.Seconds()) / float64(len(a))
		}
	}
	return sum
}

func answeredGain(a, other []*segment.Result) (sum float64) {
	for i := range a {
		if n := other[i].Outcomes.Answered(); n > 0 {
			sum += (a[i].Outcomes.Answered()/n - 1) / float64(len(a))
		}
	}
	return sum
}

// violationsReduction is of the sums: single pairs have baselines without violations.
func violationsReduction(a, other []*segment.Result) float64 {
	if n := meanOver(other, violations); n > 0 {
		return 1 - meanOver(a, violations)/n
	}
	return 0
}

// inTimeGain is of the sums: a baseline that answers hardly anything in time on a pair would be most of a mean of ratios.
func inTimeGain(a, other []*segment.Result) float64 {
	if n := meanOver(other, inTime); n > 0 {
		return meanOver(a, inTime)/n - 1
	}
	return 0
}

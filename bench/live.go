// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

// stretch is by how much emulated times and SLOs are longer than published, so that all executions together stay below 400 a second, which
// two cores serve with real tritonservers.
const stretch = 5

// liveScenario is one load of the live comparison.
type liveScenario struct {
	name         string
	models, gpus int
	// start is where the first search begins, in req/s; measure how long a trial is, so that 1% is some ten requests at least; confirm how
	// long the trials are that confirm what a search found.
	start            float64
	measure, confirm time.Duration
}

func liveScenarios() []liveScenario {
	return []liveScenario{
		{name: "1on4", models: 1, gpus: 4, start: 330, measure: 5 * time.Second, confirm: 20 * time.Second},
		{name: "8on4", models: 8, gpus: 4, start: 105, measure: 10 * time.Second, confirm: 30 * time.Second},
	}
}

// liveRow is what one line of the comparison shows: the best of some setups.
type liveRow struct {
	name   string // of its figure
	setups []rig.Setup
}

// conchRow is the row of Conch's defaults.
const conchRow = "conch"

// rows are the setups that are compared: Triton as its documentation tells users to tune it, and Conch with and without deadlines.
func (s liveScenario) rows(p zoo.Profile) []liveRow {
	ms := func(n float64) time.Duration { return time.Duration(stretch * n * float64(time.Millisecond)) }
	dynamic := func(d time.Duration) zoo.DynamicBatching { return zoo.DynamicBatching{MaxQueueDelay: d} }
	preferred := func(d time.Duration, sizes ...int) rig.Setup {
		return rig.TritonSetup{DynamicBatching: zoo.DynamicBatching{MaxQueueDelay: d, PreferredBatchSizes: sizes}}
	}
	timeout := func(part float64) rig.Setup {
		return rig.TritonSetup{DynamicBatching: zoo.DynamicBatching{QueueTimeout: time.Duration(part * stretch * float64(p.SLO))}}
	}
	rows := []liveRow{
		{"triton.dynamic", rig.Delays(0, ms(2), ms(5), ms(10))},
		{"triton.preferred", []rig.Setup{preferred(ms(2), 4), preferred(ms(5), 8)}},
		{"triton.queue_timeout", []rig.Setup{timeout(.6), timeout(.4)}},
	}
	if s.models > 1 {
		alone, twice := s.placement(1), s.placement(2)
		const onOne, onTwo = "each model on 1 GPU", "each model on 2 GPUs"
		rows = append(rows,
			liveRow{"triton.dedicated", []rig.Setup{
				rig.TritonSetup{Placement: alone, Placed: onOne},
				rig.TritonSetup{Placement: twice, Placed: onTwo},
				rig.TritonSetup{DynamicBatching: dynamic(ms(5)), Placement: alone, Placed: onOne},
			}},
			liveRow{"triton.rate_limiter", []rig.Setup{
				rig.TritonSetup{RateLimiter: true},
				rig.TritonSetup{RateLimiter: true, Placement: alone, Placed: onOne},
				rig.TritonSetup{RateLimiter: true, Placement: twice, Placed: onTwo},
			}},
		)
	}
	return append(rows,
		liveRow{conchRow + ".eager", []rig.Setup{rig.ConchSetup{Discipline: "eager"}}},
		liveRow{conchRow + ".timeout", []rig.Setup{conchTimeout(0), conchTimeout(ms(2))}},
		liveRow{conchRow, []rig.Setup{rig.ConchSetup{}}},
	)
}

func conchTimeout(d time.Duration) rig.Setup {
	return rig.ConchSetup{Discipline: "timeout", Parameters: map[string]string{"max_queue_delay": d.String()}}
}

// placement deals the models out, so that each is on so many GPUs and GPUs have equally many.
func (s liveScenario) placement(copies int) [][]int {
	placed := make([][]int, s.gpus)
	for m := range s.models {
		for c := range copies {
			gpu := (m + c*(s.gpus/copies)) % s.gpus
			placed[gpu] = append(placed[gpu], m)
		}
	}
	return placed
}

// live compares Conch with Triton's own scheduling, one and eight models on four GPUs.
func (b *bench) live(ctx context.Context, r *figure.Report) error {
	if b.server == "" {
		return errors.New("no tritonserver: run `make bench`, or say --tritonserver")
	}
	cases, err := zoo.Cases()
	if err != nil {
		return err
	}
	resnet := cases[0].Profile // Symphony's Table 2
	r.Emulated = fmt.Sprintf("GPUs: an execution of b rows of %s sleeps for %d times %v + %v*b, in the python backend of real tritonservers; SLO %d times %v. All rates are a fifth of what unstretched times would give",
		resnet.Model, stretch, resnet.Beta, resnet.Alpha, stretch, resnet.SLO)
	for _, s := range liveScenarios() {
		if err := b.liveScenario(ctx, r, s, resnet); err != nil {
			return fmt.Errorf("live.%s: %w", s.name, err)
		}
	}
	return b.disturbed(ctx, r, resnet)
}

// contest is what the rows of a scenario have in common.
func (b *bench) contest(s liveScenario, p zoo.Profile) *rig.Contest {
	c := &rig.Contest{
		Models: rig.Copies(p, s.models, stretch, 64), GPUs: s.gpus, GPUType: zoo.GTX1080Ti, Server: b.server, Bin: b.bin,
		Warmup: time.Second, Measure: s.measure, Confirm: s.confirm, Progress: func(line string) { b.say(s.name + ": " + line) },
	}
	if b.quick {
		c.Measure, c.Confirm = s.measure/2, 0
	}
	return c
}

// standings are the rates that one row held, a round each.
type standings struct {
	row  liveRow
	held []float64
	best rig.Setup // chosen in the first round
	rate float64
}

// liveScenario measures every row once, then Triton's best row and Conch's again in turns, so that their ratio has a spread.
func (b *bench) liveScenario(ctx context.Context, r *figure.Report, s liveScenario, p zoo.Profile) error {
	c := b.contest(s, p)
	all := map[string]*standings{}
	var order []*standings
	start := s.start
	for _, row := range s.rows(p) {
		if name := "live." + s.name + "." + row.name; !strings.Contains(name, b.only) {
			continue
		}
		entry := &standings{row: row}
		if row.name == conchRow+".eager" {
			start *= 1.25 // Conch's rows are searched from a higher rate on
		}
		if err := b.round(ctx, c, entry, start, 0); err != nil {
			return err
		}
		start = entry.rate
		all[row.name] = entry
		order = append(order, entry)
	}
	if b.only == "" {
		best := order[0]
		for _, entry := range order {
			if entry.best.System() == "Triton" && entry.held[0] > best.held[0] {
				best = entry
			}
		}
		conch := all[conchRow]
		rounds := 2
		if b.quick {
			rounds = 1
		}
		for round := 1; round < b.roundsOr(rounds); round++ {
			for _, entry := range []*standings{best, conch} {
				if err := b.round(ctx, c, entry, entry.rate, round); err != nil {
					return err
				}
			}
		}
		s.ratios(r, all, best)
	}
	for _, entry := range order {
		r.AddRuns("live."+s.name+"."+entry.row.name+".goodput", entry.held, "req/s", entry.best.String())
	}
	if len(order) == 0 {
		return nil
	}
	late, ofSLO := c.Lateness()
	r.Add("live."+s.name+".timer_lateness_p99_ms", float64(late)/1e6, "ms", fmt.Sprintf("worst trial; %.1f%% of the SLO", 100*ofSLO))
	return nil
}

// round searches the rate that a row holds. The best of its setups is chosen in the first round.
func (b *bench) round(ctx context.Context, c *rig.Contest, entry *standings, start float64, round int) error {
	setups := entry.row.setups
	if entry.best != nil {
		setups = []rig.Setup{entry.best}
	}
	c.Seed = b.seed + uint64(round)
	found, err := c.Highest(ctx, setups, start)
	if err != nil {
		return err
	}
	entry.best, entry.rate = found.Setup, found.Rate
	entry.held = append(entry.held, found.Held())
	return nil
}

// ratios adds what the rates say of each other.
func (s liveScenario) ratios(r *figure.Report, all map[string]*standings, best *standings) {
	name, conch := "live."+s.name+".", all[conchRow]
	over := func(figure string, above, below *standings, note string) {
		var runs []float64
		for i := range min(len(above.held), len(below.held)) {
			runs = append(runs, above.held[i]/below.held[i])
		}
		r.AddRuns(name+figure, runs, "ratio", note)
	}
	dynamic, pooled := all["triton.dynamic"], all[conchRow+".eager"]
	if other := all[conchRow+".timeout"]; other.held[0] > pooled.held[0] {
		pooled = other
	}
	over("goodput_ratio", conch, best, fmt.Sprintf("highest rate with at most 1%% bad for every model, Conch's defaults over the best of all Triton's settings: %v", best.best))
	over("to_dynamic_batching", conch, dynamic, fmt.Sprintf("Conch's defaults over Triton's dynamic batching, every model on every GPU: %v", dynamic.best))
	over("pooling_ratio", pooled, dynamic, "what a queue per model over all GPUs brings: Conch without deadlines ("+pooled.best.String()+") over Triton's dynamic batching")
	over("deadline_ratio", conch, pooled, "what deadlines bring on top: Conch's defaults over the better of eager and timeout")
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

const (
	// stretchPerGPU is by how much times and SLOs are longer than published, for each emulated GPU: then two cores serve the merged rate, with
	// time left, and a trial of some seconds still has more than a hundred batches.
	stretchPerGPU = 5
	// leastStretch keeps the SLO well above what a busy machine is late by.
	leastStretch = 15
	// liveRequests are the fewest of one trial of a search, within bounds of its length: a rate holds while at most 1% of them are bad.
	liveRequests = 1200
	// confirmSeconds is the least of a trial that confirms a rate: a single late batch of fifty rows is then well below 1%.
	confirmSeconds = 12
	// learnFirst, and learnEach for each model of the case, is how long Conch learns what executions take before a search, on a machine that
	// starts nothing more. Each side of a case has as long.
	learnFirst, learnEach = 4 * time.Second, time.Second / 2
	liveRows              = 64
	// partOfSingle is how much of the rate of one model a merge group has to hold, and partTrials how often it is offered that.
	partOfSingle, partTrials = .9, 5
)

// mergeSide is one side of a comparison.
type mergeSide struct {
	name, note string
	models     rig.Models
	setups     []rig.Setup
	start      float64
	held       []float64
	// late is by how much sleeps of the generator ended late, at worst.
	late time.Duration
	// bad is the part of bad requests at partOfSingle of what one model held, a trial each; of the merge group only.
	bad []float64
	all float64 // the rate that all of some trials hold
}

// mergeLive compares fine-tunes of a ResNet-50 on emulated A100s behind real tritonservers: each with batches of its own, under the discipline that the
// simulator finds best for that, with one merge group, which Conch makes, verifies and serves; and with one model at the summed rate. In the first case
// besides: the same graphs as ensembles of Triton's, whose members meet in the dynamic batcher of the backbone. An execution of b rows sleeps for
// the backbone's time for b rows, and for .05 of that for the heads, which run as one in the group and each for itself in an ensemble.
func (b *bench) mergeLive(ctx context.Context, r *figure.Report, found []foreseen) error {
	if b.server == "" {
		return errors.New("no tritonserver: run `make bench BENCH=merge`, or say --tritonserver")
	}
	p, err := zoo.Lookup(gpuType, "ResNet50")
	if err != nil {
		return err
	}
	p.SLO = 25 * time.Millisecond
	for _, f := range found {
		if !b.wants("live." + f.name()) {
			continue
		}
		stretch := max(leastStretch, stretchPerGPU*float64(f.partitions))
		tunes, err := rig.FineTunes(p, f.models, headCost, stretch, liveRows)
		if err != nil {
			return err
		}
		rows := []*mergeSide{
			{
				name: "separate", note: fmt.Sprintf("%d fine-tunes, unmerged, under %s, which the simulator finds best of four", f.models, f.discipline),
				models: tunes.Plain(), setups: []rig.Setup{rig.ConchSetup{Discipline: f.discipline}}, start: f.separate,
			},
			{name: "merged", note: "the same in one merge group", models: tunes, setups: []rig.Setup{rig.ConchSetup{Merge: true}}, start: f.merged},
			{name: "single", note: "one model of the backbone's time at the summed rate", models: rig.Copies(p, 1, stretch, liveRows), setups: []rig.Setup{rig.ConchSetup{}}, start: f.single},
		}
		if f.name() == "4on2" {
			ensembles, err := rig.Ensembles(p, f.models, headCost, stretch, liveRows)
			if err != nil {
				return err
			}
			rows = append(rows, &mergeSide{
				name: "ensemble", note: "the same as ensembles of Triton's on each GPU: a backbone with Triton's dynamic batching, and a head of its own for each; the better of no queue delay and a tenth of the SLO",
				models: ensembles, setups: rig.Delays(0, time.Duration(stretch*float64(p.SLO)/10)), start: f.separate,
			})
		}
		for round := range b.roundsOr(1) {
			for _, row := range rows {
				if err := b.mergeRow(ctx, f, row, stretch, b.seed+uint64(round)); err != nil { //nolint:gosec // small
					return fmt.Errorf("%s, %s: %w", f.name(), row.name, err)
				}
			}
		}
		if err := b.mergePart(ctx, f, rows[1], rows[2].held); err != nil {
			return fmt.Errorf("%s, merged, at a part of one model's rate: %w", f.name(), err)
		}
		for _, row := range rows[:3] {
			c := b.mergeContest(f, row, median(row.held), b.seed)
			if row.all, err = c.AllHold(ctx, row.setups[0], median(row.held), partTrials); err != nil {
				return fmt.Errorf("%s, %s, at a rate that %d trials hold: %w", f.name(), row.name, partTrials, err)
			}
		}
		f.report(r, rows, stretch)
	}
	return nil
}

// mergePart offers a merge group a part of the rate that one model held. A search is right to some 3%, and so are two: what the group has to hold is
// better judged by several trials at that rate.
func (b *bench) mergePart(ctx context.Context, f foreseen, row *mergeSide, held []float64) (err error) {
	rate := partOfSingle * median(held)
	c := b.mergeContest(f, row, rate, b.seed)
	row.bad, err = c.Bad(ctx, row.setups[0], rate, partTrials)
	return err
}

// mergeRow searches the rate that one side holds, once it has learnt what executions take, and confirms it with other arrivals, in steps of 3%. All
// models are judged together: a merged group of four is compared with one model.
func (b *bench) mergeRow(ctx context.Context, f foreseen, row *mergeSide, stretch float64, seed uint64) error {
	rate := row.start / stretch
	c := b.mergeContest(f, row, rate, seed)
	found, err := c.Highest(ctx, row.setups, rate)
	if err != nil {
		return err
	}
	late, ofSLO := c.Lateness()
	b.say(fmt.Sprintf("live %s %s: holds %.0f req/s; requests were sent at most %v late, %.0f%% of the SLO", f.name(), row.name, found.Held(), late.Round(time.Millisecond), 100*ofSLO))
	row.late = max(row.late, late)
	row.held, row.setups = append(row.held, found.Held()), []rig.Setup{found.Setup}
	return nil
}

// mergeContest is how one side of a case is tried, at about a rate.
func (b *bench) mergeContest(f foreseen, row *mergeSide, rate float64, seed uint64) *rig.Contest {
	length := func(least float64) time.Duration {
		return time.Duration(min(20, max(least, liveRequests/rate)) * float64(time.Second))
	}
	c := &rig.Contest{
		Models: row.models, GPUs: f.partitions, GPUType: gpuType, Server: b.server, Bin: b.bin, Seed: seed, Step: 1.12, Resolution: .06, Together: true,
		Learn: learnFirst + time.Duration(f.models)*learnEach, Warmup: 2 * time.Second, Measure: length(6), Confirm: length(confirmSeconds),
		Progress: func(line string) { b.say("live " + f.name() + " " + row.name + ": " + line) },
	}
	if b.quick {
		c.Measure, c.Resolution, c.Confirm = 4*time.Second, .12, 0
	}
	return c
}

// report adds the figures of a case: both sides at the published times, and their ratios.
func (f foreseen) report(r *figure.Report, rows []*mergeSide, stretch float64) {
	name := "merge." + f.name()
	over := func(a, b *mergeSide) (ratios []float64) {
		for i := range a.held {
			ratios = append(ratios, a.held[i]/b.held[i])
		}
		return ratios
	}
	r.Add(name+".stretch", stretch, "ratio", "factor on times and SLOs of the case")
	for _, row := range rows {
		r.AddRuns(name+"."+row.name+".goodput", row.held, "req/s", row.note+"; "+row.setups[0].String()+"; at stretched times")
		r.Add(name+"."+row.name+".timer_lateness_p99_ms", float64(row.late)/1e6, "ms", fmt.Sprintf("what the machine alone added, worst trial; the SLO is %.0f ms", stretch*25))
	}
	r.AddRuns(name+".goodput_ratio", over(rows[1], rows[0]), "ratio", "merged over unmerged, on real tritonservers")
	for _, row := range rows[:3] {
		r.Add(name+"."+row.name+".all_hold", row.all, "req/s", fmt.Sprintf("highest rate, in steps of 3%%, that all of %d trials with other arrivals held", partTrials))
	}
	r.Add(name+".all_hold_ratio", rows[1].all/rows[0].all, "ratio", fmt.Sprintf("merged over unmerged at the rates that all of %d trials held", partTrials))
	r.AddRuns(name+".at_part_of_single.bad", rows[1].bad, "ratio", fmt.Sprintf("bad requests of the merge group at %g of what one model held, each trial with other arrivals; a rate holds up to %g", partOfSingle, rig.Limit))
	r.AddRuns(name+".of_single", over(rows[1], rows[2]), "ratio", "merged over one model at the summed rate, on real tritonservers")
	if len(rows) > 3 {
		r.AddRuns(name+".ensemble.goodput_ratio", over(rows[1], rows[3]), "ratio", "one group model over ensembles that share the backbone, on real tritonservers")
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

// mergeStretch is by how much times and SLOs are longer than published, so that two cores serve the merged rate.
const mergeStretch = 10

// mergeLive compares four fine-tunes of a ResNet-50 on two emulated A100s behind real tritonservers: each with batches of its own, under
// the disciplines that are best for that, with one merge group, which Conch makes, verifies and serves; and with one model at the summed
// rate. An execution of b rows sleeps for the backbone's time for b rows, and for .05 of that for the heads, which run as one.
func (b *bench) mergeLive(ctx context.Context, r *figure.Report) error {
	if b.server == "" {
		return errors.New("no tritonserver: run `make bench BENCH=merge`, or say --tritonserver")
	}
	p, err := zoo.Lookup(gpuType, "ResNet50")
	if err != nil {
		return err
	}
	const models, gpus = 4, 2
	p.SLO = 25 * time.Millisecond
	tunes, err := rig.FineTunes(p, models, headCost, mergeStretch, 64)
	if err != nil {
		return err
	}
	contest := func(m rig.Models) *rig.Contest {
		c := &rig.Contest{
			Models: m, GPUs: gpus, GPUType: gpuType, Server: b.server, Bin: b.bin, Warmup: time.Second, Measure: 10 * time.Second, Confirm: 20 * time.Second,
			Progress: func(line string) { b.say("live: " + line) },
		}
		if b.quick {
			c.Measure, c.Confirm = 3*time.Second, 0
		}
		return c
	}
	rows := []struct {
		name   string
		models rig.Models
		setups []rig.Setup
		start  float64
		held   []float64
		rate   float64
	}{
		{name: "separate", models: tunes, setups: []rig.Setup{rig.ConchSetup{}, rig.ConchSetup{Discipline: "eager"}, rig.ConchSetup{Discipline: "deferred"}}, start: 150},
		{name: "merged", models: tunes, setups: []rig.Setup{rig.ConchSetup{Merge: true}}, start: 280},
		{name: "single", models: rig.Copies(p, 1, mergeStretch, 64), setups: []rig.Setup{rig.ConchSetup{}}, start: 280},
	}
	for round := range b.roundsOr(1) {
		for i := range rows {
			row := &rows[i]
			if b.quick {
				row.setups = row.setups[:1]
			}
			c := contest(row.models)
			c.Seed = b.seed + uint64(round) //nolint:gosec // small
			start := row.start
			if row.rate > 0 {
				start = row.rate
			}
			found, err := c.Highest(ctx, row.setups, start)
			if err != nil {
				return err
			}
			row.rate, row.held, row.setups = found.Rate, append(row.held, found.Held()), []rig.Setup{found.Setup}
		}
	}
	var ratios, ofSingle []float64
	for i := range rows[0].held {
		ratios, ofSingle = append(ratios, rows[1].held[i]/rows[0].held[i]), append(ofSingle, rows[1].held[i]/rows[2].held[i])
	}
	const name = "merge.live.4on2"
	notes := map[string]string{"separate": "four fine-tunes, unmerged", "merged": "the same in one merge group", "single": "one model of the backbone's time at the summed rate"}
	for _, row := range rows {
		r.AddRuns(strings.Join([]string{name, row.name, "goodput"}, "."), row.held, "req/s", notes[row.name]+"; "+row.setups[0].String()+"; times ten times the published ones")
	}
	r.AddRuns(name+".goodput_ratio", ratios, "ratio", "merged over unmerged, on real tritonservers")
	r.AddRuns(name+".of_single", ofSingle, "ratio", "merged over one model at the summed rate, on real tritonservers")
	return nil
}

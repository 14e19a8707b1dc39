// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

// headCost is what a head costs of its backbone.
const headCost = .05

// merge measures what merging brings: goodput of fine-tunes in the simulator and on real tritonservers, what an analysis costs, and time and memory of each mode in
// ONNX Runtime.
func (b *bench) merge(ctx context.Context, r *figure.Report) error {
	r.Emulated = "figures of merge.sim: simulated time on GPUs that are arithmetic; the other *.goodput, *.goodput_ratio and *.of_single: executions that sleep, in the python backend of real tritonservers, for longer than published by the factor in *.stretch. Times and memory of the modes are ONNX Runtime's on this CPU, one thread"
	var found []foreseen
	live := b.wants("live") || strings.HasPrefix(b.only, "live.")
	if b.wants("goodput") || live {
		var err error
		if found, err = b.mergeGoodput(ctx, r); err != nil {
			return err
		}
	}
	if b.wants("analyze") {
		if err := b.mergeAnalyze(ctx, r); err != nil {
			return err
		}
	}
	if live {
		if err := b.mergeLive(ctx, r, found); err != nil {
			return err
		}
	}
	if b.wants("modes") {
		return b.mergeModes(ctx, r)
	}
	return nil
}

// wants says whether --only lets a part be measured.
func (b *bench) wants(part string) bool { return b.only == "" || strings.Contains(part, b.only) }

// fineTunes is a number of models of one backbone on a number of partitions.
type fineTunes struct{ models, partitions int }

func (f fineTunes) name() string { return fmt.Sprintf("%don%d", f.models, f.partitions) }

// cases of the comparison.
func cases() []fineTunes { return []fineTunes{{4, 2}, {4, 8}, {20, 2}, {20, 8}} }

// foreseen is what the simulator found of a case: the best discipline for the unmerged models, and the rates that each side holds.
type foreseen struct {
	fineTunes
	discipline               string
	separate, merged, single float64
}

// mergeGoodput compares fine-tunes of a ResNet-50 on A100s, unmerged under the discipline that is best for them, with one queue for all of
// them in front of a backbone. A merged batch costs the backbone's time for all rows and then that of the heads: once as one execution
// over all rows, which is the least, and once as an execution for every member that has a row in the batch, which is the most.
func (b *bench) mergeGoodput(ctx context.Context, r *figure.Report) ([]foreseen, error) {
	p, err := zoo.Lookup(gpuType, "ResNet50")
	if err != nil {
		return nil, err
	}
	backbone := func(rows float64) float64 { return p.Latency(int(rows)).Seconds() }
	disciplines := []string{"adaptive", "deferred", "eager", "timeout"}
	const slo, most = 25 * time.Millisecond, 64
	var cells []*cell
	type measured struct {
		fineTunes
		separate       []*cell
		merged, single *cell
		mergedHeadEach *cell
	}
	model := func(name string, count int, l func(rows int) float64) scenario.Model {
		m := scenario.Model{Name: name, Count: count, SLO: scenario.Duration(slo), Late: "drop", MaxBatch: most, Profile: &scenario.Profile{}}
		for rows := 1; rows <= most; rows++ {
			m.Profile.Points = append(m.Profile.Points, scenario.Point{Batch: uint32(rows), Latency: duration(l(rows))}) //nolint:gosec // small
		}
		return m
	}
	whole := func(rows int) float64 { return (1 + headCost) * backbone(float64(rows)) }
	var all []measured
	for _, f := range cases() {
		each := func(rows int) float64 {
			heads := float64(min(rows, f.models))
			return backbone(float64(rows)) + headCost*heads*backbone(float64(rows)/heads)
		}
		m := measured{fineTunes: f}
		add := func(name, discipline string, of scenario.Model) *cell {
			// One GPU gives at most so many rows a second in batches of 16.
			guess := .6 * float64(f.partitions) * 16 / whole(16)
			c := &cell{
				name: "merge.sim." + f.name() + "." + name, scenario: world(f.partitions, b.seconds(20), scenario.Dispatch{Discipline: discipline}, of),
				guess: guess, overall: true, requests: b.simulated(40000), tolerance: .01, step: 1.5,
			}
			cells = append(cells, c)
			return c
		}
		for _, d := range disciplines {
			m.separate = append(m.separate, add("separate."+d, d, model("tune", f.models, whole)))
		}
		m.merged = add("merged", "adaptive", model("group", 1, whole))
		m.mergedHeadEach = add("head_each", "adaptive", model("group", 1, each))
		m.single = add("single", "adaptive", model("one", 1, func(rows int) float64 { return backbone(float64(rows)) }))
		all = append(all, m)
	}
	if err := b.search(ctx, cells, b.roundsOr(2)); err != nil {
		return nil, err
	}
	var found []foreseen
	for _, m := range all {
		best := 0
		for i, c := range m.separate {
			if c.found.Rate > m.separate[best].found.Rate {
				best = i
			}
		}
		found = append(found, foreseen{m.fineTunes, disciplines[best], m.separate[best].found.Rate, m.merged.found.Rate, m.single.found.Rate})
		name := "merge.sim." + m.name()
		r.AddRuns(name+".separate.goodput", rates(m.separate[best].found), "req/s", "unmerged, under "+disciplines[best]+", the best of "+strings.Join(disciplines, ", "))
		r.AddRuns(name+".merged.goodput", rates(m.merged.found), "req/s", "one queue, a backbone and the heads' .05 of its time in each execution")
		r.Add(name+".goodput_ratio", m.merged.found.Rate/m.separate[best].found.Rate, "ratio", "merged over unmerged")
		r.Add(name+".head_each.goodput_ratio", m.mergedHeadEach.found.Rate/m.separate[best].found.Rate, "ratio", "the same with an execution of its own for each head that has a row in the batch")
		r.Add(name+".of_single", m.merged.found.Rate/m.single.found.Rate, "ratio", "merged over what the backbone alone holds at the summed rate")
		r.Add(name+".head_each.of_single", m.mergedHeadEach.found.Rate/m.single.found.Rate, "ratio", "the same with an execution of its own for each head")
	}
	return found, nil
}

// seconds is a time to simulate, less with --quick.
func (b *bench) seconds(s float64) float64 {
	if b.quick {
		return max(2, s/10)
	}
	return s
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

// liveRow is what one line of the comparison shows: the best of some setups.
type liveRow struct {
	name   string // of its figure
	setups []rig.Setup
}

// Rows of figures: Conch's defaults, the best of Triton with one server for all GPUs, and the best with a server per GPU.
const conchRow, nodeRow, eachRow = "conch", "triton.node", "triton.each"

// sloOf is a part of the SLO, stretched.
func sloOf(p zoo.Profile) func(part float64) time.Duration {
	return func(part float64) time.Duration { return time.Duration(part * stretch * float64(p.SLO)) }
}

// settings of Triton, as its documentation tells users to tune it, by kind. In each the most promising comes first: the others are searched only if they
// hold more.
func (s liveScenario) settings(p zoo.Profile) []liveRow {
	slo := sloOf(p)
	kind := func(name string, setups ...rig.TritonSetup) liveRow {
		row := liveRow{name: "triton." + name}
		for _, setup := range setups {
			row.setups = append(row.setups, setup)
		}
		return row
	}
	delay := func(t rig.TritonSetup, part float64) rig.TritonSetup { t.MaxQueueDelay = slo(part); return t }
	delays := func(t rig.TritonSetup) []rig.TritonSetup { return []rig.TritonSetup{t, delay(t, .1), delay(t, .3)} }
	batch := func(t rig.TritonSetup, n int) rig.TritonSetup { t.MaxBatch = n; return t }
	preferred := func(t rig.TritonSetup, part float64, size int) rig.TritonSetup {
		t.PreferredBatchSizes = []int{size}
		return delay(t, part)
	}
	limited := func(t rig.TritonSetup) rig.TritonSetup { t.RateLimiter = true; return t }
	instances := func(t rig.TritonSetup, n int) rig.TritonSetup { t.Instances = n; return t }
	placed := func(t rig.TritonSetup, copies int, words string) rig.TritonSetup {
		t.Placement, t.Placed = s.placement(copies), words
		return t
	}
	timeout := func(part float64) rig.TritonSetup {
		return rig.TritonSetup{DynamicBatching: zoo.DynamicBatching{QueueTimeout: slo(part)}}
	}
	each, free, bound := rig.TritonSetup{}, rig.TritonSetup{Node: rig.NodeFree}, rig.TritonSetup{Node: rig.NodeBound}
	const onOne, onTwo = "each model on 1 GPU", "each model on 2 GPUs"
	rows := []liveRow{
		kind("dynamic", delays(each)...),
		kind("batch", batch(each, 16), batch(each, 8)),
		kind("preferred", preferred(each, .1, 4), preferred(each, .2, 8)),
		kind("queue_timeout", timeout(.6), timeout(.4)),
		kind("node_dynamic", delays(bound)...),
		kind("node_free", delay(free, .3), delay(free, .5), delay(free, .1), free),
		kind("node_free_batch", batch(delay(free, .3), 16), batch(delay(free, .3), 8), batch(delay(free, .1), 16), batch(delay(free, .1), 8)),
		kind("node_free_preferred", preferred(free, .3, 8), preferred(free, .3, 16), preferred(free, .3, 4)),
		kind("node_free_limiter", delay(limited(free), .3), limited(free), delay(limited(instances(free, 2)), .3), limited(instances(free, 2))),
		kind("node_batch", batch(free, 16), batch(free, 8), batch(bound, 16), batch(bound, 8)),
		kind("node_preferred", preferred(free, .1, 4), preferred(free, .2, 8)),
		kind("node_limiter", limited(bound), delay(limited(bound), .1)),
	}
	if s.models > 1 {
		affine := rig.TritonSetup{Affine: true}
		rows = append(rows,
			kind("dedicated", placed(each, 2, onTwo), placed(each, 1, onOne)),
			kind("rate_limiter", limited(each), placed(limited(each), 2, onTwo), placed(limited(each), 1, onOne)),
			kind("affine", affine, delay(affine, .1)),
			kind("node_free_copies", delay(instances(free, 1), .3), delay(instances(free, 2), .3), instances(free, 1), instances(free, 2)),
			kind("node_copies", placed(bound, 2, onTwo), placed(bound, 1, onOne), placed(limited(bound), 2, onTwo)),
		)
	}
	return rows
}

// conchs are Conch's rows: those that isolate what brings the gain, its defaults, and in front of one server for all GPUs.
func (s liveScenario) conchs(p zoo.Profile) []liveRow {
	row := func(name string, setups ...rig.Setup) liveRow { return liveRow{name, setups} }
	timeout := func(d time.Duration) rig.Setup {
		return rig.ConchSetup{Discipline: "timeout", DropPolicy: "none", Parameters: map[string]string{"max_queue_delay": d.String()}}
	}
	return []liveRow{
		row("conch.timeout", timeout(sloOf(p)(.1)), timeout(0)),
		row("conch.eager_none", rig.ConchSetup{Discipline: "eager", DropPolicy: "none"}),
		row("conch.eager", rig.ConchSetup{Discipline: "eager", DropPolicy: "window"}),
		row("conch.eager_thrift", rig.ConchSetup{Discipline: "eager", DropPolicy: "thrift"}),
		row(conchRow, rig.ConchSetup{}),
		row("conch.attached_at_once", rig.ConchSetup{Attach: s.gpus}),
	}
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

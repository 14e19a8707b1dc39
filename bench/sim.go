// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/conch-serving/conch/internal/figure"
)

// sim runs the simulator's own benchmark, whose scenarios lie in sidecar/sim/scenario/testdata, and reads its output.
func (b *bench) sim(ctx context.Context, r *figure.Report) error {
	rounds := b.roundsOr(3)
	b.say(fmt.Sprintf("sidecar/sim: BenchmarkSim, one core, %d runs each", rounds))
	cases, err := ownBenchmark(ctx, "BenchmarkSim", "./sidecar/sim/scenario", "-benchmem", "-cpu", "1", "-benchtime", "1x", "-count", strconv.Itoa(rounds))
	if err != nil {
		return err
	}
	for _, c := range cases {
		name := "sim." + c.name
		r.AddRuns(name+".requests_per_second", c.values["requests/s"], "req/s", "simulated requests per second of wall time, one core")
		r.AddRuns(name+".wall_seconds", c.values["wall-s"], "s", "of one run of "+c.name+".yaml, reading it included")
		r.AddRuns(name+".heap_mib", c.values["heap-MiB"], "MiB", "of the whole process, the largest so far")
		r.AddRuns(name+".good", c.values["%good"], "%", "of the simulated requests")
	}
	r.Emulated = "everything: this measures the simulator"
	return nil
}

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

// stretch is by how much emulated times and SLOs are longer than published, so that all executions together stay below 400 a second, which
// two cores serve with real tritonservers.
const stretch = 5

// live compares Conch with Triton's own dynamic batching, one and eight models on four GPUs.
func (b *bench) live(ctx context.Context, r *figure.Report) error {
	if b.server == "" {
		return errors.New("no tritonserver: run `make bench`, or say --tritonserver")
	}
	cases, err := zoo.Cases()
	if err != nil {
		return err
	}
	resnet := cases[0].Profile // Symphony's Table 2
	r.Emulated = fmt.Sprintf("GPUs: an execution of b rows of %s sleeps for %d times %v + %v*b, in the python backend of real tritonservers; SLO %d times %v",
		resnet.Model, stretch, resnet.Beta, resnet.Alpha, stretch, resnet.SLO)
	for _, s := range []struct {
		name   string
		models int
		// start is where the search begins, in req/s; measure how long a trial is, so that 1% is some ten requests at least.
		start   float64
		measure time.Duration
		delays  []time.Duration // before the stretch
	}{
		{"1on4", 1, 330, 5 * time.Second, []time.Duration{0, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond}},
		{"8on4", 8, 105, 10 * time.Second, []time.Duration{0, 2 * time.Millisecond, 5 * time.Millisecond}},
	} {
		contest := &rig.Contest{
			Models: rig.Copies(resnet, s.models, stretch, 64), GPUs: 4, GPUType: zoo.GTX1080Ti, Server: b.server, Bin: b.bin,
			Warmup: time.Second, Measure: s.measure, Confirm: true, Progress: func(line string) { b.say(s.name + ": " + line) },
		}
		for _, d := range s.delays {
			contest.Delays = append(contest.Delays, stretch*d)
		}
		if err := b.contest(ctx, r, "live."+s.name, contest, s.start); err != nil {
			return err
		}
	}
	return nil
}

// contest measures both sides' highest rates in turns. Triton's delays are compared in the first round; the best goes on.
func (b *bench) contest(ctx context.Context, r *figure.Report, name string, c *rig.Contest, start float64) error {
	var triton, conch, ratios []float64
	conchStart := 1.5 * start
	for round := range b.roundsOr(3) {
		c.Seed = b.seed + uint64(round)
		theirs, err := c.TritonHighest(ctx, start)
		if err != nil {
			return err
		}
		c.Delays, start = []time.Duration{theirs.Delay}, theirs.Rate
		ours, err := conchHighest(ctx, c, conchStart)
		if err != nil {
			return err
		}
		conchStart = ours.Rate
		triton, conch = append(triton, theirs.Held()), append(conch, ours.Held())
		ratios = append(ratios, ours.Held()/theirs.Held())
	}
	late, ofSLO := c.Lateness()
	best := fmt.Sprintf("highest rate with at most 1%% bad; Triton's best: max_queue_delay %v", c.Delays[0])
	r.AddRuns(name+".goodput_ratio", ratios, "ratio", best)
	r.AddRuns(name+".triton.goodput", triton, "req/s", best)
	r.AddRuns(name+".conch.goodput", conch, "req/s", "late: drop, otherwise defaults")
	r.Add(name+".timer_lateness_p99_ms", float64(late)/1e6, "ms", fmt.Sprintf("worst trial; %.1f%% of the SLO", 100*ofSLO))
	return nil
}

func conchHighest(ctx context.Context, c *rig.Contest, start float64) (highest rig.Standing, err error) {
	conch, err := c.StartConch(ctx)
	if err != nil {
		return rig.Standing{}, err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()
	return c.ConchHighest(ctx, conch, start)
}

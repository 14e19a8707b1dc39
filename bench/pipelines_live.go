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
	// ensembleStretch is by how much times are longer than those of the DAGs, so that two cores carry all executions.
	ensembleStretch = 10
	// ensembleLengths is how many SLOs a trial lasts at the least.
	ensembleLengths = 30
	// ensembleSeeds is with how many seeds of arrivals each is measured.
	ensembleSeeds = 3
)

// ensembleScene is a DAG of Triton's users: its steps, their lines alpha and beta in ms, and its SLO.
type ensembleScene struct {
	name  string
	slo   time.Duration
	start float64 // of the first search, in req/s
	steps []zoo.Step
	lines map[string][2]float64
}

// The scenes are three of pipelines, without a detector's boxes: the python models that emulate the steps answer with as many rows as they are asked for. The chain
// is there twice: its SLO leaves time for batches of 32 at each step, that of the urgent one does not. Each is a command of its own, as those of live are.
func chainScene() ensembleScene {
	return ensembleScene{
		name: "chain", slo: 100 * time.Millisecond, start: 150,
		steps: []zoo.Step{ensembleStep("preprocess"), ensembleStep("model", 0), ensembleStep("postprocess", 1)},
		lines: map[string][2]float64{"preprocess": {.2, 1}, "model": {1.05, 5.07}, "postprocess": {.1, .5}},
	}
}

func urgentScene() ensembleScene {
	s := chainScene()
	s.name, s.slo, s.start = "urgent_chain", 40*time.Millisecond, 100
	return s
}

func detectorScene() ensembleScene {
	return ensembleScene{
		name: "detector", slo: 200 * time.Millisecond, start: 30,
		steps: []zoo.Step{ensembleStep("detect"), ensembleStep("classifier-a", 0), ensembleStep("classifier-b", 0)},
		lines: map[string][2]float64{"detect": {2, 10}, "classifier-a": {1.05, 5.07}, "classifier-b": {.4, 4}},
	}
}

func diamondScene() ensembleScene {
	return ensembleScene{
		name: "diamond", slo: 150 * time.Millisecond, start: 30,
		steps: []zoo.Step{ensembleStep("split"), ensembleStep("left", 0), ensembleStep("right", 0), ensembleStep("join", 1, 2)},
		lines: map[string][2]float64{"split": {.3, 2}, "left": {1.5, 6}, "right": {.5, 4}, "join": {.6, 3}},
	}
}

// ensembleStep is a step of an ensemble, with the steps by number that it comes after.
func ensembleStep(model string, after ...int) zoo.Step { return zoo.Step{Model: model, After: after} }

func (b *bench) chainLive(ctx context.Context, r *figure.Report) error {
	return b.ensembleLive(ctx, r, chainScene())
}

func (b *bench) urgentLive(ctx context.Context, r *figure.Report) error {
	return b.ensembleLive(ctx, r, urgentScene())
}

func (b *bench) detectorLive(ctx context.Context, r *figure.Report) error {
	return b.ensembleLive(ctx, r, detectorScene())
}

func (b *bench) diamondLive(ctx context.Context, r *figure.Report) error {
	return b.ensembleLive(ctx, r, diamondScene())
}

// ensembleLive compares, for an ensemble, the best of Triton's own settings with Conch that passes the ensemble on to Triton, and with Conch that executes
// its steps. Where every one of Triton's settings ends under its load, that is the figure.
func (b *bench) ensembleLive(ctx context.Context, r *figure.Report, s ensembleScene) error {
	if b.server == "" {
		return errors.New("no tritonserver: run `make bench`, or say --tritonserver")
	}
	r.Emulated = fmt.Sprintf("GPUs: executions sleep for %d times alpha*b + beta of each step, in the python backend of real tritonservers, and take turns on each of four GPUs; SLOs are %d times as long, too", ensembleStretch, ensembleStretch)
	err := b.ensemble(ctx, r, s)
	if errors.Is(err, rig.ErrEnded) {
		b.say(s.name + " is not compared: " + err.Error())
		r.Add("pipeline.live."+s.name+".ended", 1, "setups", err.Error())
		return nil
	}
	return err
}

func (b *bench) ensemble(ctx context.Context, r *figure.Report, s ensembleScene) error {
	const gpus = 4
	slo := ensembleStretch * s.slo
	lines := map[string]zoo.Profile{}
	for model, line := range s.lines {
		of := func(ms float64) time.Duration { return time.Duration(ensembleStretch * ms * float64(time.Millisecond)) }
		lines[model] = zoo.Profile{GPUType: zoo.GTX1080Ti, Alpha: of(line[0]), Beta: of(line[1])}
	}
	c := &rig.Contest{
		Models: rig.Pipeline(s.name, slo, 32, s.steps, lines), GPUs: gpus, GPUType: zoo.GTX1080Ti, Server: b.server, Bin: b.bin,
		Warmup: time.Second, Learn: learnFor, Uncancelled: true, Seed: b.seed, Progress: func(line string) { b.say(s.name + ": " + line) },
	}
	if !b.quick {
		c.AtLeast = ensembleLengths * slo
	}
	delayed := func(t rig.TritonSetup) rig.TritonSetup { t.MaxQueueDelay = slo / 20; return t }
	each, limited, node := rig.TritonSetup{}, rig.TritonSetup{RateLimiter: true}, rig.TritonSetup{Node: rig.NodeFree}
	order := []*standings{
		{row: liveRow{name: "triton", setups: []rig.Setup{each, delayed(each), limited, delayed(limited), node, delayed(node)}}},
		{row: liveRow{name: "passed", setups: []rig.Setup{rig.ConchSetup{Pass: true}}}},
		{row: liveRow{name: "conch", setups: []rig.Setup{rig.ConchSetup{}}}},
	}
	if err := b.inTurns(ctx, c, order, s.start, ensembleSeeds); err != nil {
		return err
	}
	name := "pipeline.live." + s.name + "."
	for _, entry := range order {
		if len(entry.held) == 0 { // another holds so much more that the search says enough
			r.Add(name+entry.row.name+".screened", entry.rate, "req/s", fmt.Sprintf("at most 1%% bad, one search with trials of %d requests: %v", b.requests(screened), entry.best))
			continue
		}
		r.AddRuns(name+entry.row.name+".goodput", entry.held, "req/s", fmt.Sprintf("at most 1%% bad, trials of %d requests: %v", c.Requests, entry.best))
	}
	for i, over := range []string{"goodput_ratio", "to_passed"} {
		if ratio := quotient(order[2], order[i]); len(ratio) > 0 {
			r.AddRuns(name+over, ratio, "ratio", fmt.Sprintf("Conch that executes the steps over %s: %v", order[i].best.System(), order[i].best))
		}
	}
	late, ofSLO := c.Lateness()
	r.Add(name+"timer_lateness_p99_ms", float64(late)/1e6, "ms", fmt.Sprintf("worst trial; %.1f%% of the SLO", 100*ofSLO))
	return nil
}

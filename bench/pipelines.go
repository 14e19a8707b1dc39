// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

const (
	// pipelineSeed drew the loads. It is from /dev/urandom, drawn once, after the rules were chosen: loss on the loads of seeds 380428154 and 2174221142, the
	// others before those were seen.
	pipelineSeed = 3448596406
	// drawnPipelines is how many loads it draws.
	drawnPipelines = 48
	// pipelineOverload is by how much the load of the second comparison is above what the first rule holds.
	pipelineOverload = 1.5
	// pipelineRequests is about how many a trial has.
	pipelineRequests = 20_000
	// pipelineBatch is the largest batch of every model.
	pipelineBatch = 32
	// pipelineSeeds is how many seeds of arrivals each search has.
	pipelineSeeds = 3
)

// stepRules are the rules of deadlines that are compared: Conch's first.
var stepRules = [...]string{"loss", "present", "left", "waiting", "share", "end"}

// pipelineLoad is a scenario with pipelines, and about what it holds.
type pipelineLoad struct {
	name     string
	drawn    bool
	scenario *scenario.Scenario
	guess    float64
}

// pipelines compares, in the simulator, the rules by which the deadlines of a pipeline's steps follow from its own.
func (b *bench) pipelines(ctx context.Context, r *figure.Report) error {
	r.Emulated = "everything: simulated time, no delays, every model on every GPU; at most 1% bad of every pipeline's and every model's requests"
	loads := namedPipelines()
	n := drawnPipelines
	if b.quick {
		n /= 20
	}
	for number := range n {
		loads = append(loads, drawPipeline(number))
	}
	loads = slices.DeleteFunc(loads, func(l pipelineLoad) bool { return !strings.Contains("pipeline."+l.name, b.only) })
	if len(loads) == 0 {
		return errors.New("pipelines: no load has " + b.only + " in its name")
	}
	lines, err := b.pipelineLines(ctx, loads)
	if err != nil {
		return err
	}
	held, overload := map[string][]float64{}, map[string][]float64{}
	for i, load := range loads {
		line := &lines[i]
		if !load.drawn {
			for k, rule := range stepRules {
				name := "pipeline." + load.name + "." + rule
				r.AddRuns(name+".goodput", line.held[k], "req/s", "what the pipeline holds in the simulator")
				r.AddRuns(name+".overload", line.overload[k], "req/s", fmt.Sprintf("good requests at %g times the rate that rule %s holds", pipelineOverload, stepRules[0]))
			}
			overShare(r, "pipeline."+load.name+".", line)
			continue
		}
		for k, rule := range stepRules[1:] {
			held[rule] = append(held[rule], meanRatio(line.held[0], line.held[k+1]))
			overload[rule] = append(overload[rule], meanRatio(line.overload[0], line.overload[k+1]))
		}
	}
	for _, rule := range stepRules[1:] {
		pipelineRatios(r, "pipeline.drawn.over_"+rule+".", fmt.Sprintf("rule %s over rule %s", stepRules[0], rule), held[rule])
		pipelineRatios(r, "pipeline.drawn.overload_over_"+rule+".",
			fmt.Sprintf("good requests at %g times the rate that rule %s holds, over those with rule %s", pipelineOverload, stepRules[0], rule), overload[rule])
	}
	pipelineCeilings(r, loads, lines)
	return nil
}

// overShare is how the first rule compares with a division of the SLO beforehand on a named load: what PARD prints over Nexus and Clipper++.
func overShare(r *figure.Report, name string, line *pipelineLine) {
	share := slices.Index(stepRules[:], "share")
	over := func(what *[len(stepRules)][]float64, rule, other int) (all []float64) {
		for s := range what[rule] {
			all = append(all, meanRatio(what[rule][s:s+1], what[other][s:s+1]))
		}
		return all
	}
	overload := fmt.Sprintf("at %g times the rate that rule %s holds", pipelineOverload, stepRules[0])
	r.AddMean(name+"over_share", over(&line.held, 0, share), "ratio", fmt.Sprintf("what rule %s holds over what rule share holds", stepRules[0]))
	r.AddMean(name+"overload_over_share", over(&line.overload, 0, share), "ratio", fmt.Sprintf("good requests with rule %s over those with rule share, %s", stepRules[0], overload))
	r.AddMean(name+"overload_bad_of_share", over(&line.bad, share, 0), "ratio", fmt.Sprintf("bad requests with rule share over those with rule %s, %s", stepRules[0], overload))
}

// meanRatio is the geometric mean of a over b, seed by seed. Where both are nothing they are even.
func meanRatio(a, b []float64) float64 {
	logs := 0.
	for s := range a {
		logs += math.Log(max(a[s], 1e-3) / max(b[s], 1e-3))
	}
	return math.Exp(logs / float64(len(a)))
}

// pipelineRatios are how the first rule compares with another on the drawn loads.
func pipelineRatios(r *figure.Report, name, what string, all []float64) {
	if len(all) == 0 {
		return
	}
	ahead, behind := 0, 0
	for _, ratio := range all {
		if ratio > 1.03 {
			ahead++
		}
		if ratio < .97 {
			behind++
		}
	}
	slices.Sort(all)
	r.Add(name+"median", stat.Quantile(.5, stat.LinInterp, all, nil), "ratio", fmt.Sprintf("%s, median of %d loads that a seed drew, %d seeds of arrivals each", what, len(all), pipelineSeeds))
	r.Add(name+"worst", all[0], "ratio", "the load on which it is worst")
	r.Add(name+"best", all[len(all)-1], "ratio", "the load on which it is best")
	r.Add(name+"ahead", float64(ahead), "loads", "by more than 3%")
	r.Add(name+"behind", float64(behind), "loads", "by more than 3%")
}

// pipelineLine is what a load gave with each rule, seed by seed: the rate that it holds, and good requests per second and the part of bad ones where the load is too
// much. What Triton holds is there where the load is alone.
type pipelineLine struct {
	held, overload, bad [len(stepRules)][]float64
	triton              []float64
}

// pipelineLines measures every load.
func (b *bench) pipelineLines(ctx context.Context, loads []pipelineLoad) ([]pipelineLine, error) {
	lines := make([]pipelineLine, len(loads))
	err := onAllCores(ctx, indices(loads), func(ctx context.Context, i int) error {
		line, err := loads[i].measure(ctx, b.seed, b.roundsOr(pipelineSeeds))
		if err != nil {
			return fmt.Errorf("%s: %w", loads[i].name, err)
		}
		lines[i] = line
		text := loads[i].name + ":"
		for k, rule := range stepRules {
			text += fmt.Sprintf(" %s %.1f (%.1f)", rule, stat.Mean(line.held[k], nil), stat.Mean(line.overload[k], nil))
		}
		if loads[i].alone() {
			text += fmt.Sprintf(" triton %.1f ceiling %.1f", stat.Mean(line.triton, nil), loads[i].ceiling())
		}
		b.say(text)
		return nil
	})
	return lines, err
}

// measure searches with all rules from the same rate on, by trials of the same length: what differs is the rule.
func (l pipelineLoad) measure(ctx context.Context, seed uint64, seeds int) (line pipelineLine, err error) {
	first, err := l.goodput(ctx, stepRules[0], l.guess, []uint64{seed})
	if err != nil {
		return line, err
	}
	guess, overload := cmp.Or(first.Rate, l.guess), 0.
	var all []uint64
	for i := range seeds {
		all = append(all, seed+uint64(i)) //nolint:gosec // few
	}
	for k, rule := range stepRules {
		found, err := l.goodput(ctx, rule, guess, all)
		if err != nil {
			return line, err
		}
		line.held[k] = rates(found)
		if k == 0 {
			overload = pipelineOverload * cmp.Or(found.Rate, l.guess)
		}
		for _, each := range all {
			r, err := l.trial(rule, guess).Run(ctx, scenario.Options{Rate: overload, Seed: each})
			if err != nil {
				return line, err
			}
			line.overload[k], line.bad[k] = append(line.overload[k], r.Total.Goodput), append(line.bad[k], r.Total.BadRate)
		}
	}
	if l.alone() {
		line.triton, err = l.tritonHolds(ctx, guess, all)
	}
	return line, err
}

// goodput is what the load holds under a rule, searched from a guess on.
func (l pipelineLoad) goodput(ctx context.Context, rule string, guess float64, seeds []uint64) (*sim.Found, error) {
	return l.trial(rule, guess).Goodput(ctx, scenario.Options{}, sim.Search{Guess: guess, Tolerance: .01, Seeds: seeds})
}

// trial is the load under a rule, for as long as some twenty thousand requests take at a rate.
func (l pipelineLoad) trial(rule string, rate float64) *scenario.Scenario {
	s := *l.scenario
	s.Duration = scenario.Duration(min(max(pipelineRequests/rate, 5), 60) * float64(time.Second))
	s.Warmup = s.Duration / 10
	s.StepDeadlines = rule
	return &s
}

// pipelineScenario is what all loads have.
func pipelineScenario(name string, gpus int) *scenario.Scenario {
	return &scenario.Scenario{
		APIVersion: scenario.APIVersion, Name: name, Rate: 1,
		GPUs: []scenario.GPUs{{Type: "g", Count: gpus}},
	}
}

// namedPipelines are three DAGs that Triton's users have as ensembles, the chain once more with an SLO that leaves no time for full batches, and gpulet's two applications with the SLOs of its text. Latencies of gpulet's
// models are not published: here a batch of 32 takes half of its model's SLO, as its table 4 has it.
func namedPipelines() []pipelineLoad {
	ms := func(v float64) scenario.Duration { return scenario.Duration(v * float64(time.Millisecond)) }
	load := func(name string, gpus int, guess float64, slo float64, models map[string][2]float64, steps ...scenario.PipelineStep) pipelineLoad {
		s := pipelineScenario(name, gpus)
		added := map[string]bool{}
		for _, step := range steps {
			if !added[step.Model] {
				added[step.Model] = true
				line := models[step.Model]
				s.Models = append(s.Models, scenario.Model{Name: step.Model, Late: "drop", MaxBatch: pipelineBatch, Profile: &scenario.Profile{Alpha: ms(line[0]), Beta: ms(line[1])}})
			}
		}
		s.Pipelines = []scenario.Pipeline{{Name: name, SLO: ms(slo), Steps: steps}}
		return pipelineLoad{name, false, s, guess}
	}
	step := func(model string, rows float64, after ...string) scenario.PipelineStep {
		return scenario.PipelineStep{Model: model, After: after, Rows: rows}
	}
	game := map[string][2]float64{"resnet50": {1.43, 8.1}}
	gameSteps := []scenario.PipelineStep{step("resnet50", 0)}
	for i := range 6 {
		name := fmt.Sprintf("lenet%d", i+1)
		game[name] = [2]float64{.066, .38}
		gameSteps = append(gameSteps, step(name, 0))
	}
	chain := func(name string, slo float64) pipelineLoad {
		return load(name, 4, 400, slo, map[string][2]float64{"preprocess": {.2, 1}, "model": {1.05, 5.07}, "postprocess": {.1, .5}},
			step("preprocess", 0), step("model", 0, "preprocess"), step("postprocess", 0, "model"))
	}
	return []pipelineLoad{
		chain("chain", 100), chain("urgent_chain", 40),
		load("detector", 4, 100, 200, map[string][2]float64{"detector": {2, 10}, "classifier-a": {1.05, 5.07}, "classifier-b": {.4, 4}},
			step("detector", 0), step("classifier-a", 2, "detector"), step("classifier-b", 1, "detector")),
		load("diamond", 4, 100, 150, map[string][2]float64{"split": {.3, 2}, "left": {1.5, 6}, "right": {.5, 4}, "join": {.6, 3}},
			step("split", 0), step("left", 0, "split"), step("right", 0, "split"), step("join", 0, "left", "right")),
		load("game", 4, 500, 108, game, gameSteps...),
		load("traffic", 4, 150, 202, map[string][2]float64{"ssd-mobilenetv1": {1.2, 6.7}, "googlenet": {.87, 4.95}, "vgg16": {1.73, 9.83}},
			step("ssd-mobilenetv1", 0), step("googlenet", 1, "ssd-mobilenetv1"), step("vgg16", 1, "ssd-mobilenetv1")),
	}
}

// drawPipeline draws a load: a DAG of two to six models, on 1 to 12 GPUs, every other one with direct requests for one of the models besides.
func drawPipeline(number int) pipelineLoad {
	random := workload.Seed(pipelineSeed, "pipeline", fmt.Sprint(number))
	between := func(low, high float64) float64 { return low + (high-low)*random.Float64() }
	logarithmic := func(low, high float64) float64 { return math.Exp(between(math.Log(low), math.Log(high))) }
	name := fmt.Sprintf("drawn%02d", number)
	gpus := 1 + random.IntN(12)
	s := pipelineScenario(name, gpus)
	p := scenario.Pipeline{Name: name, Arrivals: &scenario.Arrivals{Shape: []float64{1, 1, .3, .1}[random.IntN(4)]}}
	n := 2 + random.IntN(5)
	busy, longest := 0., 0.
	over := make([]float64, n)
	for i := range n {
		alpha, beta := logarithmic(.05, 3), logarithmic(.5, 15) // ms
		model := fmt.Sprintf("m%d", i)
		s.Models = append(s.Models, scenario.Model{
			Name: model, Late: "drop", MaxBatch: pipelineBatch, Profile: &scenario.Profile{Alpha: scenario.Duration(alpha * 1e6), Beta: scenario.Duration(beta * 1e6)},
		})
		step := scenario.PipelineStep{Model: model}
		if i > 0 {
			for _, before := range random.Perm(i)[:1+random.IntN(min(i, 2))] {
				step.After = append(step.After, fmt.Sprintf("m%d", before))
				over[i] = max(over[i], over[before])
			}
			if random.IntN(3) == 0 {
				step.Rows = between(.5, 4)
			}
		}
		over[i] += beta + policy.DividedBatch*alpha
		longest = max(longest, over[i])
		busy += (beta/policy.DividedBatch + alpha) * max(1, step.Rows)
		p.Steps = append(p.Steps, step)
	}
	p.SLO = scenario.Duration(longest * between(1.2, 4) * 1e6)
	s.Pipelines = []scenario.Pipeline{p}
	if number%2 == 1 {
		m := &s.Models[random.IntN(n)]
		m.Weight, m.SLO = between(.1, 1), p.SLO
	}
	return pipelineLoad{name, true, s, .3 * float64(gpus) * 1e3 / busy}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
	"github.com/conch-serving/conch/sidecar/sim/triton"
)

// alone reports whether a load is one pipeline's: no model has requests of its own.
func (l pipelineLoad) alone() bool {
	return !slices.ContainsFunc(l.scenario.Models, func(m scenario.Model) bool { return m.Weight > 0 })
}

// takes is how long a batch of a model takes, in ms.
func (l pipelineLoad) takes(model string, rows int) float64 {
	i := slices.IndexFunc(l.scenario.Models, func(m scenario.Model) bool { return m.Name == model })
	p := l.scenario.Models[i].Profile
	return float64(p.Beta+scenario.Duration(rows)*p.Alpha) / 1e6
}

// ceiling is a rate that no scheduler exceeds, whatever it knows: a request is in one batch of each step, those along each path end within the SLO one after the
// other, and a GPU's time is shared by the rows of a batch. Nobody waits there, for requests or for a GPU, and one request in a hundred costs nothing.
func (l pipelineLoad) ceiling() float64 {
	steps := l.scenario.Pipelines[0].Steps
	least, all := make([]float64, len(steps)), 0. // ms of a GPU, if only the batch is limited
	for i, s := range steps {
		least[i] = math.Inf(1)
		for b := 1; b <= pipelineBatch; b++ {
			least[i] = min(least[i], rowsOf(s)*l.takes(s.Model, b)/float64(b))
		}
		all += least[i]
	}
	cost := all
	for _, path := range paths(steps) {
		rest := all
		for _, i := range path {
			rest -= least[i]
		}
		cost = max(cost, rest+l.along(path))
	}
	return float64(l.scenario.GPUs[0].Count) / cost * 1e3 / .99
}

// along is the least time of a GPU, in ms, that the steps of a path take for one request within the SLO. Steps whose rows are drawn may have none: these take no
// time of the SLO. Times are rounded down to parts of the SLO, so that it is never too much.
func (l pipelineLoad) along(path []int) float64 {
	const parts = 2000
	p := &l.scenario.Pipelines[0]
	part := float64(p.SLO) / 1e6 / parts
	best := make([]float64, parts+1) // by parts that are left
	for _, i := range path {
		next := make([]float64, parts+1)
		for left := range next {
			next[left] = math.Inf(1)
			for b := 1; b <= pipelineBatch; b++ {
				took := l.takes(p.Steps[i].Model, b)
				used := int(took / part)
				if rowsOf(p.Steps[i]) != 1 {
					used = 0
				}
				if used <= left {
					next[left] = min(next[left], best[left-used]+rowsOf(p.Steps[i])*took/float64(b))
				}
			}
		}
		best = next
	}
	return best[parts]
}

// rowsOf is how many rows a step has on average for each of the request.
func rowsOf(s scenario.PipelineStep) float64 {
	if s.Rows == 0 {
		return 1
	}
	return s.Rows
}

// paths are those from a step that comes after none to one that nothing follows.
func paths(steps []scenario.PipelineStep) (all [][]int) {
	var follow func(path []int)
	follow = func(path []int) {
		last := steps[path[len(path)-1]]
		ends := true
		for i, s := range steps {
			if slices.Contains(s.After, last.Model) {
				ends = false
				follow(append(slices.Clone(path), i))
			}
		}
		if ends {
			all = append(all, path)
		}
	}
	for i, s := range steps {
		if len(s.After) == 0 {
			follow([]int{i})
		}
	}
	return all
}

// tritonSetups are Triton's six settings of the live comparison (ensembleLive).
func (l pipelineLoad) tritonSetups() (all []func(*triton.World)) {
	gpus := l.scenario.GPUs[0].Count
	for _, kind := range []string{"each", "limited", "node"} {
		for _, delay := range []time.Duration{0, time.Duration(l.scenario.Pipelines[0].SLO) / 20} {
			all = append(all, func(w *triton.World) {
				for i := range w.Models {
					w.Models[i].Delay = delay
				}
				one := w.Servers[0]
				one.Limited = kind == "limited"
				if w.Servers = nil; kind == "node" {
					one.GPUs = gpus
					w.Servers = []triton.Server{one}
					return
				}
				for i := range gpus {
					one.ID = fmt.Sprintf("gpu%d", i)
					w.Servers = append(w.Servers, one)
				}
			})
		}
	}
	return all
}

// tritonHolds is what the best of Triton's settings holds, by seeds: each is searched with the first.
func (l pipelineLoad) tritonHolds(ctx context.Context, guess float64, seeds []uint64) ([]float64, error) {
	var best func(*triton.World)
	most := -1.
	search := func(set func(*triton.World), seeds []uint64) (*sim.Found, error) {
		return sim.Goodput(ctx, sim.Search{Guess: guess, Tolerance: .01, Seeds: seeds, Run: func(ctx context.Context, rate float64, seed uint64) (*sim.Result, error) {
			made, err := l.trial(stepRules[0], guess).World(scenario.Options{Rate: rate, Seed: seed})
			if err != nil {
				return nil, err
			}
			w := triton.World{Duration: made.Duration, Warmup: made.Warmup, Seed: seed, Streams: made.Streams, Pipelines: triton.Pipelines(made.Snapshot)}
			server := triton.Server{ID: "node"}
			for _, m := range made.Snapshot.GetModels() {
				w.Models = append(w.Models, triton.Model{Name: m.GetName(), MaxBatch: pipelineBatch, Dynamic: true})
				latency := make([]time.Duration, pipelineBatch+1)
				for b := 1; b < len(latency); b++ {
					latency[b] = time.Duration(l.takes(m.GetName(), b) * 1e6)
				}
				server.Latency = append(server.Latency, latency)
			}
			w.Servers = []triton.Server{server}
			set(&w)
			r, err := triton.Run(ctx, w)
			if err != nil {
				return nil, err
			}
			return r.Result, nil
		}})
	}
	for _, set := range l.tritonSetups() {
		found, err := search(set, seeds[:1])
		if err != nil {
			return nil, err
		}
		if found.Rate > most {
			most, best = found.Rate, set
		}
	}
	found, err := search(best, seeds)
	if err != nil {
		return nil, err
	}
	return rates(found), nil
}

// pipelineCeilings adds how far Triton and Conch are from what no scheduler exceeds, on the loads that are one pipeline's.
func pipelineCeilings(r *figure.Report, loads []pipelineLoad, lines []pipelineLine) {
	var conch, ceiling, reached []float64
	for i, l := range loads {
		if !l.alone() {
			continue
		}
		held, triton, most := stat.Mean(lines[i].held[0], nil), stat.Mean(lines[i].triton, nil), l.ceiling()
		if name := "pipeline." + l.name + "."; !l.drawn {
			r.AddRuns(name+"triton.goodput", lines[i].triton, "req/s", "the best of Triton's six settings in the simulator: a server for each GPU, with the rate limiter or without, or one for all; each with a delay or without")
			r.Add(name+"ceiling", most, "req/s", "what no scheduler exceeds: all GPUs busy with the batches of the least time for each request that end within the SLO one after the other")
			r.Add(name+"ceiling_over_triton", most/triton, "ratio", "that over what the best of Triton's settings holds in the simulator")
			r.Add(name+"over_triton", held/triton, "ratio", "what Conch holds in the simulator over that of the best of Triton's settings")
			continue
		}
		conch, ceiling, reached = append(conch, held/triton), append(ceiling, most/triton), append(reached, held/most)
	}
	for _, of := range []struct {
		name, what string
		all        []float64
	}{
		{"over_triton", "what Conch holds over the best of Triton's settings in the simulator", conch},
		{"ceiling_over_triton", "what no scheduler exceeds over what the best of Triton's settings holds in the simulator", ceiling},
		{"of_ceiling", "what Conch holds over what no scheduler exceeds", reached},
	} {
		if len(of.all) == 0 {
			continue
		}
		slices.Sort(of.all)
		name := "pipeline.drawn." + of.name + "."
		r.Add(name+"median", stat.Quantile(.5, stat.LinInterp, of.all, nil), "ratio", fmt.Sprintf("%s, median of those %d drawn loads that are of a pipeline alone", of.what, len(of.all)))
		r.Add(name+"least", of.all[0], "ratio", "the load on which it is least")
		r.Add(name+"most", of.all[len(of.all)-1], "ratio", "the load on which it is most")
		if of.name == "of_ceiling" {
			continue
		}
		double := 0
		for _, ratio := range of.all {
			if ratio >= 2 {
				double++
			}
		}
		r.Add(name+"double", float64(double), "loads", "on which it is 2 or more")
	}
}

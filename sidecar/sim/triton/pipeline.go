// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package triton

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/histogram"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// Pipeline is an ensemble: a request of it is answered when all its steps are over. Triton runs the steps on the server that the request came to, each in
// the queue of its model, where it is batched with that model's other requests.
type Pipeline struct {
	Name string
	// SLO is within what the answer of the last step is good.
	SLO   time.Duration
	Steps []Step
}

// Step of a pipeline.
type Step struct {
	// Model is an index of World.Models, After are the positions of the steps whose results the step takes, all below its own.
	Model int
	After []int
	// Rows for each row of the pipeline's request, on average; 0: as many.
	Rows float64
}

// Pipelines are the snapshot's, whose models have the World's order.
func Pipelines(s *policy.Snapshot) (all []Pipeline) {
	index := map[string]int{}
	for i, m := range s.GetModels() {
		index[m.GetName()] = i
	}
	for _, p := range s.GetPipelines() {
		out := Pipeline{Name: p.GetName(), SLO: time.Duration(p.GetSloUs()) * time.Microsecond}
		for _, step := range p.GetSteps() {
			added := Step{Model: index[step.GetModel()], Rows: step.GetRows()}
			for _, before := range step.GetAfter() {
				added.After = append(added.After, int(before))
			}
			out.Steps = append(out.Steps, added)
		}
		all = append(all, out)
	}
	return all
}

// flow is one request of a pipeline.
type flow struct {
	pipeline int
	server   int
	at       int64
	rows     int
	counted  bool
	missing  []int // results that each step waits for
	open     int   // steps that are not over
}

// pipeline counts the requests of one.
type pipeline struct {
	*Pipeline
	next    [][]int // the steps that take a step's results
	random  *rand.Rand
	totals  sim.Totals
	latency histogram.Histogram
}

func (p *Pipeline) check(models int) error {
	if p.SLO <= 0 || len(p.Steps) == 0 {
		return fmt.Errorf("%w: pipeline %s needs steps and an SLO", ErrWorld, p.Name)
	}
	for i, s := range p.Steps {
		if s.Model < 0 || s.Model >= models {
			return fmt.Errorf("%w: step %d of pipeline %s is of model %d, of which there are %d", ErrWorld, i, p.Name, s.Model, models)
		}
		for _, before := range s.After {
			if before < 0 || before >= i {
				return fmt.Errorf("%w: step %d of pipeline %s comes after step %d, which is not before it", ErrWorld, i, p.Name, before)
			}
		}
	}
	return nil
}

// on reports whether a server has all models of the pipeline.
func (p *Pipeline) on(s Server) bool {
	for _, step := range p.Steps {
		if len(s.Latency[step.Model]) < 2 {
			return false
		}
	}
	return true
}

func newPipeline(p *Pipeline, seed uint64) pipeline {
	out := pipeline{Pipeline: p, next: make([][]int, len(p.Steps)), random: workload.Seed(seed, "rows", p.Name)}
	for i, s := range p.Steps {
		for _, before := range s.After {
			out.next[before] = append(out.next[before], i)
		}
	}
	return out
}

// begin takes in a request of a pipeline on a server.
func (r *run) begin(a workload.Arrival, which, server int) {
	p := &r.pipelines[which]
	f := &flow{pipeline: which, server: server, at: r.now, rows: int(max(1, a.Rows)), counted: a.At >= r.w.Warmup, missing: make([]int, len(p.Steps)), open: len(p.Steps)}
	if f.counted {
		p.totals.Arrivals++
		p.totals.Unanswered++
	}
	for i, s := range p.Steps {
		f.missing[i] = len(s.After)
	}
	for i, s := range p.Steps {
		if len(s.After) == 0 {
			r.step(f, i)
		}
	}
}

// step puts a step of a request into the queue of its model.
func (r *run) step(f *flow, i int) {
	p := &r.pipelines[f.pipeline]
	s := p.Steps[i]
	rows := f.rows
	if s.Rows > 0 && s.Rows != 1 {
		rows = min(workload.Poisson(p.random, s.Rows*float64(f.rows)), max(1, r.w.Models[s.Model].MaxBatch)) // rows beyond a batch are cut off
	}
	if rows == 0 {
		r.stepped(f, i)
		return
	}
	r.servers[f.server].batchers[s.Model].add(request{at: r.now, rows: rows, flow: f, step: i})
	r.form(f.server, s.Model)
}

// stepped is called when a step is over.
func (r *run) stepped(f *flow, i int) {
	p := &r.pipelines[f.pipeline]
	if f.open--; f.open == 0 {
		r.servers[f.server].outstanding--
		r.answered(&p.totals, &p.latency, p.SLO, f.at, f.counted)
		return
	}
	for _, n := range p.next[i] {
		if f.missing[n]--; f.missing[n] == 0 {
			r.step(f, n)
		}
	}
}

func (p *pipeline) result(seconds float64) sim.PipelineResult {
	out := sim.PipelineResult{Name: p.Name, SLOUs: p.SLO.Microseconds(), Totals: rates(p.totals, seconds), Latency: latencyOf(&p.latency)}
	out.Latency.P99OfSLO = out.Latency.P99Us / float64(out.SLOUs)
	return out
}

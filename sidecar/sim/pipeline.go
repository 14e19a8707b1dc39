// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/sim/histogram"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// StepDeadlines says how the deadline of a step follows from its pipeline's: a DAG of models under one deadline, end to end (policy.Pipeline). Each step is
// a request of its model, batched with all other requests of that model.
type StepDeadlines uint8

const (
	// StepsByLoss keeps back what its successors take at present to execute, along the longest path, and a part of the time to spare, for their waits: more of it,
	// the more requests were dropped lately after their first steps (forecast.Reserve). Conch does so.
	StepsByLoss StepDeadlines = iota
	// StepsByPresent is the same without regard to what was dropped.
	StepsByPresent
	// StepsLeft gives a step all the time until the pipeline's deadline but what its successors take at present to execute, along the longest path. A
	// request that cannot make it any more is dropped at the step that it is in.
	StepsLeft
	// StepsWaiting keeps back what successors waited in the last seconds, too, on average (PARD's proactive drop with the estimated queueing of what follows,
	// arXiv 2602.08747; not its order of requests by priority).
	StepsWaiting
	// StepsByShare divides the SLO beforehand, in proportion to the steps' times along the longest path (policy.Pipeline.Divide; InferLine's kind).
	StepsByShare
	// StepsAtEnd gives every step the pipeline's deadline, as callers do who pass one deadline on.
	StepsAtEnd
)

// PipelineResult is one pipeline's part of a [Result]: a request counts once, whatever its steps.
type PipelineResult struct {
	Name  string `json:"name"`
	SLOUs int64  `json:"slo_us"`
	Totals
	// Ended are the requests that were dropped, refused or failed, by the step in which they were.
	Ended []uint64 `json:"ended,omitempty"`
	// Latency is of answered requests, from end to end.
	Latency Latency `json:"latency"`
}

// pipeline is a pipeline of the world.
type pipeline struct {
	spec     *policy.Pipeline
	slo      queue.Time
	rule     StepDeadlines
	steps    []pipelineStep
	observed observed
	random   *rand.Rand
	lost     forecast.Losses
	// rest is scratch: what follows each step.
	rest []queue.Time

	arrivals, waiting uint64
	outcomes          [dropped + 1]uint64
	ended             []uint64
	latency           histogram.Histogram
}

type pipelineStep struct {
	model *model
	after int // how many steps' results it takes
	next  []int
	rows  float64
	over  float64 // the part of the SLO after which it is over, for StepsByShare
}

// pace is what a step of a model takes at present, waiting and executing.
type pace struct {
	wait      waits
	execution forecast.Lately
}

// waits are those of a model's steps in the last seconds: of the present period and the one before.
type waits struct {
	began    queue.Time // the present period
	sum      [2]queue.Time
	executed [2]int64
}

// waitsPeriod is half of what waits remember at the most.
const waitsPeriod = 5 * second / 2

// turn forgets what is over.
func (w *waits) turn(now queue.Time) {
	switch age := now - w.began; {
	case age >= 2*waitsPeriod:
		*w = waits{began: now}
	case age >= waitsPeriod:
		*w = waits{began: w.began + waitsPeriod, sum: [2]queue.Time{0, w.sum[0]}, executed: [2]int64{0, w.executed[0]}}
	}
}

func (w *waits) add(now, took queue.Time) {
	w.turn(now)
	w.sum[0] += took
	w.executed[0]++
}

// mean is 0 where nothing was executed lately: waits that keep every request from a model must not last.
func (w *waits) mean(now queue.Time) queue.Time {
	w.turn(now)
	return (w.sum[0] + w.sum[1]) / queue.Time(max(1, w.executed[0]+w.executed[1]))
}

// flow is one request of a pipeline.
type flow struct {
	pipeline  *pipeline
	sent, due queue.Time
	rows      int32
	missing   []int      // results that each step waits for
	open      int        // steps that are not over
	queued    []*request // by step; nil where it is not under way
	over      bool
}

// addPipelines is called when models have their profiles.
func (e *engine) addPipelines() {
	byName := make(map[string]*model, len(e.models))
	for _, m := range e.models {
		byName[m.spec.GetName()] = m
	}
	for _, spec := range e.w.Snapshot.GetPipelines() {
		n := len(spec.GetSteps())
		p := &pipeline{
			spec: spec, slo: queue.Time(spec.GetSloUs()) * queue.Time(time.Microsecond), rule: e.w.StepDeadlines, steps: make([]pipelineStep, n),
			rest: make([]queue.Time, n), ended: make([]uint64, n), random: workload.Seed(e.w.Seed, "rows", spec.GetName()),
		}
		_, over := spec.Divide(e.w.Snapshot.Takes)
		for j, s := range spec.GetSteps() {
			m := byName[s.GetModel()]
			p.steps[j] = pipelineStep{model: m, rows: s.GetRows(), over: over[j], after: len(s.GetAfter())}
			for _, before := range s.GetAfter() {
				p.steps[before].next = append(p.steps[before].next, j)
			}
		}
		e.pipelines = append(e.pipelines, p)
	}
}

// alone is what a row takes where the model is fastest.
func (m *model) alone() time.Duration {
	least := math.Inf(1)
	for _, k := range m.kernels {
		least = min(least, k.mean[1])
	}
	if math.IsInf(least, 1) {
		return 0
	}
	return time.Duration(least)
}

// begin takes in a request of a pipeline.
func (e *engine) begin(p *pipeline, a *workload.Arrival) {
	f := &flow{
		pipeline: p, sent: e.now - queue.Time(e.w.Delays.Request), rows: max(1, a.Rows), open: len(p.steps),
		missing: make([]int, len(p.steps)), queued: make([]*request, len(p.steps)),
	}
	f.due = f.sent + p.slo
	if a.Deadline > 0 {
		f.due = f.sent + queue.Time(a.Deadline)
	}
	e.collect.bin(e).arrivals++
	if e.plans.watch {
		p.observed.arrived(e.now, a.Rows)
	}
	if f.sent >= e.counted {
		p.arrivals++
		p.waiting++
	}
	for i, s := range p.steps {
		f.missing[i] = s.after
	}
	for i, s := range p.steps {
		if s.after == 0 {
			e.step(f, i)
		}
	}
}

// step starts a step of a request.
func (e *engine) step(f *flow, i int) {
	if f.over {
		return
	}
	p := f.pipeline
	s := &p.steps[i]
	rows := f.rows
	if s.rows > 0 && s.rows != 1 {
		rows = int32(min(workload.Poisson(p.random, s.rows*float64(f.rows)), s.model.maxBatch())) //nolint:gosec // at most a batch; more rows than that are cut off
	}
	if rows == 0 {
		e.stepped(f, i)
		return
	}
	m := s.model
	if e.plans.watch {
		m.observed.arrived(e.now, rows)
	}
	r := e.request(m)
	r.flow, r.step = f, i
	r.sent, r.Arrival, r.Rows, r.Avoid = e.now, e.now, rows, queue.NoExecutor
	r.due = p.deadline(e.now, f, i)
	r.Deadline = e.deadline(m, max(1, r.due-e.now), r.due)
	f.queued[i] = r
	e.inFlight++
	if m.serving == 0 {
		e.answer(r, refused)
		return
	}
	e.sched.Enqueue(e.now, m.id, &r.Request)
}

// deadline of a step that begins now.
func (p *pipeline) deadline(now queue.Time, f *flow, i int) queue.Time {
	switch p.rule {
	case StepsByShare:
		return f.sent + queue.Time(p.steps[i].over*float64(f.due-f.sent))
	case StepsAtEnd:
		return f.due
	case StepsByLoss, StepsByPresent, StepsLeft, StepsWaiting:
	}
	for j := len(p.steps) - 1; j >= 0; j-- {
		p.rest[j] = 0
		for _, n := range p.steps[j].next {
			p.rest[j] = max(p.rest[j], p.rest[n]+p.takes(now, n))
		}
	}
	rest := p.rest[i]
	if p.rule == StepsByLoss || p.rule == StepsByPresent {
		whole := queue.Time(0)
		for j := range p.steps {
			whole = max(whole, p.rest[j]+p.takes(now, j))
		}
		rest = queue.Time(forecast.Reserve(rest.Duration(), whole.Duration(), (f.due - f.sent).Duration(), p.lost.At(now)))
	}
	return f.due - rest
}

// takes is what a step takes at present.
func (p *pipeline) takes(now queue.Time, i int) queue.Time {
	m := p.steps[i].model
	took := queue.Time(m.pace.execution.Or(m.alone(), now))
	if p.rule == StepsWaiting {
		took += m.pace.wait.mean(now)
	}
	return took
}

// walked notes that a request was lost, dropped after its first steps, or has come to its end.
func (p *pipeline) walked(now queue.Time, lost bool) {
	if p.rule == StepsByLoss {
		p.lost.Add(lost, now)
	}
}

// stepped is called when a step is over, with its results or without rows.
func (e *engine) stepped(f *flow, i int) {
	f.queued[i] = nil
	if f.open--; f.open == 0 {
		o := good
		if e.now+queue.Time(e.w.Delays.Reply) > f.due {
			o = tooLate
		}
		f.pipeline.walked(e.now, false)
		e.flowed(f, o)
		return
	}
	for _, n := range f.pipeline.steps[i].next {
		if f.missing[n]--; f.missing[n] == 0 {
			e.step(f, n)
		}
	}
}

// answerStep ends a request that is a step.
func (e *engine) answerStep(r *request, o outcome) {
	f, i := r.flow, r.step
	if e.plans.watch {
		r.model.observed.answered(e.now, o)
	}
	e.free = append(e.free, r)
	if f.over {
		return
	}
	if o <= tooLate {
		e.stepped(f, i)
		return
	}
	f.queued[i] = nil
	if o >= dropped && f.pipeline.steps[i].after > 0 {
		f.pipeline.walked(e.now, true)
	}
	if f.sent >= e.counted {
		f.pipeline.ended[i]++
	}
	e.flowed(f, o)
	// The queue may be in the middle of something: what else waits for nobody is taken out at the next step of the run.
	for _, other := range f.queued {
		if other != nil {
			e.orphans = append(e.orphans, other)
		}
	}
}

// flowed ends a request of a pipeline.
func (e *engine) flowed(f *flow, o outcome) {
	p, c := f.pipeline, &e.collect
	f.over = true
	b := &c.bins[min(int((f.sent+queue.Time(e.w.Delays.Request))/c.width), len(c.bins)-1)]
	if o == good {
		b.good++
	} else {
		b.bad++
	}
	took := (e.now + queue.Time(e.w.Delays.Reply) - f.sent).Duration()
	if o <= tooLate {
		b.latency.Add(took)
	}
	if f.sent < e.counted {
		return
	}
	p.waiting--
	p.outcomes[min(o, dropped)]++
	if o <= tooLate {
		p.latency.Add(took)
	}
}

// discard takes steps out of the queue whose requests are over. Those that execute go on, as they do on a server.
func (e *engine) discard() {
	for _, r := range e.orphans {
		// It may have ended since, and be another request by now.
		if f := r.flow; f != nil && f.over && f.queued[r.step] == r && e.sched.Cancel(e.now, &r.Request) {
			f.queued[r.step] = nil
			e.inFlight--
			e.free = append(e.free, r)
		}
	}
	e.orphans = e.orphans[:0]
}

func (p *pipeline) result(length float64) PipelineResult {
	r := PipelineResult{Name: p.spec.GetName(), SLOUs: p.spec.GetSloUs(), Ended: p.ended, Totals: Totals{
		Arrivals: p.arrivals, Good: p.outcomes[good], Late: p.outcomes[tooLate], Failed: p.outcomes[failed], Refused: p.outcomes[refused],
		Dropped: p.outcomes[dropped], Unanswered: p.waiting,
	}}
	r.rates(length)
	r.Latency = latencyOf(&p.latency)
	r.Latency.P99OfSLO = r.Latency.P99Us / float64(r.SLOUs)
	return r
}

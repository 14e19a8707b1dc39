// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package triton

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/histogram"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// ErrWorld is wrapped by errors about worlds that make no sense.
var ErrWorld = errors.New("triton: the servers cannot be simulated")

// Model is a model as its config.pbtxt has it.
type Model struct {
	Name string
	// SLO is within what an answer is good. Only a model that pipelines alone ask for needs none.
	SLO time.Duration
	// MaxBatch is max_batch_size. Dynamic says whether there is dynamic_batching, with Delay as max_queue_delay and Preferred as
	// preferred_batch_size.
	MaxBatch  int
	Dynamic   bool
	Delay     time.Duration
	Preferred []int
}

// Server is one Triton with GPUs of its own.
type Server struct {
	// ID and GPU name it in the result.
	ID, GPU string
	// GPUs is how many it has; 0 means 1. Each model has an instance on every one.
	GPUs int
	// Limited is --rate-limit=execution_count where an instance needs the one resource of its GPU: it takes a payload when nothing executes there, and of the
	// instances that could, that of the fewest executions does.
	Limited bool
	// Latency[m][b] is what an execution of b rows of World.Models[m] takes when it has the GPU for itself; index 0 is unused. A model with
	// no latencies is not served. A batch beyond the last entry takes as long as that.
	Latency [][]time.Duration
}

// World is what is simulated. It is used up by one Run: streams are read.
type World struct {
	Models  []Model
	Servers []Server
	// Pipelines are ensembles. Each is on the servers that have all its models.
	Pipelines []Pipeline
	// Streams are the arrivals; Arrival.Model is an index of Models, or that of a pipeline after the last model. Requests that arrive within Warmup do not
	// count.
	Streams          []workload.Stream
	Duration, Warmup time.Duration
	// Seed is of Jitter, the standard deviation of an execution's time as a fraction of it.
	Seed   uint64
	Jitter float64
}

// Executions are those of one batch size of a model, as Triton's own statistics count them (batch_stats of ModelStatistics): with the time
// that a batch waited for the GPU, which other models of the server used.
type Executions struct {
	Rows  int
	Count uint64
	Mean  time.Duration
}

// Result is what a run measured.
type Result struct {
	// Result has Total, Models, Pipelines, Partitions (the servers) and History, and nothing of plans.
	*sim.Result
	// Executions by model, in order of rows; the warm-up's too.
	Executions [][]Executions
}

type eventKind uint8

const (
	arrive eventKind = iota
	alarm            // a batcher wants to be asked
	finish           // a GPU of a server is free
)

type event struct {
	at     int64
	order  int // among equal times, the order in which events were made
	kind   eventKind
	server int
	gpu    int // of finish
	model  int
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(v any)   { *e = append(*e, v.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	v := (*e)[last]
	*e = (*e)[:last]
	return v
}

// job is a payload that an instance has taken.
type job struct {
	*payload
	model int
	taken int64
}

type server struct {
	limited     bool
	outstanding int
	batchers    []*batcher // nil: not served
	gpus        []gpu
	idle        [][]int // by model: the GPUs whose instances wait for a payload, the one that has waited longest first
	// worked is the time of executions that counts, in nanoseconds; batches and rows are all that were executed.
	worked        int64
	batches, rows uint64
}

type gpu struct {
	jobs []job // in order; the first one executes
	done []int // by model: how many its instance has executed
}

// take takes the GPU whose instance of a model has waited longest, of those on which it may execute; -1: there is none.
func (s *server) take(m int) int {
	i := slices.IndexFunc(s.idle[m], func(g int) bool { return !s.limited || len(s.gpus[g].jobs) == 0 })
	if i < 0 {
		return -1
	}
	g := s.idle[m][i]
	s.idle[m] = slices.Delete(s.idle[m], i, i+1)
	return g
}

type run struct {
	w       *World
	servers []server
	events  events
	made    int
	now     int64
	turn    int
	random  *rand.Rand
	next    []workload.Arrival // of each stream
	totals  []sim.Totals
	latency []histogram.Histogram
	counted [][]executed // by model and rows
	bins    [bins]bin
	// pipelines are in the order of the world.
	pipelines []pipeline
}

type executed struct {
	count uint64
	sum   int64
}

// Run simulates the servers until the last arrival, and what is queued then for as long as an answer can be good.
func Run(ctx context.Context, w World) (*Result, error) {
	if err := w.check(); err != nil {
		return nil, err
	}
	r := &run{w: &w, servers: make([]server, len(w.Servers)), random: workload.Seed(w.Seed, "executions", ""), next: make([]workload.Arrival, len(w.Streams))}
	r.totals, r.latency = make([]sim.Totals, len(w.Models)), make([]histogram.Histogram, len(w.Models))
	for i := range w.Pipelines {
		r.pipelines = append(r.pipelines, newPipeline(&w.Pipelines[i], w.Seed))
	}
	for _, m := range w.Models {
		r.counted = append(r.counted, make([]executed, max(1, m.MaxBatch)+1))
	}
	for i := range r.servers {
		s := &r.servers[i]
		s.batchers, s.gpus, s.idle = make([]*batcher, len(w.Models)), make([]gpu, w.Servers[i].gpus()), make([][]int, len(w.Models))
		s.limited = w.Servers[i].Limited
		for g := range s.gpus {
			s.gpus[g].done = make([]int, len(w.Models))
		}
		for m, l := range w.Servers[i].Latency {
			if len(l) > 1 {
				s.batchers[m] = newBatcher(w.Models[m], len(s.gpus))
			}
			for g := range s.gpus { // models begin at different GPUs
				s.idle[m] = append(s.idle[m], (m+g)%len(s.gpus))
			}
		}
	}
	var patience time.Duration
	for _, m := range w.Models {
		patience = max(patience, m.SLO)
	}
	for _, p := range w.Pipelines {
		patience = max(patience, p.SLO)
	}
	for i := range w.Streams {
		r.draw(i)
	}
	end := int64(w.Duration + patience)
	for n := 0; len(r.events) > 0; n++ {
		if n%4096 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		e := heap.Pop(&r.events).(event)
		if e.at > end {
			break
		}
		r.now = e.at
		switch e.kind {
		case arrive:
			if err := r.arrive(e.model); err != nil {
				return nil, err
			}
		case alarm:
			r.form(e.server, e.model)
		case finish:
			r.finish(e.server, e.gpu)
		}
	}
	for _, s := range w.Streams {
		if err := workload.Err(s); err != nil {
			return nil, err
		}
	}
	return r.result(), nil
}

func (w *World) check() error {
	if len(w.Models) == 0 || len(w.Servers) == 0 || w.Duration <= 0 || w.Warmup < 0 || w.Warmup >= w.Duration {
		return fmt.Errorf("%w: %d models on %d servers for %v after %v", ErrWorld, len(w.Models), len(w.Servers), w.Duration, w.Warmup)
	}
	ofPipelines := make([]bool, len(w.Models))
	for i := range w.Pipelines {
		p := &w.Pipelines[i]
		if err := p.check(len(w.Models)); err != nil {
			return err
		}
		for _, s := range p.Steps {
			ofPipelines[s.Model] = true
		}
	}
	for m, model := range w.Models {
		served := false
		for _, s := range w.Servers {
			if len(s.Latency) != len(w.Models) {
				return fmt.Errorf("%w: a server has latencies of %d models, of which there are %d", ErrWorld, len(s.Latency), len(w.Models))
			}
			served = served || len(s.Latency[m]) > 1
		}
		if !served || model.SLO <= 0 && !ofPipelines[m] {
			return fmt.Errorf("%w: model %s needs a server and an SLO", ErrWorld, model.Name)
		}
	}
	for i := range w.Pipelines {
		if p := &w.Pipelines[i]; !slices.ContainsFunc(w.Servers, p.on) {
			return fmt.Errorf("%w: pipeline %s needs a server with all its models", ErrWorld, p.Name)
		}
	}
	return nil
}

func (s Server) gpus() int { return max(1, s.GPUs) }

func (r *run) push(e event) {
	r.made++
	e.order = r.made
	heap.Push(&r.events, e)
}

// draw takes a stream's next arrival; an event's model is the stream until it comes.
func (r *run) draw(stream int) {
	if a := &r.next[stream]; r.w.Streams[stream].Next(a) && a.At < r.w.Duration {
		r.push(event{at: int64(a.At), kind: arrive, model: stream})
	}
}

// arrive sends a request to the server with the fewest outstanding ones, of those that serve what it asks for; among equals they take turns.
func (r *run) arrive(stream int) error {
	a := r.next[stream]
	r.draw(stream)
	m, best := int(a.Model), -1
	which := m - len(r.w.Models)
	if m < 0 || which >= len(r.pipelines) {
		return fmt.Errorf("%w: a request of model %d arrives, there are %d and %d pipelines", ErrWorld, m, len(r.w.Models), len(r.pipelines))
	}
	r.turn++
	for i := range r.servers {
		at := (r.turn + i) % len(r.servers)
		serves := which >= 0 && r.pipelines[which].on(r.w.Servers[at]) || which < 0 && r.servers[at].batchers[m] != nil
		if serves && (best < 0 || r.servers[at].outstanding < r.servers[best].outstanding) {
			best = at
		}
	}
	r.binOf(r.now).arrivals++
	s := &r.servers[best]
	s.outstanding++
	if which >= 0 {
		r.begin(a, which, best)
		return nil
	}
	q := request{at: r.now, rows: int(max(1, a.Rows)), counted: a.At >= r.w.Warmup}
	if q.counted {
		r.totals[m].Arrivals++
		r.totals[m].Unanswered++
	}
	s.batchers[m].add(q)
	r.form(best, m)
	return nil
}

// form lets a batcher work, and its instances take what is ready.
func (r *run) form(at, m int) {
	s := &r.servers[at]
	b := s.batchers[m]
	again := b.form(r.now)
	for len(b.ready) > 0 {
		g := s.take(m)
		if g < 0 {
			break
		}
		p := b.take(r.now)
		on := &s.gpus[g]
		on.jobs = append(on.jobs, job{p, m, r.now})
		if len(on.jobs) == 1 {
			r.execute(at, g)
		}
		again = b.form(r.now)
	}
	if again > 0 {
		r.push(event{at: again, kind: alarm, server: at, model: m})
	}
}

// execute starts the first job of a GPU.
func (r *run) execute(at, g int) {
	j := r.servers[at].gpus[g].jobs[0]
	l := r.w.Servers[at].Latency[j.model]
	took := float64(l[min(j.rows, len(l)-1)])
	if r.w.Jitter > 0 {
		took *= max(.1, 1+r.w.Jitter*r.random.NormFloat64())
	}
	until := r.now + max(1, int64(took))
	r.executed(at, until)
	r.push(event{at: until, kind: finish, server: at, gpu: g, model: j.model})
}

func (r *run) finish(at, g int) {
	s := &r.servers[at]
	on := &s.gpus[g]
	j := on.jobs[0]
	if !s.limited {
		if on.jobs = on.jobs[1:]; len(on.jobs) > 0 {
			r.execute(at, g)
		}
	}
	counted := r.counted[j.model]
	c := &counted[min(j.rows, len(counted)-1)]
	c.count++
	c.sum += r.now - j.taken
	s.batches++
	s.rows += uint64(j.rows)
	s.idle[j.model] = append(s.idle[j.model], g)
	on.done[j.model]++
	for _, q := range j.requests {
		if q.flow != nil {
			r.stepped(q.flow, q.step)
			continue
		}
		s.outstanding--
		r.answered(&r.totals[j.model], &r.latency[j.model], r.w.Models[j.model].SLO, q.at, q.counted)
	}
	if s.limited { // the resource is given back when the answers are, so that the next steps of a pipeline are queued by then
		on.jobs = on.jobs[:0]
		r.grant(at, g)
		return
	}
	r.form(at, j.model)
}

// grant lets the models of a limited server have a GPU that is free, in the order of what their instances there have executed.
func (r *run) grant(at, g int) {
	s := &r.servers[at]
	order := make([]int, 0, len(s.batchers))
	for m, b := range s.batchers {
		if b != nil {
			order = append(order, m)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return s.gpus[g].done[a] - s.gpus[g].done[b] })
	for _, m := range order {
		r.form(at, m)
	}
}

// answered counts an answer that is given now.
func (r *run) answered(t *sim.Totals, latency *histogram.Histogram, slo time.Duration, sent int64, counted bool) {
	took := time.Duration(r.now - sent)
	b := r.binOf(sent)
	b.latency.Add(took)
	if took <= slo {
		b.good++
	}
	if !counted {
		return
	}
	t.Unanswered--
	latency.Add(took)
	if took <= slo {
		t.Good++
	} else {
		t.Late++
	}
}

// rates are those of counts.
func rates(t sim.Totals, seconds float64) sim.Totals {
	t.Rate, t.Goodput = float64(t.Arrivals)/seconds, float64(t.Good)/seconds
	if t.Arrivals > 0 {
		t.BadRate = 1 - float64(t.Good)/float64(t.Arrivals)
	}
	return t
}

func latencyOf(h *histogram.Histogram) sim.Latency {
	return sim.Latency{P50Us: float64(h.Quantile(.5)) / 1e3, P95Us: float64(h.Quantile(.95)) / 1e3, P99Us: float64(h.Quantile(.99)) / 1e3}
}

func (r *run) result() *Result {
	seconds := (r.w.Duration - r.w.Warmup).Seconds()
	out := &Result{Result: &sim.Result{Version: 1, Seed: r.w.Seed, Seconds: seconds, WarmupSeconds: r.w.Warmup.Seconds(), EndSeconds: time.Duration(r.now).Seconds()}}
	var all histogram.Histogram
	add := func(t *sim.Totals, latency *histogram.Histogram) {
		out.Total.Arrivals += t.Arrivals
		out.Total.Good += t.Good
		out.Total.Late += t.Late
		out.Total.Unanswered += t.Unanswered
		all.Merge(latency)
	}
	for i, m := range r.w.Models {
		t := &r.totals[i]
		model := sim.ModelResult{Name: m.Name, SLOUs: m.SLO.Microseconds(), Totals: rates(*t, seconds), Latency: latencyOf(&r.latency[i]), Batches: make([]uint64, len(r.counted[i]))}
		var all []Executions
		var rows, batches uint64
		for b, c := range r.counted[i] {
			if c.count > 0 {
				all = append(all, Executions{b, c.count, time.Duration(c.sum / int64(c.count))})
			}
			model.Batches[b] = c.count
			batches, rows = batches+c.count, rows+uint64(b)*c.count
		}
		model.MeanBatch = float64(rows) / float64(max(1, batches))
		out.Executions = append(out.Executions, all)
		out.Models = append(out.Models, model)
		add(t, &r.latency[i])
	}
	for i := range r.pipelines {
		p := &r.pipelines[i]
		out.Pipelines = append(out.Pipelines, p.result(seconds))
		add(&p.totals, &p.latency)
	}
	out.Total = rates(out.Total, seconds)
	out.Latency = sim.Latency{P50Us: float64(all.Quantile(.5)) / 1e3, P99Us: float64(all.Quantile(.99)) / 1e3}
	out.History, out.Partitions = r.history(), r.partitions()
	return out
}

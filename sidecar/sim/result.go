// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/sim/histogram"
)

// Result is what a run measured, of the requests that arrived between warm-up and the end of arrivals, unless a field states otherwise. Its JSON is
// stable: fields are only added, names end in their unit where they have one (_us, _seconds), rates are per second, shares and rates of bad
// requests are fractions from 0 to 1. Two runs of one world give the same bytes.
type Result struct {
	Version int    `json:"version"` // of this format: 1
	Seed    uint64 `json:"seed"`
	// Seconds of arrivals that count, and of virtual time that all took.
	Seconds       float64 `json:"seconds"`
	WarmupSeconds float64 `json:"warmup_seconds"`
	EndSeconds    float64 `json:"end_seconds"`
	Total         Totals  `json:"total"`
	// Latency is of all models' answered requests.
	Latency Latency `json:"latency"`
	// Models and Partitions are in the order of the snapshot and of when they were first in force.
	Models []ModelResult `json:"models"`
	// Pipelines are in the order of the world. What their steps were counts in Batches of the models and not in their requests.
	Pipelines  []PipelineResult  `json:"pipelines,omitempty"`
	Partitions []PartitionResult `json:"partitions"`
	GPUs       []GPUResult       `json:"gpus"`
	// History is from time 0 to the end of arrivals, warm-up included.
	History []Interval `json:"history"`
	// Events are plans, failures and the like; the first 1000.
	Events   []Event       `json:"events"`
	Timeline []BatchRecord `json:"timeline,omitempty"`
	// Queue is the queue's own account, warm-up included.
	Queue QueueResult `json:"queue"`
	// Plans counts the plans that the policy made and that were good.
	Plans int `json:"plans"`
	// PlansFailed counts those that the policy did not make or that could not be used, PlanFailure says why the first one was not. Whatever was
	// in force before stays.
	PlansFailed int    `json:"plans_failed,omitempty"`
	PlanFailure string `json:"plan_failure,omitempty"`
}

// Totals count requests: Arrivals = Good + Late + Dropped + Failed + Refused + Unanswered.
type Totals struct {
	Arrivals uint64 `json:"arrivals"`
	// Good were answered in time, Late afterwards.
	Good uint64 `json:"good"`
	Late uint64 `json:"late"`
	// Dropped were given up by the queue, Failed lost two partitions, Refused had none, Unanswered still waited when the run ended.
	Dropped    uint64 `json:"dropped"`
	Failed     uint64 `json:"failed"`
	Refused    uint64 `json:"refused"`
	Unanswered uint64 `json:"unanswered"`
	// Requeued counts requests that lost a partition; it is no outcome.
	Requeued uint64 `json:"requeued"`
	// Rate is offered, Goodput good requests per second, BadRate the part of arrivals that is not good.
	Rate    float64 `json:"rate"`
	Goodput float64 `json:"goodput"`
	BadRate float64 `json:"bad_rate"`
}

// ModelResult is what a run measured of one model's requests.
type ModelResult struct {
	Name  string `json:"name"`
	SLOUs int64  `json:"slo_us"`
	Totals
	// DroppedBy is Dropped by the queue's reason.
	DroppedBy map[string]uint64 `json:"dropped_by,omitempty"`
	// Latency is of answered requests, late ones included.
	Latency Latency `json:"latency"`
	// Batches[b] counts executions of b rows; MeanBatch is rows per execution, MedianBatch what half of the executions do not exceed.
	Batches     []uint64 `json:"batches"`
	MeanBatch   float64  `json:"mean_batch"`
	MedianBatch int      `json:"median_batch"`
}

// Latency is from arrival to answer, within 0.8%.
type Latency struct {
	MeanUs float64 `json:"mean_us"`
	P50Us  float64 `json:"p50_us"`
	P90Us  float64 `json:"p90_us"`
	P95Us  float64 `json:"p95_us"`
	P99Us  float64 `json:"p99_us"`
	P999Us float64 `json:"p999_us"`
	MaxUs  float64 `json:"max_us"`
	// P99OfSLO is P99 over the SLO; 0 without an SLO, and over several models.
	P99OfSLO float64 `json:"p99_of_slo"`
}

// PartitionResult is what a run measured of one partition, from FromSeconds to UntilSeconds of simulated time, while a plan had it.
type PartitionResult struct {
	ID               string  `json:"id"`
	GPU              string  `json:"gpu"` // NODE/ID
	ThreadPercentage uint32  `json:"thread_percentage"`
	FromSeconds      float64 `json:"from_seconds"`
	UntilSeconds     float64 `json:"until_seconds"`
	// BusyShare is the part of the counted time for which it was in force in which it executed.
	BusyShare float64 `json:"busy_share"`
	Batches   uint64  `json:"batches"`
	Rows      uint64  `json:"rows"`
	// WastedShare is the part of the same time that went into executions which were preempted; BusyShare, Batches and Rows have them too.
	WastedShare float64 `json:"wasted_share,omitempty"`
}

// GPUResult is one GPU, with the simulated time for which it was there.
type GPUResult struct {
	Name         string  `json:"name"` // NODE/ID
	Type         string  `json:"type"`
	CostPerHour  float64 `json:"cost_per_hour"`
	FromSeconds  float64 `json:"from_seconds"`
	UntilSeconds float64 `json:"until_seconds"`
}

// Interval is a piece of the history. Good and Bad are of the requests that arrived in it, whenever they were answered.
type Interval struct {
	FromSeconds float64 `json:"from_seconds"`
	Arrivals    uint64  `json:"arrivals"`
	Good        uint64  `json:"good"`
	Bad         uint64  `json:"bad"`
	// LatencyP50Us and LatencyP99Us are of those that were answered, late ones included; 0 where none was.
	LatencyP50Us float64 `json:"latency_p50_us"`
	LatencyP99Us float64 `json:"latency_p99_us"`
	// GPUs is how many there were on average, CostPerHour what they cost.
	GPUs        float64 `json:"gpus"`
	CostPerHour float64 `json:"cost_per_hour"`
	// Busy is how many GPUs' worth of partitions executed on average (a partition counts its share); Compute and Memory sum up the Creq and
	// Mreq of what executed, in GPUs; 0 where profiles do not say.
	Busy    float64 `json:"busy"`
	Compute float64 `json:"compute"`
	Memory  float64 `json:"memory"`
}

// BatchRecord is an execution, for timelines. Start and End bound the execution, without delays.
type BatchRecord struct {
	Partition int     `json:"partition"` // index in Result.Partitions
	Model     int     `json:"model"`     // index in Result.Models
	Rows      int     `json:"rows"`
	Requests  int     `json:"requests"`
	Start     float64 `json:"start_us"`
	End       float64 `json:"end_us"`
	Late      bool    `json:"late,omitempty"`
}

// QueueResult is the queue's own account of a run (queue.Stats).
type QueueResult struct {
	// Enqueued requests arrived while something served their model; Requeued ones lost their partition.
	Enqueued uint64 `json:"enqueued"`
	Requeued uint64 `json:"requeued"`
	// Dispatched requests in Batches; LateBatches of them were of requests given up before, Hurried ones started before their time.
	Dispatched  uint64 `json:"dispatched"`
	Batches     uint64 `json:"batches"`
	LateBatches uint64 `json:"late_batches"`
	Hurried     uint64 `json:"hurried"`
	// Preempted batches gave way to larger ones; PreemptedRequests were queued again.
	Preempted         uint64 `json:"preempted,omitempty"`
	PreemptedRequests uint64 `json:"preempted_requests,omitempty"`
	// Queued requests were still waiting at the end.
	Queued int `json:"queued"`
}

func queueResult(s queue.Stats) QueueResult {
	return QueueResult{
		Enqueued: s.Enqueued, Requeued: s.Requeued, Dispatched: s.Dispatched, Batches: s.Batches, LateBatches: s.LateBatches, Hurried: s.Hurried,
		Preempted: s.Preempted, PreemptedRequests: s.PreemptedRequests, Queued: s.QueuedRequests + s.LateRequests,
	}
}

// EventKind says what happened.
type EventKind string

// Kinds of events.
const (
	EventPlan          EventKind = "plan"
	EventPlanUnchanged EventKind = "plan_unchanged"
	EventPlanFailed    EventKind = "plan_failed"
	EventMakeRoom      EventKind = "make_room"
	EventSwap          EventKind = "swap"
	EventFailure       EventKind = "failure"
	EventRecovery      EventKind = "recovery"
	EventGPU           EventKind = "gpu"
)

// maxEvents bounds Result.Events.
const maxEvents = 1000

// Event is something that happens rarely.
type Event struct {
	At   float64   `json:"at_seconds"`
	Kind EventKind `json:"kind"`
	Text string    `json:"text"`
}

// WorstBadRate is that of the model or pipeline that fares worst, of those that had requests.
func (r *Result) WorstBadRate() float64 {
	worst := 0.0
	for i := range r.Models {
		worst = max(worst, r.Models[i].BadRate)
	}
	for i := range r.Pipelines {
		worst = max(worst, r.Pipelines[i].BadRate)
	}
	return worst
}

func seconds(t queue.Time) float64 { return float64(t) / 1e9 }
func micros(t queue.Time) float64  { return float64(t) / 1e3 }

func (e *engine) result() *Result {
	r := &Result{
		Version: 1, Seed: e.w.Seed, Seconds: seconds(e.end - e.counted), WarmupSeconds: seconds(e.counted), EndSeconds: seconds(max(e.now, e.end)),
		Models: make([]ModelResult, len(e.models)), Partitions: make([]PartitionResult, len(e.parts)), Events: e.collect.events,
		Timeline: e.collect.timeline, Queue: queueResult(e.sched.Stats()), Plans: e.plans.made,
		PlansFailed: e.plans.failed, PlanFailure: e.plans.failure,
	}
	var all histogram.Histogram
	for i, m := range e.models {
		r.Models[i] = m.result(r.Seconds)
		r.Total.add(r.Models[i].Totals)
		all.Merge(&m.counts.latency)
	}
	for _, p := range e.pipelines {
		result := p.result(r.Seconds)
		r.Pipelines = append(r.Pipelines, result)
		r.Total.add(result.Totals)
		all.Merge(&p.latency)
	}
	r.Latency = latencyOf(&all)
	r.Total.rates(r.Seconds)
	for i, p := range e.parts {
		r.Partitions[i] = e.partitionResult(p)
	}
	for _, g := range e.gpus {
		r.GPUs = append(r.GPUs, GPUResult{
			Name: g.name(), Type: g.spec.GetType(), CostPerHour: g.spec.GetCostPerHour(),
			FromSeconds: seconds(g.added), UntilSeconds: seconds(min(g.removed, max(e.now, e.end))),
		})
	}
	r.History = e.history()
	return r
}

func (t *Totals) add(o Totals) {
	t.Arrivals += o.Arrivals
	t.Good += o.Good
	t.Late += o.Late
	t.Dropped += o.Dropped
	t.Failed += o.Failed
	t.Refused += o.Refused
	t.Unanswered += o.Unanswered
	t.Requeued += o.Requeued
}

func (t *Totals) rates(seconds float64) {
	t.Rate, t.Goodput = float64(t.Arrivals)/seconds, float64(t.Good)/seconds
	if t.Arrivals > 0 {
		t.BadRate = 1 - float64(t.Good)/float64(t.Arrivals)
	}
}

func (m *model) result(length float64) ModelResult {
	c := &m.counts
	r := ModelResult{Name: m.spec.GetName(), SLOUs: m.spec.GetSloUs(), Totals: Totals{
		Arrivals: c.arrivals, Good: c.outcomes[good], Late: c.outcomes[tooLate], Failed: c.outcomes[failed], Refused: c.outcomes[refused],
		Requeued: c.requeued, Unanswered: c.waiting,
	}}
	for _, why := range queue.DropReasons() {
		if n := c.outcomes[dropped+outcome(why)]; n > 0 {
			if r.DroppedBy == nil {
				r.DroppedBy = make(map[string]uint64)
			}
			r.Dropped += n
			r.DroppedBy[why.String()] = n
		}
	}
	r.rates(length)
	r.Latency = latencyOf(&c.latency)
	if m.slo > 0 {
		r.Latency.P99OfSLO = r.Latency.P99Us / micros(m.slo)
	}
	var batches, rows uint64
	for b, n := range c.batches {
		batches += n
		rows += uint64(b) * n
	}
	var seen uint64
	for b, n := range c.batches {
		if seen += n; batches > 0 && 2*seen >= batches {
			r.MedianBatch = b
			break
		}
	}
	if batches > 0 {
		r.MeanBatch = float64(rows) / float64(batches)
	}
	last := len(c.batches)
	for last > 1 && c.batches[last-1] == 0 {
		last--
	}
	r.Batches = slices.Clone(c.batches[:last])
	return r
}

func latencyOf(h *histogram.Histogram) Latency {
	quantile := func(q float64) float64 { return micros(queue.Time(h.Quantile(q))) }
	return Latency{
		MeanUs: micros(queue.Time(h.Mean())), P50Us: quantile(.5), P90Us: quantile(.9), P95Us: quantile(.95), P99Us: quantile(.99),
		P999Us: quantile(.999), MaxUs: micros(queue.Time(h.Max())),
	}
}

func (e *engine) partitionResult(p *partition) PartitionResult {
	until := min(p.counts.removed, max(e.now, e.end))
	r := PartitionResult{
		ID: p.spec.GetId(), GPU: p.gpu.name(), ThreadPercentage: p.spec.GetThreadPercentage(), FromSeconds: seconds(p.counts.added),
		UntilSeconds: seconds(until), Batches: p.counts.batches, Rows: p.counts.rows,
	}
	if d := min(until, e.end) - max(p.counts.added, e.counted); d > 0 {
		r.BusyShare = float64(p.counts.busy) / float64(d)
		r.WastedShare = float64(p.counts.wasted) / float64(d)
	}
	return r
}

func (e *engine) history() []Interval {
	c := &e.collect
	var all []Interval
	for i := range c.bins {
		b := &c.bins[i]
		from, to := queue.Time(i)*c.width, min(queue.Time(i+1)*c.width, e.end)
		if from >= to {
			break
		}
		length := float64(to - from)
		interval := Interval{
			FromSeconds: seconds(from), Arrivals: b.arrivals, Good: b.good, Bad: b.bad,
			LatencyP50Us: micros(queue.Time(b.latency.Quantile(.5))), LatencyP99Us: micros(queue.Time(b.latency.Quantile(.99))),
			Busy: b.busy / length, Compute: b.compute / length, Memory: b.memory / length,
		}
		for _, g := range e.gpus {
			if d := min(g.removed, to) - max(g.added, from); d > 0 {
				interval.GPUs += float64(d) / length
				interval.CostPerHour += float64(d) / length * g.spec.GetCostPerHour()
			}
		}
		all = append(all, interval)
	}
	return all
}

// String is a table for a terminal: a line per model.
func (r *Result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-24s %10s %10s %8s %10s %10s %8s\n", "MODEL", "RATE", "GOODPUT", "BAD", "P99", "SLO", "BATCH")
	for _, m := range r.Models {
		fmt.Fprintf(&b, "%-24s %10.1f %10.1f %7.2f%% %8.2fms %8.2fms %8.1f\n", m.Name, m.Rate, m.Goodput, 100*m.BadRate, m.Latency.P99Us/1e3, float64(m.SLOUs)/1e3, m.MeanBatch)
	}
	for _, p := range r.Pipelines {
		fmt.Fprintf(&b, "%-24s %10.1f %10.1f %7.2f%% %8.2fms %8.2fms %8s\n", p.Name, p.Rate, p.Goodput, 100*p.BadRate, p.Latency.P99Us/1e3, float64(p.SLOUs)/1e3, "")
	}
	t := r.Total
	fmt.Fprintf(&b, "%-24s %10.1f %10.1f %7.2f%%\n", "total", t.Rate, t.Goodput, 100*math.Max(0, t.BadRate))
	return b.String()
}

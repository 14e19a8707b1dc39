// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/conch-serving/conch/plugins/policy"
)

// metrics are the collectors of the request path.
type metrics struct {
	requests   *prometheus.CounterVec
	rows       *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	queued     *prometheus.HistogramVec
	batchRows  *prometheus.HistogramVec
	executions *prometheus.HistogramVec
	busy       *prometheus.CounterVec
	drops      *prometheus.CounterVec
	gone       *prometheus.CounterVec
	retries    *prometheus.CounterVec
	passed     *prometheus.CounterVec
	lent       *prometheus.CounterVec
	between    *prometheus.CounterVec
	named      *prometheus.CounterVec
	cold       *prometheus.HistogramVec
}

// latencyBuckets run from 250 us to 65 s, two an octave where SLOs lie.
func latencyBuckets() []float64 {
	return []float64{
		.00025, .0005, .001, .0015, .002, .003, .004, .006, .008, .012, .016, .024, .032, .048, .064, .096,
		.128, .192, .256, .384, .512, 1.024, 2.048, 4.096, 8.192, 16.384, 32.768, 65.536,
	}
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "conch", Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "conch", Name: name, Help: help, Buckets: buckets}, labels)
	}
	return &metrics{
		requests:   counter("requests_total", "Requests by what became of them; late and dropped ones are bad.", "model", "result"),
		rows:       counter("request_rows_total", "Rows of accepted requests.", "model"),
		duration:   histogram("request_duration_seconds", "From a request's acceptance to its answer.", latencyBuckets(), "model"),
		queued:     histogram("queue_duration_seconds", "From a request's acceptance to the start of its execution.", latencyBuckets(), "model"),
		batchRows:  histogram("batch_rows", "Rows of a batch.", prometheus.ExponentialBuckets(1, 2, 11), "model"),
		executions: histogram("execution_duration_seconds", "One batch on one partition.", latencyBuckets(), "model", "partition"),
		busy:       counter("partition_busy_seconds_total", "Time in which a partition worked on requests, in batches or passed through.", "partition"),
		drops:      counter("dropped_requests_total", "Requests dropped or refused, by reason.", "model", "reason"),
		gone:       counter("cancelled_requests_total", "Requests whose caller had gone before the answer: its deadline passed, it cancelled, or its connection ended (deadline, cancel, disconnect).", "model", "reason"),
		retries:    counter("retried_requests_total", "Requests whose first attempt was lost with its partition.", "model"),
		passed:     counter("passed_through_requests_total", "Requests that ran outside the queue.", "model"),
		lent:       counter("shared_memory_bytes_total", "Tensor bytes of batches that went to and from a partition through shared memory.", "partition"),
		between:    counter("intermediate_bytes_total", "Bytes of tensors that batches took from steps of ensembles, by their way: kept in the shared memory that they were written to, copied to other shared memory, or sent through the socket.", "partition", "way"),
		named:      counter("named_requests_total", "Requests for a name that other models serve (an app), by the model that served them and what became of them.", "name", "model", "result"),
		cold:       histogram("cold_start_duration_seconds", "From a request's acceptance to its answer, where it waited for its model to be loaded on demand.", latencyBuckets(), "model"),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.rows, m.duration, m.queued, m.batchRows, m.executions, m.busy, m.drops, m.gone, m.retries, m.passed, m.lent, m.between, m.named, m.cold}
}

func (m *metrics) register(registry prometheus.Registerer, r *Recorder) error {
	all := append(m.collectors(), profileCollector{r})
	errs := make([]error, 0, len(all))
	for _, c := range all {
		errs = append(errs, registry.Register(c))
	}
	return errors.Join(errs...)
}

// took counts what an execution on a partition has taken from steps of ensembles.
func (m *metrics) took(partition string, b Between) {
	if b == (Between{}) {
		return
	}
	for way, bytes := range map[string]int{"kept": b.Kept, "copied": b.Copied, "sent": b.Sent} {
		if bytes > 0 {
			m.between.WithLabelValues(partition, way).Add(float64(bytes))
		}
	}
}

// forget deletes the series of a model or partition that is gone.
func (m *metrics) forget(label, value string) {
	match := prometheus.Labels{label: value}
	m.requests.DeletePartialMatch(match)
	m.rows.DeletePartialMatch(match)
	m.duration.DeletePartialMatch(match)
	m.queued.DeletePartialMatch(match)
	m.batchRows.DeletePartialMatch(match)
	m.executions.DeletePartialMatch(match)
	m.busy.DeletePartialMatch(match)
	m.drops.DeletePartialMatch(match)
	m.gone.DeletePartialMatch(match)
	m.retries.DeletePartialMatch(match)
	m.passed.DeletePartialMatch(match)
	m.cold.DeletePartialMatch(match)
	m.lent.DeletePartialMatch(match)
	m.between.DeletePartialMatch(match)
	m.named.DeletePartialMatch(match)
}

// modelMetrics are the series of one model, looked up once instead of per
// request.
type modelMetrics struct {
	results   map[Result]prometheus.Counter
	rows      prometheus.Counter
	duration  prometheus.Observer
	queued    prometheus.Observer
	batchRows prometheus.Observer
	execution func(partition string) prometheus.Observer
	passed    prometheus.Counter
	retries   prometheus.Counter
	name      string
}

func (m *metrics) model(name string) modelMetrics {
	model := modelMetrics{
		results: map[Result]prometheus.Counter{}, name: name,
		rows: m.rows.WithLabelValues(name), duration: m.duration.WithLabelValues(name),
		queued: m.queued.WithLabelValues(name), batchRows: m.batchRows.WithLabelValues(name),
		execution: func(partition string) prometheus.Observer { return m.executions.WithLabelValues(name, partition) },
		passed:    m.passed.WithLabelValues(name), retries: m.retries.WithLabelValues(name),
	}
	for _, result := range results() {
		model.results[result] = m.requests.WithLabelValues(name, string(result))
	}
	return model
}

func (s *modelMetrics) finished(m *metrics, o Outcome) {
	if c := s.results[o.Result]; c != nil {
		c.Inc()
	}
	switch o.Result {
	case OK, Late:
		s.duration.Observe(o.Latency.Seconds())
		s.queued.Observe(o.Queued.Seconds())
	case Cold:
		m.cold.WithLabelValues(s.name).Observe(o.Latency.Seconds())
	case Dropped, Refused:
		m.drops.WithLabelValues(s.name, o.Reason).Inc()
	case Cancelled:
		m.gone.WithLabelValues(s.name, o.Reason).Inc()
	}
	if o.PassedThrough {
		s.passed.Inc()
	}
	if o.Retried {
		s.retries.Inc()
	}
}

// early counts a request that came to no model.
func (m *metrics) early(o Outcome) {
	model := cmp.Or(o.Model, o.Name)
	m.requests.WithLabelValues(model, string(o.Result)).Inc()
	if o.Result == Cancelled {
		m.gone.WithLabelValues(model, o.Reason).Inc()
	} else {
		m.drops.WithLabelValues(model, o.Reason).Inc()
	}
	if o.Name != "" {
		m.named.WithLabelValues(o.Name, o.Model, string(o.Result)).Inc()
	}
}

// profileCollector exports what was learnt when it is asked.
type profileCollector struct{ recorder *Recorder }

func profileDescriptions() (usable, interfered, batch1 *prometheus.Desc) {
	return prometheus.NewDesc("conch_profile_usable", "1 where deadlines are planned with the profile.", []string{"model", "gpu_type", "source"}, nil),
		prometheus.NewDesc("conch_profile_interfered", "1 while executions take 1.5 times their profile.", []string{"model", "gpu_type"}, nil),
		prometheus.NewDesc("conch_profile_latency_seconds", "Upper latency of a batch of one row and of the largest batch.", []string{"model", "gpu_type", "thread_percentage", "batch"}, nil)
}

// Describe implements prometheus.Collector.
func (c profileCollector) Describe(out chan<- *prometheus.Desc) {
	usable, interfered, latency := profileDescriptions()
	out <- usable
	out <- interfered
	out <- latency
}

// Collect implements prometheus.Collector.
func (c profileCollector) Collect(out chan<- prometheus.Metric) {
	usable, interfered, latency := profileDescriptions()
	for _, p := range c.recorder.Profiles() {
		out <- prometheus.MustNewConstMetric(usable, prometheus.GaugeValue, truth(p.GetUsable()), p.GetModel(), p.GetGpuType(), sourceName(p.GetSource()))
		out <- prometheus.MustNewConstMetric(interfered, prometheus.GaugeValue, truth(p.GetInterfered()), p.GetModel(), p.GetGpuType())
		points := p.GetPoints()
		for i, q := range points {
			first := i == 0 || points[i-1].GetThreadPercentage() != q.GetThreadPercentage()
			last := i == len(points)-1 || points[i+1].GetThreadPercentage() != q.GetThreadPercentage()
			if first || last {
				out <- prometheus.MustNewConstMetric(latency, prometheus.GaugeValue, q.GetLatencyUpperUs()/1e6,
					p.GetModel(), p.GetGpuType(), decimal(q.GetThreadPercentage()), decimal(q.GetBatch()))
			}
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// PlanMetrics are the collectors of the plan path.
type PlanMetrics struct {
	plans    *prometheus.CounterVec
	planning *prometheus.HistogramVec
	steps    *prometheus.HistogramVec
	failures *prometheus.CounterVec
	breaker  *prometheus.GaugeVec
	revision prometheus.Gauge
	applied  prometheus.Gauge
	up       *prometheus.GaugeVec
	advice   *prometheus.GaugeVec
	wanted   *prometheus.GaugeVec
	idle     *prometheus.GaugeVec
	faults   *prometheus.CounterVec
	ejected  *prometheus.GaugeVec
	eject    *prometheus.CounterVec
	swaps    prometheus.Histogram
	apart    conditionCollector
}

// NewPlanMetrics registers the collectors of the plan path; a nil registry
// leaves them unregistered.
func NewPlanMetrics(registry prometheus.Registerer) (*PlanMetrics, error) {
	buckets := prometheus.ExponentialBuckets(.001, 2, 16)
	m := &PlanMetrics{
		plans:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "conch_plans_total", Help: "Plans asked for, by what became of them."}, []string{"policy", "result"}),
		planning: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "conch_plan_duration_seconds", Help: "What a policy took to answer a snapshot.", Buckets: buckets}, []string{"policy"}),
		steps:    prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "conch_apply_step_duration_seconds", Help: "One step of applying a plan.", Buckets: buckets}, []string{"step"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "conch_apply_step_failures_total", Help: "Steps of applying a plan that failed."}, []string{"step"}),
		breaker:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "conch_policy_breaker_state", Help: "1 for the state in which the policy's circuit breaker is."}, []string{"policy", "state"}),
		revision: prometheus.NewGauge(prometheus.GaugeOpts{Name: "conch_plan_revision", Help: "Number of the plan that serves."}),
		applied:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "conch_plan_applied_timestamp_seconds", Help: "When the plan that serves came to serve."}),
		up:       prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "conch_partition_up", Help: "1 while a partition's server is up."}, []string{"partition"}),
		advice:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "conch_advice_gpus", Help: "GPUs to allocate or to release for the present load; absent while too few requests were answered to say (tritonctl gpu advise)."}, []string{"action"}),
		wanted:   prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "conch_gpus_wanted", Help: "GPUs of a type that the present load wants, for an autoscaler of nodes; absent like conch_advice_gpus."}, []string{"gpu_type"}),
		faults:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "conch_merge_group_faults_total", Help: "How often a merge group's executions failed, so that its members served instead."}, []string{"group"}),
		ejected:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "conch_place_ejected", Help: "1 while a model is not executed on a partition because its executions fail there; 0 while its next execution there decides; absent for healthy places."}, []string{"model", "partition"}),
		swaps:    prometheus.NewHistogram(prometheus.HistogramOpts{Name: "conch_table_swap_seconds", Help: "How long no request could be queued while a route table came into force.", Buckets: prometheus.ExponentialBuckets(.0001, 2, 12)}),
		eject:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "conch_place_ejections_total", Help: "How often a model's executions on a partition failed so that its requests went to its other places."}, []string{"model", "partition"}),
		idle:     prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "conch_gpu_idle_share", Help: "Share of the time in which the GPUs that serve executed nothing; absent like conch_advice_gpus."}, nil),
	}
	if registry == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.plans, m.planning, m.steps, m.failures, m.breaker, m.revision, m.applied, m.up, m.advice, m.wanted, m.idle, m.faults, m.ejected, m.eject, m.swaps, &m.apart} {
		errs = append(errs, registry.Register(c))
	}
	return m, errors.Join(errs...)
}

// Planned counts one question to a policy: result is applied, proposed,
// unchanged, held, rejected or failed.
func (m *PlanMetrics) Planned(policy, result string, took time.Duration) {
	m.plans.WithLabelValues(policy, result).Inc()
	m.planning.WithLabelValues(policy).Observe(took.Seconds())
}

// Step counts one step of applying.
func (m *PlanMetrics) Step(kind string, took time.Duration, err error) {
	m.steps.WithLabelValues(kind).Observe(took.Seconds())
	if err != nil {
		m.failures.WithLabelValues(kind).Inc()
	}
}

// GroupFault counts a merge group whose executions fail.
func (m *PlanMetrics) GroupFault(group string) { m.faults.WithLabelValues(group).Inc() }

// PlaceEjected counts an ejection of a model from a partition.
func (m *PlanMetrics) PlaceEjected(model, partition string) {
	m.eject.WithLabelValues(model, partition).Inc()
}

// Swapped counts a route table that came into force, during which no request could be queued for so long.
func (m *PlanMetrics) Swapped(held time.Duration) { m.swaps.Observe(held.Seconds()) }

// Ejected sets which places are ejected (true) or on probation (false), by model and partition.
func (m *PlanMetrics) Ejected(places map[[2]string]bool) {
	m.ejected.Reset()
	for at, is := range places {
		m.ejected.WithLabelValues(at[0], at[1]).Set(truth(is))
	}
}

// Breaker sets the state of the circuit breaker of the policy in use; states are
// all the states that a breaker has.
func (m *PlanMetrics) Breaker(policy, state string, states ...string) {
	m.breaker.Reset()
	for _, s := range states {
		m.breaker.WithLabelValues(policy, s).Set(truth(s == state))
	}
}

// Serving sets which plan serves and since when.
func (m *PlanMetrics) Serving(revision uint64, since time.Time) {
	m.revision.Set(float64(revision))
	m.applied.Set(float64(since.UnixMilli()) / 1e3)
}

// Partitions sets which partitions there are and whether they are up.
func (m *PlanMetrics) Partitions(up map[string]bool) {
	m.up.Reset()
	for id, is := range up {
		m.up.WithLabelValues(id).Set(truth(is))
	}
}

// Advice sets the advice about the number of GPUs, and how many it comes to by type; nil: none.
func (m *PlanMetrics) Advice(a *policy.Advice, wanted map[string]int) {
	m.advice.Reset()
	m.idle.Reset()
	m.wanted.Reset()
	if a == nil {
		return
	}
	m.advice.WithLabelValues("allocate").Set(a.GetAllocateGpus())
	m.advice.WithLabelValues("release").Set(a.GetReleaseGpus())
	m.idle.WithLabelValues().Set(a.GetIdleShare())
	for gpuType, n := range wanted {
		m.wanted.WithLabelValues(gpuType).Set(float64(n))
	}
}

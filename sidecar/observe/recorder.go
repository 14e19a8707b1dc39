// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/conch-serving/conch/sidecar/observe/curve"
)

// Window is how far back rates, statistics and busy shares look.
const Window = 5 * time.Second

// Result is the outcome of a request: a metric label.
type Result string

// Results of a request.
const (
	OK        Result = "ok"
	Late      Result = "late"
	Dropped   Result = "dropped"
	Refused   Result = "refused"
	Cancelled Result = "cancelled"
	Failed    Result = "failed"
	// Cold waited for its model to be loaded on demand, and was answered. It is
	// neither good nor bad: it has no SLO.
	Cold Result = "cold"
)

func results() []Result { return []Result{OK, Late, Dropped, Refused, Cancelled, Failed, Cold} }

// Execution is one batch on one partition.
type Execution struct {
	Model, Partition, GPUType string
	ThreadPercentage          uint32
	Rows, Requests            int
	Start, End                time.Time
	Err                       error
	// Lent is how many bytes of tensors went through shared memory.
	Lent int
	// Between are the bytes of the tensors that it has taken from steps of ensembles, by their way.
	Between Between
	// Shared executions ran beside requests outside the queue: nothing is learnt
	// about l(b).
	Shared bool
}

// Between are bytes of tensors between steps: left in the shared memory that they were written to, copied to other shared memory, or sent through the socket.
type Between struct{ Kept, Copied, Sent int }

// Outcome is how one request ended.
type Outcome struct {
	Model string
	// Early: the request was refused before it arrived at a model. Model may be empty then.
	Early bool
	// Name that the caller asked for, where that is another than Model.
	Name            string
	Result          Result
	Latency, Queued time.Duration
	Rows, Batch     int
	PassedThrough   bool
	Retried         bool
	// Reason of a drop, a rejection or a cancellation, a short metric label.
	Reason string
	// Left: its caller left before it was due.
	Left bool
	// At is when it was over.
	At time.Time
}

// unserved reports whether a request is bad without being late or dropped: refused, failed, or given up because its caller's deadline passed.
func (o *Outcome) unserved() bool {
	return o.Result == Refused || o.Result == Failed || o.Result == Cancelled && !o.Left
}

// Recorder takes what the request path reports. Its methods are safe for
// concurrent use; Arrived, Executed and Finished take well below a microsecond
// and never wait for a reader of the whole.
type Recorder struct {
	metrics *metrics

	// models and partitions are replaced as wholes when one is added, so that the
	// request path reads them without a lock.
	models     atomic.Pointer[map[string]*model]
	partitions atomic.Pointer[map[string]*partition]
	add        sync.Mutex
	// apps are *app by name, pipelines *pipeline by that of the ensemble.
	apps, pipelines sync.Map
	// began is the first moment that it was told, see steady.
	began atomic.Pointer[time.Time]
}

// New makes a recorder. Its collectors are registered with registry, unless
// that is nil.
func New(registry prometheus.Registerer) (*Recorder, error) {
	r := &Recorder{metrics: newMetrics()}
	r.models.Store(&map[string]*model{})
	r.partitions.Store(&map[string]*partition{})
	if registry != nil {
		if err := r.metrics.register(registry, r); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// steady is a moment on the clock that the machine had when the recorder was first told one: slots and seconds are numbered by it, so that what is counted is found
// where the machine's clock is set.
func (r *Recorder) steady(at time.Time) time.Time {
	began := r.began.Load()
	switch {
	case at.IsZero():
		return at
	case began == nil:
		first := at
		r.began.CompareAndSwap(nil, &first)
		began = r.began.Load()
	}
	return began.Add(at.Sub(*began))
}

// model is what is known of one model.
type model struct {
	name string
	sums modelMetrics

	mu       sync.Mutex
	arrivals arrivals
	routed   ring[arrivalCounts] // those of the arrivals that came by another name
	requests ring[requestCounts]
	classes  map[class]*curve.Curve
	// instances by partition, those that ever executed.
	instances map[string]*instance
	revision  string
	maxBatch  int
	declared  *Line
	// estimates by GPU type, points by share and rows.
	estimates map[string][]PriorPoint
	// priors counts changes of what is declared or estimated; believed is what was learnt last.
	priors   uint64
	believed map[class]learnt
	// saved is how much was measured, in all curves, when they were saved last; looked: what
	// was saved of the revision was looked for.
	saved  uint64
	looked bool
	// latest is the last moment that was reported of the model: what is older has lost
	// weight by then.
	latest time.Time
}

// class is where a profile holds: executions on one GPU type at one share take
// the same time, wherever they are.
type class struct {
	gpuType string
	share   uint32
}

// maxRows is the largest batch size that is counted on its own.
const maxRows = 4096

// requestCounts is one slot of a model's statistics.
type requestCounts struct {
	ok, late, dropped, unserved uint32
	batches, batchRows          uint32
	latency                     histogram
}

// partition is how busy one partition is.
type partition struct {
	mu    sync.Mutex
	slots ring[partitionCounts]
}

type partitionCounts struct {
	busy          time.Duration
	batches, rows uint32
}

func (r *Recorder) model(name string) *model {
	if m := (*r.models.Load())[name]; m != nil {
		return m
	}
	r.add.Lock()
	defer r.add.Unlock()
	old := *r.models.Load()
	if m := old[name]; m != nil {
		return m
	}
	m := &model{name: name, sums: r.metrics.model(name), classes: map[class]*curve.Curve{}, instances: map[string]*instance{}, estimates: map[string][]PriorPoint{}, believed: map[class]learnt{}}
	next := maps.Clone(old)
	next[name] = m
	r.models.Store(&next)
	return m
}

func (r *Recorder) partition(id string) *partition {
	if p := (*r.partitions.Load())[id]; p != nil {
		return p
	}
	r.add.Lock()
	defer r.add.Unlock()
	old := *r.partitions.Load()
	if p := old[id]; p != nil {
		return p
	}
	p := &partition{}
	next := maps.Clone(old)
	next[id] = p
	r.partitions.Store(&next)
	return p
}

// Arrived takes one accepted request.
func (r *Recorder) Arrived(name string, rows int, at time.Time) {
	at = r.steady(at)
	m := r.model(name)
	m.sums.rows.Add(float64(rows))
	m.mu.Lock()
	m.arrivals.add(at, rows)
	m.saw(at)
	m.mu.Unlock()
}

// Executed takes one execution.
func (r *Recorder) Executed(e Execution) {
	m := r.model(e.Model)
	took := e.End.Sub(e.Start)
	e.Start, e.End = r.steady(e.Start), r.steady(e.End)
	m.sums.execution(e.Partition).Observe(took.Seconds())
	m.sums.batchRows.Observe(float64(e.Rows))

	p := r.partition(e.Partition)
	p.mu.Lock()
	slot := p.slots.at(e.End)
	slot.batches++
	slot.rows += uint32(e.Rows)
	p.mu.Unlock()
	if e.Lent > 0 {
		r.metrics.lent.WithLabelValues(e.Partition).Add(float64(e.Lent))
	}
	r.metrics.took(e.Partition, e.Between)

	m.mu.Lock()
	defer m.mu.Unlock()
	counts := m.requests.at(e.End)
	counts.batches++
	counts.batchRows += uint32(e.Rows)
	in := m.instance(e.Partition)
	in.executed(e)
	if e.Err != nil || e.Shared || e.Rows <= 0 || took <= 0 {
		return
	}
	m.saw(e.End)
	where := class{e.GPUType, e.ThreadPercentage}
	learns := m.curve(where)
	learns.Observe(e.Rows, took, e.End)
	in.judge(where, learns, e)
}

// Busy takes a time in which a partition worked on requests. Times of one
// partition must not overlap.
func (r *Recorder) Busy(id string, from, to time.Time) {
	if !from.Before(to) {
		return
	}
	from, to = r.steady(from), r.steady(to)
	p := r.partition(id)
	p.mu.Lock()
	p.busy(from, to)
	p.mu.Unlock()
	r.metrics.busy.WithLabelValues(id).Add(to.Sub(from).Seconds())
}

// busy spreads a time over the slots that it covers.
func (p *partition) busy(start, end time.Time) {
	for at, part := range spread(start, end) {
		p.slots.at(at).busy += part
	}
}

// Finished counts the outcome of a request. A request that reached no model is
// counted under the name that it asked for, or under none if that is not served.
func (r *Recorder) Finished(o Outcome) {
	if o.Early {
		r.metrics.early(o)
		if m := (*r.models.Load())[o.Model]; m != nil && o.unserved() {
			m.mu.Lock()
			m.requests.at(r.steady(o.At)).unserved++
			m.mu.Unlock()
		}
		return
	}
	m := r.model(o.Model)
	m.sums.finished(r.metrics, o)
	if o.Name != "" {
		r.metrics.named.WithLabelValues(o.Name, o.Model, string(o.Result)).Inc()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := m.requests.at(r.steady(o.At))
	switch o.Result {
	case OK:
		counts.ok++
		counts.latency.add(o.Latency)
	case Late:
		counts.late++
		counts.latency.add(o.Latency)
	case Dropped:
		counts.dropped++
	default:
		if o.unserved() {
			counts.unserved++
		}
	}
}

// Calibrated takes the times that a warm-up measured: they are the profile's
// base until enough was observed, and what drift is judged against.
func (r *Recorder) Calibrated(name, gpuType string, threadPercentage uint32, samples []Sample) {
	if len(samples) == 0 {
		return
	}
	m := r.model(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]curve.Sample, len(samples))
	for i, s := range samples {
		all[i] = curve.Sample{Rows: s.Rows, Took: s.Duration}
	}
	m.curve(class{gpuType, threadPercentage}).Calibrate(all, m.latest)
}

// Sample is one timed execution.
type Sample struct {
	Rows     int
	Duration time.Duration
}

// SetModel sets a model's content revision, its largest batch (0: no batch
// dimension) and the profile that the operator declared, if any. Measurements of
// another revision are dropped.
func (r *Recorder) SetModel(name, revision string, maxBatch int, declared *Line) {
	m := r.model(name)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.revision != revision && m.revision != "" {
		m.classes, m.estimates, m.believed = map[class]*curve.Curve{}, map[string][]PriorPoint{}, map[class]learnt{}
		clear(m.instances)
		m.saved, m.looked = 0, false
	}
	m.revision, m.maxBatch, m.declared = revision, max(1, maxBatch), declared
	m.priors++
}

// Forget drops the models and partitions that keep does not name: their rates,
// profiles and label values.
func (r *Recorder) Forget(keepModels, keepPartitions []string) {
	r.add.Lock()
	defer r.add.Unlock()
	r.pipelines.Range(func(name, _ any) bool {
		if !slices.Contains(keepModels, name.(string)) {
			r.pipelines.Delete(name)
		}
		return true
	})
	models := maps.Clone(*r.models.Load())
	maps.DeleteFunc(models, func(name string, _ *model) bool {
		gone := !slices.Contains(keepModels, name)
		if gone {
			r.metrics.forget("model", name)
		}
		return gone
	})
	for _, m := range models {
		m.mu.Lock()
		maps.DeleteFunc(m.instances, func(id string, _ *instance) bool { return !slices.Contains(keepPartitions, id) })
		m.mu.Unlock()
	}
	r.models.Store(&models)
	partitions := maps.Clone(*r.partitions.Load())
	maps.DeleteFunc(partitions, func(id string, _ *partition) bool {
		gone := !slices.Contains(keepPartitions, id)
		if gone {
			r.metrics.forget("partition", id)
		}
		return gone
	})
	r.partitions.Store(&partitions)
}

// curve finds or makes the profile of a class. The model's lock is held.
func (m *model) curve(c class) *curve.Curve {
	l := m.classes[c]
	if l == nil {
		l = &curve.Curve{}
		m.classes[c] = l
	}
	return l
}

// saw notes a moment that was reported.
func (m *model) saw(at time.Time) {
	if at.After(m.latest) {
		m.latest = at
	}
}

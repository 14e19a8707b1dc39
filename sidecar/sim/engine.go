// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// Run simulates a world. It fails where the world makes no sense ([ErrWorld]), where a stream or the first plan fails, and when ctx ends.
func Run(ctx context.Context, w World) (*Result, error) {
	if err := w.check(); err != nil {
		return nil, err
	}
	e := newEngine(ctx, &w)
	if err := e.start(); err != nil {
		return nil, err
	}
	if err := e.run(); err != nil {
		return nil, err
	}
	return e.result(), nil
}

// engine is the state of a run.
type engine struct {
	ctx context.Context
	w   *World

	now      queue.Time
	end      queue.Time // of arrivals
	counted  queue.Time // requests that arrive from here on count
	sched    *queue.Scheduler
	timers   timers
	arrivals *merge
	inFlight int

	models []*model
	byID   []*model // by queue.ModelID
	parts  []*partition
	inUse  map[string]*partition // by id, those of the plan in force
	whole  map[string]*node      // by a partition's id; most are in none
	byQID  []*partition          // by queue.ExecutorID
	gpus   []*gpu
	// gpuByName has them by node/id.
	gpuByName map[string]*gpu
	free      []*request

	ordered map[string]uint32 // GPUs that were rented and have not arrived, by type
	rentals int

	// budget is what the queue has learnt of Delays.Control (LearnDelays).
	budget forecast.Budget

	plans   planning
	collect collector
	lost    []*request // scratch
	// pipelines are in the order of the world; over are steps that a batch has ended, orphans those whose requests are over.
	pipelines []*pipeline
	over      []*request // scratch
	orphans   []*request
	err       error // found in a callback; ends the run
}

// model is a model of the snapshot.
type model struct {
	index   int
	spec    *policy.Model
	id      queue.ModelID
	slo     queue.Time
	kernels []*kernel
	classes []class
	queue   queue.ModelSpec
	// serving counts the partitions of the plan in force; at zero requests are refused, as the sidecar does.
	serving int
	// jitter and delay draw for this model alone, so that others do not disturb it.
	jitter, delay *rand.Rand
	margin        forecast.Margin
	learnt        learnt
	observed      observed
	pace          pace
	counts        counts
}

// request is a request with what the queue does not need to know.
type request struct {
	queue.Request
	model *model
	// sent is when the caller sent it, due when the caller wants the answer.
	sent, due queue.Time
	// retried is true if a partition was lost under it once already.
	retried bool
	// flow is the pipeline's request whose step it is; nil: it is none.
	flow *flow
	step int
}

func newEngine(ctx context.Context, w *World) *engine {
	e := &engine{
		ctx: ctx, w: w, end: queue.Time(w.Duration), counted: queue.Time(w.Warmup),
		byID: make([]*model, 1), byQID: make([]*partition, 1), inUse: make(map[string]*partition), whole: w.nodes(), ordered: make(map[string]uint32), gpuByName: make(map[string]*gpu),
	}
	options := queue.Options{RateWindow: queue.Time(w.RateWindow)}
	if w.learning() {
		options.Trial = trialPause
	}
	e.sched = queue.New(e, options)
	e.arrivals = newMerge(w.Streams, w.Duration)
	e.sched.Reconfigure(0, func() {
		for i, spec := range w.Snapshot.GetModels() {
			m := &model{
				index: i, spec: spec, slo: queue.Time(spec.GetSloUs()) * queue.Time(time.Microsecond),
				jitter: workload.Seed(w.Seed, "jitter", spec.GetName()), delay: workload.Seed(w.Seed, "delay", spec.GetName()),
			}
			m.queue = queue.ModelSpec{Name: spec.GetName(), MaxBatch: m.maxBatch(), SLO: m.slo, Late: late(spec.GetLate())}
			m.id = e.sched.AddModel(0, m.queue)
			for int(m.id) >= len(e.byID) {
				e.byID = append(e.byID, nil)
			}
			e.byID[m.id] = m
			e.models = append(e.models, m)
		}
	})
	for _, n := range w.Snapshot.GetNodes() {
		for _, spec := range n.GetGpus() {
			e.addGPU(n.GetName(), spec)
		}
		if cpu := n.GetCpu(); cpu != nil {
			// A partition without a GPU lies on what has no id.
			e.addGPU(n.GetName(), &policy.GPU{Type: cpu.GetType(), MemoryBytes: cpu.GetMemoryBytes(), CostPerHour: cpu.GetCostPerHour(), Emulated: cpu.GetEmulated()})
		}
	}
	e.collect.init(e)
	return e
}

// maxBatch of a model; what must not be batched runs row by row.
func (m *model) maxBatch() int {
	if !m.spec.GetBatchable() {
		return 1
	}
	return max(1, int(m.spec.GetMaxBatchSize()))
}

func late(p policy.LatePolicy) queue.Late {
	if p == policy.LatePolicy_LATE_POLICY_DROP {
		return queue.LateDrop
	}
	return queue.LateServe
}

func (e *engine) addGPU(node string, spec *policy.GPU) *gpu {
	g := &gpu{node: node, id: spec.GetId(), spec: spec, added: e.now, removed: queue.Never}
	for _, m := range e.w.Snapshot.GetInterference() {
		if m.GetGpuType() == spec.GetType() {
			g.model = m
			break
		}
	}
	if spec.GetUnavailable() {
		g.failures = 1
	}
	e.gpus = append(e.gpus, g)
	e.gpuByName[g.name()] = g
	return g
}

// start brings the first plan into force and arranges what is known to come.
func (e *engine) start() error {
	if err := e.firstPlan(); err != nil {
		return err
	}
	e.addPipelines()
	if err := e.scheduleFailures(); err != nil {
		return err
	}
	e.scheduleReplans()
	if e.w.learning() {
		e.at(learnEvery, e.believe)
	}
	return nil
}

// checkEvery is how many steps go by between two looks at the context.
const checkEvery = 1 << 16

// run takes the next step until all that arrived is answered, or nothing can answer it. Of what happens at one moment, batches end first,
// then the queue acts, then requests arrive.
func (e *engine) run() error {
	drain := e.w.Drain
	if drain == 0 {
		drain = time.Minute
	}
	request := queue.Time(e.w.Delays.Request)
	last := e.end + request + queue.Time(drain)
	for step := 0; e.err == nil; step++ {
		if step%checkEvery == 0 {
			if e.ctx.Err() != nil {
				return e.ctx.Err()
			}
			if e.w.Progress != nil {
				e.w.Progress(min(e.now, e.end).Duration())
			}
		}
		arrival, event, due := e.arrivals.next(), e.timers.next(), e.sched.Next()
		if arrival != queue.Never {
			arrival += request
		}
		next := min(arrival, event, due)
		if next > last || next >= e.end+request && e.inFlight == 0 {
			break
		}
		e.now = next
		if len(e.orphans) > 0 {
			e.discard()
		}
		switch next {
		case event:
			e.fire(e.timers.heap[0])
		case due:
			e.sched.Advance(next)
		default:
			e.arrive(e.arrivals.head())
			e.arrivals.pop()
		}
	}
	if err := e.arrivals.err(); err != nil && e.err == nil {
		e.err = err
	}
	return e.err
}

func (e *engine) fire(t *timer) {
	if t.do != nil {
		e.timers.remove(t)
		t.do()
		return
	}
	e.advance(t.partition)
}

// at calls do at a moment.
func (e *engine) at(when queue.Time, do func()) {
	e.timers.set(&timer{do: do}, max(when, e.now))
}

func (e *engine) arrive(a *workload.Arrival) {
	if a.Model < 0 || int(a.Model) >= len(e.models)+len(e.pipelines) {
		e.err = fmt.Errorf("%w: a request of model %d arrives, there are %d and %d pipelines", ErrWorld, a.Model, len(e.models), len(e.pipelines))
		return
	}
	if i := int(a.Model) - len(e.models); i >= 0 {
		e.begin(e.pipelines[i], a)
		return
	}
	m := e.models[a.Model]
	if e.plans.watch {
		m.observed.arrived(e.now, a.Rows)
	}
	r := e.request(m)
	r.sent = e.now - queue.Time(e.w.Delays.Request)
	r.Arrival, r.Rows, r.Avoid = e.now, a.Rows, queue.NoExecutor
	r.due, r.Deadline = queue.Never, queue.Never
	if limit := cmp.Or(queue.Time(a.Deadline), m.slo); limit > 0 {
		r.due = r.sent + limit
		r.Deadline = e.deadline(m, limit, r.due)
	}
	e.collect.arrived(e, r)
	e.inFlight++
	if m.serving == 0 {
		e.answer(r, refused)
		return
	}
	e.sched.Enqueue(e.now, m.id, &r.Request)
}

// deadline is what the queue plans with for a request that arrives now and that its caller wants answered at due, limit after it was sent.
func (e *engine) deadline(m *model, limit, due queue.Time) queue.Time {
	if e.w.Knowledge == KnowDelays {
		return due - queue.Time(e.w.Delays.Reply)
	}
	back := forecast.ResponseBudget + m.margin.Of(limit.Duration()-forecast.ResponseBudget)
	return max(1, e.now+limit-queue.Time(back))
}

// slab is how many requests are allocated at once.
const slab = 256

// request takes a request from the free ones; in the steady state there always is one.
func (e *engine) request(m *model) *request {
	if len(e.free) == 0 {
		fresh := make([]request, slab)
		for i := range fresh {
			fresh[i].Tag = &fresh[i]
			e.free = append(e.free, &fresh[i])
		}
	}
	last := len(e.free) - 1
	r := e.free[last]
	e.free = e.free[:last]
	r.model, r.retried, r.flow = m, false, nil
	return r
}

// answer ends a request.
func (e *engine) answer(r *request, o outcome) {
	e.inFlight--
	if r.flow != nil {
		e.answerStep(r, o)
		return
	}
	e.collect.answered(e, r, o)
	e.free = append(e.free, r)
}

// Drop implements queue.Sink.
func (e *engine) Drop(r *queue.Request, why queue.DropReason) {
	e.answer(r.Tag.(*request), dropped+outcome(why))
}

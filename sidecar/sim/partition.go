// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// partition is one process on a share of a GPU. One that comes back on another GPU or share under the same id is another one.
type partition struct {
	index    int // in engine.parts and Result.Partitions
	spec     *policy.Partition
	id       queue.ExecutorID
	gpu      *gpu
	services []service // by model
	retired  bool      // no plan names it any more; it goes when its batch ends
	gone     bool
	failures int // that hold now, its own and its GPU's

	node *node // nil: its batches execute on its GPU
	at   int   // the node's GPU that has its batch

	// The batch that it runs.
	timer  timer
	stage  stage
	batch  *queue.Batch
	kernel *kernel
	start  queue.Time // of the execution
	alone  float64    // nanoseconds that the execution takes without co-runners

	counts partitionCounts
}

// service is a model on a partition.
type service struct {
	model  queue.ModelID
	kernel *kernel
}

// stage is where a partition's batch is.
type stage uint8

const (
	idle stage = iota
	sending
	waiting // for the node's GPU
	executing
	responding
)

func (p *partition) load() policy.Load { return p.kernel.load[min(p.batch.Rows, len(p.kernel.load)-1)] }

func (p *partition) kernelOf(m queue.ModelID) *kernel {
	i, ok := slices.BinarySearchFunc(p.services, m, func(s service, m queue.ModelID) int { return int(s.model) - int(m) })
	if !ok {
		return nil
	}
	return p.services[i].kernel
}

// Dispatch implements queue.Sink: a batch sets out for its partition.
func (e *engine) Dispatch(b *queue.Batch) {
	p, m := e.byQID[b.Executor], e.byID[b.Model]
	k := p.kernelOf(b.Model)
	if p.stage != idle || p.failures > 0 || k == nil {
		e.err = fmt.Errorf("sim: the queue sent a batch of %s to partition %s, which runs one, is down or does not serve it", m.spec.GetName(), p.spec.GetId())
		return
	}
	p.batch, p.kernel = b, k
	p.alone = k.mean[b.Rows]
	if e.w.Jitter > 0 {
		p.alone *= max(.1, 1+e.w.Jitter*m.jitter.NormFloat64())
	}
	d := &e.w.Delays
	if delay := queue.Time(d.Control) + queue.Time(b.Rows)*queue.Time(d.DataPerRow) + e.delayed(m); delay > 0 {
		p.stage = sending
		e.timers.set(&p.timer, e.now+delay)
		return
	}
	e.execute(p)
}

// delayed is the random part of a delay.
func (e *engine) delayed(m *model) queue.Time {
	if e.w.Delays.Jitter == 0 {
		return 0
	}
	return queue.Time(m.delay.Int64N(int64(e.w.Delays.Jitter) + 1))
}

func (e *engine) execute(p *partition) {
	if p.node != nil && !p.node.take(p) {
		p.stage = waiting
		return
	}
	e.started(p)
}

func (e *engine) started(p *partition) {
	p.stage, p.start = executing, e.now
	p.gpu.enter(e, p)
}

// handOver gives the node's GPU that has a partition's batch to the next.
func (e *engine) handOver(p *partition) {
	if p.node == nil {
		return
	}
	if next := p.node.leave(p); next != nil {
		e.started(next)
	}
}

// learn counts what a batch took from the decision to the call, and makes the queue's profiles anew once that is worth it.
func (e *engine) learn(delay queue.Time) {
	if e.w.Knowledge != LearnDelays || !e.budget.Add(delay.Duration()) {
		return
	}
	for _, m := range e.models {
		m.tables(e)
		if err := e.sched.SetModel(e.now, m.id, m.queue); err != nil {
			e.err = fmt.Errorf("sim: model %s: %w", m.spec.GetName(), err)
		}
	}
}

// advance takes a partition's batch to its next stage.
func (e *engine) advance(p *partition) {
	switch p.stage {
	case sending:
		e.learn(e.now - p.batch.Start - queue.Time(p.batch.Rows)*queue.Time(e.w.Delays.DataPerRow))
		e.execute(p)
	case executing:
		p.gpu.leave(p)
		e.collect.executed(e, p)
		e.handOver(p)
		p.stage = responding
		if delay := queue.Time(e.w.Delays.Response) + e.delayed(e.byID[p.batch.Model]); delay > 0 {
			e.timers.set(&p.timer, e.now+delay)
			return
		}
		e.complete(p)
	case responding:
		e.complete(p)
	}
}

// complete answers a batch's requests and makes the partition available.
func (e *engine) complete(p *partition) {
	if b := p.batch; e.w.Knowledge == LearnDelays && b.Finish > b.Start {
		e.byID[b.Model].margin.Add((e.now - b.Finish - queue.Time(forecast.ResponseBudget)).Duration(), e.now)
	}
	if e.w.learning() {
		e.byID[p.batch.Model].learnt.curve.Observe(p.batch.Rows, (e.now - p.batch.Start).Duration(), virtual(e.now))
	}
	result := func(r *request, reply queue.Time) outcome {
		if e.now+reply > r.due {
			return tooLate
		}
		return good
	}
	b := p.batch
	for _, q := range b.Requests {
		r := q.Tag.(*request)
		if r.flow != nil {
			r.model.pace.wait.add(e.now, b.Start-r.Arrival)
			r.model.pace.execution.Add((e.now - b.Start).Duration(), e.now)
			e.over = append(e.over, r)
			continue
		}
		e.answer(r, result(r, queue.Time(e.w.Delays.Reply)))
	}
	e.vacate(p)
	e.sched.Complete(e.now, p.id)
	e.remove(p)
	// What follows a step begins when the queue is through with the batch: its requests are used again.
	for _, r := range e.over {
		e.answer(r, result(r, 0))
	}
	e.over = e.over[:0]
}

// vacate forgets the batch; the queue may give the partition the next one at once.
func (e *engine) vacate(p *partition) {
	e.handOver(p)
	p.stage, p.batch, p.kernel = idle, nil, nil
	e.timers.remove(&p.timer)
}

// abort loses a partition's batch: its requests go back to the queue, once, as the sidecar does. The queue knows that it is down.
func (e *engine) abort(p *partition) {
	if p.stage == idle {
		return
	}
	if p.stage == executing {
		p.gpu.leave(p)
		e.collect.executed(e, p)
	}
	m := e.byID[p.batch.Model]
	e.lost = e.lost[:0]
	for _, r := range p.batch.Requests {
		e.lost = append(e.lost, r.Tag.(*request))
	}
	e.vacate(p)
	e.sched.Complete(e.now, p.id)
	e.sched.Reconfigure(e.now, func() {
		for _, r := range e.lost {
			if r.retried {
				e.answer(r, failed)
				continue
			}
			r.retried, r.Avoid = true, p.id
			e.collect.requeued(e, r)
			e.sched.Requeue(e.now, m.id, &r.Request)
		}
	})
}

// Preempt implements queue.Preemptor: the batch ends unfinished, and its requests are the queue's again.
func (e *engine) Preempt(b *queue.Batch) {
	p := e.byQID[b.Executor]
	if p.batch != b {
		e.err = fmt.Errorf("sim: the queue preempts a batch that partition %s does not run", p.spec.GetId())
		return
	}
	if p.stage == executing {
		p.gpu.leave(p)
		e.collect.executed(e, p)
		e.collect.wasted(e, p)
	}
	e.vacate(p)
}

// remove takes a retired partition out once it is idle.
func (e *engine) remove(p *partition) {
	if !p.retired || p.gone || p.stage != idle {
		return
	}
	if err := e.sched.RemoveExecutor(e.now, p.id); err != nil {
		e.err = fmt.Errorf("sim: partition %s: %w", p.spec.GetId(), err)
		return
	}
	p.gone = true
	p.counts.removed = e.now
	e.byQID[p.id] = nil
	p.gpu.partitions--
	e.release(p.gpu)
}

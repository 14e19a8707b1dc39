// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ensemble"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// walk is the execution of one request of an ensemble by Conch: each step is a call of its own, which waits in the queue of its model and shares
// executions with the model's other requests. The goroutine that waits for the answer owns the walk.
//
// Tensors between steps are references to the buffers that they were received in, also where these are lent shared memory: the block is not free
// before the last reference is given back, and the server that wrote it has said its last word before there is a reference. A tensor is given back
// when the last step that takes it has its request; a step's request has references of its own, until its execution has ended. Its bytes are counted until
// that step has ended. Where the server of the next step has mapped the memory that a tensor lies in, that step's request names its extent (lend.go).
type walk struct {
	d       *Dispatcher
	c       *call
	route   *route
	run     *ensemble.Run
	account *account // that the bytes of its tensors count for; nil: for none
	// ctx is that of the steps. It ends with the client's while the walk lasts. Where a step has failed, the answer does not wait for those that run
	// beside it, and they go on, as they do in Triton.
	ctx     context.Context
	cancel  context.CancelFunc
	hold    router.Lease // keeps the ensemble's models on one place; none: no place serves it
	tensors map[string]*between
	last    []int64 // for each step that runs, the bytes of the tensors that it was the last to take
	made    []int   // for each step that runs, the bytes of its inputs that other steps have made
	passage *ensemble.Passage
	results chan stepped
	open    int // steps that have begun and whose results were not received
	answer  answer
}

// between is a tensor between steps.
type between struct {
	batch.Tensor
	takers int   // steps that are still to take it
	output bool  // the client has asked for it
	size   int64 // in bytes, as admitted; 0: it came with the request, and is counted with that
}

// stepped is what became of a step.
type stepped struct {
	step             int
	queued, received time.Time
	answer
}

// walk executes a request of an ensemble step by step.
func (d *Dispatcher) walk(c *call, route *route) answer {
	var outputs []string
	for i := range c.req.Outputs {
		outputs = append(outputs, c.req.Outputs[i].Name)
	}
	run, first, ok := route.graph.Begin(outputs)
	if !ok { // Triton answers with an error, in its own words
		return d.passThrough(c)
	}
	c.walked = true
	w := &walk{d: d, c: c, route: route, run: run, account: c.account, tensors: make(map[string]*between, 2*len(route.graph.Steps)), results: make(chan stepped, len(route.graph.Steps))}
	if c.within != nil {
		w.account = c.within.account
	}
	w.answer, w.passage = answer{rows: c.rows}, route.graph.Measure(c.begins)
	w.last, w.made = make([]int64, len(route.graph.Steps)), make([]int, len(route.graph.Steps))
	w.ctx, w.cancel = context.WithCancel(context.WithoutCancel(c.ctx))
	stop := context.AfterFunc(c.ctx, w.cancel)
	if w.hold, ok = d.router.Hold(route.name); ok {
		w.answer.series, _ = w.hold.Attached().(*partitionSeries)
	}
	for i := range c.req.Inputs {
		c.req.Inputs[i].Data.Ref()
		w.keep(c.req.Inputs[i].Name, c.req.Inputs[i], 0)
	}
	w.steps(first)
	stop()
	w.leave()
	return w.answer
}

// steps runs the steps, until all have ended or the walk has its answer.
func (w *walk) steps(ready []int) {
	for {
		for k, i := range ready {
			if !w.beginStep(i, k == len(ready)-1) {
				return
			}
		}
		if w.open == 0 {
			w.conclude()
			return
		}
		var s stepped
		select {
		case s = <-w.results:
		case <-w.c.ctx.Done():
			w.gone()
			return
		}
		w.close(s.step)
		if !w.take(&s) {
			return
		}
		ready = w.run.Ended(s.step)
	}
}

// beginStep begins a step. The last of those that can begin now runs on this goroutine if no other runs. It returns false if the walk has its answer.
func (w *walk) beginStep(i int, last bool) bool {
	if w.c.ctx.Err() != nil {
		w.gone()
		return false
	}
	if due := w.c.due; w.route.spec.Late == policy.LatePolicy_LATE_POLICY_DROP && after(w.d.clock.Now(), due) {
		w.fail(answer{err: errExpired, result: Dropped, reason: queue.DropLate.String()})
		w.lost(i)
		return false
	}
	r := w.request(i)
	do := func() {
		defer r.Free()
		queued := w.d.clock.Now()
		a := w.d.safely(func() answer { return w.step(i, r) })
		w.results <- stepped{i, queued, w.d.clock.Now(), a}
	}
	w.open++
	if last && w.open == 1 {
		do()
	} else {
		w.d.workers.start(do)
	}
	return true
}

// request makes the request of a step, of the tensors that there are.
func (w *walk) request(i int) *batch.Request {
	step, whole := &w.route.graph.Steps[i], w.c.req
	r := &batch.Request{
		Model: step.Model, Version: step.Version, ID: whole.ID, Parameters: whole.Parameters,
		Inputs: make([]batch.Tensor, 0, len(step.Inputs)), Outputs: make([]batch.RequestedOutput, len(step.Outputs)),
	}
	for k, out := range step.Outputs {
		r.Outputs[k].Name = out.Name
	}
	for _, in := range step.Inputs {
		t := w.tensors[in.Tensor]
		if t == nil {
			continue // the step before made none: the model says what that means
		}
		t.Data.Ref()
		w.passage.Take(i, in.Tensor, int(t.size))
		if t.size > 0 || w.c.within != nil {
			w.made[i] += t.Data.Len()
		}
		r.Inputs = append(r.Inputs, batch.Tensor{Name: in.Name, Datatype: t.Datatype, Shape: slices.Clone(t.Shape), Data: append(mem.BufferSlice{}, t.Data...)})
		if t.takers--; t.takers == 0 && !t.output {
			w.last[i] += t.size // until the step has ended
			delete(w.tensors, in.Tensor)
			t.Data.Free()
		}
	}
	return r
}

// keep takes over a tensor that steps take or the client has asked for, and frees any other.
func (w *walk) keep(name string, t batch.Tensor, size int) {
	kept := &between{Tensor: t, size: int64(size), takers: w.run.Takers(name), output: slices.Contains(w.route.graph.Outputs, name) && w.run.Wants(name)}
	if kept.takers == 0 && !kept.output {
		t.Data.Free()
		return
	}
	w.tensors[name] = kept
	w.grow(kept.size)
}

// drop gives a tensor back.
func (w *walk) drop(name string, t *between) {
	delete(w.tensors, name)
	w.grow(-t.size)
	t.Data.Free()
}

func (w *walk) grow(n int64) {
	if w.account != nil && n != 0 {
		w.d.admission.grow(w.account, n)
	}
}

// close notes that a step has ended.
func (w *walk) close(step int) {
	w.open--
	w.grow(-w.last[step])
}

// take takes the answer of a step. It returns false if the walk has its answer.
func (w *walk) take(s *stepped) bool {
	if w.answer.started.IsZero() {
		w.answer.started, w.answer.waited, w.answer.gathered = s.started, s.waited, s.gathered
	}
	if s.ended.After(w.answer.ended) {
		w.answer.ended = s.ended
	}
	w.answer.retried = w.answer.retried || s.retried
	if failure := s.failure(); failure != nil {
		if s.resp != nil {
			s.resp.Free()
		}
		if w.c.ctx.Err() != nil {
			w.gone()
			return false
		}
		why := forward.Status(failure)
		w.fail(answer{err: status.Errorf(why.Code(), "in ensemble '%s', %s", w.route.name, why.Message()), result: s.result, reason: s.reason})
		w.lost(s.step)
		return false
	}
	ended := s.ended
	if ended.IsZero() {
		ended = s.received
	}
	w.passage.Pass(s.step, s.queued, s.started, ended, s.received)
	for _, out := range w.route.graph.Steps[s.step].Outputs {
		t := s.resp.Output(out.Name)
		if t == nil {
			continue
		}
		if t.Data == nil && t.Contents != nil {
			if err := t.Normalize(); err != nil {
				s.resp.Free()
				w.fail(answer{err: status.Errorf(codes.Internal, "in ensemble '%s', output '%s' of model '%s' cannot be read: %v", w.route.name, out.Name, w.route.graph.Steps[s.step].Model, err)})
				return false
			}
		}
		t.Data.Ref()
		w.keep(out.Tensor, batch.Tensor{Name: out.Tensor, Datatype: t.Datatype, Shape: t.Shape, Data: append(mem.BufferSlice{}, t.Data...)}, t.Data.Len())
	}
	s.resp.Free()
	return true
}

// fail gives the walk an answer without a response.
func (w *walk) fail(a answer) {
	w.answer.resp, w.answer.err, w.answer.result, w.answer.reason = nil, a.err, a.result, a.reason
}

// lost notes that the walk has ended at a step, if that was for want of time and the step comes after others: what these have executed was in vain.
func (w *walk) lost(step int) {
	late := w.answer.result == Dropped && (w.answer.reason == queue.DropLate.String() || w.answer.reason == queue.DropWindow.String())
	if late && len(w.route.graph.After(step)) > 0 {
		w.d.queues.walked(w.route.model, true)
	}
}

// gone is the answer to a caller whose context has ended.
func (w *walk) gone() {
	w.fail(answer{err: status.FromContextError(w.c.ctx.Err()).Err(), result: Cancelled})
}

// conclude makes the answer of the outputs that there are. Triton lists them in the order of a hash table, which for the few outputs of an ensemble is
// the reverse of its configuration's, and adds the sequence of the request, which has none.
func (w *walk) conclude() {
	c := w.c
	resp := &batch.Response{Model: c.req.Model, Version: c.tally.version, ID: c.req.ID}
	for _, name := range slices.Backward(w.route.graph.Outputs) {
		if t := w.tensors[name]; t != nil && t.output {
			t.Data.Ref()
			resp.Outputs = append(resp.Outputs, batch.Tensor{Name: name, Datatype: t.Datatype, Shape: t.Shape, Data: append(mem.BufferSlice{}, t.Data...)})
		}
	}
	if len(resp.Outputs) > 0 {
		resp.Parameters = []batch.Parameter{
			batch.Int64Parameter(batch.ParameterSequenceID, 0), batch.BoolParameter(batch.ParameterSequenceStart, false), batch.BoolParameter(batch.ParameterSequenceEnd, false),
		}
	}
	w.answer.resp = resp
	now := w.d.clock.Now()
	c.tally.walked(c.rows, now)
	w.d.queues.walked(w.route.model, false)
	w.d.o.Observer.Walked(Walk{Ensemble: w.route.name, Rows: c.rows, Ended: now, Took: now.Sub(c.begins), Steps: w.passage.End()})
}

// leave gives back what the walk holds, once the steps have ended that go on without it.
func (w *walk) leave() {
	after := func() {
		for w.open > 0 {
			s := <-w.results
			w.close(s.step)
			if s.resp != nil {
				s.resp.Free()
			}
		}
		for name, t := range w.tensors { // not before: a step may have read them until now
			w.drop(name, t)
		}
		w.cancel()
		if w.hold.Valid() {
			w.hold.Release()
		}
	}
	if w.answer.result == Cancelled {
		w.cancel()
	}
	if w.open == 0 {
		after()
	} else {
		w.d.workers.start(after)
	}
}

// step executes a step. It runs beside other steps of the walk, and reads nothing of it that changes.
func (w *walk) step(i int, r *batch.Request) answer {
	d := w.d
	route, err := d.route(r.Model)
	if err != nil {
		return w.elsewhere(r, err)
	}
	c := w.call(i, r, route)
	a := w.serve(c, route, i)
	if a.result == Dropped && a.reason != queue.DropExpired.String() &&
		route.spec.Late == policy.LatePolicy_LATE_POLICY_DROP && w.route.spec.Late != policy.LatePolicy_LATE_POLICY_DROP && !c.timedOut() {
		// The step's model drops late requests. This one is of an ensemble that serves them: it has no deadline any more. What the model's queue policy
		// says of its stay goes on.
		c.withdraw()
		begins := c.begins
		c = w.call(i, r, route)
		c.begins = begins
		a = d.serve(c, route, c.queueable(route))
	}
	if status.Code(a.err) == codes.NotFound && d.modelOf(r.Model) == nil {
		c.finishStep(&a)
		return w.elsewhere(r, a.err)
	}
	c.finishStep(&a)
	return a
}

// call makes the ticket of a step: it waits no longer than the whole, and is admitted with it.
func (w *walk) call(i int, r *batch.Request, route *route) *call {
	d := w.d
	c := &call{req: r, waits: true, within: w, made: w.made[i]}
	c.id, c.span = w.c.id, w.c.span
	c.open(w.ctx, d, w.timeout())
	c.until = w.c.until
	c.moveTo(route.model)
	c.executes, c.tally, c.atModel = route.executes, route.tallyOf(r.Version), true
	route.counts.arrive(c.begins)
	return c
}

// timeout is what is left of the request's own; 0: it has none.
func (w *walk) timeout() time.Duration {
	if w.c.timeout <= 0 {
		return 0
	}
	return max(1, w.c.timeout-w.d.clock.Now().Sub(w.c.arrived))
}

// serve serves a step until its deadline: the end of the whole, less what the steps that follow it will take.
func (w *walk) serve(c *call, route *route, i int) answer {
	d := w.d
	queueable := c.queueable(route)
	w.passage.Steps[i].Rows = c.rows
	if err := d.hazard(c.req, route.rules); err != nil {
		return answer{err: err, result: Refused, reason: reasonInvalid}
	}
	if route.spec.Cold {
		loaded, a, ok := d.awaitLoad(c)
		if !ok {
			return a
		}
		route, queueable = loaded, c.queueable(loaded)
	}
	if c.due = (time.Time{}); !w.c.due.IsZero() {
		expected, divided, lost := d.queues.foreseen(w.route, c.rows)
		c.due = w.run.Due(i, expected, lost, w.c.begins, w.c.due)
		c.part = w.route.graph.Part(i, divided, cmp.Or(w.c.part, w.c.due.Sub(w.c.begins)))
	}
	a := d.serve(c, route, queueable)
	if c.keyed && !a.passed && !a.started.IsZero() {
		ended := a.ended
		if ended.IsZero() {
			ended = d.clock.Now()
		}
		d.queues.stepTook(route.executes, ended.Sub(a.started))
	}
	return a
}

// elsewhere executes a step whose model the table has lost since the walk began on the place that holds the ensemble, as Triton does.
func (w *walk) elsewhere(r *batch.Request, lost error) answer {
	if !w.hold.Valid() {
		return answer{err: lost}
	}
	c := &call{req: r, waits: true, within: w}
	c.open(w.ctx, w.d, w.timeout())
	c.until = w.c.until
	c.moveTo(w.route.model)
	c.tally, c.executes, c.rows = newTally("", 1), w.route.model, w.c.rows // its model's counts are gone with it
	a, _ := w.d.onto(c, w.hold)
	return a
}

// finishStep counts a step, as Triton counts it: as a request of its model. It has no outcome: that is the whole's.
func (c *call) finishStep(a *answer) {
	o, now := c.outcome(a)
	c.over.Store(true)
	c.model.counts.leave()
	c.d.overdue(c, a, now)
	if !c.is(left) { // else it is counted when it ends
		c.model.count(c.tally, a.series, &o, verdictOf(&o, a.failure(), c.model.backend(), a.rows > 0))
	}
	if !a.passed && !c.walked {
		c.span.Queued(c.req.Model, c.arrived, c.arrived.Add(o.Queued))
	}
}

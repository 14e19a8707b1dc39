// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// ensemble schedules the steps of an ensemble model: a step runs as soon as all steps have answered that make its inputs. An input that they have not
// made is left out of its request. Every answer of a decoupled step carries the rest of the ensemble through once more.
type ensemble struct {
	model *model
	repo  *repository
	steps []*pb.ModelEnsembling_Step
}

// ensembleCall is one request of an ensemble.
type ensembleCall struct {
	*ensemble
	request *request
	began   time.Time
	left    []bool   // steps that do not run, because nobody wants what they make
	held    []*model // by step; they are not unloaded before the call ends. Nil: the model was being unloaded when the call began

	mu          sync.Mutex
	outstanding int // requests of steps without their last answer
	running     int // those of them whose last answer has not come: it may still be at work
	failure     *Error
	twice       bool       // no step ran beside the one that failed: the failure is counted twice
	failed      bool       // the failure was sent
	complete    []response // not sent yet
	answers     int
}

// ensembleRun is one way through the steps. Its call's lock guards it.
type ensembleRun struct {
	call    *ensembleCall
	tensors map[string]tensor
	known   map[string]bool // tensors that are there, and those that were not made
	started []bool
	sent    bool
}

// start runs a request, which the model counts as in flight.
func (e *ensemble) start(r *request) {
	call := &ensembleCall{ensemble: e, request: r, began: r.enqueued, left: e.unwanted(r)}
	call.hold()
	run := &ensembleRun{call: call, tensors: map[string]tensor{}, known: map[string]bool{}, started: make([]bool, len(e.steps))}
	for _, in := range r.inputs {
		run.tensors[in.name] = in
	}
	for _, in := range e.model.config.Input { // an optional one may not be there, which is known, too
		run.known[in.Name] = true
	}
	call.mu.Lock()
	call.outstanding = 1 // this goroutine
	call.mu.Unlock()
	run.advance()
	call.done()
}

// hold keeps the models of the steps until the call ends.
func (c *ensembleCall) hold() {
	c.held = make([]*model, len(c.steps))
	for i, step := range c.steps {
		if m, refusal := c.repo.find(step.ModelName, versionOf(step)); refusal == nil && !c.left[i] && m.hold() {
			c.held[i] = m
		}
	}
}

// unwanted are the steps that do not run, as Triton 2.51 finds them: those of whose outputs none is asked for, and then those of which no step that
// runs takes a tensor. An input of the ensemble that no step takes any more counts as an output of the first step that is not wanted. An output that
// a further step takes too counts as not wanted where it is not asked for, and as wanted by nobody but steps where it is: such requests end in a deadlock.
func (e *ensemble) unwanted(r *request) []bool {
	left := make([]bool, len(e.steps))
	maker, takers, made := map[string]int{}, map[string]int{}, make([]int, len(e.steps))
	for i, step := range e.steps {
		made[i] = len(step.OutputMap)
		for _, name := range step.OutputMap {
			maker[name] = i
		}
		for _, name := range step.InputMap {
			takers[name]++
		}
	}
	var ignored []string
	for _, out := range e.model.config.Output {
		if !r.wants(out.Name) {
			ignored = append(ignored, out.Name)
		}
	}
	for ; len(ignored) > 0; ignored = ignored[1:] {
		i := maker[ignored[0]] // an input of the ensemble counts as made by the first step
		if left[i] {
			continue
		}
		if made[i]--; made[i] > 0 {
			continue
		}
		left[i] = true
		for _, name := range e.steps[i].InputMap {
			if takers[name]--; takers[name] == 0 {
				ignored = append(ignored, name)
			}
		}
	}
	return left
}

// advance starts every step whose inputs are known.
func (n *ensembleRun) advance() {
	call := n.call
	call.mu.Lock()
	var ready []int
	for i, step := range call.steps {
		if n.started[i] || call.left[i] || call.failure != nil {
			continue
		}
		n.started[i] = true
		for _, name := range step.InputMap {
			if !n.known[name] {
				n.started[i] = false
			}
		}
		if n.started[i] {
			ready = append(ready, i)
		}
	}
	requests := make([]*request, len(ready))
	for k, i := range ready {
		requests[k] = n.request(call.steps[i])
	}
	call.outstanding += len(ready)
	call.running += len(ready)
	n.completeLocked()
	call.mu.Unlock()
	for k, i := range ready {
		n.submit(i, requests[k])
	}
}

// completeLocked makes an answer of a run that has all outputs.
func (n *ensembleRun) completeLocked() {
	call := n.call
	if n.sent || call.failure != nil {
		return
	}
	resp := response{}
	for _, out := range call.model.config.Output {
		if !call.request.wants(out.Name) {
			continue
		}
		if !n.known[out.Name] {
			return
		}
		t, ok := n.tensors[out.Name]
		if !ok {
			continue
		}
		resp.outputs = append(resp.outputs, t)
		resp.parameters = append(resp.parameters, call.request.sequence.parameters()...) // Triton repeats them per output
	}
	n.sent = true
	call.answers++
	call.complete = append(call.complete, resp)
}

// request makes a step's request of the tensors that there are.
func (n *ensembleRun) request(step *pb.ModelEnsembling_Step) *request {
	whole := n.call.request
	r := &request{ctx: whole.ctx, id: whole.id, sequence: whole.sequence, priority: whole.priority, timeout: whole.timeout}
	for _, input := range slices.Sorted(maps.Keys(step.InputMap)) {
		t, ok := n.tensors[step.InputMap[input]]
		if !ok {
			continue
		}
		t.name = input
		r.inputs = append(r.inputs, t)
	}
	for _, output := range slices.Sorted(maps.Keys(step.OutputMap)) {
		r.outputs = append(r.outputs, requestedOutput{name: output})
	}
	return r
}

func (n *ensembleRun) submit(i int, r *request) {
	step, m := n.call.steps[i], n.call.held[i]
	r.respond = func(resp *response, final bool) { n.answered(m, step, resp, final) }
	var refusal *Error
	if m != nil {
		r.held = true
		if refusal = m.prepare(r); refusal == nil {
			refusal = m.submit(r)
		}
	} else if m, refusal = n.call.repo.find(step.ModelName, versionOf(step)); refusal == nil {
		refusal = n.call.repo.submit(m, step.ModelName, versionOf(step), r)
	}
	if refusal != nil {
		n.answered(m, step, &response{err: refusal}, true)
	}
}

// versionOf is the version that a step calls; empty is the latest.
func versionOf(step *pb.ModelEnsembling_Step) string {
	if step.ModelVersion < 0 {
		return ""
	}
	return strconv.FormatInt(step.ModelVersion, 10)
}

// answered takes an answer of a step.
func (n *ensembleRun) answered(m *model, step *pb.ModelEnsembling_Step, resp *response, final bool) {
	call := n.call
	if final {
		call.mu.Lock()
		call.running--
		call.mu.Unlock()
	}
	if resp != nil {
		next := n
		call.mu.Lock()
		if resp.err != nil {
			if call.failure == nil {
				call.twice = call.running == 0
				call.failure = refuse(resp.err.Code, "in ensemble '%s', %s", call.model.name, resp.err.Message)
			}
		} else {
			if m.decoupled {
				next = &ensembleRun{call: call, tensors: maps.Clone(n.tensors), known: maps.Clone(n.known), started: slices.Clone(n.started)}
			}
			for _, name := range step.OutputMap {
				next.known[name] = true
			}
			for _, t := range resp.outputs {
				if name, mapped := step.OutputMap[t.name]; mapped {
					t.name = name
					next.tensors[name] = t
				}
			}
		}
		call.mu.Unlock()
		call.fail()
		next.advance()
		call.flush()
	}
	if final {
		call.done()
	}
}

// flush sends what is complete of a decoupled ensemble.
func (c *ensembleCall) flush() {
	if !c.model.decoupled {
		return
	}
	c.mu.Lock()
	answers := c.complete
	c.complete = nil
	c.mu.Unlock()
	for i := range answers {
		c.request.respond(&answers[i], false)
	}
}

// fail answers with the failure of a step at once. The steps that run beside it go on. A real server counts the failure twice where there are none.
func (c *ensembleCall) fail() {
	c.mu.Lock()
	failure, twice := c.failure, c.twice
	if c.failed {
		failure = nil
	}
	c.failed = c.failed || failure != nil
	c.mu.Unlock()
	if failure == nil {
		return
	}
	took := c.model.clock.Now().Sub(c.began)
	c.model.stats.refused(failOther, took)
	if twice {
		c.model.stats.refused(failOther, took)
	}
	c.request.respond(&response{err: failure}, true)
}

// executed counts a call that succeeded in the ensemble's statistics.
func (c *ensembleCall) executed() {
	now := c.model.clock.Now()
	c.model.stats.executed(&payload{requests: []*request{c.request}, rows: c.request.rows}, timing{start: c.began, infer: now.Sub(c.began), end: now}, true)
}

// done counts a step's request as over. The last one ends the call.
func (c *ensembleCall) done() {
	c.mu.Lock()
	c.outstanding--
	over := c.outstanding == 0
	if over && c.failure == nil && c.answers == 0 && !c.model.decoupled {
		c.twice = true
		c.failure = invalid("in ensemble '%s', %sunexpected deadlock, at least one output is not set while no more ensemble steps can be made", c.model.name, requestPrefix(c.request.id))
	}
	failure, answers := c.failure, c.complete
	c.mu.Unlock()
	if !over {
		return
	}
	if failure == nil {
		c.executed()
	}
	switch {
	case failure != nil:
		c.fail()
	case c.model.decoupled:
		c.request.respond(nil, true)
	default:
		c.request.respond(&answers[0], true)
	}
	for _, m := range append(c.held, c.model) {
		if m != nil {
			m.mu.Lock()
			m.finishedLocked(1)
			m.mu.Unlock()
		}
	}
}

// parameters are the sequence of a request as the answers of ensembles show it.
func (s sequence) parameters() []responseParameter {
	id := any(s.id)
	if !s.text {
		n, _ := strconv.ParseUint(s.id, 10, 64) // empty is zero
		id = int64(n)
	}
	return []responseParameter{{"sequence_id", id}, {"sequence_start", s.start}, {"sequence_end", s.end}}
}

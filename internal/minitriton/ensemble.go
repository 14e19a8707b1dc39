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

// ensemble schedules the steps of an ensemble model: a step runs as soon as all its inputs are there. Every answer of a decoupled step
// carries the rest of the ensemble through once more.
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

	mu          sync.Mutex
	outstanding int // requests of steps without their last answer
	failure     *Error
	complete    []response // not sent yet
	answers     int
}

// ensembleRun is one way through the steps. Its call's lock guards it.
type ensembleRun struct {
	call    *ensembleCall
	tensors map[string]tensor
	started []bool
	sent    bool
}

// start runs a request, which the model counts as in flight.
func (e *ensemble) start(r *request) {
	call := &ensembleCall{ensemble: e, request: r, began: r.enqueued}
	run := &ensembleRun{call: call, tensors: map[string]tensor{}, started: make([]bool, len(e.steps))}
	for _, in := range r.inputs {
		run.tensors[in.name] = in
	}
	call.mu.Lock()
	call.outstanding = 1 // this goroutine
	call.mu.Unlock()
	run.advance()
	call.done()
}

// advance starts every step whose inputs are there.
func (n *ensembleRun) advance() {
	call := n.call
	call.mu.Lock()
	var ready []int
	for i, step := range call.steps {
		if n.started[i] || call.failure != nil {
			continue
		}
		n.started[i] = true
		for _, name := range step.InputMap {
			if _, ok := n.tensors[name]; !ok {
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
	n.completeLocked()
	call.mu.Unlock()
	for k, i := range ready {
		n.submit(call.steps[i], requests[k])
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
		t, ok := n.tensors[out.Name]
		if !call.request.wants(out.Name) {
			continue
		}
		if !ok {
			return
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
		t := n.tensors[step.InputMap[input]]
		t.name = input
		r.inputs = append(r.inputs, t)
	}
	for _, output := range slices.Sorted(maps.Keys(step.OutputMap)) {
		r.outputs = append(r.outputs, requestedOutput{name: output})
	}
	return r
}

func (n *ensembleRun) submit(step *pb.ModelEnsembling_Step, r *request) {
	version := ""
	if step.ModelVersion >= 0 {
		version = strconv.FormatInt(step.ModelVersion, 10)
	}
	m, refusal := n.call.repo.find(step.ModelName, version)
	if refusal == nil {
		r.respond = func(resp *response, final bool) { n.answered(m, step, resp, final) }
		refusal = n.call.repo.submit(m, step.ModelName, version, r)
	}
	if refusal != nil {
		n.answered(m, step, &response{err: refusal}, true)
	}
}

// answered takes an answer of a step.
func (n *ensembleRun) answered(m *model, step *pb.ModelEnsembling_Step, resp *response, final bool) {
	call := n.call
	if resp != nil {
		next := n
		call.mu.Lock()
		if resp.err != nil {
			if call.failure == nil {
				call.failure = refuse(resp.err.Code, "in ensemble '%s', %s", call.model.name, resp.err.Message)
			}
		} else {
			if m.decoupled {
				next = &ensembleRun{call: call, tensors: maps.Clone(n.tensors), started: slices.Clone(n.started)}
			}
			for _, t := range resp.outputs {
				if name, mapped := step.OutputMap[t.name]; mapped {
					t.name = name
					next.tensors[name] = t
				}
			}
		}
		call.mu.Unlock()
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

// done counts a step's request as over. The last one ends the call.
func (c *ensembleCall) done() {
	c.mu.Lock()
	c.outstanding--
	over := c.outstanding == 0
	if over && c.failure == nil && c.answers == 0 && !c.model.decoupled {
		c.failure = invalid("in ensemble '%s', unexpected deadlock, at least one output is not set while no more ensemble steps can be made", c.model.name)
	}
	failure, answers := c.failure, c.complete
	c.mu.Unlock()
	if !over {
		return
	}
	now := c.model.clock.Now()
	c.model.stats.executed(&payload{requests: []*request{c.request}, rows: c.request.rows}, timing{start: c.began, infer: now.Sub(c.began), end: now}, failure == nil)
	switch {
	case failure != nil:
		c.request.respond(&response{err: failure}, true)
	case c.model.decoupled:
		c.request.respond(nil, true)
	default:
		c.request.respond(&answers[0], true)
	}
	c.model.mu.Lock()
	c.model.finishedLocked(1)
	c.model.mu.Unlock()
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

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package ensemble

import (
	"slices"
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
)

// Run is the way of one request through a Graph. It is not safe for concurrent use.
type Run struct {
	graph  *Graph
	wanted []string // outputs; nil: all
	left   []bool   // steps that do not run, because nobody wants what they make
	waits  []int    // per step: steps that have to end before it
	open   int      // steps that run and have not ended
}

// Begin begins a run for the outputs that a request asks for; none stands for all. First are the steps that can start at once.
//
// Which steps run then is decided as Triton 2.51 decides it: a step is left out if the request asks for none of the outputs that it makes, or if all
// steps are left out that take a tensor of it. That also leaves out steps that are needed, where an output of the ensemble is the input of a further
// step, or where an input of the ensemble is needed by none of the steps that run. Triton answers such a request with an error. Ok is false for it.
func (g *Graph) Begin(outputs []string) (r *Run, first []int, ok bool) {
	r = &Run{graph: g, left: make([]bool, len(g.Steps)), waits: make([]int, len(g.Steps))}
	if len(outputs) > 0 {
		r.wanted = outputs
		r.leaveOut()
	}
	for _, name := range g.Outputs {
		if from := g.origin[name]; from != fromRequest && r.left[from] && r.Wants(name) {
			return nil, nil, false
		}
	}
	for i := range g.Steps {
		if r.left[i] {
			continue
		}
		r.open++
		needs := g.After(i)
		if slices.ContainsFunc(needs, func(n int) bool { return r.left[n] }) {
			return nil, nil, false
		}
		if r.waits[i] = len(needs); r.waits[i] == 0 {
			first = append(first, i)
		}
	}
	return r, first, true
}

// leaveOut finds the steps that do not run.
func (r *Run) leaveOut() {
	g := r.graph
	made := make([]int, len(g.Steps)) // outputs of a step that somebody may want
	for i, s := range g.Steps {
		made[i] = len(s.Outputs)
	}
	takers := map[string]int{}
	for name, steps := range g.uses {
		takers[name] = len(steps)
	}
	var ignored []string
	for _, name := range g.Outputs {
		if !r.Wants(name) {
			ignored = append(ignored, name)
		}
	}
	for ; len(ignored) > 0; ignored = ignored[1:] {
		from := g.origin[ignored[0]]
		if from == fromRequest {
			from = 0 // Triton takes an input of the ensemble that no step needs any more for an output of the first step
		}
		if r.left[from] {
			continue
		}
		if made[from]--; made[from] > 0 {
			continue
		}
		r.left[from] = true
		for _, in := range g.Steps[from].Inputs {
			if takers[in.Tensor]--; takers[in.Tensor] == 0 {
				ignored = append(ignored, in.Tensor)
			}
		}
	}
}

// Wants reports whether the request asks for an output.
func (r *Run) Wants(output string) bool { return r.wanted == nil || slices.Contains(r.wanted, output) }

// Takers is how many inputs of the run's steps a tensor is.
func (r *Run) Takers(tensor string) (n int) {
	for _, i := range r.graph.uses[tensor] {
		if !r.left[i] {
			n++
		}
	}
	return n
}

// Ended notes that a step has ended, and returns those that can start now. A step can start when all steps have ended that make its inputs,
// whether or not they have made them: what to do without an input is the model's affair, as it is in Triton.
func (r *Run) Ended(step int) (next []int) {
	r.open--
	for _, i := range r.graph.order {
		if !r.left[i] && slices.Contains(r.graph.After(i), step) {
			if r.waits[i]--; r.waits[i] == 0 {
				next = append(next, i)
			}
		}
	}
	return next
}

// Over reports whether all steps have ended.
func (r *Run) Over() bool { return r.open == 0 }

// Due is when a step has to be done for the whole, which is due a while after it began, by how long each of the graph's steps is expected to execute
// and which part of the graph's requests is lost (forecast.Reserve).
func (r *Run) Due(step int, expected []time.Duration, lost forecast.Losses, began, due time.Time) time.Time {
	return due.Add(-forecast.Reserve(r.after(step, expected), r.graph.Critical(expected), due.Sub(began), lost))
}

// after is how long what follows a step will take: the longest path over the steps that have to wait for it.
func (r *Run) after(step int, expected []time.Duration) time.Duration {
	after := make([]time.Duration, len(r.graph.Steps))
	for _, i := range slices.Backward(r.graph.order) {
		if r.left[i] {
			continue
		}
		for _, n := range r.graph.After(i) {
			after[n] = max(after[n], after[i]+max(0, expected[i]))
		}
		if i == step {
			break // what follows it comes after it in the order
		}
	}
	return after[step]
}

// Part is how much of the whole's time is a step's, in proportion to how long each step is expected to execute: along the longest path the parts are the whole.
// It is zero where none is expected to take time.
func (g *Graph) Part(step int, expected []time.Duration, whole time.Duration) time.Duration {
	longest := g.Critical(expected)
	if longest == 0 {
		return 0
	}
	return time.Duration(float64(whole) * float64(max(0, expected[step])) / float64(longest))
}

// Critical is how long the longest path through all of a graph's steps will take.
func (g *Graph) Critical(expected []time.Duration) (longest time.Duration) {
	until := make([]time.Duration, len(g.Steps))
	for _, i := range g.order {
		for _, n := range g.After(i) {
			until[i] = max(until[i], until[n])
		}
		until[i] += max(0, expected[i])
		longest = max(longest, until[i])
	}
	return longest
}

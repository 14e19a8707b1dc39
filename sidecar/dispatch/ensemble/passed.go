// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package ensemble

import "time"

// Passed is how one step of a request went.
type Passed struct {
	// Ran: the others are left out, because the request does not need them.
	Ran  bool
	Rows int
	// Queue is how long it waited in the queue of its model, and Execution how long its execution took. HandOver is the rest: from the end of the last
	// step before it, or the arrival of the whole, to its queue, and from the end of its execution to the moment at which the next steps may begin.
	Queue, Execution, HandOver time.Duration
	// Critical: it is on the critical path, the steps for which each next one waited longest, back from the last one that ended.
	Critical bool
	// Taken are the bytes that it took from each of the steps before it, in the order of Graph.After.
	Taken []int64

	ended time.Time
}

// Passage measures the steps of one run. A step's own goroutine may set its Rows; all other methods are for the one that owns the run.
type Passage struct {
	graph *Graph
	began time.Time
	Steps []Passed
}

// Measure begins a passage, at the arrival of the whole.
func (g *Graph) Measure(began time.Time) *Passage {
	p := &Passage{graph: g, began: began, Steps: make([]Passed, len(g.Steps))}
	edges := 0
	for i := range g.Steps {
		edges += len(g.after[i])
	}
	taken := make([]int64, edges)
	for i := range p.Steps {
		n := len(g.after[i])
		p.Steps[i].Taken, taken = taken[:n:n], taken[n:]
	}
	return p
}

// Take notes that a step takes a tensor of so many bytes.
func (p *Passage) Take(step int, tensor string, bytes int) {
	if k := p.graph.taken(step, tensor); k >= 0 {
		p.Steps[step].Taken[k] += int64(bytes)
	}
}

// Pass notes how a step went that was queued and has its results: its execution began (zero: it had none) and ended.
func (p *Passage) Pass(step int, queued, started, ended, results time.Time) {
	s := &p.Steps[step]
	ready := p.began
	for _, before := range p.graph.after[step] {
		if at := p.Steps[before].ended; at.After(ready) {
			ready = at
		}
	}
	if started.IsZero() {
		started, ended = results, results
	}
	s.Ran, s.ended = true, results
	s.Queue, s.Execution = max(0, started.Sub(queued)), max(0, ended.Sub(started))
	s.HandOver = max(0, results.Sub(ready)-s.Queue-s.Execution)
}

// End is called when all steps have ended. It marks the critical path, and returns the steps in the graph's order.
func (p *Passage) End() []Passed {
	last := -1
	for i := range p.Steps {
		if p.Steps[i].Ran && (last < 0 || p.Steps[i].ended.After(p.Steps[last].ended)) {
			last = i
		}
	}
	for last >= 0 {
		p.Steps[last].Critical = true
		next := -1
		for _, before := range p.graph.after[last] {
			if next < 0 || p.Steps[before].ended.After(p.Steps[next].ended) {
				next = before
			}
		}
		last = next
	}
	all := make([]Passed, 0, len(p.Steps))
	for _, i := range p.graph.order {
		all = append(all, p.Steps[i])
	}
	return all
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"sync"
	"time"
)

// Walk is one request of an ensemble whose steps were executed one by one, all with success.
type Walk struct {
	Ensemble string
	Rows     int
	Ended    time.Time
	Took     time.Duration
	Steps    []WalkStep
}

// WalkStep is one step of a Walk. One that did not run is left at zero.
type WalkStep struct {
	Ran                        bool
	Rows                       int
	Queue, Execution, HandOver time.Duration
	Critical                   bool
	// Taken are bytes by the steps that they were taken from.
	Taken []int64
}

// Walks sums up the walks of an ensemble over a Window.
type Walks struct {
	Requests, Rows uint64
	Took           time.Duration
	Steps          []StepWalks
}

// StepWalks sums up one step: the requests in which it ran, and what these had.
type StepWalks struct {
	Ran, Rows, Critical        uint64
	Queue, Execution, HandOver time.Duration
	// Whole are the rows of the requests in which it ran.
	Whole uint64
	Taken []int64
}

// add counts a walk.
func (w *Walks) add(walk *Walk) {
	if w.Steps == nil {
		w.Steps = make([]StepWalks, len(walk.Steps))
	}
	w.Requests++
	w.Rows += uint64(max(0, walk.Rows))
	w.Took += walk.Took
	for i := range walk.Steps {
		w.Steps[i].add(&walk.Steps[i], walk.Rows)
	}
}

func (s *StepWalks) add(step *WalkStep, rows int) {
	if !step.Ran {
		return
	}
	s.Ran++
	s.Rows += uint64(max(0, step.Rows))
	s.Whole += uint64(max(0, rows))
	s.Queue, s.Execution, s.HandOver = s.Queue+step.Queue, s.Execution+step.Execution, s.HandOver+step.HandOver
	if step.Critical {
		s.Critical++
	}
	if s.Taken == nil {
		s.Taken = make([]int64, len(step.Taken))
	}
	for k, bytes := range step.Taken {
		s.Taken[k] += bytes
	}
}

// merge adds other walks of the same steps.
func (w *Walks) merge(o *Walks) {
	if o.Requests == 0 {
		return
	}
	if w.Steps == nil {
		w.Steps = make([]StepWalks, len(o.Steps))
	}
	w.Requests, w.Rows, w.Took = w.Requests+o.Requests, w.Rows+o.Rows, w.Took+o.Took
	for i := range o.Steps {
		s, t := &w.Steps[i], &o.Steps[i]
		s.Ran, s.Rows, s.Whole, s.Critical = s.Ran+t.Ran, s.Rows+t.Rows, s.Whole+t.Whole, s.Critical+t.Critical
		s.Queue, s.Execution, s.HandOver = s.Queue+t.Queue, s.Execution+t.Execution, s.HandOver+t.HandOver
		if len(s.Taken) == 0 { // it has not run in those so far
			s.Taken = make([]int64, len(t.Taken))
		}
		for k, bytes := range t.Taken {
			s.Taken[k] += bytes
		}
	}
}

// pipeline is what was seen of one ensemble's walks.
type pipeline struct {
	mu    sync.Mutex
	shape []int // how many steps each step takes tensors from; another one is another ensemble
	slots ring[Walks]
}

// Walked takes one walk.
func (r *Recorder) Walked(w Walk) {
	found, ok := r.pipelines.Load(w.Ensemble)
	if !ok {
		found, _ = r.pipelines.LoadOrStore(w.Ensemble, &pipeline{})
	}
	p := found.(*pipeline)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.like(w.Steps) {
		p.shape, p.slots = nil, ring[Walks]{}
		for i := range w.Steps {
			p.shape = append(p.shape, len(w.Steps[i].Taken))
		}
	}
	p.slots.at(r.steady(w.Ended)).add(&w)
}

// like reports whether steps are those that were seen so far, as far as can be told.
func (p *pipeline) like(steps []WalkStep) bool {
	if len(p.shape) != len(steps) {
		return false
	}
	for i := range steps {
		if len(steps[i].Taken) != p.shape[i] {
			return false
		}
	}
	return true
}

// Walks of an ensemble over the Window that ends at now; no steps where there was none.
func (r *Recorder) Walks(ensemble string, now time.Time) (all Walks) {
	found, ok := r.pipelines.Load(ensemble)
	if !ok {
		return all
	}
	p := found.(*pipeline)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.slots.each(r.steady(now), Window, all.merge)
	return all
}

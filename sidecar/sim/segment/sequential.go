// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package segment

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Order is that in which [Sequential] runs queries.
type Order string

// The orders of the paper's baselines: first come first served, shortest job first, earliest deadline first.
const (
	FCFS Order = "fcfs"
	SJF  Order = "sjf"
	EDF  Order = "edf"
)

// Sequential runs whole queries, one at a time, as Clockwork and Nexus do on a GPU (section 7.1).
type Sequential struct {
	Order Order
	// Hopeless drops a query as soon as it cannot be finished in time even if it ran at once. Without it, as in the paper, it is dropped once its
	// deadline has passed.
	Hopeless bool
	// Margin is added to predictions before one is called hopeless, as a share.
	Margin float64
	// Rounds takes the oldest query of each model, and runs these in order before it looks again, as the authors' code does. Without it, each decision is
	// between all queries that wait.
	Rounds bool
	// Deciding is the time that a decision takes, while nothing runs: the paper's SJF asks the predictor and cannot hide that (section 7.2).
	Deciding time.Duration
}

func (s Sequential) check() error {
	switch {
	case s.Order != FCFS && s.Order != SJF && s.Order != EDF:
		return fmt.Errorf("segment: the order %q is not one of %s, %s, %s", s.Order, FCFS, SJF, EDF)
	case s.Margin < 0 || s.Deciding < 0:
		return fmt.Errorf("segment: margin and deciding time of %s are not below zero", s.Order)
	}
	return nil
}

func (s Sequential) begin() decider { return &sequence{Sequential: s} }

// sequence is a run of a Sequential.
type sequence struct {
	Sequential
	round []job
}

// job is a task and how long it takes.
type job struct {
	task
	takes time.Duration
}

func (s *sequence) deciding() (time.Duration, bool) { return s.Deciding, false }

func (s *sequence) decide(start time.Duration, waiting *line, w *World) Decision {
	d := Decision{Start: start}
	if len(s.round) == 0 {
		s.look(&d, waiting, w)
	}
	if len(s.round) == 0 {
		return d
	}
	next := s.round[0]
	d.add(next.id, next.rest(w.Models[next.Model].Operators))
	d.Predicted = next.takes
	if s.round = s.round[1:]; !s.Rounds {
		s.round = nil
	}
	return d
}

// look puts those that wait in order, and drops those that are to be dropped.
func (s *sequence) look(d *Decision, waiting *line, w *World) {
	tasks := waiting.heads
	if !s.Rounds {
		tasks = waiting.all
	}
	for _, t := range tasks() {
		takes := w.Predictor.Latency([]Slice{t.rest(w.Models[t.Model].Operators)})
		if d.Start >= t.Deadline || s.Hopeless && d.Start+padded(takes, s.Margin) > t.Deadline {
			d.Dropped = append(d.Dropped, t.id)
			continue
		}
		s.round = append(s.round, job{t, takes})
	}
	slices.SortFunc(s.round, s.compare)
}

func (s *sequence) compare(a, b job) int {
	first := cmp.Or(cmp.Compare(a.Arrival, b.Arrival), cmp.Compare(a.id, b.id))
	switch s.Order {
	case SJF:
		return cmp.Or(cmp.Compare(a.takes, b.takes), first)
	case EDF:
		return cmp.Or(cmp.Compare(a.Deadline, b.Deadline), first)
	}
	return first
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package segment

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Controller is Abacus's headroom-based query controller (sections 6.2 and 6.3).
type Controller struct {
	// Ways is how many candidates a round of search predicts at once, at least 1.
	Ways int
	// Enough ends a search: where less of the headroom is left, no further operator is looked for.
	Enough time.Duration
	// Margin is added to every prediction, as a share of it: deadlines are kept where a prediction is too low by no more than this.
	Margin float64
	// Deciding is the time that a decision takes. It is hidden while a group runs (section 6.3, pipelining).
	Deciding time.Duration
	// Whole takes only whole queries into a group: what is left of Abacus without segments.
	Whole bool
}

// Paper is a controller as section 7.7 has it: four ways, .26 ms for a decision. Enough is 5 ms, as in the authors' code. The margin is this
// package's choice: nine of ten predictions are too low by less, if they are off by 5.7% on average (section 5.5) and normally distributed.
func Paper() Controller {
	return Controller{Ways: 4, Enough: 5 * time.Millisecond, Margin: 1.2816 * Deviation(PublishedError), Deciding: 260 * time.Microsecond}
}

func (c Controller) check() error {
	switch {
	case c.Ways < 1:
		return fmt.Errorf("segment: a search in %d ways; at least 1 is needed", c.Ways)
	case c.Margin < 0 || c.Enough < 0 || c.Deciding < 0:
		return errors.New("segment: a controller's margin and times are not below zero")
	}
	return nil
}

func (c Controller) begin() decider { return c }

func (c Controller) deciding() (time.Duration, bool) { return c.Deciding, true }

// decide chooses the group that starts at a moment, of at most one task of each model. The queries that it drops could not be finished in time even
// if they ran alone from that moment on.
func (c Controller) decide(start time.Duration, waiting *line, w *World) Decision {
	d := Decision{Start: start}
	s := &search{predictor: w.Predictor, margin: c.Margin, ways: c.Ways}
	tasks := slices.SortedFunc(slices.Values(waiting.heads()), urgent)
	for len(tasks) > 0 {
		headroom := tasks[0].Deadline - start
		fit, latency := 0, time.Duration(0)
		if headroom > 0 {
			fit, latency = s.between(tasks, w.Models, headroom)
		}
		if fit == 0 {
			d.Dropped = append(d.Dropped, tasks[0].id)
			tasks = tasks[1:]
			continue
		}
		for _, t := range tasks[:fit] {
			d.add(t.id, t.rest(w.Models[t.Model].Operators))
		}
		if fit < len(tasks) && !c.Whole {
			t := tasks[fit]
			cut, _ := s.within(d.Group, t, w.Models[t.Model].Operators, headroom, latency, c.Enough)
			if cut > t.next {
				d.add(t.id, t.rest(cut))
			}
		}
		break
	}
	d.Asked = s.asked
	d.Predicted = w.Predictor.Latency(d.Group)
	return d
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/observe/curve"
)

const (
	// learnEvery is how often the queue is told what was learnt, trialPause the pause between two batches that are executed to learn from: as live.
	learnEvery, trialPause = queue.Time(5e8), queue.Time(5e8)
	// wholeGPU is the share of partitions that stand for the GPUs of a node.
	wholeGPU = 100
)

// learning reports whether l(b) is learnt from executions, as a live Conch does: in front of servers over several GPUs what a batch waits there for others is
// part of that, and no profile has it.
func (w *World) learning() bool { return w.Knowledge == LearnDelays && len(w.Nodes) > 0 }

// virtual is a moment of the run on the clock of curves.
func virtual(now queue.Time) time.Time { return time.Unix(1, 0).Add(now.Duration()) }

// learnt is what the queue has learnt of l(b) of a model.
type learnt struct {
	curve   curve.Curve
	changes uint64
	profile *policy.Profile // nil: nothing that deadlines could be planned with
}

// renew learns from what was executed, and reports whether there was something new.
func (l *learnt) renew(now queue.Time, maxBatch int) bool {
	if l.changes == l.curve.Changes() {
		return false
	}
	l.changes = l.curve.Changes()
	known := l.curve.Learn(virtual(now), nil, maxBatch)
	l.curve.Follow(&known)
	if !known.Usable {
		return false
	}
	l.profile = &policy.Profile{Usable: true, Points: known.Points(wholeGPU, maxBatch)}
	return true
}

// tables are what the queue plans a model's batches with, by class.
func (m *model) tables(e *engine) {
	m.queue.Classes, m.queue.Optimistic = make([]queue.Table, len(m.classes)), nil
	for i, c := range m.classes {
		if p := m.learnt.profile; p != nil {
			extra := queue.Time(e.budget.Current())
			m.queue.Classes[i] = forecast.Table(p, wholeGPU, len(c.upper)-2, extra)
			m.queue.Optimistic = append(m.queue.Optimistic, forecast.Optimistic(p, wholeGPU, len(c.upper)-2, extra))
			continue
		}
		m.queue.Classes[i] = c.table(e)
	}
	m.margin.Sets(m.queue.Classes)
}

// believe tells the queue what was learnt, and does so again in a while.
func (e *engine) believe() {
	for _, m := range e.models {
		if m.learnt.renew(e.now, m.maxBatch()) {
			m.tables(e)
			if err := e.sched.SetModel(e.now, m.id, m.queue); err != nil {
				e.err = fmt.Errorf("sim: model %s: %w", m.spec.GetName(), err)
			}
		}
	}
	e.at(e.now+learnEvery, e.believe)
}

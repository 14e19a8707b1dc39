// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/ensemble"
	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// foreseen is how long each step of an ensemble is expected to execute at present, the times in proportion to which the whole's time is divided among the
// steps, and which part of the ensemble's requests is lost.
func (q *queues) foreseen(whole *route, rows int) (expected, divided []time.Duration, lost forecast.Losses) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.expected(whole.graph, rows), q.dividing(whole.graph, rows), whole.model.lost.At(q.now())
}

// walked notes that a request of an ensemble was lost, or has come to its end.
func (q *queues) walked(whole *model, lost bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	whole.lost.Add(lost, q.now())
}

// expected is how long each step executes at present: as long as the last steps that called its model did, with all that shared their executions, or, where
// there was none lately, what the model's profile says for a request of so many rows. Nothing is expected of a model without a profile then: for what its
// executions once took, no request may be dropped before it gets there. Guarded by mu.
func (q *queues) expected(g *ensemble.Graph, rows int) []time.Duration {
	now := q.now()
	return q.ofSteps(g, func(m *model) time.Duration { return m.pace.Or(m.predicted(rows), now) })
}

// dividing is how long each step executes in a batch of the size by which pipelines are divided for policies and in simulations. What steps took lately
// would not do: the part of a step limits its batches, and small batches would make it smaller still. Guarded by mu.
func (q *queues) dividing(g *ensemble.Graph, rows int) []time.Duration {
	return q.ofSteps(g, func(m *model) time.Duration { return m.takes(max(rows, policy.DividedBatch)) })
}

// ofSteps is a time of each step's model; that of a step which is an ensemble is along its longest path. Guarded by mu.
func (q *queues) ofSteps(g *ensemble.Graph, of func(*model) time.Duration) []time.Duration {
	all := make([]time.Duration, len(g.Steps))
	for i := range g.Steps {
		r := q.table.models[g.Steps[i].Model]
		switch {
		case r == nil:
		case r.graph != nil:
			all[i] = r.graph.Critical(q.ofSteps(r.graph, of))
		default:
			all[i] = of(r.executes)
		}
	}
	return all
}

// takes is how long an execution of so many rows takes on the fastest of a model's partitions, or, without a profile, what executions took on average. Guarded by
// queues.mu.
func (m *model) takes(rows int) time.Duration {
	if predicted := m.predicted(rows); predicted > 0 {
		return predicted
	}
	if n := m.counts.executions.Load(); n > 0 {
		return time.Duration(m.counts.execution.Load() / n)
	}
	return 0
}

// predicted is how long an execution of so many rows takes on the fastest of a model's partitions, by its profile; 0: there is none. Guarded by queues.mu.
func (m *model) predicted(rows int) time.Duration {
	fastest := queue.Never
	for _, t := range m.queueSpec.Classes {
		if len(t) > 1 {
			fastest = min(fastest, t.At(rows))
		}
	}
	if fastest == queue.Never {
		return 0
	}
	return fastest.Duration()
}

// stepTook notes how long an execution of a model took that had a step in it.
func (q *queues) stepTook(m *model, took time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	m.pace.Add(took, q.now())
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// Waiting is what waits in a queue: that of a model, or of a merge group for its members.
type Waiting struct {
	Model          string
	Requests, Rows int
	// Oldest is how long the oldest request has waited.
	Oldest time.Duration
	// Candidate is how many rows the batch has that would be executed now; 0: there is none. Slack is the time until its latest start, if Timed.
	Candidate int
	Slack     time.Duration
	Timed     bool
}

// Waiting lists the queues in which something waits, in no order.
func (d *Dispatcher) Waiting() []Waiting { return d.queues.allWaiting() }

func (q *queues) allWaiting() (all []Waiting) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	q.do(func(s *queue.Scheduler) error {
		s.Waiting(func(w queue.Waiting) {
			m := q.byID[w.Model]
			if m == nil {
				return
			}
			out := Waiting{Model: m.name, Requests: w.Requests, Rows: w.Rows, Oldest: max(0, now-w.Oldest).Duration(), Candidate: w.Candidate}
			if out.Timed = w.Candidate > 0 && w.Latest != queue.Never; out.Timed {
				out.Slack = (w.Latest - now).Duration()
			}
			all = append(all, out)
		})
		return nil
	})
	return all
}

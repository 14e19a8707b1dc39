// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"sync/atomic"
	"time"
)

// ModelCounts are what clients asked of a model, where Triton's own statistics
// count batches. Durations are sums over requests.
type ModelCounts struct {
	// Requests that were answered with success, and that failed or were given up.
	Success, Failed uint64
	// Rows of the successful requests; executions that the queue dispatched.
	Rows, Executions        uint64
	SuccessTime, FailedTime time.Duration
	QueueTime               time.Duration
	// ExecutionTime sums the queue's executions.
	ExecutionTime time.Duration
	LastInference time.Time
	// Waiting counts requests that wait for a partition now.
	Waiting int
}

type counts struct {
	success, failed, rows, executions         atomic.Uint64
	successTime, failedTime, queue, execution atomic.Int64
	last                                      atomic.Int64
}

func (c *counts) add(o *Outcome, now time.Time) {
	switch o.Result {
	case OK, Late:
		c.success.Add(1)
		c.rows.Add(uint64(o.Rows))
		c.successTime.Add(int64(o.Latency))
		c.queue.Add(int64(o.Queued))
		c.last.Store(now.UnixNano())
		if o.PassedThrough {
			c.executions.Add(1)
		}
	case Dropped, Cancelled, Failed:
		c.failed.Add(1)
		c.failedTime.Add(int64(o.Latency))
	}
}

func (c *counts) executed(took time.Duration) {
	c.executions.Add(1)
	c.execution.Add(int64(took))
}

// Counts returns the counters of a model of the table in force. They start with
// the first table that has the model.
func (d *Dispatcher) Counts(model string) (ModelCounts, bool) {
	r, err := d.route(model)
	if err != nil {
		return ModelCounts{}, false
	}
	c := &r.counts
	m := ModelCounts{
		Success: c.success.Load(), Failed: c.failed.Load(), Rows: c.rows.Load(), Executions: c.executions.Load(),
		SuccessTime: time.Duration(c.successTime.Load()), FailedTime: time.Duration(c.failedTime.Load()),
		QueueTime: time.Duration(c.queue.Load()), ExecutionTime: time.Duration(c.execution.Load()),
	}
	if ns := c.last.Load(); ns != 0 {
		m.LastInference = time.Unix(0, ns)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.broken.Load() && !r.removed {
		m.Waiting, _ = d.sched.Queued(r.id)
	}
	return m, true
}

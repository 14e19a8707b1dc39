// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// Infer answers one request, as Begin does, and waits for the answer.
func (d *Dispatcher) Infer(ctx context.Context, r *batch.Request) (resp *batch.Response, err error) {
	answered := make(chan struct{})
	c := d.newCall(ctx, r)
	c.waits = true
	c.then = func(_ *wire.Turn, a answer) {
		defer close(answered)
		resp, err = d.finishAndFree(c, a)
	}
	d.begin(nil, c)
	<-answered
	return resp, err
}

// BreakScheduler makes the scheduler's next use panic, as a fault of Conch's
// would.
func BreakScheduler(d *Dispatcher) {
	d.queues.mu.Lock()
	defer d.queues.mu.Unlock()
	d.queues.sched = nil
}

// GiveUp marks a model as out in the queue, and drops its queued requests, while a partition of it is up in the router. This is the queue's state
// in the moment before it learns that a partition is up again.
func GiveUp(d *Dispatcher, model string) {
	d.queues.mu.Lock()
	defer d.queues.unlock()
	m := d.queues.model(model)
	m.out = true
	d.queues.do(func(s *queue.Scheduler) error { return s.Empty(d.queues.now(), m.id, queue.DropOutage) })
}

// BreakRequeue makes the scheduler panic once a request that has failed in an execution of a model is queued again.
func BreakRequeue(d *Dispatcher, model string) {
	d.queues.mu.Lock()
	defer d.queues.mu.Unlock()
	d.queues.model(model).id = -1
	d.queues.dropped = func(*call, queue.DropReason) { panic("a fault") }
}

// EndedTwice is how many tickets have ended again.
func EndedTwice(d *Dispatcher) int64 { return d.endedTwice.Load() }

// Closing reports whether Close has been called and nothing is leased any more.
func Closing(d *Dispatcher) bool { return d.router.Out("") != nil }

// TakeLock takes the scheduler's lock, and gives it back.
func TakeLock(d *Dispatcher) {
	d.queues.mu.Lock()
	defer d.queues.mu.Unlock()
}

// PlannedTime is how long a model's requests may take, as the queue plans its batches.
func PlannedTime(d *Dispatcher, model string) time.Duration {
	d.queues.mu.Lock()
	defer d.queues.mu.Unlock()
	return d.queues.model(model).slo()
}

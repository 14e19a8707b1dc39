// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"fmt"
	"runtime/debug"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// The scheduler is pure and belongs to whoever holds Dispatcher.mu. Whoever
// releases mu by unlock starts the batches that were decided meanwhile and sets
// the alarm to the scheduler's next moment.

func (d *Dispatcher) queueTime(t time.Time) queue.Time { return queue.Time(t.Sub(d.origin)) }

func (d *Dispatcher) now() queue.Time { return d.queueTime(d.clock.Now()) }

// enqueue hands a call to the scheduler; when it cannot, the answer says why.
func (d *Dispatcher) enqueue(c *call, route *route) (a answer, ok bool) {
	c.setDeadline(d, route)
	d.mu.Lock()
	defer d.unlock()
	c.queued.Owner = c
	m := c.model
	if m.removed {
		// Replaced between reading the table and here: the name may be back.
		m = d.models[c.req.Model]
		if m == nil {
			_, err := d.route(c.req.Model)
			return answer{err: d.unserved(c.req, err), result: Rejected, reason: "unloaded"}, false
		}
		c.model = m
	}
	if m.interrupted || d.closed {
		return answer{err: m.outageError(), result: Failed, reason: "outage"}, false
	}
	c.stopped = m.stop
	ok = true // also if the scheduler panics: await deals with that
	d.sched.Enqueue(d.now(), m.id, &c.queued)
	return a, ok
}

// withdraw takes a call out on behalf of its caller. It returns false when an
// answer is in c.done, and, unless the caller insists, when the call is running.
func (d *Dispatcher) withdraw(c *call, insist bool) bool {
	d.mu.Lock()
	defer d.unlock()
	if c.running && !insist {
		return false
	}
	if !c.running && !d.broken.Load() {
		d.sched.Cancel(d.now(), &c.queued)
	}
	// Others may share the execution: it goes on, and this caller's part of the
	// answer is thrown away.
	c.left = c.running
	return c.state.CompareAndSwap(waiting, abandoned)
}

// ring is called by the alarm.
func (d *Dispatcher) ring() {
	d.mu.Lock()
	defer d.unlock()
	d.armed = queue.Never
	if !d.broken.Load() && !d.closed {
		d.sched.Advance(d.now())
	}
}

// unlock releases mu, starts what was decided, and keeps the alarm right. It is
// to be deferred: a panic of the scheduler ends here, and requests are
// forwarded without it from then on.
func (d *Dispatcher) unlock() {
	if fault := recover(); fault != nil {
		d.broken.Store(true)
		for _, m := range d.models {
			m.interrupt()
		}
		d.o.Logger.Error("the scheduler failed: requests are forwarded at once from now on", "fault", fmt.Sprint(fault), "stack", string(debug.Stack()))
	}
	runs := d.outbox
	d.outbox = nil
	if !d.broken.Load() {
		if next := d.sched.Next(); next != d.armed && !d.closed {
			d.armed = next
			if next == queue.Never {
				d.alarm.Set(time.Time{})
			} else {
				d.alarm.Set(d.origin.Add(time.Duration(next)))
			}
		}
	}
	d.tasks.Add(len(runs))
	d.mu.Unlock()
	for _, r := range runs {
		d.start(r)
	}
}

// maxIdleWorkers is how many goroutines are kept for the next batch.
const maxIdleWorkers = 64

// start executes a batch on a goroutine that has just finished another one, if
// there is one: a new goroutine would first have to grow its stack, which costs
// as much as the rest of the way.
func (d *Dispatcher) start(r *run) {
	select {
	case d.workers <- r:
	default:
		d.tasks.Add(1)
		go d.work(r)
	}
}

// work executes a batch, and then others for as long as they come.
func (d *Dispatcher) work(r *run) {
	defer d.tasks.Done()
	for {
		d.execute(r)
		if d.idle.Add(1) > maxIdleWorkers {
			d.idle.Add(-1)
			return
		}
		select {
		case r = <-d.workers:
			d.idle.Add(-1)
		case <-d.background.Done():
			return
		}
	}
}

// sink receives the scheduler's decisions, with mu held.
type sink struct{ d *Dispatcher }

// Dispatch implements queue.Sink.
func (s sink) Dispatch(b *queue.Batch) {
	d := s.d
	m := d.byID[b.Model]
	place := d.byQueueID[b.Partition].place(m.name)
	r := &run{model: m, rules: m.rules, place: place, rows: b.Rows, decided: b.Start, finish: b.Finish, calls: make([]*call, len(b.Requests))}
	for i, q := range b.Requests {
		c := q.Owner.(*call)
		c.running = true
		c.req.Ref() // the run's own: the caller may leave before it ends
		r.calls[i] = c
	}
	r.place.begin(d)
	d.outbox = append(d.outbox, r)
}

// Drop implements queue.Sink.
func (s sink) Drop(q *queue.Request, why queue.DropReason) {
	d := s.d
	c := q.Owner.(*call)
	switch why {
	case queue.DropModelRemoved, queue.DropClosed, queue.DropTooLarge:
		// It was accepted: it is served, where the model was.
		c.running = true
		c.req.Ref()
		last := c.model.last
		d.tasks.Add(1)
		go func() {
			defer d.tasks.Done()
			defer c.req.Free()
			d.answer(c, d.passThrough(c, last))
		}()
	default:
		d.answer(c, answer{
			err: status.Error(codes.Unavailable, "Request timeout expired"), result: Dropped, reason: why.String(),
		})
	}
}

// answer gives a call its answer. If the caller has gone the answer is freed,
// and counted as Triton counts it, which runs such a request to its end.
func (d *Dispatcher) answer(c *call, a answer) {
	if c.state.CompareAndSwap(waiting, answered) {
		c.done <- a
		return
	}
	if c.left {
		o, _ := d.outcome(c, a)
		if o.Result == Cancelled {
			o.Result = Failed
		}
		c.model.count(c.tally, a.place, &o, judge(&o, a.err, c.model.backend(), a.rows > 0))
	}
	if a.resp != nil {
		a.resp.Free()
	}
}

// answer is an answer that came from an execution.
func (b *run) answer(c *call, resp *batch.Response, err error) answer {
	return answer{resp: resp, err: err, place: b.place, started: b.started, rows: b.rows, retried: c.retried}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// Dispatcher is the request path. Make one with New, give it a route table with
// Swap and end it with Drain and Close. All methods are safe for concurrent use.
type Dispatcher struct {
	o      Options
	clock  Clock
	origin time.Time // zero of queue.Time
	alarm  Alarm
	budget forecast.Budget

	routes   atomic.Pointer[routes]
	draining atomic.Bool
	// broken is set when the scheduler panicked: from then on everything is
	// forwarded at once.
	broken   atomic.Bool
	accepted atomic.Int64 // requests and streams that are not finished
	bytes    atomic.Int64 // of those requests
	watchers atomic.Int32 // Drained and Drain calls

	background context.Context // ends with Close
	cancel     context.CancelFunc
	tasks      sync.WaitGroup
	workers    chan *run    // to those who wait for one
	idle       atomic.Int32 // workers that wait
	sequences  sequences
	choosing   sync.Mutex // held while a partition is chosen outside the queue; before mu

	mu         sync.Mutex // guards what follows
	sched      *queue.Scheduler
	armed      queue.Time // what the alarm is set to
	outbox     []*run     // decided while mu is held, started when it is released
	models     map[string]*model
	byID       map[queue.ModelID]*model
	partitions map[string]*partition
	byQueueID  map[queue.PartitionID]*partition
	retired    []*partition // out of the table, not yet idle
	down       map[string]string
	profiles   map[profileKey]*policy.Profile
	changed    chan struct{} // closed and replaced when waiters should look again
	closed     bool
}

// New starts a dispatcher without models.
func New(o Options) *Dispatcher {
	d := &Dispatcher{
		o:          o.withDefaults(),
		models:     make(map[string]*model),
		byID:       make(map[queue.ModelID]*model),
		partitions: make(map[string]*partition),
		byQueueID:  make(map[queue.PartitionID]*partition),
		down:       make(map[string]string),
		profiles:   make(map[profileKey]*policy.Profile),
		changed:    make(chan struct{}),
		workers:    make(chan *run),
		armed:      queue.Never,
	}
	d.clock = d.o.Clock
	d.origin = d.clock.Now()
	d.background, d.cancel = context.WithCancel(context.Background())
	d.sched = queue.New(sink{d}, queue.Options{Trial: trialPause})
	d.alarm = d.clock.Alarm(d.ring)
	return d
}

// call is one request on its way.
type call struct {
	queued  queue.Request
	ctx     context.Context
	req     *batch.Request
	model   *model
	tally   *tally
	arrived time.Time
	due     time.Time // zero: no deadline
	rows    int
	done    chan answer // buffered: nobody waits for a caller that has gone
	state   atomic.Int32
	stopped chan struct{} // the model's stop channel when it was queued
	running bool          // dispatched, and not queued; guarded by Dispatcher.mu
	left    bool          // its caller went away while it was running
	retried bool          // a first attempt was lost; guarded by Dispatcher.mu until it runs again
	batch   bool          // it could be batched, and says how many rows it has
}

// States of a call.
const (
	waiting   int32 = iota // for an answer
	answered               // which is in done
	abandoned              // by its caller
)

// answer is what a call comes back with.
type answer struct {
	resp    *batch.Response
	err     error
	result  Result // OK stands for "derive it"
	reason  string
	place   *placement // of the last execution; nil: none
	started time.Time  // when the last execution began; zero: never
	rows    int        // of that execution
	passed  bool       // outside the queue
	retried bool
	// promised is when the queue predicted the batch's end, of its last answer
	// where there was a prediction.
	promised queue.Time
}

// Infer answers one request. It takes over one reference to r. Errors are gRPC
// status errors with Triton's text. The caller frees the response.
//
// This is the request path, top-down.
func (d *Dispatcher) Infer(ctx context.Context, r *batch.Request) (*batch.Response, error) {
	defer r.Free()

	// 1. Which model? The table is immutable; a Swap meanwhile does not matter.
	route, err := d.route(r.Model)
	if err != nil {
		return nil, d.unserved(r, err)
	}
	c, queueable := d.arrive(ctx, r, route)

	// 2. May it come in? Nothing that would kill a server, nothing beyond the
	// limits, nothing new while draining.
	if err := d.refuse(r, route.rules); err != nil {
		return d.finish(c, answer{err: err, result: Rejected, reason: "refused"})
	}
	size, reason, err := d.accept(r, 1)
	if err != nil {
		return d.finish(c, answer{err: err, result: Rejected, reason: reason})
	}
	defer d.leave(size)

	// 3. What must not share an execution is forwarded now; so is everything if
	// there is no queue to rely on.
	if !queueable {
		return d.finish(c, d.passThrough(c, route))
	}

	// 4. The rest is queued, and comes back answered: the scheduler hands it to
	// execute together with others, or gives it up.
	if a, ok := d.enqueue(c, route); !ok {
		return d.finish(c, a)
	}
	return d.finish(c, d.await(c))
}

// arrive makes the call of a request and tells who wants to know of it. Queueable
// is whether it may wait for others and share an execution with them.
func (d *Dispatcher) arrive(ctx context.Context, r *batch.Request, route *route) (c *call, queueable bool) {
	c = &call{ctx: ctx, req: r, model: route.model, tally: route.tallyOf(r.Version), arrived: d.clock.Now(), done: make(chan answer, 1)}
	key, rows, ok, _ := route.rules.Key(r)
	c.rows, c.batch = max(1, rows), ok
	c.queued.Key, c.queued.Rows = key, int32(rows)
	c.setDue(route)
	d.o.Observer.Arrived(r.Model, c.rows, c.arrived)
	if d.o.Recorder.Recording() {
		d.record(ctx, r, route, c.rows, c.arrived)
	}
	return c, ok && rows <= route.maxBatch && !route.unsplittable.Load() && !d.broken.Load()
}

// setDue takes the soonest of the model's SLO, the `timeout` parameter and the
// gRPC deadline: an answer after it is late, whether the request was queued or
// passed through. The latter two only shorten: clients set them generously, and a
// batch must not wait for the end of a generous one.
func (c *call) setDue(route *route) {
	if route.spec.SLO <= 0 {
		return
	}
	c.due = c.arrived.Add(route.spec.SLO)
	if limit, ok := c.req.Timeout(); ok && limit < route.spec.SLO {
		c.due = c.arrived.Add(limit)
	}
	if deadline, ok := c.ctx.Deadline(); ok && deadline.Before(c.due) {
		c.due = deadline
	}
}

// setDeadline makes of when the answer is due what the queue plans with: earlier,
// by the way back to the caller and by what predictions are known to be off.
func (c *call) setDeadline(d *Dispatcher, route *route) {
	c.queued.Arrival = d.queueTime(c.arrived)
	c.queued.Deadline = queue.Never
	if c.due.IsZero() {
		return
	}
	back := d.o.ResponseBudget + route.margin.Of(c.due.Sub(c.arrived)-d.o.ResponseBudget)
	c.queued.Deadline = max(1, d.queueTime(c.due.Add(-back)))
}

// record tells the recorder of a request, with the deadline that setDue
// would give it.
func (d *Dispatcher) record(ctx context.Context, r *batch.Request, route *route, rows int, at time.Time) {
	a := Arrival{Model: r.Model, At: at, Rows: rows, SLO: max(0, route.spec.SLO)}
	for i := range r.Inputs {
		a.Bytes += int64(r.Inputs[i].Data.Len())
	}
	sooner := func(limit time.Duration) {
		if a.SLO > 0 && limit < a.SLO && (a.Deadline == 0 || limit < a.Deadline) {
			a.Deadline = max(time.Microsecond, limit)
		}
	}
	if limit, ok := r.Timeout(); ok {
		sooner(limit)
	}
	if deadline, ok := ctx.Deadline(); ok {
		sooner(deadline.Sub(at))
	}
	d.o.Recorder.Record(a)
}

// route finds a model in the table in force.
func (d *Dispatcher) route(name string) (*route, error) {
	t := d.routes.Load()
	if t == nil {
		return nil, status.Error(codes.Unavailable, "Server not ready: no route table yet")
	}
	r := t.models[name]
	if r == nil {
		return nil, t.table.Unknown(name, "")
	}
	return r, nil
}

// accept counts a request in, or refuses it. Own is what its caller has under way
// by it: the request, and if it came on a stream, that too, which was let in
// before.
func (d *Dispatcher) accept(r *batch.Request, own int64) (size int64, reason string, err error) {
	size = int64(r.Wire.Len())
	if size == 0 {
		for i := range r.Inputs {
			size += int64(r.Inputs[i].Data.Len())
		}
	}
	n, total := d.accepted.Add(1), d.bytes.Add(size)
	switch {
	case own == 1 && d.draining.Load():
		reason, err = "draining", status.Error(codes.Unavailable, "Server is exiting: no new requests are accepted")
	case n > int64(d.o.MaxQueuedRequests):
		reason, err = "queue_requests", status.Errorf(codes.Unavailable, "Exceeds maximum queue size: %d requests are under way", d.o.MaxQueuedRequests)
	case total > d.o.MaxQueuedBytes && n > own:
		reason, err = "queue_bytes", status.Errorf(codes.Unavailable, "Exceeds maximum queue size: %d bytes of requests are under way", d.o.MaxQueuedBytes)
	default:
		return size, "", nil
	}
	d.leave(size)
	return 0, reason, err
}

// UnderWay is how many requests and streams are accepted and not finished, and
// the bytes of those requests: what MaxQueuedRequests and MaxQueuedBytes bound.
func (d *Dispatcher) UnderWay() (requests, bytes int64) { return d.accepted.Load(), d.bytes.Load() }

// leave counts a request out.
func (d *Dispatcher) leave(size int64) {
	d.bytes.Add(-size)
	d.accepted.Add(-1)
	if d.watchers.Load() > 0 {
		d.wake()
	}
}

// await waits for the answer, the caller's patience, or the end of hope.
func (d *Dispatcher) await(c *call) answer {
	select {
	case a := <-c.done:
		return a
	case <-c.ctx.Done():
		if !d.withdraw(c, true) {
			return <-c.done
		}
		return answer{err: status.FromContextError(c.ctx.Err()).Err(), result: Cancelled}
	case <-c.stopped:
	}
	// Nothing serves the model, the scheduler failed, or the dispatcher closed.
	// A request that is running is waited for in any case.
	if !d.withdraw(c, false) {
		select {
		case a := <-c.done:
			return a
		case <-c.ctx.Done():
			if !d.withdraw(c, true) {
				return <-c.done
			}
			return answer{err: status.FromContextError(c.ctx.Err()).Err(), result: Cancelled}
		}
	}
	if d.broken.Load() && d.background.Err() == nil {
		if route, err := d.route(c.req.Model); err == nil {
			return d.passThrough(c, route)
		}
	}
	return answer{err: d.outageError(c.model), result: Failed, reason: "outage"}
}

// finish reports the outcome and turns it into what Infer returns.
func (d *Dispatcher) finish(c *call, a answer) (*batch.Response, error) {
	o, now := d.outcome(c, a)
	d.overdue(c, &a, now)
	c.model.counts.add(&o, now)
	if !c.left { // else it is counted when it ends
		c.model.count(c.tally, a.place, &o, judge(&o, a.err, c.model.backend(), a.rows > 0))
	}
	d.o.Observer.Finished(o)
	return a.resp, a.err
}

// outcome is what became of a call that has its answer.
func (d *Dispatcher) outcome(c *call, a answer) (o Outcome, now time.Time) {
	now = d.clock.Now()
	o = Outcome{
		Model: c.req.Model, Result: a.result, Latency: now.Sub(c.arrived), Rows: c.rows, Batch: a.rows,
		PassedThrough: a.passed, Retried: a.retried, Reason: a.reason,
	}
	if a.started.IsZero() {
		o.Queued = o.Latency
	} else {
		o.Queued = a.started.Sub(c.arrived)
	}
	if o.Result == OK {
		switch {
		case a.err != nil && c.ctx.Err() != nil:
			o.Result = Cancelled
		case a.err != nil:
			o.Result = Failed
		case after(now, c.due):
			o.Result = Late
		}
	}
	if o.Result == Cancelled {
		o.Reason = goneReason(c.ctx, c.arrived, now)
	}
	return o, now
}

// after reports whether an answer comes after it was due, if it was due at all.
func after(now, due time.Time) bool { return !due.IsZero() && now.After(due) }

// Drain refuses new requests and waits until every accepted one has been
// answered, or ctx ends.
func (d *Dispatcher) Drain(ctx context.Context) error {
	d.draining.Store(true)
	if err := d.awaitChange(ctx, func() bool { return d.accepted.Load() == 0 }); err != nil {
		return errors.Join(errDraining(d.accepted.Load()), err)
	}
	return nil
}

func errDraining(n int64) error {
	return status.Errorf(codes.DeadlineExceeded, "drain: %d requests are still under way", n)
}

// Draining reports whether Drain was called.
func (d *Dispatcher) Draining() bool { return d.draining.Load() }

// Close ends the dispatcher's goroutines and connections. Requests that still
// wait fail with UNAVAILABLE.
func (d *Dispatcher) Close() error {
	d.draining.Store(true)
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	d.cancel()
	for _, m := range d.models {
		m.interrupt()
	}
	d.broadcast()
	var all []*partition
	for _, p := range d.partitions {
		all = append(all, p)
	}
	all = append(all, d.retired...)
	d.mu.Unlock()
	var err error
	closed := make(chan error, len(all))
	for _, p := range all {
		go func() { closed <- p.close() }()
	}
	for range all {
		err = errors.Join(err, <-closed)
	}
	d.alarm.Stop()
	d.tasks.Wait()
	return err
}

// awaitChange waits until ready reports true, looking again after every change.
func (d *Dispatcher) awaitChange(ctx context.Context, ready func() bool) error {
	d.watchers.Add(1)
	defer d.watchers.Add(-1)
	for {
		d.mu.Lock()
		changed := d.changed
		d.mu.Unlock()
		if ready() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wake makes those who wait in awaitChange look again.
func (d *Dispatcher) wake() {
	d.mu.Lock()
	d.broadcast()
	d.mu.Unlock()
}

// broadcast is wake for those who hold mu.
func (d *Dispatcher) broadcast() {
	close(d.changed)
	d.changed = make(chan struct{})
}

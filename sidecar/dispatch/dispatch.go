// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// Dispatcher is the request path. Make one with New, give it a route table with
// Swap and end it with Drain and Close. All methods are safe for concurrent use.
type Dispatcher struct {
	o         Options
	clock     clock.Clock
	admission admission
	loads     loads
	routes    atomic.Pointer[routes]
	router    *router.Router
	queues    *queues
	workers   *workers
	watch     watch

	toTriton   atomic.Pointer[map[string]bool] // ensembles that are left to Triton, as one request each
	endedTwice atomic.Int64                    // tickets that ended again: faults of Conch's
	background context.Context                 // ends with Close
	cancel     context.CancelFunc
	attempts   tasks      // that were begun
	swapping   sync.Mutex // held by Swap
}

// New starts a dispatcher without models.
func New(o Options) *Dispatcher {
	d := &Dispatcher{o: o.withDefaults()}
	d.clock = d.o.Clock
	d.admission.init(held{int64(d.o.MaxQueuedRequests), d.o.MaxQueuedBytes})
	d.loads = loads{limit: d.o.MaxLoadWaiters, patience: d.o.LoadWait, begun: d.o.LoadWanted, models: map[string]*load{}}
	d.background, d.cancel = context.WithCancel(context.Background())
	d.workers = newWorkers(d.background)
	d.watch = watch{d: d, outside: map[*attempt]struct{}{}}
	d.router = router.New(router.Options{
		Clock: d.clock, Logger: d.o.Logger, OutageWait: d.o.OutageWait, Forward: d.o.Forward,
		SharedMemoryBytes: d.o.SharedMemoryBytes, Busy: d.o.Observer.Busy,
		Unknown:          d.unknown,
		Attach:           func(_ string, p *router.Partition) any { return &partitionSeries{partition: p.ID()} },
		PartitionChanged: func(p *router.Partition) { d.queues.follow(p) },
		ModelChanged:     func(name string) { d.queues.followModel(name) },
		PlaceChanged: func(p *router.Partition, now router.PlaceHealth) {
			d.queues.followPlace(p)
			if !now.Absent { // the plan way sees itself which models a server has
				d.o.PlaceChanged(now)
			}
		},
	})
	d.queues = newQueues(d.clock, d.o.Logger, d.router, d, d.dropped)
	return d
}

// answer is the result of a call.
type answer struct {
	resp    *batch.Response
	err     error
	result  Result // OK stands for "derive it"
	reason  string
	series  *partitionSeries // of the last execution; nil: none
	started time.Time        // when the last execution began; zero: never
	ended   time.Time        // likewise; zero: it has just ended
	rows    int              // of that execution
	passed  bool             // outside the queue
	retried bool
	// waited until the partition of the last execution was free, gathered from then until the queue decided on the execution.
	waited, gathered time.Duration
	// promised is the predicted end of the batch. Only the batch's last answer has
	// it, and only where there was a prediction.
	promised queue.Time
}

// Begin answers one request. It takes over one reference to r, and does not wait: then is called once, with the answer, by whichever goroutine has it, this
// one included, and must not block. Errors are gRPC status errors with Triton's text. Then frees the response. What is sent for the request meanwhile, such
// as its execution or its answer, belongs to the turn t of the goroutine that calls Begin, or to the turn that then gets; nil: there is none.
func (d *Dispatcher) Begin(ctx context.Context, t *wire.Turn, r *batch.Request, then func(*wire.Turn, *batch.Response, error)) {
	c := d.newCall(ctx, r)
	c.then = func(t *wire.Turn, a answer) {
		resp, err := d.finishAndFree(c, a)
		then(t, resp, err)
	}
	d.begin(t, c)
}

// finishAndFree reports the outcome of a call, whether a model was found for it or not, and frees its request.
func (d *Dispatcher) finishAndFree(c *call, a answer) (resp *batch.Response, err error) {
	defer c.req.Free()
	defer func() {
		if recovered(d.o.Logger, "answering a request", recover()) {
			c.closed()
			resp, err = nil, errFault
		}
	}()
	if !c.atModel { // no model was found for it
		return nil, d.early(c, &a)
	}
	return d.finish(c, a)
}

// begin is the request path, top-down.
func (d *Dispatcher) begin(t *wire.Turn, c *call) {
	defer d.rescue(c)

	// 1. Which model? The one of that name, or what serves the name (an app, a member
	// of a derived model). The table is immutable; a Swap meanwhile does not matter.
	f := d.look(c.req, &c.asked)
	if f.inactive != nil {
		d.aside(c, func() {
			route, refused, _ := d.awaitFound(c, c.req, &c.asked, f)
			d.take(nil, c, route, refused)
		})
		return
	}
	d.take(t, c, f.route, f.refusal)
}

// take takes a call whose model was looked for.
func (d *Dispatcher) take(t *wire.Turn, c *call, route *route, refused answer) {
	if route == nil {
		d.answer(t, c, refused)
		return
	}
	queueable := d.arrive(c, route)

	// 2. Is it admitted? Requests that would crash a server, requests beyond the
	// limits, and new requests during a drain are refused.
	if err := d.hazard(c.req, route.rules); err != nil {
		d.answer(t, c, answer{err: err, result: Refused, reason: reasonInvalid})
		return
	}
	if a, ok := c.admitted(); !ok {
		d.answer(t, c, a)
		return
	}

	// 3. A model that loads on demand may have to be loaded first.
	if route.spec.Cold {
		d.aside(c, func() {
			loaded, a, ok := d.awaitLoad(c)
			switch {
			case !ok:
				d.answer(nil, c, a)
			case c.queueable(loaded):
				d.enqueue(nil, c, loaded)
			default:
				d.answer(nil, c, d.serve(c, loaded, false))
			}
		})
		return
	}

	// 4. An ensemble is executed step by step: each step is a call of its own. Another
	// request that cannot share an execution is forwarded now, unless its model's queue
	// policy is for it too.
	if c.whole && !d.leaves(route.name) {
		d.aside(c, func() { d.answer(nil, c, d.walk(c, route)) })
		return
	}
	if !queueable {
		d.pass(t, c)
		return
	}

	// 5. Every other request is queued. The scheduler passes it to execute, alone
	// or in a batch, or drops it. It is forwarded if the scheduler has failed.
	d.enqueue(t, c, route)
}

// serve answers a call whose model is loaded, on a goroutine that may wait for the answer. Steps of ensembles come here too.
func (d *Dispatcher) serve(c *call, route *route, queueable bool) answer {
	switch {
	case c.whole && !d.leaves(route.name):
		return d.walk(c, route)
	case !queueable:
		return d.passThrough(c)
	}
	await := c.awaited()
	d.enqueue(nil, c, route)
	return await()
}

// aside does for a call what may block: on the goroutine of its caller, if that one waits, else on another.
func (d *Dispatcher) aside(c *call, do func()) {
	if c.waits {
		do()
		return
	}
	d.workers.start(func() {
		defer d.rescue(c)
		do()
	})
}

// rescue answers a call whose handling has panicked before it was queued. Call it deferred.
func (d *Dispatcher) rescue(c *call) {
	if recovered(d.o.Logger, "handling a request", recover()) && c.is(unqueued) {
		d.answer(nil, c, answer{err: errFault})
	}
}

// newCall opens the ticket of a request.
func (d *Dispatcher) newCall(ctx context.Context, r *batch.Request) *call {
	c := &call{req: r}
	timeout, _ := r.Timeout()
	c.id = r.ID
	c.open(ctx, d, timeout)
	return c
}

// arrive gives a call its model, counts it, and reports it to the Observer and the
// Recorder. Queueable is whether the call may be queued and share an execution.
func (d *Dispatcher) arrive(c *call, route *route) (queueable bool) {
	r, asked := c.req, &c.asked
	c.moveTo(route.model)
	c.executes, c.tally = route.executes, route.tallyOf(r.Version)
	if !asked.came.IsZero() { // it waited for a model that did not run
		c.begins, c.loaded = d.clock.Now(), true
	}
	if route.spec.Cold {
		c.patience(d.o.LoadWait)
	}
	c.atModel = true
	route.counts.arrive(c.begins)
	queueable = c.queueable(route)
	c.setDue(route)
	c.span = d.o.Spans.Request(c.ctx, r.Model, r.Version, r.ID, c.rows, c.arrived)
	d.o.Observer.Arrived(r.Model, c.rows, c.begins)
	if asked.name != "" {
		d.o.Observer.Asked(Asked{Name: asked.name, Model: r.Model, Wish: asked.target.Wish, Rows: c.rows, At: c.begins, Again: c.loaded})
	}
	if d.o.Recorder.Recording() {
		d.record(c, route)
	}
	return queueable
}

// record reports a request to the Recorder, under the name that the request asked
// for, with its SLO, and with its timeout or gRPC deadline where that is sooner.
func (d *Dispatcher) record(c *call, route *route) {
	r := c.req
	a := Arrival{Model: c.nameOf(), At: c.begins, Rows: c.rows, SLO: max(0, c.asked.within(route.spec.SLO))}
	for i := range r.Inputs {
		a.Bytes += int64(r.Inputs[i].Data.Len())
	}
	sooner := func(limit time.Duration) {
		if a.SLO > 0 && limit < a.SLO && (a.Deadline == 0 || limit < a.Deadline) {
			a.Deadline = max(time.Microsecond, limit)
		}
	}
	if timeout := c.shortens(route); timeout > 0 {
		sooner(timeout)
	}
	if deadline, ok := c.ctx.Deadline(); ok {
		sooner(deadline.Sub(c.arrived))
	}
	d.o.Recorder.Record(a)
}

// UnderWay is how many requests and streams are accepted and not finished, and
// the bytes of those requests: what MaxQueuedRequests and MaxQueuedBytes bound.
func (d *Dispatcher) UnderWay() (requests, bytes int64) {
	all, _ := d.admission.underWay()
	return all.requests, all.bytes
}

// enqueue queues a call, which gets its answer from there. What the scheduler decides at once is executed here: switching to another goroutine and back is
// most of what the queue would cost a request that runs alone.
func (d *Dispatcher) enqueue(t *wire.Turn, c *call, route *route) {
	c.setDeadline(d, route)
	c.setStay(route)
	c.watch()
	switch d.queues.enqueue(t, c) {
	case isQueued:
	case isGone:
		d.answer(t, c, answer{err: status.FromContextError(c.ctx.Err()).Err(), result: Cancelled})
	case isUnknown:
		d.aside(c, func() { d.unloaded(c) })
	case isOut:
		d.aside(c, func() { d.answer(nil, c, d.outage(c)) })
	case isUnqueued:
		d.aside(c, func() { d.answer(nil, c, d.passThrough(c)) })
	}
}

// unloaded answers a call whose model was unloaded since its route was read.
func (d *Dispatcher) unloaded(c *call) {
	if route := d.elsewhere(c); route != nil {
		if !c.keyed && !c.lone || c.rows > route.maxBatch {
			d.answer(nil, c, d.passThrough(c))
		} else {
			d.enqueue(nil, c, route)
		}
		return
	}
	_, err := d.route(c.req.Model)
	if err == nil { // and it is back
		d.answer(nil, c, d.passThrough(c))
		return
	}
	d.answer(nil, c, answer{err: d.unserved(c.req, err), result: Refused, reason: reasonUnloaded})
}

// outage answers a call whose model the queue has marked as out. If the router has a partition for the model again, the call is passed through to
// it.
func (d *Dispatcher) outage(c *call) answer {
	if a, out := d.out(c); out {
		return a
	}
	return d.passThrough(c)
}

// out reports whether no partition serves a call's model, and returns the answer
// for that case.
func (d *Dispatcher) out(c *call) (a answer, out bool) {
	err := d.router.Out(c.req.Model)
	if err == nil && c.member != nil { // the group's outage is declared a moment before the member's
		err = renamed(d.router.Out(c.member.Group), c.member)
	}
	if err != nil && c.suspicion != nil && c.suspicion.OfGroup() { // it failed in the group, which is out since
		err = c.suspicion.err
	}
	return answer{err: err, result: Failed, reason: "outage"}, err != nil
}

// dropped handles a call that the scheduler has dropped. Guarded by queues.mu.
func (d *Dispatcher) dropped(c *call, why queue.DropReason) {
	now := func(a answer) {
		c.set(done)
		d.queues.answers = append(d.queues.answers, dropped{c, a})
	}
	switch why {
	case queue.DropModelRemoved, queue.DropClosed, queue.DropTooLarge:
	case queue.DropOutage:
		if a, out := d.out(c); out {
			now(a)
			return
		}
	case queue.DropFull:
		now(refusal(reasonLevel, batch.ErrFull(c.req)))
		return
	default:
		now(answer{err: errExpired, result: Dropped, reason: why.String()})
		return
	}
	// The call was admitted, so it is served, by a worker: Close closes the queues before the workers.
	c.set(running)
	c.req.Ref()
	if why != queue.DropTooLarge && d.queues.changesQueue(c) {
		d.workers.start(func() { d.move(c) }) // move queues it again
		return
	}
	serve := func() answer { return d.passThrough(c) }
	if why == queue.DropModelRemoved {
		// The lease is taken now, because the router removes the model a moment
		// later.
		if lease, _, err := d.router.Acquire(c.req.Model, router.Hints{}); err == nil {
			serve = func() answer {
				if refused, ok := c.sure(); !ok {
					lease.Release()
					return d.yielded(c, refused)
				}
				a, _ := d.outside(c, lease)
				return a
			}
		}
	}
	d.workers.start(func() {
		defer c.req.Free()
		d.answer(nil, c, d.safely(serve))
	})
}

// move queues a call again, under a table that comes into force.
func (d *Dispatcher) move(c *call) {
	defer c.req.Free()
	d.queues.afterSwap() // the new table is in force after this
	how := isUnqueued
	if route, err := d.route(c.req.Model); err == nil {
		if key, rows, ok, _ := route.rules.Key(c.req); ok && rows <= route.maxBatch {
			how = d.queues.putBack(c, key)
		}
	}
	switch how {
	case isQueued:
	case isGone:
		d.left(c)
	case isOut:
		d.answer(nil, c, d.safely(func() answer { return d.outage(c) }))
	default:
		d.answer(nil, c, d.safely(func() answer { return d.passThrough(c) }))
	}
}

// errExpired is Triton's answer to a request that waited for too long.
var errExpired = status.Error(codes.Unavailable, "Request timeout expired")

// answer gives a call its answer. The answer of a call that its caller has left is counted and
// freed. Triton, too, completes and counts a request whose caller has gone.
func (d *Dispatcher) answer(t *wire.Turn, c *call, a answer) {
	if d.queues.end(c) {
		c.give(t, a)
		return
	}
	d.unwanted(c, a)
}

// SetPartitionState sets whether a partition's server is up with its models
// loaded, and the reason. A partition that was ordered down stays down until it is
// ordered up. The state of a partition that no table has named yet is kept.
func (d *Dispatcher) SetPartitionState(id string, up bool, reason string) {
	d.router.Set(id, up, reason)
}

// Partitions lists the partitions of the table in force, in its order, and then
// those that drain.
func (d *Dispatcher) Partitions() []router.PartitionState { return d.router.Partitions() }

// Drained is closed when the last use of a place that a Swap removed has ended:
// see router.Router.
func (d *Dispatcher) Drained(partition, model string) <-chan struct{} {
	return d.router.Drained(partition, model)
}

// Unhealthy lists the places of the table in force that are ejected, because their executions fail, or on probation.
func (d *Dispatcher) Unhealthy() []router.PlaceHealth { return d.router.Unhealthy() }

// Fault returns the scheduler's fault, after which requests are not queued but
// forwarded at once; nil: there is none.
func (d *Dispatcher) Fault() error { return d.queues.failure() }

// Drain refuses new requests, on open streams too, and waits until every accepted
// one has been answered, or ctx ends. Streams end when nothing is under way any
// more.
func (d *Dispatcher) Drain(ctx context.Context) error { return d.admission.drain(ctx) }

// Draining reports whether Drain was called.
func (d *Dispatcher) Draining() bool {
	_, draining := d.admission.underWay()
	return draining
}

// Close ends the dispatcher's goroutines and connections. Requests that still
// wait fail with UNAVAILABLE.
func (d *Dispatcher) Close() error {
	d.admission.startDrain()
	d.cancel()
	err := d.router.Close()
	d.queues.close() // from now on nothing is dropped
	d.watch.close()
	d.workers.all.close()
	d.attempts.close()
	return err
}

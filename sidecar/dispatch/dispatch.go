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

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/clock"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
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

	endedTwice atomic.Int64    // tickets that ended again: faults of Conch's
	background context.Context // ends with Close
	cancel     context.CancelFunc
	tasks      tasks
	swapping   sync.Mutex // held by Swap
}

// New starts a dispatcher without models.
func New(o Options) *Dispatcher {
	d := &Dispatcher{o: o.withDefaults()}
	d.clock = d.o.Clock
	d.admission.init(held{int64(d.o.MaxQueuedRequests), d.o.MaxQueuedBytes})
	d.loads = loads{limit: d.o.MaxLoadWaiters, patience: d.o.LoadWait, begun: d.o.LoadWanted, models: map[string]*load{}}
	d.background, d.cancel = context.WithCancel(context.Background())
	d.workers = newWorkers(d.background, d.execute)
	d.router = router.New(router.Options{
		Clock: d.clock, Logger: d.o.Logger, OutageWait: d.o.OutageWait, Connections: d.o.Connections, Forward: d.o.Forward,
		SharedMemoryBytes: d.o.SharedMemoryBytes, Busy: d.o.Observer.Busy,
		Unknown:        d.unknown,
		Attach:         func(_ string, p *router.Process) any { return &partitionSeries{partition: p.ID()} },
		ProcessChanged: func(p *router.Process) { d.queues.follow(p) },
		ModelChanged:   func(name string) { d.queues.followModel(name) },
		PlaceChanged: func(p *router.Process, now router.PlaceHealth) {
			d.queues.followPlace(p)
			if !now.Absent { // the plan way sees itself which models a server has
				d.o.PlaceChanged(now)
			}
		},
	})
	d.queues = newQueues(d.clock, d.o.Logger, d.router, d.workers.start, d.dropped)
	if d.o.HangFloor > 0 {
		d.queues.watch, d.queues.watchAfter = d.watch, min(watchInterval, d.o.HangFloor/4)
	}
	return d
}

// call is the ticket of a request for inference that Conch has read.
type call struct {
	ticket
	req   *batch.Request
	key   uint64      // equal for requests that may share an execution
	batch bool        // its rules have a key and rows for it
	done  chan answer // buffered: a send never blocks

	// phase changes only under queues.mu; done and left are never changed again, so that they may be read without it.
	phase atomic.Uint32
	// What follows belongs to who has the call: whoever holds queues.mu while it is queued, its attempt while it runs.
	queued queue.Request
	// executes is the model whose executions the call is in: its own, or the merge group that member names.
	executes *model
	member   *batch.Membership
	retried  bool // it was sent once to a server that did not answer
	absences int  // of its merge group, on servers that it was sent to
	// suspicion is the last fault of a place that it may have caused; nil: none.
	suspicion *suspicion
	// apart: its key in the queue is not its own. Piece is the part of a failed batch that it is queued in; nil: none.
	apart bool
	piece *piece
}

// phase is where a call is on its way.
type phase = uint32

const (
	// unqueued: its caller has it. It is not queued yet, or it is executed outside the queue.
	unqueued phase = iota
	// queued: the scheduler has it.
	queued
	// running: an attempt has it, or a task that passes it through.
	running
	// done: it has its answer, or will not get one because its caller has taken it out of the queue.
	done
	// left: its caller has left it while it was running. Its answer is only counted.
	left
)

func (c *call) now() phase      { return c.phase.Load() }
func (c *call) is(p phase) bool { return c.phase.Load() == p }

// set changes the phase of a call, and counts those that wait in the queue of their model's merge group. Guarded by queues.mu.
func (c *call) set(p phase) {
	if was := c.is(queued); was != (p == queued) && c.member != nil {
		if was {
			c.model.inGroup--
		} else {
			c.model.inGroup++
		}
	}
	c.phase.Store(p)
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

// Infer answers one request. It takes over one reference to r. Errors are gRPC
// status errors with Triton's text. The caller frees the response.
//
// This is the request path, top-down.
func (d *Dispatcher) Infer(ctx context.Context, r *batch.Request) (*batch.Response, error) {
	defer r.Free()

	// 1. Which model? The one of that name, or what serves the name (an app, a member
	// of a derived model). The table is immutable; a Swap meanwhile does not matter.
	c := d.newCall(ctx, r)
	defer c.closed()
	route, a, ok := d.resolve(c)
	if !ok {
		return nil, d.early(c, &a)
	}
	queueable := d.arrive(c, route)

	// 2. Is it admitted? Requests that would crash a server, requests beyond the
	// limits, and new requests during a drain are refused.
	if err := d.hazard(r, route.rules); err != nil {
		return d.finish(c, answer{err: err, result: Rejected, reason: reasonRefused})
	}
	if a, ok := c.admitted(); !ok {
		return d.finish(c, a)
	}

	// 3. A model that loads on demand may have to be loaded first.
	if route.spec.Cold {
		loaded, a, ok := d.awaitLoad(c)
		if !ok {
			return d.finish(c, a)
		}
		route, queueable = loaded, c.queueable(loaded)
	}

	// 4. A request that cannot share an execution is forwarded now.
	if !queueable {
		return d.finish(c, d.passThrough(c))
	}

	// 5. Every other request is queued. The scheduler passes it to execute, alone
	// or in a batch, or drops it. It is forwarded if the scheduler has failed.
	return d.finish(c, d.result(c, d.enqueue(c, route)))
}

// newCall opens the ticket of a request.
func (d *Dispatcher) newCall(ctx context.Context, r *batch.Request) *call {
	c := &call{req: r, done: make(chan answer, 1)}
	timeout, _ := r.Timeout()
	c.id = r.ID
	c.open(ctx, d, timeout)
	return c
}

// admitted admits a call, unless it was before, while it waited for a variant.
func (c *call) admitted() (refused answer, ok bool) {
	if c.under != nil {
		return answer{}, true
	}
	late := int64(0)
	if c.executes != nil {
		late = c.executes.late.Load()
	}
	return c.admit(sizeOfRequest(c.req), late)
}

// arrive gives a call its model, counts it, and reports it to the Observer and the
// Recorder. Queueable is whether the call may be queued and share an execution.
func (d *Dispatcher) arrive(c *call, route *route) (queueable bool) {
	r, asked := c.req, &c.asked
	c.moves(route.model)
	c.executes, c.tally = route.executes, route.tallyOf(r.Version)
	if !asked.came.IsZero() { // it waited for a model that did not run
		c.begins, c.loaded = d.clock.Now(), true
	}
	if route.spec.Cold {
		c.patience(d.o.LoadWait)
	}
	c.here = true
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

// queueable reports whether a call may be queued and share an execution, by the
// rules of a route. It sets the call's key and rows.
func (c *call) queueable(route *route) bool {
	key, rows, ok, _ := route.rules.Key(c.req)
	c.rows, c.batch, c.key = max(1, rows), ok, key
	c.queued.Key, c.queued.Rows = key, int32(rows)
	return ok && rows <= route.maxBatch && !route.executes.unsplittable.Load()
}

// setDue sets when the answer is due: the soonest of the model's SLO, the latency that was asked of an app, the
// `timeout` parameter and the gRPC deadline. An answer after it is late, whether the request was queued or passed
// through. The `timeout` and the gRPC deadline only shorten an SLO: clients set them generously, and a batch must not be
// delayed until the end of a generous one.
func (c *call) setDue(route *route) {
	slo := c.asked.within(route.spec.SLO)
	if slo <= 0 {
		return
	}
	c.due = c.begins.Add(slo)
	if c.timeout > 0 && c.arrived.Add(c.timeout).Before(c.due) {
		c.due = c.arrived.Add(c.timeout)
	}
	if deadline, ok := c.ctx.Deadline(); ok && deadline.Before(c.due) {
		c.due = deadline
	}
}

// setDeadline sets the deadline that the queue plans with. It is earlier than
// c.due by the response budget and by the margin of who executes it for prediction errors.
func (c *call) setDeadline(d *Dispatcher, route *route) {
	c.queued.Arrival = d.queues.time(c.begins)
	c.queued.Deadline = queue.Never
	if c.due.IsZero() {
		return
	}
	back := d.o.ResponseBudget + route.executes.margin.Of(c.due.Sub(c.begins)-d.o.ResponseBudget)
	c.queued.Deadline = max(1, d.queues.time(c.due.Add(-back)))
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
	if c.timeout > 0 {
		sooner(c.timeout)
	}
	if deadline, ok := c.ctx.Deadline(); ok {
		sooner(deadline.Sub(c.arrived))
	}
	d.o.Recorder.Record(a)
}

// route finds a model in the table in force.
func (d *Dispatcher) route(name string) (*route, error) {
	t, err := d.table()
	if err != nil {
		return nil, err
	}
	r := t.models[name]
	if r == nil {
		return nil, t.table.Unknown(name, "")
	}
	return r, nil
}

// unknown is the error for a model that the table in force does not have.
func (d *Dispatcher) unknown(name string) error {
	if _, err := d.route(name); err != nil {
		return err
	}
	return new(router.Table).Unknown(name, "") // it has come a moment ago
}

// modelOf finds a model in the table in force; nil: it does not have it.
func (d *Dispatcher) modelOf(name string) *model {
	if r, err := d.route(name); err == nil {
		return r.model
	}
	return nil
}

// unserved returns the error for a request whose model has no route: err, or
// Triton's error for the version that the request asked for.
func (d *Dispatcher) unserved(r *batch.Request, err error) error {
	if t := d.routes.Load(); t != nil && r.Version != "" && t.models[r.Model] == nil {
		return t.table.Unknown(r.Model, r.Version)
	}
	return err
}

// UnderWay is how many requests and streams are accepted and not finished, and
// the bytes of those requests: what MaxQueuedRequests and MaxQueuedBytes bound.
func (d *Dispatcher) UnderWay() (requests, bytes int64) {
	all, _ := d.admission.underWay()
	return all.requests, all.bytes
}

// enqueue queues a call.
func (d *Dispatcher) enqueue(c *call, route *route) enqueued {
	c.setDeadline(d, route)
	return d.queues.enqueue(c)
}

// result waits for the answer to a call that was queued. An attempt of this call alone that the scheduler has decided on at once is
// made here, on the caller's goroutine, which would wait otherwise: switching to another goroutine and back is most of what the queue costs a request
// that runs alone.
func (d *Dispatcher) result(c *call, e enqueued) answer {
	switch e.how {
	case isQueued:
		if e.at != nil && e.at.mayLend() { // it may outlast its caller
			d.workers.start(e.at)
		} else if e.at != nil {
			e.at.inline = true
			d.execute(e.at)
		}
		return d.answered(c)
	case isUnknown:
		return d.unloaded(c)
	case isOut:
		return d.outage(c)
	}
	return d.passThrough(c)
}

// unloaded answers a call whose model was unloaded since its route was read.
func (d *Dispatcher) unloaded(c *call) answer {
	if route := d.elsewhere(c); route != nil {
		if !c.batch || c.rows > route.maxBatch {
			return d.passThrough(c)
		}
		return d.result(c, d.enqueue(c, route))
	}
	_, err := d.route(c.req.Model)
	if err == nil { // and it is back
		return d.passThrough(c)
	}
	return answer{err: d.unserved(c.req, err), result: Rejected, reason: reasonUnloaded}
}

// outage answers a call whose model the queue has marked as out. If the router has a process for the model again, the call is passed through to
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

// answered waits for the answer to a call, or until the caller's context ends. If the scheduler
// fails, it forwards a call that is still queued.
func (d *Dispatcher) answered(c *call) answer {
	select {
	case a := <-c.done:
		return a
	case <-c.ctx.Done():
	case <-d.queues.failed:
		if d.queues.takeBack(c) {
			return d.passThrough(c)
		}
		// It runs or has its answer.
		select {
		case a := <-c.done:
			return a
		case <-c.ctx.Done():
		}
	}
	if !d.queues.leave(c) {
		return <-c.done
	}
	return answer{err: status.FromContextError(c.ctx.Err()).Err(), result: Cancelled}
}

// dropped handles a call that the scheduler has dropped. Guarded by queues.mu.
func (d *Dispatcher) dropped(c *call, why queue.DropReason) {
	now := func(a answer) {
		c.set(done)
		c.done <- a
	}
	switch why {
	case queue.DropModelRemoved, queue.DropClosed, queue.DropTooLarge:
	case queue.DropOutage:
		if a, out := d.out(c); out {
			now(a)
			return
		}
	default:
		now(answer{err: errExpired, result: Dropped, reason: why.String()})
		return
	}
	// The call was admitted, so it is served. Close closes the queues before
	// tasks, so tasks.start starts the function.
	c.set(running)
	c.req.Ref()
	if why != queue.DropTooLarge && d.queues.moved(c) {
		d.tasks.start(func() { d.move(c) }) // move queues it again
		return
	}
	serve := func() answer { return d.passThrough(c) }
	if why == queue.DropModelRemoved {
		// The lease is taken now, because the router removes the model a moment
		// later.
		lease, _, err := d.router.Acquire(c.req.Model, router.Hints{})
		serve = func() answer {
			if err != nil {
				return answer{err: err}
			}
			a, _ := d.outside(c, lease)
			return a
		}
	}
	d.tasks.start(func() {
		defer c.req.Free()
		d.answer(c, d.safely(serve))
	})
}

// move queues a call again, under a table that comes into force.
func (d *Dispatcher) move(c *call) {
	defer c.req.Free()
	d.queues.awaitSwap() // the new table is in force after this
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
		d.answer(c, d.safely(func() answer { return d.outage(c) }))
	default:
		d.answer(c, d.safely(func() answer { return d.passThrough(c) }))
	}
}

// errExpired is Triton's answer to a request that waited for too long.
var errExpired = status.Error(codes.Unavailable, "Request timeout expired")

// answer gives a call its answer. The answer of a call that its caller has left is counted and
// freed. Triton, too, completes and counts a request whose caller has gone.
func (d *Dispatcher) answer(c *call, a answer) {
	if d.queues.end(c) {
		c.done <- a
		return
	}
	d.unwanted(c, a)
}

// SetPartitionState sets whether a partition's process is up with its models
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
	d.tasks.close()
	d.workers.all.close()
	return err
}

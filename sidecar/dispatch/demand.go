// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// loads holds the requests that wait for models that load on demand
// (router.Model.Cold). All requests for one model wait for the same load. It ends
// when a table comes into force in which the model is not cold or does not exist,
// or when FailLoad is called for the model.
type loads struct {
	limit    int           // requests that may wait, over all models
	patience time.Duration // of each
	// begun is called with a model once for each time that requests begin to wait for
	// it. No lock is held.
	begun func(model string)

	mu      sync.Mutex
	waiting int
	models  map[string]*load
}

// load is a load of a model that requests wait for.
type load struct {
	waiting int
	// begun is set once loads.begun was called for it.
	begun bool
	// changed is closed and replaced when the requests that wait should check the
	// table again.
	changed chan struct{}
	// denial is why nothing will load the model, as of when changed was closed.
	denial error
}

// Reasons of an Outcome whose request waited, or could not wait, for a load.
const (
	reasonLoadFull    = "load_full"
	reasonLoadTimeout = "load_timeout"
	reasonLoadDenied  = "load_denied"
)

// join counts a request in, or returns an error if too many wait. The channel is
// closed when the request should check the table again. A request that checks the
// table after join misses no change.
func (l *loads) join(model string) (pending *load, changed <-chan struct{}, err error) {
	l.mu.Lock()
	if l.waiting >= l.limit {
		n := l.waiting
		l.mu.Unlock()
		return nil, nil, status.Errorf(codes.Unavailable, "Request for model '%s' cannot wait until it is loaded: %d requests wait for models already (demand.requests)", model, n)
	}
	l.waiting++
	pending = l.models[model]
	if pending == nil {
		pending = &load{changed: make(chan struct{})}
		l.models[model] = pending
	}
	pending.waiting++
	changed = pending.changed
	l.mu.Unlock()
	return pending, changed, nil
}

// ask calls begun, unless another request that waits for the same load has done so, or the load was denied since the request joined it.
// Only a request that found the model unloaded after it joined asks for a load: the table by which it came here may have been replaced meanwhile.
func (l *loads) ask(model string, pending *load) {
	l.mu.Lock()
	first := !pending.begun && pending.denial == nil
	pending.begun = true
	l.mu.Unlock()
	if first && l.begun != nil {
		l.begun(model)
	}
}

// leave counts a request out.
func (l *loads) leave(model string, pending *load) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting--
	if pending.waiting--; pending.waiting == 0 && l.models[model] == pending {
		delete(l.models, model)
	}
}

// wake makes the requests that wait check the table again, except those for models
// for which keep is true.
func (l *loads) wake(keep func(model string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for model, pending := range l.models {
		if !keep(model) {
			close(pending.changed)
			pending.changed = make(chan struct{})
		}
	}
}

// fail ends the wait for a model with an error. Later requests wait for a new
// load, and begun is called again.
func (l *loads) fail(model string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if pending := l.models[model]; pending != nil {
		pending.denial = err
		close(pending.changed)
		delete(l.models, model)
	}
}

// until waits until ready, which checks the table in force, returns true or an
// error. If there is neither, the answer says why.
func (l *loads) until(t *ticket, model string, ready func() (bool, error)) (a answer, ok bool) {
	pending, on, err := l.join(model)
	if err != nil {
		return refusal(reasonLoadFull, err), false
	}
	defer l.leave(model, pending)
	for {
		if ok, err := ready(); ok || err != nil {
			return answer{err: err}, ok
		}
		l.ask(model, pending)
		if how := t.await(on); how != changed {
			late := status.Errorf(codes.Unavailable, "Request for model '%s' waited %v for it to be loaded (demand.wait)", model, l.patience)
			return t.gaveUp(how, refusal(reasonLoadTimeout, late)), false
		}
		l.mu.Lock()
		denial := pending.denial
		on = pending.changed
		l.mu.Unlock()
		if denial != nil {
			return refusal(reasonLoadDenied, denial), false
		}
	}
}

// awaitLoad waits until the model of a call is loaded, and returns the model's new
// route. The SLO counts from that moment; deadlines that the caller sets count
// from its arrival, the wait included.
func (d *Dispatcher) awaitLoad(c *call) (*route, answer, bool) {
	found, a, ok := d.loaded(&c.ticket, c.req.Model)
	switch {
	case ok:
		c.tally = found.tallyOf(c.req.Version)
		c.setDue(found)
	case a.result == OK: // the table does not have the model any more
		a = refusal(reasonUnloaded, d.unserved(c.req, a.err))
	}
	return found, a, ok
}

// loaded waits until a model is loaded, and moves the ticket to it.
func (d *Dispatcher) loaded(t *ticket, model string) (found *route, a answer, ok bool) {
	a, ok = d.loads.until(t, model, func() (bool, error) {
		route, err := d.route(model)
		found = route
		return err == nil && !route.spec.Cold, err
	})
	if ok {
		t.loaded, t.begins = true, d.clock.Now()
		t.moveTo(found.model)
	}
	return found, a, ok
}

// reasonUnloaded: the model of a request was unloaded since it came.
const reasonUnloaded = "unloaded"

// Wanted lists the models, sorted, that load on demand, are not loaded, and have
// requests under way: those that wait for the load, and those that were accepted
// before the model had to leave.
func (d *Dispatcher) Wanted() []string {
	var all []string
	if t := d.routes.Load(); t != nil {
		for name, r := range t.models {
			if r.spec.Cold && r.counts.underWay.Load() > 0 {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	return all
}

// FailLoad ends, with an error, the wait of requests for a model to be loaded. Why
// follows the model's name in the error's text.
func (d *Dispatcher) FailLoad(model, why string) {
	d.loads.fail(model, status.Errorf(codes.Unavailable, "Request for model '%s', which cannot be loaded now: %s", model, why))
}

// proxied leases a partition for the ticket of a request that is proxied, once its
// model is loaded if it loads on demand.
func (d *Dispatcher) proxied(t *ticket, model string) (lease router.Lease, a answer, ok bool) {
	if t.model != nil {
		if route, err := d.route(model); err == nil && route.spec.Cold {
			t.patience(d.o.LoadWait)
			if _, a, ok := d.loaded(t, model); !ok {
				return lease, a, false
			}
		}
	}
	lease, a = d.acquire(t, model)
	return lease, a, a.err == nil
}

// acquire leases a partition for a request that reaches its server unchanged. It
// refuses names that no server has a model of.
func (d *Dispatcher) acquire(t *ticket, model string) (router.Lease, answer) {
	in, err := d.table()
	if err != nil {
		return router.Lease{}, refusal(reasonNotReady, err)
	}
	switch r := in.models[model]; {
	case r == nil && in.names[model] != nil:
		return router.Lease{}, refusal(reasonInvalid, status.Errorf(codes.Unimplemented, "'%s' is served by other models: of the requests for it Conch serves those of the inference protocol (infer) only", model))
	case r != nil && r.spec.Internal:
		return router.Lease{}, refusal(reasonUnknown, in.table.Unknown(model, ""))
	}
	lease, a := t.lease(model, router.Hints{})
	if a.err == nil && lease.Membership() != nil {
		lease.Release()
		return router.Lease{}, refusal(reasonInvalid, status.Errorf(codes.Unimplemented, "model '%s' runs merged with others: of the requests for it Conch serves those of the inference protocol (infer) only", model))
	}
	return lease, a
}

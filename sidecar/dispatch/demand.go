// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/clock"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// loads holds the requests that wait for models that load on demand
// (router.Model.Cold). All requests for one model wait for the same load. It ends
// when a table comes into force in which the model is not cold or does not exist,
// or when Refuse is called for the model.
type loads struct {
	clock    clock.Clock
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
	// refusal is why nothing will load the model, as of when changed was closed.
	refusal error
}

// Reasons of an Outcome whose request waited, or could not wait, for a load.
const (
	reasonLoadFull    = "load_full"
	reasonLoadTimeout = "load_timeout"
	reasonLoadRefused = "load_refused"
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

// begin calls begun, unless another request that waits for the same load has done so, or the load was refused since the request joined it.
// Only a request that found the model unloaded after it joined begins a load: the table by which it came here may have been replaced meanwhile.
func (l *loads) begin(model string, pending *load) {
	l.mu.Lock()
	first := !pending.begun && pending.refusal == nil
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

// refuse ends the wait for a model with an error. Later requests wait for a new
// load, and begun is called again.
func (l *loads) refuse(model string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if pending := l.models[model]; pending != nil {
		pending.refusal = err
		close(pending.changed)
		delete(l.models, model)
	}
}

// await waits until ready, which checks the table in force, returns true or an
// error. The timeout is the request's own; 0 means none. The reason is an
// Outcome's; it is empty where the error is ctx's or ready's.
func (l *loads) await(ctx, background context.Context, model string, timeout time.Duration, ready func() (bool, error)) (reason string, err error) {
	pending, changed, err := l.join(model)
	if err != nil {
		return reasonLoadFull, err
	}
	defer l.leave(model, pending)
	patience, own := l.patience, false
	if timeout > 0 && timeout < patience {
		patience, own = timeout, true
	}
	late := make(chan struct{})
	timer := l.clock.After(patience, func() { close(late) })
	defer timer.Stop()
	for {
		if ok, err := ready(); ok || err != nil {
			return "", err
		}
		l.begin(model, pending)
		select {
		case <-changed:
			l.mu.Lock()
			refusal := pending.refusal
			changed = pending.changed
			l.mu.Unlock()
			if refusal != nil {
				return reasonLoadRefused, refusal
			}
		case <-late:
			if own {
				return reasonLoadTimeout, errExpired
			}
			return reasonLoadTimeout, status.Errorf(codes.Unavailable, "Request for model '%s' waited %v for it to be loaded (demand.wait)", model, l.patience)
		case <-ctx.Done():
			return "", status.FromContextError(ctx.Err()).Err()
		case <-background.Done():
			return "", errDraining
		}
	}
}

// awaitLoad waits until the model of a call is loaded, and returns the model's new
// route. The SLO counts from that moment; deadlines that the caller sets count
// from its arrival, the wait included.
func (d *Dispatcher) awaitLoad(c *call) (*route, answer, bool) {
	var found *route
	timeout, _ := c.req.Timeout()
	reason, err := d.loads.await(c.ctx, d.background, c.req.Model, timeout, func() (bool, error) {
		route, err := d.route(c.req.Model)
		found = route
		return err == nil && !route.spec.Cold, err
	})
	switch {
	case err == nil:
		c.loaded, c.begins = true, d.clock.Now()
		c.moves(found.model)
		c.tally = found.tallyOf(c.req.Version)
		c.setDue(found)
		return found, answer{}, true
	case errors.Is(err, errExpired):
		return nil, answer{err: err, result: Dropped, reason: reason}, false
	case reason != "":
		return nil, answer{err: err, result: Rejected, reason: reason}, false
	case c.ctx.Err() != nil:
		return nil, answer{err: err, result: Cancelled}, false
	}
	return nil, answer{err: d.unserved(c.req, err), result: Rejected, reason: "unloaded"}, false
}

// moves changes a call to one for another model, or for a model that was removed
// and added again.
func (c *call) moves(to *model) {
	if c.model != to {
		c.model.counts.end()
		to.counts.begin(c.arrived)
		c.model = to
	}
}

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

// Refuse ends, with an error, the wait of requests for a model to be loaded. Why
// follows the model's name in the error's text.
func (d *Dispatcher) Refuse(model, why string) {
	d.loads.refuse(model, status.Errorf(codes.Unavailable, "Request for model '%s', which cannot be loaded now: %s", model, why))
}

// lease leases a process that serves the model for a request that is proxied, once
// the model is loaded if it loads on demand. The request counts as under way until
// release. Loaded is whether it waited for that.
func (d *Dispatcher) lease(ctx context.Context, model string) (lease router.Lease, loaded bool, release func(), err error) {
	r, err := d.route(model)
	if err != nil || !r.spec.OnDemand {
		lease, err = d.acquire(ctx, model) // its error is Triton's
		return lease, false, lease.Release, err
	}
	r.counts.begin(d.clock.Now())
	if loaded = r.spec.Cold; loaded {
		_, err = d.loads.await(ctx, d.background, model, 0, func() (bool, error) {
			now, err := d.route(model)
			return err == nil && !now.spec.Cold, err
		})
	}
	if err == nil {
		lease, err = d.acquire(ctx, model)
	}
	if err != nil {
		r.counts.end()
		return lease, loaded, nil, err
	}
	return lease, loaded, func() { lease.Release(); r.counts.end() }, nil
}

// acquire leases a process for a request that reaches its server unchanged. It
// refuses names that no server has a model of.
func (d *Dispatcher) acquire(ctx context.Context, model string) (router.Lease, error) {
	if t := d.routes.Load(); t != nil {
		switch r := t.models[model]; {
		case r == nil && t.names[model] != nil:
			return router.Lease{}, status.Errorf(codes.Unimplemented, "'%s' is served by other models: of the requests for it Conch serves those of the inference protocol (infer) only", model)
		case r != nil && r.spec.Internal:
			return router.Lease{}, t.table.Unknown(model, "")
		}
	}
	lease, err := d.router.Acquire(ctx, model, router.Hints{})
	if err == nil && lease.Membership() != nil {
		lease.Release()
		return router.Lease{}, status.Errorf(codes.Unimplemented, "model '%s' runs merged with others: of the requests for it Conch serves those of the inference protocol (infer) only", model)
	}
	return lease, err
}

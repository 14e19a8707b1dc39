// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
)

// asked is what a request asked for before it became one for a model: of a request
// for a model by its own name it is zero.
type asked struct {
	name       string
	version    string
	parameters []batch.Parameter
	target     names.Target
	// came is when the request began to wait for a model that did not run; zero: it
	// did not wait. The Observer knows then that the name was asked for.
	came time.Time
}

// what follows from the name that a request asks for: the table's routes, the
// model that serves it there, and what is to be told of both.
//
// A name whose wish nothing that runs can meet, and something that does not run
// could, is told to Options.Wanted; unless that refuses, the request waits for a
// table that has it, as long as requests wait for a model none of whose partitions
// is up, and no longer than its own timeout.
func (d *Dispatcher) resolve(ctx context.Context, r *batch.Request, own int64) (*route, asked, error) {
	t, err := d.table()
	if err != nil {
		return nil, asked{}, err
	}
	if route := t.models[r.Model]; route != nil && !route.spec.Internal {
		return route, asked{}, nil
	}
	before := asked{name: r.Model, version: r.Version, parameters: r.Parameters}
	if t.names[r.Model] == nil {
		return nil, before, d.unserved(r, t.table.Unknown(r.Model, ""))
	}
	for {
		resolver := t.names[r.Model]
		if resolver == nil {
			return nil, before, d.unserved(r, t.table.Unknown(r.Model, ""))
		}
		target, err := resolver.Resolve(r, d.queues.time(d.now()).Duration())
		var inactive *names.InactiveError
		switch {
		case errors.As(err, &inactive):
			if before.came.IsZero() {
				before.came = d.now()
				d.o.Observer.Asked(Asked{Name: before.name, Wish: inactive.Wish, Rows: inactive.Rows, At: before.came})
			}
			if err := d.o.Wanted(*inactive); err != nil {
				return nil, before, err
			}
			if err := d.awaitTable(ctx, r, own, t, before.came); err != nil {
				return nil, before, err
			}
			if t, err = d.table(); err != nil {
				return nil, before, err
			}
			continue
		case err != nil:
			return nil, before, err
		}
		before.target = target
		if route := t.models[target.Model]; route != nil {
			return route, before, nil
		}
		return nil, before, status.Errorf(codes.Unavailable, "'%s' is served by '%s', which the route table does not have", before.name, target.Model)
	}
}

// awaitTable waits for the table after t, as a request that was let in and waits
// since it came.
func (d *Dispatcher) awaitTable(ctx context.Context, r *batch.Request, own int64, t *routes, came time.Time) error {
	size, _, err := d.admission.admit(r, own)
	if err != nil {
		return err
	}
	defer d.admission.leave(size)
	patience := make(chan struct{})
	wait, late := d.o.OutageWait, status.Errorf(codes.Unavailable, "no variant of '%s' that meets the request runs, and none was started in time", r.Model)
	if limit, ok := r.Timeout(); ok && limit < wait {
		wait, late = limit, errExpired
	}
	timer := d.clock.After(came.Add(wait).Sub(d.now()), func() { close(patience) })
	defer timer.Stop()
	select {
	case <-t.superseded:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-d.background.Done():
		return errDraining
	case <-patience:
		return late
	}
}

// elsewhere makes of a call whose model has left the table since it was resolved
// one for another model, where it asked for a name that others serve too. It leaves
// a call alone whose caller has gone: that is being counted out.
func (d *Dispatcher) elsewhere(c *call) *route {
	if c.asked.name == "" {
		return nil
	}
	d.queues.settled() // until then resolve finds the table that had the model
	again := &batch.Request{Model: c.asked.name, Version: c.asked.version, Parameters: c.asked.parameters}
	if len(c.req.Inputs) > 0 {
		again.Inputs = []batch.Tensor{{Shape: c.req.Inputs[0].Shape}}
	}
	route, asked, err := d.resolve(c.ctx, again, 2)
	if err != nil || route.name == c.model.name {
		return nil
	}
	d.queues.mu.Lock()
	defer d.queues.mu.Unlock()
	if c.state.Load() != waiting {
		return nil
	}
	c.req.Model, c.req.Version, c.req.Parameters = again.Model, again.Version, again.Parameters
	c.moves(route.model)
	c.asked, c.tally = asked, route.tallyOf(c.req.Version)
	key, rows, ok, _ := route.rules.Key(c.req)
	c.queued.Key, c.batch = key, ok
	c.rows, c.queued.Rows = max(1, rows), int32(rows)
	c.setDue(route)
	return route
}

// within shortens what a model promises to what the request asked for.
func (a *asked) within(promised time.Duration) time.Duration {
	if limit := a.target.Wish.Latency; limit > 0 && (promised <= 0 || limit < promised) {
		return limit
	}
	return promised
}

// nameOf is what a call asked for: the name that its caller knows.
func (c *call) nameOf() string {
	if c.asked.name != "" {
		return c.asked.name
	}
	return c.req.Model
}

func (d *Dispatcher) now() time.Time { return d.clock.Now() }

// table is what is in force.
func (d *Dispatcher) table() (*routes, error) {
	t := d.routes.Load()
	if t == nil {
		return nil, status.Error(codes.Unavailable, "Server not ready: no route table yet")
	}
	return t, nil
}

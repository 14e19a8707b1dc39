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
}

// what follows from the name that a request asks for: the table's routes, the
// model that serves it there, and what is to be told of both.
//
// A name whose wish nothing that runs can meet, and something that does not run
// could, is told to Options.Wanted; the request waits for a table that has it, as
// long as requests wait for a model none of whose partitions is up.
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
	give := d.now().Add(d.o.OutageWait)
	for {
		resolver := t.names[r.Model]
		if resolver == nil {
			return nil, before, d.unserved(r, t.table.Unknown(r.Model, ""))
		}
		target, err := resolver.Resolve(r, d.queues.time(d.now()).Duration())
		var inactive *names.InactiveError
		switch {
		case errors.As(err, &inactive):
			d.o.Observer.Asked(Asked{Name: before.name, Wish: inactive.Wish, Rows: max(1, r.Rows()), At: d.now()})
			d.o.Wanted(*inactive)
			if err := d.awaitTable(ctx, r, own, t, give); err != nil {
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

// awaitTable waits for the table after t, as a request that was let in.
func (d *Dispatcher) awaitTable(ctx context.Context, r *batch.Request, own int64, t *routes, give time.Time) error {
	size, _, err := d.admission.admit(r, own)
	if err != nil {
		return err
	}
	defer d.admission.leave(size)
	patience := make(chan struct{})
	timer := d.clock.After(give.Sub(d.now()), func() { close(patience) })
	defer timer.Stop()
	select {
	case <-t.superseded:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-d.background.Done():
		return errDraining
	case <-patience:
		return status.Errorf(codes.Unavailable, "no variant of '%s' that meets the request runs, and none was started in time", r.Model)
	}
}

// elsewhere makes of a call whose model has left the table since it was resolved
// one for another model, where it asked for a name that others serve too.
func (d *Dispatcher) elsewhere(c *call) *route {
	if c.asked.name == "" {
		return nil
	}
	c.req.Model, c.req.Version, c.req.Parameters = c.asked.name, c.asked.version, c.asked.parameters
	route, asked, err := d.resolve(c.ctx, c.req, 2)
	if err != nil || route.name == c.model.name {
		return nil
	}
	c.moves(route.model)
	c.asked, c.tally = asked, route.tallyOf(c.req.Version)
	key, _, ok, _ := route.rules.Key(c.req)
	c.queued.Key, c.batch = key, ok
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

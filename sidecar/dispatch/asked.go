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

// resolve finds the model that serves what a request asks for, as look does, and waits for it.
//
// A name whose wish nothing that runs can meet, and something that does not run
// could, is told to Options.Wanted; unless that refuses, the request waits for a
// table that has it, as long as requests wait for a model none of whose partitions
// is up, and no longer than its own timeout. Own is as of admission.admit; 0 where
// the request was let in before. Unless it is ok, the answer says why; it has been
// given to nobody.
func (d *Dispatcher) resolve(ctx context.Context, r *batch.Request, own int64) (route *route, of asked, a answer, ok bool) {
	f := d.look(r, &of)
	return d.awaitFound(ctx, r, own, of, f)
}

// awaitFound is what is left of resolve after the first look.
func (d *Dispatcher) awaitFound(ctx context.Context, r *batch.Request, own int64, of asked, f found) (*route, asked, answer, bool) {
	for f.inactive != nil {
		if a, ok := d.awaitVariant(ctx, r, own, &f, of.came); !ok {
			return nil, of, a, false
		}
		f = d.look(r, &of)
	}
	return f.route, of, f.refusal, f.route != nil
}

// found is what a table has for a name: a route, or a variant that does not run, or
// neither, and why.
type found struct {
	route    *route
	inactive *names.InactiveError
	refusal  answer
	in       *routes // nil: there is none yet
}

// look follows the name that a request asks for in the table in force: to the
// model's route, or that of the model that serves the name there, and notes what
// is to be told of both.
func (d *Dispatcher) look(r *batch.Request, of *asked) (f found) {
	t, err := d.table()
	if err != nil {
		return found{refusal: refusal(reasonNotReady, err)}
	}
	f.in = t
	if route := t.models[r.Model]; route != nil && !route.spec.Internal {
		*of = asked{came: of.came}
		f.route = route
		return f
	}
	*of = asked{name: r.Model, version: r.Version, parameters: r.Parameters, came: of.came}
	resolver := t.names[r.Model]
	if resolver == nil {
		f.refusal = refusal(reasonUnknown, d.unserved(r, t.table.Unknown(r.Model, "")))
		return f
	}
	target, err := resolver.Resolve(r, d.queues.time(d.now()).Duration())
	if err != nil {
		if f.inactive = inactive(err); f.inactive == nil {
			f.refusal = refusal(reasonOf(err), err)
		} else if of.came.IsZero() {
			of.came = d.now()
			d.o.Observer.Asked(Asked{Name: of.name, Wish: f.inactive.Wish, Rows: f.inactive.Rows, At: of.came})
		}
		return f
	}
	of.target = target
	if f.route = t.models[target.Model]; f.route == nil {
		f.refusal = refusal(reasonNoVariant, status.Errorf(codes.Unavailable, "'%s' is served by '%s', which the route table does not have", of.name, target.Model))
	}
	return f
}

// inactive is the variant that an error is about, nil if it is none.
func inactive(err error) *names.InactiveError {
	var of *names.InactiveError
	if errors.As(err, &of) {
		return of
	}
	return nil
}

// reasonOf is why a resolver refuses a request: that of an Outcome.
func reasonOf(err error) string {
	switch {
	case names.Unmet(err):
		return reasonNoVariant
	case status.Code(err) == codes.NotFound:
		return reasonUnknown
	}
	return reasonRefused
}

// awaitVariant has a variant asked for that does not run, and waits for the next
// table, as a request that was let in and waits since it came.
func (d *Dispatcher) awaitVariant(ctx context.Context, r *batch.Request, own int64, f *found, came time.Time) (a answer, ok bool) {
	if err := d.o.Wanted(*f.inactive); err != nil {
		return refusal(reasonNoVariant, err), false
	}
	if own > 0 {
		size, reason, err := d.admission.admit(r, own)
		if err != nil {
			return refusal(reason, err), false
		}
		defer d.admission.leave(size)
	}
	patience := make(chan struct{})
	wait, late := d.o.OutageWait, refusal(reasonNoVariant, status.Errorf(codes.Unavailable, "no variant of '%s' that meets the request runs, and none was started in time", r.Model))
	if limit, ok := r.Timeout(); ok && limit < wait {
		wait, late = limit, answer{err: errExpired, result: Dropped, reason: reasonLoadTimeout}
	}
	timer := d.clock.After(came.Add(wait).Sub(d.now()), func() { close(patience) })
	defer timer.Stop()
	select {
	case <-f.in.superseded:
		return answer{}, true
	case <-ctx.Done():
		return gone(ctx), false
	case <-d.background.Done():
		return refusal(reasonDraining, errDraining), false
	case <-patience:
		return late, false
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
	route, asked, _, ok := d.resolve(c.ctx, again, 2)
	if !ok || route.name == c.model.name {
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
		return nil, errNotReady
	}
	return t, nil
}

// errNotReady is the answer to what comes before the first route table.
var errNotReady = status.Error(codes.Unavailable, "Server not ready: no route table yet")

// Ready is the answer to requests as long as there is no route table; nil: there is one.
func (d *Dispatcher) Ready() error {
	_, err := d.table()
	return err
}

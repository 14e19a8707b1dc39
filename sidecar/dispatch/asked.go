// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
)

// asked is the name that a request asked for, if Conch resolves it to a model of
// another name. The name is empty for a request that names its model.
type asked struct {
	name       string
	version    string
	parameters []batch.Parameter
	target     names.Target
	// came is when the request began to wait for a model that did not run; zero:
	// it did not wait. If it is set, Observer.Asked has been called for the
	// request.
	came time.Time
}

// awaitFound finds the model that serves a request, after the first look. It waits for a model that does not run.
//
// If no running variant meets the request's wish, but an inactive one could,
// awaitFound calls Options.Wanted. Unless Wanted returns an error, the request waits
// for a table in which one runs, and is admitted meanwhile. If ok is false, the
// answer says why; it has not been returned to the caller or counted.
func (d *Dispatcher) awaitFound(c *call, r *batch.Request, of *asked, f found) (*route, answer, bool) {
	for f.inactive != nil {
		if a, ok := d.awaitVariant(c, r, &f); !ok {
			return nil, a, false
		}
		f = d.look(r, of)
	}
	return f.route, f.refusal, f.route != nil
}

// found is the result of look: a route, or an inactive variant, or the refusal if
// there is neither.
type found struct {
	route    *route
	inactive *names.InactiveError
	refusal  answer
	in       *routes // the table that was read; nil: there is none yet
}

// look looks up the name that a request asks for in the table in force. It finds
// the route of the model of that name, or of the model that serves the name, and
// sets of to what was asked for. The first time that it finds an inactive variant
// for a request, it calls Observer.Asked.
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
		if !errors.As(err, &f.inactive) {
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

// reasonOf returns the reason of the Outcome for a resolver's error.
func reasonOf(err error) string {
	switch {
	case names.Unmet(err):
		return reasonNoVariant
	case status.Code(err) == codes.NotFound:
		return reasonUnknown
	}
	return reasonInvalid
}

// awaitVariant calls Options.Wanted for an inactive variant and waits for the next
// table.
func (d *Dispatcher) awaitVariant(c *call, r *batch.Request, f *found) (a answer, ok bool) {
	if err := d.o.Wanted(*f.inactive); err != nil {
		return refusal(reasonNoVariant, err), false
	}
	if a, ok := c.admitted(); !ok {
		return a, false
	}
	how := c.await(f.in.superseded)
	late := refusal(reasonNoVariant, status.Errorf(codes.Unavailable, "no variant of '%s' that meets the request runs, and none was started in time", r.Model))
	return c.gaveUp(how, late), how == changed
}

// elsewhere resolves a call again whose model has left the table since the call
// was resolved. It changes the call to one for another model if the call asked for
// a name that other models serve too, and returns that model's route, else nil. It
// does not change an abandoned call, because finish counts that one meanwhile.
func (d *Dispatcher) elsewhere(c *call) *route {
	if c.asked.name == "" {
		return nil
	}
	d.queues.afterSwap() // until then look finds the table that had the model
	again := &batch.Request{Model: c.asked.name, Version: c.asked.version, Parameters: c.asked.parameters}
	if len(c.req.Inputs) > 0 {
		again.Inputs = []batch.Tensor{{Shape: c.req.Inputs[0].Shape}}
	}
	var asked asked
	route, _, ok := d.awaitFound(c, again, &asked, d.look(again, &asked))
	if !ok || route.name == c.model.name {
		return nil
	}
	d.queues.mu.Lock()
	defer d.queues.mu.Unlock()
	if c.is(left) {
		return nil
	}
	c.req.Model, c.req.Version, c.req.Parameters = again.Model, again.Version, again.Parameters
	c.moveTo(route.model)
	c.asked, c.tally = asked, route.tallyOf(c.req.Version)
	c.queueable(route)
	c.setDue(route)
	return route
}

// within returns the shorter of a model's SLO and the latency that the request
// asked for; 0 stands for none.
func (a *asked) within(promised time.Duration) time.Duration {
	if limit := a.target.Wish.Latency; limit > 0 && (promised <= 0 || limit < promised) {
		return limit
	}
	return promised
}

// nameOf returns the name that the caller asked for.
func (c *call) nameOf() string {
	if c.asked.name != "" {
		return c.asked.name
	}
	return c.req.Model
}

func (d *Dispatcher) now() time.Time { return d.clock.Now() }

// table returns the routes in force.
func (d *Dispatcher) table() (*routes, error) {
	t := d.routes.Load()
	if t == nil {
		return nil, errNotReady
	}
	return t, nil
}

// errNotReady is the answer to requests before the first route table.
var errNotReady = status.Error(codes.Unavailable, batch.NotReady)

// Ready returns the error that requests get while there is no route table; nil:
// there is one.
func (d *Dispatcher) Ready() error {
	_, err := d.table()
	return err
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Reasons of an Outcome whose request was refused before a model was found for it.
const (
	// reasonUnknown: no model or name in the table has the name that it asked for,
	// or not in that version.
	reasonUnknown = "unknown_model"
	// reasonNoVariant: no variant of the app meets its wish, or none that does runs, and none was started in time.
	reasonNoVariant = "no_variant"
	// reasonInvalid: it cannot be served as it is written.
	reasonInvalid = "invalid"
	// reasonUnavailable: no partition could serve a proxied request in time.
	reasonUnavailable = "unavailable"
	// reasonNotReady: there is no route table yet.
	reasonNotReady = "not_ready"
)

// early reports the outcome of a request for which no model was found, and returns the error that answers it.
func (d *Dispatcher) early(c *call, a *answer) error {
	c.asked.name = d.served(c.asked.name)
	c.end(a)
	return a.err
}

// served returns a name if the table in force has it besides its models, else the
// empty string.
func (d *Dispatcher) served(name string) string {
	if t := d.routes.Load(); t != nil && t.names[name] != nil {
		return name
	}
	return ""
}

// Refused reports the outcome of a request that its front answered before it could
// be passed to Begin: its name is not served, its model does not have the
// protocol, there is no room for it, or it could not be read. The caller's context
// may also have ended before the request was whole. The model is what the request
// asked for, empty where that is not known; the error is its answer. An error that
// has a method Limit() string says with it which limit was met.
func (d *Dispatcher) Refused(ctx context.Context, model string, cause error) {
	t := new(ticket)
	t.open(ctx, d, 0)
	if t.asked.name = d.served(model); t.asked.name == "" {
		if route, err := d.route(model); err == nil && !route.spec.Internal {
			t.model = route.model
		}
	}
	a := refusal(reasonInvalid, cause)
	var limit interface{ Limit() string }
	switch code := status.Code(cause); {
	case code == codes.Canceled, code == codes.DeadlineExceeded:
		a.result, a.reason = Cancelled, ""
	case errors.As(cause, &limit):
		a.reason = limit.Limit()
	case errors.Is(cause, errNotReady):
		a.reason = reasonNotReady
	case errors.Is(cause, errDraining):
		a.reason = reasonDraining
	case t.asked.name == "" && t.model == nil && model != "", code == codes.NotFound:
		a.reason = reasonUnknown
	case code == codes.Unavailable:
		a.reason = reasonUnavailable
	}
	t.end(&a)
}

// gone is the answer to a request whose caller's context ended before a model was
// found.
func gone(ctx context.Context) answer {
	return answer{err: status.FromContextError(ctx.Err()).Err(), result: Cancelled}
}

// refusal is the answer to a request that is refused.
func refusal(reason string, err error) answer {
	return answer{err: err, result: Refused, reason: reason}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	"context"
	"errors"
	"fmt"
	nethttp "net/http"
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/spans"
)

// exchange is a request that passes through untouched: its server, its result, and its spans if it is traced.
type exchange struct {
	server Server
	model  string
	// status of the server's answer; err is why there is none.
	status int
	err    error
	// watch finds an error in an answer whose status is good; nil: the answer is not watched.
	watch *errorWatch
	// whole: the answer reached its end.
	whole bool

	request   *spans.Request
	execution *spans.Execution
}

type exchangeKey struct{}

func exchangeOf(r *nethttp.Request) *exchange {
	x, ok := r.Context().Value(exchangeKey{}).(*exchange)
	if !ok {
		return &exchange{} // no server has its endpoint
	}
	return x
}

// exchange begins an exchange, once its body has been read. The caller must call
// end.
func (h *Handler) exchange(r *nethttp.Request, rt route) *exchange {
	x := &exchange{model: rt.model}
	if h.o.Spans != nil {
		x.request = h.o.Spans.Request(spans.FromHTTP(r.Context(), r.Header), rt.model, rt.version, "", 0, time.Now())
		x.request.Proxied(requestPath(r))
	}
	return x
}

// sendTo sets the server that the request goes to, and begins the execution's span.
func (x *exchange) sendTo(server Server) {
	x.server = server
	if x.request != nil {
		x.execution = spans.Execute([]*spans.Request{x.request}, x.model, server.Partition, 0, 1, time.Now())
	}
}

var errBrokeOff = errors.New("the answer broke off")

// failure returns why it did not succeed: by the server's status, the errors in its answer, and whether the answer came whole; nil if it did.
func (x *exchange) failure() error {
	switch {
	case x.err != nil:
		return x.err
	case x.status >= nethttp.StatusBadRequest:
		return fmt.Errorf("HTTP status %d", x.status)
	case x.watch != nil && x.watch.failure != nil:
		return x.watch.failure
	case !x.whole:
		return errBrokeOff
	}
	return nil
}

// end ends the spans with the result. The context is the caller's.
func (x *exchange) end(caller context.Context) {
	if x.request == nil {
		return
	}
	now, result, err := time.Now(), "ok", x.failure()
	switch {
	case err != nil && caller.Err() != nil:
		result = "cancelled"
	case err != nil:
		result = "failed"
	}
	if x.status != 0 {
		x.request.Answered(x.status)
	}
	x.execution.End(now, err)
	x.request.End(now, result, "", true, false, err)
}

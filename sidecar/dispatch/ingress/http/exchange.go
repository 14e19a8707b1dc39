// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/spans"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// exchange is a request that passes through untouched: its server, its result, and its spans if it is traced.
type exchange struct {
	server Server
	model  string
	// status of the server's answer; err is why there is none.
	status int
	err    error
	// watch finds an error in the body of an answer; nil: the answer is not watched.
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
	case x.status >= nethttp.StatusBadRequest && x.watch != nil && x.watch.found:
		return fmt.Errorf("HTTP status %d: %s", x.status, x.watch.text)
	case x.status >= nethttp.StatusBadRequest:
		return fmt.Errorf("HTTP status %d", x.status)
	case x.watch != nil && x.watch.found:
		return fmt.Errorf("the answer, of HTTP status 200, has an error: %s", x.watch.text)
	case !x.whole:
		return errBrokeOff
	}
	return nil
}

// report is failure as the Picker takes it: what the same answer would be by gRPC.
func (x *exchange) report() error {
	err := x.failure()
	switch {
	case err == nil:
		return nil
	case !lost(x.err) && (x.err != nil || x.status == 0):
		return status.Error(codes.Unavailable, status.Convert(err).Message()) // there is no answer, and the server is not the reason
	case x.err != nil, x.status < nethttp.StatusBadRequest && !(x.watch != nil && x.watch.found):
		return fmt.Errorf("%w: %w", wire.ErrLost, err)
	}
	code, text := codeOf(x.status), err.Error()
	if x.watch != nil && x.watch.found {
		text = x.watch.text
		switch x.status { // 400 is the status of whatever an execution came to, 500 that of a body that is no JSON, too: the text says more
		case nethttp.StatusOK, nethttp.StatusBadRequest, nethttp.StatusInternalServerError:
			code = codes.Unknown
		}
	}
	return status.Error(code, text)
}

// codeOf is the gRPC code of a status of 400 or more that comes without a text. One that Triton does not answer with is the request's fault, or the server's, by
// HTTP's own meaning.
func codeOf(answered int) codes.Code {
	code, known := batch.CodeOfHTTP(answered)
	switch {
	case known:
		return code
	case answered < nethttp.StatusInternalServerError:
		return codes.InvalidArgument
	}
	return codes.Internal
}

// lost reports whether a request has no answer because the connection to the server could not be made, or has failed.
func lost(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, new(*net.OpError))
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

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// long serves an order that takes long: it streams progress, one JSON object a line, and last the result or the error. Ending the call ends
// the order.
func long[In, P, R any](s *server, order func(context.Context, In, func(P)) (R, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
		d.DisallowUnknownFields()
		if err := d.Decode(&in); err != nil && !errors.Is(err, io.EOF) {
			s.fail(w, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("body of %s %s: %v", r.Method, r.URL.Path, err)})
			return
		}
		if o, isOrder := any(&in).(api.Order); isOrder {
			*o.By() = author(r.Context(), *o.By())
		}
		w.Header().Set("Content-Type", api.LinesType)
		w.Header().Set("Cache-Control", "no-store")
		to := stream(w)
		defer to.over()
		lines := json.NewEncoder(to)
		write := func(l api.Line[P, R]) {
			if err := errors.Join(lines.Encode(l), to.Flush()); err != nil {
				s.log.Debug("progress of an order not delivered", "order", r.URL.Path, "error", err)
			}
		}
		out, err := order(r.Context(), in, func(p P) { write(api.Line[P, R]{Progress: &p}) })
		if err == nil {
			write(api.Line[P, R]{Result: &out})
			return
		}
		var known *api.Error
		if !errors.As(err, &known) {
			known = &api.Error{Code: api.CodeInternal, Message: err.Error()}
		}
		write(api.Line[P, R]{Error: known})
	}
}

// either serves an order that takes long to callers who accept lines as [long] does, and to others as [order] does.
func either[In, P, R any](s *server, call func(context.Context, In, func(P)) (R, error)) http.HandlerFunc {
	short := order(s, func(ctx context.Context, in In) (R, error) { return call(ctx, in, func(P) {}) })
	lines := long(s, call)
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == api.LinesType {
			lines(w, r)
		} else {
			short(w, r)
		}
	}
}

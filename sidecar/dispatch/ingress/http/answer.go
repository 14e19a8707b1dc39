// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	nethttp "net/http"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/spans"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// later is a ResponseWriter whose answer may come after the handler has returned (package http1).
type later interface {
	nethttp.ResponseWriter
	Later() (done func(whole bool))
	Waits()
}

// mostAtOnce is the size of an answer up to which the goroutine that has it renders and writes it, which reads for others, too. Beyond that another one does.
const mostAtOnce = 32 << 10

// dispatch asks the dispatcher for an answer, and returns before it comes, where the connection allows that. End is called then before the client has all of it.
func (h *Handler) dispatch(w nethttp.ResponseWriter, r *nethttp.Request, in *inference, end func()) (after bool) {
	ctx := spans.FromHTTP(r.Context(), r.Header)
	l, after := w.(later)
	if !after {
		var response *batch.Response
		var err error
		answered := make(chan struct{})
		h.o.Inferer.Begin(ctx, nil, &in.request, func(_ *wire.Turn, a *batch.Response, failure error) {
			response, err = a, failure
			close(answered)
		})
		<-answered
		h.answer(w, r, in, response, err)
		return false
	}
	done := l.Later()
	h.o.Inferer.Begin(ctx, nil, &in.request, func(_ *wire.Turn, response *batch.Response, err error) {
		give := func() {
			whole := false
			defer func() {
				end() // first: with its answer the client may send its next request
				done(whole)
			}()
			h.answer(w, r, in, response, err)
			whole = true
		}
		if err == nil && (sizeOf(response) > mostAtOnce || h.compressors[responseEncoding(r.Header)] != nil) {
			l.Waits()
			go h.safely(give)
			return
		}
		give()
	})
	return true
}

// safely logs a panic of a goroutine of the Handler's own, which would end the process.
func (h *Handler) safely(do func()) {
	defer func() {
		if fault := recover(); fault != nil {
			h.o.Logger.Error("answering a request failed: this is a fault of Conch's", "fault", fault)
		}
	}()
	do()
}

// sizeOf is the size of an answer's tensors, or of the answer as a server's HTTP port has given it.
func sizeOf(response *batch.Response) (n int) {
	if response.HTTP != nil {
		return response.HTTP.Body.Len()
	}
	for i := range response.Outputs {
		n += response.Outputs[i].Data.Len()
	}
	return n
}

// answer renders an answer, which it frees, or an error.
func (h *Handler) answer(w nethttp.ResponseWriter, r *nethttp.Request, in *inference, response *batch.Response, err error) {
	if err == nil {
		defer response.Free()
		err = response.Err() // unless a server's own HTTP front would lose it
	}
	if err != nil {
		failInfer(w, err)
		return
	}
	h.writeResponse(w, r, in, response)
}

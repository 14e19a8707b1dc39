// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	nethttp "net/http"

	"github.com/conch-serving/conch/internal/triton/tritonjson"
)

// answer is the answer of one partition.
type answer struct {
	code   int
	header nethttp.Header
	body   []byte
}

// settings handles what all partitions must have alike and any of them can report: log and trace settings and
// shared-memory regions. A query goes to the first partition. An order goes to each in turn. The caller gets the first
// partition's answer, or the first denial; after a denial the order is taken back where it was carried out. A model's
// trace setting concerns only the partitions that have the model, so a denial of it counts only if no partition accepts
// it.
//
// An order that all have accepted is remembered for partitions that start later.
func (h *Handler) settings(w nethttp.ResponseWriter, r *nethttp.Request, rt route) {
	if r.Method != nethttp.MethodGet && !allow(w, r, nethttp.MethodPost, jsonType) {
		return
	}
	body, ok := h.harmless(w, r, rt)
	if !ok {
		return
	}
	defer body.Free()
	if err := guarded(requestPath(r), body.ReadOnlyData()); err != nil {
		failStatus(w, jsonType, err)
		return
	}
	endpoints := h.o.Endpoints.HTTPEndpoints()
	if len(endpoints) == 0 {
		fail(w, nethttp.StatusServiceUnavailable, jsonType, "no Triton server is up")
		return
	}
	if r.Method == nethttp.MethodGet && rt.model == "" {
		endpoints = endpoints[:1]
	}
	if c, ok := h.o.Endpoints.(Checkpointer); ok && r.Method != nethttp.MethodGet {
		defer c.Exclusively()()
	}
	restore := func(context.Context) error { return nil }
	if c, ok := h.o.Endpoints.(Checkpointer); ok && len(endpoints) > 1 && r.Method != nethttp.MethodGet {
		var err error
		if restore, err = c.Checkpoint(r.Context(), rt.model); err != nil {
			fail(w, nethttp.StatusServiceUnavailable, jsonType, "nothing was changed: "+err.Error())
			return
		}
	}
	var accepted, denied *answer
	var failure error
	for _, endpoint := range endpoints {
		a, err := h.ask(r.Context(), endpoint, r, body.ReadOnlyData())
		switch {
		case err != nil:
			failure = errors.Join(failure, err)
		case a.code < nethttp.StatusMultipleChoices:
			if accepted == nil {
				accepted = a
			}
			if r.Method == nethttp.MethodGet {
				if statusOfRegions(requestPath(r)) {
					a.body = withoutLent(a.body)
				}
				a.write(w)
				return
			}
		case denied == nil:
			denied = a
		}
	}
	if failure != nil {
		h.o.Logger.Warn("a setting did not reach every partition", "path", requestPath(r), "error", failure)
	}
	if rt.model != "" && accepted != nil {
		denied = nil
	}
	if accepted != nil && denied == nil && failure == nil && r.Method == nethttp.MethodPost && h.o.Remember != nil {
		h.o.Remember(requestPath(r), body.ReadOnlyData())
	}
	if denied != nil || failure != nil {
		if err := restore(context.WithoutCancel(r.Context())); err != nil {
			h.o.Logger.Warn("a setting could not be taken back from every partition", "path", requestPath(r), "error", err)
		}
	}
	switch {
	case denied != nil:
		denied.write(w)
	case failure != nil:
		fail(w, nethttp.StatusServiceUnavailable, jsonType, "nothing was changed: failed to reach a Triton server: "+failure.Error())
	case accepted != nil:
		accepted.write(w)
	}
}

// Checkpointer records the settings of all partitions; restore sets them back. If Endpoints implements it, settings are
// changed all or nothing.
type Checkpointer interface {
	// Exclusively waits until no other change is under way, over gRPC either, and excludes others until end.
	Exclusively() (end func())
	Checkpoint(ctx context.Context, model string) (restore func(context.Context) error, err error)
}

func (a *answer) write(w nethttp.ResponseWriter) {
	for name, values := range a.header {
		if name != "Connection" && name != "Content-Length" {
			w.Header()[name] = values
		}
	}
	contentType := jsonType
	if t := a.header.Get("Content-Type"); t != "" {
		contentType = t
	}
	reply(w, a.code, contentType, a.body)
}

// maxAnswerBytes bounds the answer of a partition about its settings.
const maxAnswerBytes = 16 << 20

func (h *Handler) ask(ctx context.Context, endpoint string, in *nethttp.Request, body []byte) (*answer, error) {
	request := &nethttp.Request{
		Method: in.Method, URL: endpointURL(endpoint, in), Host: in.Host, Header: in.Header.Clone(),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		ContentLength: int64(len(body)),
	}
	request.Header.Del("Transfer-Encoding")
	request.Header.Del("Connection")
	request.Header.Del("Expect")
	if len(body) > 0 {
		request.Body = io.NopCloser(bytes.NewReader(body))
	}
	response, err := h.proxy.transport.RoundTrip(request.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", in.Method, endpoint, err)
	}
	defer response.Body.Close()
	text, err := readLimited(response.Body, maxAnswerBytes)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", in.Method, endpoint, err)
	}
	return &answer{response.StatusCode, response.Header, text}, nil
}

func isDepth(err error) bool {
	var depth *tritonjson.DepthError
	return errors.As(err, &depth)
}

// nesting is an upper bound of how deep JSON text nests, cheaper than reading it.
func nesting(text []byte) int {
	return bytes.Count(text, []byte{'['}) + bytes.Count(text, []byte{'{'})
}

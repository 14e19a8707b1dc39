// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	"context"
	nethttp "net/http"
	"strings"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonjson"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// allow answers 405 unless the method is the one that the route has.
func allow(w nethttp.ResponseWriter, r *nethttp.Request, method, contentType string) bool {
	if r.Method == method {
		return true
	}
	fail(w, nethttp.StatusMethodNotAllowed, contentType, "Method Not Allowed")
	return false
}

func (h *Handler) serverLive(w nethttp.ResponseWriter, r *nethttp.Request, _ route) {
	if !allow(w, r, nethttp.MethodGet, plainType) {
		return
	}
	answer, err := h.o.Aggregator.ServerLive(r.Context(), &tritonpb.ServerLiveRequest{})
	health(w, answer.GetLive(), err)
}

func (h *Handler) serverReady(w nethttp.ResponseWriter, r *nethttp.Request, _ route) {
	if !allow(w, r, nethttp.MethodGet, plainType) {
		return
	}
	answer, err := h.o.Aggregator.ServerReady(r.Context(), &tritonpb.ServerReadyRequest{})
	health(w, answer.GetReady(), err)
}

// health answers without a body: 200, or 400 for what is not ready.
func health(w nethttp.ResponseWriter, ok bool, err error) {
	switch {
	case err != nil:
		failStatus(w, plainType, err)
	case ok:
		reply(w, nethttp.StatusOK, plainType, nil)
	default:
		reply(w, nethttp.StatusBadRequest, plainType, nil)
	}
}

func (h *Handler) modelReady(w nethttp.ResponseWriter, r *nethttp.Request, rt route) {
	if !allow(w, r, nethttp.MethodGet, plainType) {
		return
	}
	answer, err := h.o.Aggregator.ModelReady(r.Context(), &tritonpb.ModelReadyRequest{Name: rt.model, Version: rt.version})
	switch {
	case err != nil:
		failStatus(w, plainType, err)
	case answer.GetReady():
		reply(w, nethttp.StatusOK, plainType, nil)
	default:
		fail(w, nethttp.StatusBadRequest, plainType, "Model version not ready")
	}
}

// query is the handler of a route that shows the Aggregator's answer to a question about what the route names.
func query[Q, A proto.Message](ask func(Aggregator, context.Context, Q) (A, error), about func(route) Q) func(*Handler, nethttp.ResponseWriter, *nethttp.Request, route) {
	return func(h *Handler, w nethttp.ResponseWriter, r *nethttp.Request, rt route) {
		if !allow(w, r, nethttp.MethodGet, jsonType) {
			return
		}
		answer, err := ask(h.o.Aggregator, r.Context(), about(rt))
		if err != nil {
			failStatus(w, jsonType, err)
			return
		}
		reply(w, nethttp.StatusOK, jsonType, tritonjson.Message(answer))
	}
}

var (
	serverMetadata = query(Aggregator.ServerMetadata, func(route) *tritonpb.ServerMetadataRequest { return &tritonpb.ServerMetadataRequest{} })
	modelMetadata  = query(Aggregator.ModelMetadata, func(rt route) *tritonpb.ModelMetadataRequest {
		return &tritonpb.ModelMetadataRequest{Name: rt.model, Version: rt.version}
	})
	modelConfig = query(func(a Aggregator, ctx context.Context, q *tritonpb.ModelConfigRequest) (*tritonpb.ModelConfig, error) {
		answer, err := a.ModelConfig(ctx, q)
		return answer.GetConfig(), err
	}, func(rt route) *tritonpb.ModelConfigRequest {
		return &tritonpb.ModelConfigRequest{Name: rt.model, Version: rt.version}
	})
	// statistics is of one model, of one version of it, or of all.
	statistics = query(Aggregator.ModelStatistics, func(rt route) *tritonpb.ModelStatisticsRequest {
		return &tritonpb.ModelStatisticsRequest{Name: rt.model, Version: rt.version}
	})
)

func (h *Handler) repositoryIndex(w nethttp.ResponseWriter, r *nethttp.Request, _ route) {
	if !allow(w, r, nethttp.MethodPost, jsonType) {
		return
	}
	root, free, ok := h.jsonBody(w, r)
	if !ok {
		return
	}
	defer free()
	request := &tritonpb.RepositoryIndexRequest{}
	if ready, found := root.Find("ready"); found {
		var err error
		if request.Ready, err = ready.AsBool(); err != nil {
			fail(w, nethttp.StatusInternalServerError, jsonType, err.Error())
			return
		}
	}
	answer, err := h.o.Aggregator.RepositoryIndex(r.Context(), request)
	if err != nil {
		failStatus(w, jsonType, err)
		return
	}
	reply(w, nethttp.StatusOK, jsonType, tritonjson.RepositoryIndex(answer))
}

// jsonBody reads a small JSON body; an empty body is an absent value. If it cannot, it answers the request itself.
func (h *Handler) jsonBody(w nethttp.ResponseWriter, r *nethttp.Request) (root tritonjson.Value, free func(), ok bool) {
	body, err := h.readBody(w, r)
	if err != nil {
		h.failBody(w, err)
		return root, nil, false
	}
	if body.Len() == 0 {
		return root, body.Free, true
	}
	doc, err := tritonjson.Parse(body.ReadOnlyData())
	if err != nil {
		body.Free()
		failStatus(w, jsonType, decodeError(err, ""))
		return root, nil, false
	}
	return doc.Root(), body.Free, true
}

// control is the common part of load and unload. It returns false if it has answered the request itself.
func (h *Handler) control(w nethttp.ResponseWriter, r *nethttp.Request, rt route) (parameters tritonjson.Value, free func(), ok bool) {
	if !allow(w, r, nethttp.MethodPost, jsonType) {
		return parameters, nil, false
	}
	if rt.repository != "" {
		fail(w, nethttp.StatusNotImplemented, jsonType, "'repository_name' specification is not supported")
		return parameters, nil, false
	}
	root, free, ok := h.jsonBody(w, r)
	if !ok {
		return parameters, nil, false
	}
	parameters, found := root.Find("parameters")
	if found && parameters.Kind() != tritonjson.Object {
		free()
		fail(w, nethttp.StatusInternalServerError, jsonType, "attempt to get members for non-object")
		return parameters, nil, false
	}
	return parameters, free, true
}

func (h *Handler) modelLoad(w nethttp.ResponseWriter, r *nethttp.Request, rt route) {
	parameters, free, ok := h.control(w, r, rt)
	if !ok {
		return
	}
	defer free()
	request := &tritonpb.RepositoryModelLoadRequest{
		ModelName: rt.model, Parameters: make(map[string]*tritonpb.ModelRepositoryParameter)}
	for name, value := range parameters.Members() {
		text, err := value.AsString()
		if err != nil {
			fail(w, nethttp.StatusInternalServerError, jsonType, err.Error())
			return
		}
		name = cString(name)
		if strings.HasPrefix(name, "file:") {
			request.Parameters[name] = &tritonpb.ModelRepositoryParameter{
				ParameterChoice: &tritonpb.ModelRepositoryParameter_BytesParam{BytesParam: triton.LenientBase64(text)}}
			continue
		}
		if name != "config" {
			fail(w, nethttp.StatusInternalServerError, jsonType, "unexpected error on creating Triton parameter")
			return
		}
		request.Parameters[name] = &tritonpb.ModelRepositoryParameter{
			ParameterChoice: &tritonpb.ModelRepositoryParameter_StringParam{StringParam: strings.Clone(text)}}
	}
	if _, err := h.o.Aggregator.RepositoryModelLoad(r.Context(), request); err != nil {
		failStatus(w, jsonType, err)
		return
	}
	reply(w, nethttp.StatusOK, jsonType, nil)
}

func (h *Handler) modelUnload(w nethttp.ResponseWriter, r *nethttp.Request, rt route) {
	parameters, free, ok := h.control(w, r, rt)
	if !ok {
		return
	}
	defer free()
	request := &tritonpb.RepositoryModelUnloadRequest{ModelName: rt.model}
	if dependents, found := parameters.Find("unload_dependents"); found {
		if yes, err := dependents.AsBool(); err == nil { // anything else is ignored, as in Triton
			request.Parameters = map[string]*tritonpb.ModelRepositoryParameter{"unload_dependents": {
				ParameterChoice: &tritonpb.ModelRepositoryParameter_BoolParam{BoolParam: yes}}}
		}
	}
	if _, err := h.o.Aggregator.RepositoryModelUnload(r.Context(), request); err != nil {
		failStatus(w, jsonType, err)
		return
	}
	reply(w, nethttp.StatusOK, jsonType, nil)
}

// harmless reads a body that is to pass through and checks that Triton can read the head, and that the body cannot crash a server, as JSON that nests too deep
// does. The returned buffer must be freed.
func (h *Handler) harmless(w nethttp.ResponseWriter, r *nethttp.Request, rt route) (mem.Buffer, bool) {
	body, err := h.readBody(w, r)
	if err != nil {
		h.refused(r, rt, unread(err))
		h.failBody(w, err)
		return nil, false
	}
	if tooLong(r) {
		body.Free()
		h.refused(r, rt, nil)
		fail(w, nethttp.StatusRequestHeaderFieldsTooLarge, jsonType, "a header field is longer than Triton can read")
		return nil, false
	}
	if nesting(body.ReadOnlyData()) > tritonjson.MaxDepth {
		if _, err := tritonjson.Parse(body.ReadOnlyData()); isDepth(err) {
			body.Free()
			h.refused(r, rt, nil)
			failStatus(w, jsonType, decodeError(err, ""))
			return nil, false
		}
	}
	return body, true
}

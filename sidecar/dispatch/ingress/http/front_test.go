// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/http1"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

type inferFunc func(context.Context, *batch.Request) (*batch.Response, error)

// Begin implements front.Inferer: it answers at once.
func (f inferFunc) Begin(ctx context.Context, t *wire.Turn, r *batch.Request, then func(*wire.Turn, *batch.Response, error)) {
	defer r.Free()
	response, err := f(ctx, r)
	then(t, response, err)
}

// waiting answers on another goroutine.
type waiting struct{ inferFunc }

func (w waiting) Begin(ctx context.Context, t *wire.Turn, r *batch.Request, then func(*wire.Turn, *batch.Response, error)) {
	go w.inferFunc.Begin(ctx, t, r, then)
}

// echo is the models without a server.
func echo(t *testing.T) front.Inferer {
	return inferFunc(func(_ context.Context, r *batch.Request) (*batch.Response, error) { return compute(t, r), nil })
}

// partitions is a picker and a list of endpoints.
type partitions struct {
	endpoints []string
	released  atomic.Int32
	model     atomic.Value
}

func (p *partitions) HTTPEndpoints() []string { return p.endpoints }

func (p *partitions) Pick(ctx context.Context, model string) (front.Server, func(error), error) {
	p.model.Store(model)
	if len(p.endpoints) == 0 {
		return front.Server{}, nil, status.Errorf(codes.NotFound, "Request for unknown model: '%s' is not found", model)
	}
	return front.Server{Partition: "gpu0.0", Endpoint: p.endpoints[0]}, func(error) { p.released.Add(1) }, nil
}

func serve(t *testing.T, o front.Options) string {
	t.Helper()
	if o.Inferer == nil {
		o.Inferer = echo(t)
	}
	if o.Picker == nil {
		o.Picker, o.Endpoints = nowhere{}, nowhere{}
	}
	o.Catalog = catalog{}
	if o.Aggregator == nil {
		o.Aggregator = aggregator{}
	}
	h := front.New(o)
	t.Cleanup(h.Close)
	return listen(t, h, true)
}

// listen serves a front as conch does, or on net/http alone.
func listen(t testing.TB, h nethttp.Handler, own bool) (address string) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &nethttp.Server{Handler: h}
	serve, stop := server.Serve, server.Close
	if own {
		over := http1.New(server, front.Plain)
		serve, stop = over.Serve, over.Close
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = serve(l) }()
	t.Cleanup(func() { _ = stop(); <-done })
	return l.Addr().String()
}

func errorOf(t *testing.T, a answer) string {
	t.Helper()
	var body struct {
		Error string `json:"error"`
	}
	require.NoError(t, json.Unmarshal([]byte(a.text()), &body), a.text())
	return body.Error
}

// Each of these crashes a real server; none may reach one.
func TestRefusesWhatKillsTriton(t *testing.T) {
	address := serve(t, front.Options{Inferer: inferFunc(func(_ context.Context, r *batch.Request) (*batch.Response, error) {
		t.Errorf("reached a server: %v", r.Inputs)
		return nil, status.Error(codes.Internal, "dead")
	})})
	tensor := `{"inputs":[{"name":"INPUT0","shape":%s,"datatype":"%s",%s}]}`
	for name, c := range map[string]struct {
		body, text string
		code       int
	}{
		"absurd shape": {fmt.Sprintf(tensor, "[1,1000000000000000]", "FP32", `"data":[1]`),
			"Unable to parse 'data': Shape does not match true shape of 'data' field", 500},
		"overflowing shape": {fmt.Sprintf(tensor, "[4294967296,4294967296]", "FP32", `"data":[1]`),
			"Unable to parse 'data': Shape does not match true shape of 'data' field", 500},
		"overflowing shape, no data": {fmt.Sprintf(tensor, "[4294967296,4294967296]", "FP32", `"parameters":{"binary_data_size":0}`),
			"[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'id_fp32'. Expected more than 9223372036854775807, got 0", 400},
		"overflowing bytes, no data": {fmt.Sprintf(tensor, "[4611686018427387904]", "FP32", `"parameters":{"binary_data_size":0}`),
			"[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'id_fp32'. Expected more than 9223372036854775807, got 0", 400},
		"dimension beyond int64": {fmt.Sprintf(tensor, "[18446744073709551615]", "FP32", `"data":[1]`),
			"Unable to parse 'data': Shape does not match true shape of 'data' field", 500},
		"overflow behind a zero": {fmt.Sprintf(tensor, "[0,4294967296,4294967296]", "FP32", `"data":[]`),
			"Unable to parse 'data': Shape does not match true shape of 'data' field", 500},
		"overflowing shape of BYTES": {fmt.Sprintf(tensor, "[4294967296,4294967296]", "BYTES", `"data":["a"]`),
			"[request id: <id_unknown>] input byte size mismatch for input 'INPUT0' for model 'id_fp32'. Expected more than 9223372036854775807, got 5", 400},
		"deep":         {strings.Repeat("[", 1<<20), "failed to parse the request JSON buffer: nesting is deeper than 1000 levels", 400},
		"deep objects": {strings.Repeat(`{"a":`, 1<<20), "failed to parse the request JSON buffer: nesting is deeper than 1000 levels", 400},
	} {
		t.Run(name, func(t *testing.T) {
			a := send(t, address, request{Method: "POST", Path: "/v2/models/id_fp32/infer", Body: c.body})
			require.Equal(t, c.text, errorOf(t, a))
			require.Equal(t, c.code, a.Code)
		})
	}
}

func TestDeepJSONIsNotPassedOn(t *testing.T) {
	upstream := httptest.NewServer(nethttp.HandlerFunc(func(nethttp.ResponseWriter, *nethttp.Request) { t.Error("reached a server") }))
	defer upstream.Close()
	p := &partitions{endpoints: []string{strings.TrimPrefix(upstream.URL, "http://")}}
	address := serve(t, front.Options{Picker: p, Endpoints: p})
	for _, path := range []string{"/v2/models/id_fp32/generate", "/v2/models/id_fp32/generate_stream", "/v2/logging", "/v2/new/route"} {
		a := send(t, address, request{Method: "POST", Path: path, Body: strings.Repeat("[", 2000)})
		require.Equal(t, "failed to parse the request JSON buffer: nesting is deeper than 1000 levels", errorOf(t, a), path)
	}
}

func TestBodyLimit(t *testing.T) {
	address := serve(t, front.Options{MaxBodyBytes: 1000})
	big := `{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]` + strings.Repeat(" ", 2000) + "}"
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte(big))
	require.NoError(t, z.Close())
	require.Less(t, zipped.Len(), 1000)

	a := send(t, address, request{Method: "POST", Path: "/v2/models/id_fp32/infer", Body: big})
	require.Equal(t, 400, a.Code)
	require.Equal(t, "request body exceeds the maximum of 1000 bytes", errorOf(t, a))

	response, err := nethttp.Post("http://"+address+"/v2/models/id_fp32/infer", "", struct{ io.Reader }{strings.NewReader(big)})
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, 400, response.StatusCode, "chunked")

	r, err := nethttp.NewRequest("POST", "http://"+address+"/v2/models/id_fp32/infer", &zipped)
	require.NoError(t, err)
	r.Header.Set("Content-Encoding", "gzip")
	response, err = nethttp.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	require.Equal(t, 400, response.StatusCode)
	require.Contains(t, string(text), "request body exceeds the maximum of 1000 bytes", "after decompression")
	nethttp.DefaultClient.CloseIdleConnections()
}

// TestWhatCouldBeDecompressedIsTheBody, as for Triton: a body that was cut is a text that was cut.
func TestWhatCouldBeDecompressedIsTheBody(t *testing.T) {
	address := serve(t, front.Options{})
	body := `{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}`
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte(body))
	require.NoError(t, z.Close())
	for cut, code := range map[int]int{0: 200, 4: 200, 8: 200, 30: 500} {
		a := send(t, address, request{Method: "POST", Path: "/v2/models/id_fp32/infer", Body: zipped.String()[:zipped.Len()-cut], Header: map[string]string{"Content-Encoding": "gzip"}})
		require.Equal(t, code, a.Code, "without its last %d bytes: %s", cut, a.text())
		if code == 500 {
			require.Contains(t, errorOf(t, a), "failed to parse the request JSON buffer: ")
		}
	}
}

func TestTimeoutParameterAndIDs(t *testing.T) {
	var got *batch.Request
	address := serve(t, front.Options{Inferer: inferFunc(func(_ context.Context, r *batch.Request) (*batch.Response, error) {
		got = &batch.Request{Model: r.Model, Version: r.Version, ID: r.ID, Parameters: r.Parameters}
		return compute(t, r), nil
	})})
	a := send(t, address, request{Method: "POST", Path: "/v2/models/id_fp32/versions/01/infer",
		Body: `{"id":"q","parameters":{"timeout":2500,"priority":3,"sequence_id":"s","a":1.5,"b":true},"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}`})
	require.Equal(t, 200, a.Code, a.text())
	require.Equal(t, "q", got.ID)
	require.Equal(t, "1", got.Version)
	timeout, ok := got.Timeout()
	require.True(t, ok)
	require.Equal(t, 2500*time.Microsecond, timeout)
	priority, _ := batch.FindParameter(got.Parameters, "priority")
	u, ok := priority.Uint64()
	require.True(t, ok)
	require.EqualValues(t, 3, u)
	require.Len(t, got.Parameters, 5)
}

// An id that is no UTF-8 cannot be passed on by gRPC; the caller still gets it back, as from Triton.
func TestIDThatIsNoUTF8(t *testing.T) {
	var sent string
	address := serve(t, front.Options{Inferer: inferFunc(func(_ context.Context, r *batch.Request) (*batch.Response, error) {
		sent = r.ID
		return compute(t, r), nil
	})})
	tensor := `"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}`
	a := send(t, address, request{Method: "POST", Path: "/v2/models/id_fp32/infer", Body: "{\"id\":\"\xff\xfe\"," + tensor})
	require.Equal(t, 200, a.Code, a.text())
	require.Contains(t, a.text(), "\"id\":\"\xff\xfe\"")
	require.Empty(t, sent)
	a = send(t, address, request{Method: "POST", Path: "/v2/models/id_fp32/infer", Body: "{\"parameters\":{\"a\":\"\xff\"}," + tensor})
	require.Equal(t, 400, a.Code)
	require.Equal(t, "parameter 'a' is not UTF-8", errorOf(t, a))
}

func TestDisconnectCancels(t *testing.T) {
	entered, cancelled := make(chan struct{}), make(chan struct{})
	address := serve(t, front.Options{Inferer: waiting{func(ctx context.Context, _ *batch.Request) (*batch.Response, error) {
		close(entered)
		<-ctx.Done()
		close(cancelled)
		return nil, status.FromContextError(ctx.Err()).Err()
	}}})
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	body := `{"inputs":[]}`
	fmt.Fprintf(conn, "POST /v2/models/id_fp32/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	<-entered
	require.NoError(t, conn.Close())
	select {
	case <-cancelled:
	case <-time.After(30 * time.Second):
		t.Fatal("the request was not cancelled")
	}
}

// picker waits for a partition as long as its caller does.
type picker struct{ entered, cancelled chan struct{} }

func (p picker) Pick(ctx context.Context, _ string) (front.Server, func(error), error) {
	close(p.entered)
	<-ctx.Done()
	close(p.cancelled)
	return front.Server{}, nil, status.FromContextError(ctx.Err()).Err()
}

// TestDisconnectEndsTheWaitForAPartition of a request that is proxied: a request whose client has gone no longer waits.
func TestDisconnectEndsTheWaitForAPartition(t *testing.T) {
	p := picker{make(chan struct{}), make(chan struct{})}
	address := serve(t, front.Options{Picker: p})
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	body := `{"text_input":"x"}`
	fmt.Fprintf(conn, "POST /v2/models/m/generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	<-p.entered
	require.NoError(t, conn.Close())
	select {
	case <-p.cancelled:
	case <-time.After(30 * time.Second):
		t.Fatal("the request waits on")
	}
}

func TestErrorsOfInference(t *testing.T) {
	for _, c := range []struct {
		err         error
		code        int
		contentType string
	}{
		{status.Error(codes.InvalidArgument, "bad"), 400, "text/plain"},
		{status.Error(codes.InvalidArgument, "[request id: <id_unknown>] x"), 400, "application/json"},
		{status.Error(codes.NotFound, "x"), 404, "text/plain"},
		{status.Error(codes.Unavailable, "Request timeout expired"), 503, "text/plain"},
		{status.Error(codes.DeadlineExceeded, "x"), 503, "text/plain"},
		{status.Error(codes.ResourceExhausted, "x"), 503, "text/plain"},
		{status.Error(codes.Internal, "x"), 500, "text/plain"},
		{status.Error(codes.Unimplemented, "x"), 501, "text/plain"},
		{status.Error(codes.Canceled, "x"), 400, "text/plain"},
		{status.Error(codes.AlreadyExists, "x"), 400, "text/plain"},
	} {
		address := serve(t, front.Options{Inferer: inferFunc(func(context.Context, *batch.Request) (*batch.Response, error) { return nil, c.err })})
		a := send(t, address, request{Method: "POST", Path: "/v2/models/id_fp32/infer", Body: `{"inputs":[]}`})
		require.Equal(t, c.code, a.Code, c.err)
		require.Equal(t, c.contentType, a.ContentType, c.err)
		require.Equal(t, status.Convert(c.err).Message(), errorOf(t, a))
	}
}

type loader struct {
	aggregator
	loaded   *tritonpb.RepositoryModelLoadRequest
	unloaded *tritonpb.RepositoryModelUnloadRequest
	err      error
}

func (l *loader) RepositoryModelLoad(_ context.Context, r *tritonpb.RepositoryModelLoadRequest) (*tritonpb.RepositoryModelLoadResponse, error) {
	l.loaded = r
	return &tritonpb.RepositoryModelLoadResponse{}, l.err
}

func (l *loader) RepositoryModelUnload(_ context.Context, r *tritonpb.RepositoryModelUnloadRequest) (*tritonpb.RepositoryModelUnloadResponse, error) {
	l.unloaded = r
	return &tritonpb.RepositoryModelUnloadResponse{}, l.err
}

func TestLoadAndUnload(t *testing.T) {
	l := &loader{}
	address := serve(t, front.Options{Aggregator: l})
	ok := answer{Code: 200, ContentType: "application/json"}
	post := func(path, body string) answer {
		return send(t, address, request{Method: "POST", Path: path, Body: body})
	}
	require.Equal(t, ok, post("/v2/repository/models/m/load", ""))
	require.Equal(t, "m", l.loaded.ModelName)
	require.Equal(t, ok, post("/v2/repository/models/m/load", `{"parameters":{"config":"{}","file:1/model.py":"aGk="}}`))
	require.Equal(t, "{}", l.loaded.Parameters["config"].GetStringParam())
	require.Equal(t, "hi", string(l.loaded.Parameters["file:1/model.py"].GetBytesParam()))
	require.Equal(t, ok, post("/v2/repository/models/m/unload", `{"parameters":{"unload_dependents":true}}`))
	require.True(t, l.unloaded.Parameters["unload_dependents"].GetBoolParam())

	require.Equal(t, `{"error":"attempt to access JSON non-string as string"}`, post("/v2/repository/models/m/load", `{"parameters":{"config":1}}`).Body)
	require.Equal(t, ok, post("/v2/repository/models/m/load", `{"parameters":{"config":"{}","file:1/model.py":"a!G\nk"}}`))
	require.Equal(t, "hi", string(l.loaded.Parameters["file:1/model.py"].GetBytesParam()), "what is no base64 is passed over, and padding may lack")
	require.Equal(t, `{"error":"unexpected error on creating Triton parameter"}`, post("/v2/repository/models/m/load", `{"parameters":{"x":"y"}}`).Body)
	require.Equal(t, `{"error":"attempt to get members for non-object"}`, post("/v2/repository/models/m/load", `{"parameters":[]}`).Body)
	l.err = status.Error(codes.Internal, "failed to load 'm', failed to poll from model repository")
	require.Equal(t, answer{Code: 500, ContentType: "application/json", Body: `{"error":"failed to load 'm', failed to poll from model repository"}`},
		post("/v2/repository/models/m/load", ""))
}

func TestNoDateHeader(t *testing.T) {
	address := serve(t, front.Options{})
	response, err := nethttp.Get("http://" + address + "/v2/health/live")
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, nethttp.Header{"Content-Type": {"text/plain"}, "Content-Length": {"0"}}, response.Header)
	nethttp.DefaultClient.CloseIdleConnections()
}

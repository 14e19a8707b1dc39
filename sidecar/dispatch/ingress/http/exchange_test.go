// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"fmt"
	"io"
	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
	"github.com/conch-serving/conch/sidecar/dispatch/spans"
)

const (
	clientTrace = "0af7651916cd43dd8448eb211c80319c"
	recorded    = "00-" + clientTrace + "-b7ad6b7169203331-01"
	unrecorded  = "00-" + clientTrace + "-b7ad6b7169203331-00"
)

// newSpans is a tracer that follows its callers' decisions, and the spans that have ended.
func newSpans() (*spans.Tracer, *tracetest.SpanRecorder) {
	ended := tracetest.NewSpanRecorder()
	return spans.New(sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())), sdktrace.WithSpanProcessor(ended))), ended
}

// spansOf are the ended spans by name and their attributes as text; each name is there once.
func spansOf(t *testing.T, ended *tracetest.SpanRecorder, names ...string) (all []sdktrace.ReadOnlySpan, attributes []map[string]string) {
	t.Helper()
	require.Eventually(t, func() bool { return len(ended.Ended()) == len(names) }, 30*time.Second, time.Millisecond)
	for _, name := range names {
		for _, s := range ended.Ended() {
			if s.Name() == name {
				own := map[string]string{}
				for _, a := range s.Attributes() {
					own[string(a.Key)] = a.Value.String()
				}
				all, attributes = append(all, s), append(attributes, own)
			}
		}
	}
	require.Len(t, all, len(names))
	return all, attributes
}

// A request that is proxied over HTTP is in the trace of its caller, and the server receives the execution as the parent of what it traces.
func TestWhatIsProxiedIsTraced(t *testing.T) {
	var seen nethttp.Header
	upstream := httptest.NewServer(nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		seen = r.Header
		if r.URL.Path == "/v2/models/m/generate" {
			w.WriteHeader(nethttp.StatusBadRequest)
		}
		fmt.Fprint(w, "data: one\n\n")
		if strings.HasSuffix(r.URL.Path, "/broken") {
			w.(nethttp.Flusher).Flush()
			panic(nethttp.ErrAbortHandler)
		}
	}))
	defer upstream.Close()
	there := &partitions{endpoints: []string{strings.TrimPrefix(upstream.URL, "http://")}}
	gone := httptest.NewServer(nil)
	gone.Close()
	nobody := &partitions{endpoints: []string{strings.TrimPrefix(gone.URL, "http://")}}

	for name, c := range map[string]struct {
		servers           *partitions
		path, fails       string
		request, executed map[string]string
	}{
		"a model": {there, "/v2/models/m/versions/2/generate_stream", "", map[string]string{
			"conch.model": "m", "conch.version": "2", "url.path": "/v2/models/m/versions/2/generate_stream", "conch.result": "ok", "conch.passed_through": "true", "http.response.status_code": "200",
		}, map[string]string{"conch.model": "m", "conch.partition": "gpu0.0", "conch.requests": "1"}},
		"a route of a newer Triton": {there, "/v2/new", "", map[string]string{
			"url.path": "/v2/new", "conch.result": "ok", "conch.passed_through": "true", "http.response.status_code": "200",
		}, map[string]string{"conch.partition": "gpu0.0", "conch.requests": "1"}},
		"refused by the server": {there, "/v2/models/m/generate", "HTTP status 400", map[string]string{
			"conch.model": "m", "url.path": "/v2/models/m/generate", "conch.result": "failed", "conch.passed_through": "true", "http.response.status_code": "400",
		}, map[string]string{"conch.model": "m", "conch.partition": "gpu0.0", "conch.requests": "1"}},
		"broken off": {there, "/v2/broken", "the answer broke off", map[string]string{
			"url.path": "/v2/broken", "conch.result": "failed", "conch.passed_through": "true", "http.response.status_code": "200",
		}, map[string]string{"conch.partition": "gpu0.0", "conch.requests": "1"}},
		"a server that has gone": {nobody, "/v2/models/m/generate", "connection refused", map[string]string{
			"conch.model": "m", "url.path": "/v2/models/m/generate", "conch.result": "failed", "conch.passed_through": "true",
		}, map[string]string{"conch.model": "m", "conch.partition": "gpu0.0", "conch.requests": "1"}},
		"no server": {&partitions{}, "/v2/models/m/generate", "Request for unknown model: 'm' is not found", map[string]string{
			"conch.model": "m", "url.path": "/v2/models/m/generate", "conch.result": "failed", "conch.passed_through": "true", "rpc.grpc.status_code": "NotFound",
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			tracer, ended := newSpans()
			address := serve(t, front.Options{Picker: c.servers, Endpoints: c.servers, Spans: tracer})
			r, err := nethttp.NewRequestWithContext(t.Context(), nethttp.MethodPost, "http://"+address+c.path, strings.NewReader(`{"a":"b"}`))
			require.NoError(t, err)
			r.Header.Set("Traceparent", recorded)
			r.Header.Set("Tracestate", "vendor=1")
			seen = nil
			response, err := nethttp.DefaultClient.Do(r)
			require.NoError(t, err)
			_, _ = io.Copy(io.Discard, response.Body) // one breaks off
			require.NoError(t, response.Body.Close())

			names := []string{spans.NameRequest, spans.NameExecution}
			if c.executed == nil {
				names = names[:1]
			}
			all, attributes := spansOf(t, ended, names...)
			require.Equal(t, c.request, attributes[0])
			require.Equal(t, "b7ad6b7169203331", all[0].Parent().SpanID().String())
			for i, s := range all {
				require.Equal(t, clientTrace, s.SpanContext().TraceID().String())
				require.Equal(t, c.fails != "", s.Status().Code == codes.Error)
				require.Contains(t, s.Status().Description, c.fails)
				if i == 1 {
					require.Equal(t, c.executed, attributes[1])
					require.Equal(t, all[0].SpanContext().SpanID(), s.Parent().SpanID())
					require.False(t, s.EndTime().After(all[0].EndTime()))
				}
			}
			if c.servers == there {
				require.Equal(t, []string{fmt.Sprintf("00-%s-%s-01", clientTrace, all[1].SpanContext().SpanID())}, seen["Traceparent"])
				require.Equal(t, []string{"vendor=1"}, seen["Tracestate"])
			}
		})
	}
}

// If tracing is off, or a caller does not record, the server gets the caller's headers unchanged.
func TestTheTraceOfWhatIsProxiedGoesOn(t *testing.T) {
	var seen nethttp.Header
	upstream := httptest.NewServer(nethttp.HandlerFunc(func(_ nethttp.ResponseWriter, r *nethttp.Request) { seen = r.Header }))
	defer upstream.Close()
	p := &partitions{endpoints: []string{strings.TrimPrefix(upstream.URL, "http://")}}
	tracer, ended := newSpans()
	for name, c := range map[string]struct {
		tracer *spans.Tracer
		parent string
	}{"off": {nil, recorded}, "not recorded": {tracer, unrecorded}, "none": {tracer, ""}, "not to be read": {tracer, "nonsense"}} {
		t.Run(name, func(t *testing.T) {
			address := serve(t, front.Options{Picker: p, Endpoints: p, Spans: c.tracer})
			header := map[string]string{"X-Mine": "1"}
			want := []string(nil)
			if c.parent != "" {
				header["Traceparent"], want = c.parent, []string{c.parent}
			}
			require.Equal(t, nethttp.StatusOK, send(t, address, request{Method: "POST", Path: "/v2/models/m/generate", Body: "{}", Header: header}).Code)
			require.Equal(t, want, seen["Traceparent"])
			require.Equal(t, []string{"1"}, seen["X-Mine"])
		})
	}
	require.Empty(t, ended.Ended())
}

// A caller that cancels before it is answered is no failure of the server.
func TestWhoGoesIsCancelledInTheTrace(t *testing.T) {
	tracer, ended := newSpans()
	p := picker{make(chan struct{}), make(chan struct{})}
	address := serve(t, front.Options{Picker: p, Spans: tracer})
	ctx, hangUp := context.WithCancel(t.Context())
	r, err := nethttp.NewRequestWithContext(ctx, nethttp.MethodPost, "http://"+address+"/v2/models/m/generate", strings.NewReader("{}"))
	require.NoError(t, err)
	r.Header.Set("Traceparent", recorded)
	answered := make(chan error, 1)
	go func() {
		_, err := nethttp.DefaultClient.Do(r) //nolint:bodyclose // there is no answer
		answered <- err
	}()
	<-p.entered
	hangUp()
	require.Error(t, <-answered)
	_, attributes := spansOf(t, ended, spans.NameRequest)
	require.Equal(t, "cancelled", attributes[0]["conch.result"])
}

// BenchmarkProxied is the cost of a proxied request, with its trace off, not recorded, and recorded (sent nowhere).
func BenchmarkProxied(b *testing.B) {
	upstream := httptest.NewServer(nethttp.HandlerFunc(func(nethttp.ResponseWriter, *nethttp.Request) {}))
	defer upstream.Close()
	p := &partitions{endpoints: []string{strings.TrimPrefix(upstream.URL, "http://")}}
	unrecordedSpans, _ := newSpans()
	for _, c := range []struct {
		name   string
		tracer *spans.Tracer
		parent string
	}{{"off", nil, recorded}, {"unrecorded", unrecordedSpans, unrecorded}, {"recorded", spans.New(sdktrace.NewTracerProvider()), recorded}} {
		b.Run(c.name, func(b *testing.B) {
			h := front.New(front.Options{Inferer: nil, Catalog: catalog{}, Picker: p, Endpoints: p, Aggregator: aggregator{}, Spans: c.tracer})
			b.Cleanup(h.Close)
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest(nethttp.MethodPost, "/v2/models/m/generate", strings.NewReader(`{"text_input":"x"}`))
				r.Header.Set("Traceparent", c.parent)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != nethttp.StatusOK {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}

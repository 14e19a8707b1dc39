// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package collector is an OpenTelemetry collector for tests: it takes spans by
// OTLP, over gRPC as Conch sends them and as JSON over HTTP as Triton does, and
// keeps them.
package collector

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Span is a span as a collector sees it; of Triton's only names and ids. Ids are hexadecimal, as in traceparent;
// Parent is empty for the first of a trace.
type Span struct {
	Service, Name     string
	Trace, ID, Parent string
	Kind              tracepb.Span_SpanKind
	Start, End        time.Time
	Attributes        map[string]string
	Links             []Link
	// Error is the description of a status that is an error.
	Error string
}

// Link names a span, of another trace perhaps.
type Link struct{ Trace, ID string }

// Link is what names this span.
func (s Span) Link() Link { return Link{s.Trace, s.ID} }

// Traceparent is the header that makes this span the parent of what it is sent to.
func (s Span) Traceparent() string { return "00-" + s.Trace + "-" + s.ID + "-01" }

// Collector collects. Make one with Start.
type Collector struct {
	collectorpb.UnimplementedTraceServiceServer
	grpc *grpc.Server
	http *http.Server
	// GRPC and HTTP are the addresses, host:port. HTTP takes POST /v1/traces.
	GRPC, HTTP string
	serving    sync.WaitGroup

	mu    sync.Mutex
	spans []Span
}

// Start listens on two free ports of this machine.
func Start() (*Collector, error) {
	c := &Collector{grpc: grpc.NewServer()}
	c.http = &http.Server{Handler: c, ReadHeaderTimeout: 10 * time.Second}
	collectorpb.RegisterTraceServiceServer(c.grpc, c)
	var listeners [2]net.Listener
	for i := range listeners {
		var err error
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil { //nolint:noctx // binding does not wait
			return nil, err
		}
	}
	c.GRPC, c.HTTP = listeners[0].Addr().String(), listeners[1].Addr().String()
	c.serving.Go(func() { _ = c.grpc.Serve(listeners[0]) })
	c.serving.Go(func() { _ = c.http.Serve(listeners[1]) })
	return c, nil
}

// Close ends it.
func (c *Collector) Close() error {
	c.grpc.Stop()
	err := c.http.Close()
	c.serving.Wait()
	return err
}

// Spans are all that came until now, by their start.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clone(c.spans)
	slices.SortStableFunc(all, func(a, b Span) int { return a.Start.Compare(b.Start) })
	return all
}

// Named are the spans of this name.
func (c *Collector) Named(name string) []Span {
	return slices.DeleteFunc(c.Spans(), func(s Span) bool { return s.Name != name })
}

// Export implements OTLP over gRPC.
func (c *Collector) Export(_ context.Context, r *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range r.GetResourceSpans() {
		service := attributes(of.GetResource().GetAttributes())["service.name"]
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				c.spans = append(c.spans, read(service, s))
			}
		}
	}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

// ServeHTTP implements OTLP over HTTP, for the JSON bodies that Triton sends.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var request request
	if r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/json" {
		http.Error(w, "POST JSON to /v1/traces", http.StatusBadRequest)
		return
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range request.ResourceSpans {
		service := ""
		for _, a := range of.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.StringValue
			}
		}
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans = append(c.spans, Span{Service: service, Name: s.Name, Trace: s.TraceID, ID: s.SpanID, Parent: s.ParentSpanID})
			}
		}
	}
}

// request is ExportTraceServiceRequest as OTLP writes it in JSON, with ids in
// hexadecimal (which is not protojson): the fields that relate spans to their parents.
type request struct {
	ResourceSpans []struct {
		Resource struct {
			Attributes []struct {
				Key   string
				Value struct{ StringValue string }
			}
		}
		ScopeSpans []struct {
			Spans []struct{ Name, TraceID, SpanID, ParentSpanID string }
		}
	}
}

func read(service string, s *tracepb.Span) Span {
	own := Span{
		Service: service, Name: s.GetName(), Trace: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()),
		Parent: hex.EncodeToString(s.GetParentSpanId()), Kind: s.GetKind(), Attributes: attributes(s.GetAttributes()),
		Start: time.Unix(0, int64(s.GetStartTimeUnixNano())), End: time.Unix(0, int64(s.GetEndTimeUnixNano())),
	}
	for _, l := range s.GetLinks() {
		own.Links = append(own.Links, Link{hex.EncodeToString(l.GetTraceId()), hex.EncodeToString(l.GetSpanId())})
	}
	if s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR {
		own.Error = s.GetStatus().GetMessage()
	}
	return own
}

// attributes by key, with values as text: those of strings, integers and booleans.
func attributes(all []*commonpb.KeyValue) map[string]string {
	text := map[string]string{}
	for _, a := range all {
		switch v := a.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			text[a.GetKey()] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			text[a.GetKey()] = strconv.FormatInt(v.IntValue, 10)
		case *commonpb.AnyValue_BoolValue:
			text[a.GetKey()] = strconv.FormatBool(v.BoolValue)
		}
	}
	return text
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package spans

import (
	"context"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
)

// The fields of W3C Trace Context, as gRPC's metadata and, in the canonical form
// of net/http, as HTTP headers.
const (
	parentKey    = "traceparent"
	stateKey     = "tracestate"
	parentHeader = "Traceparent"
	stateHeader  = "Tracestate"
)

// FromHTTP is ctx with the trace context of an HTTP request, if it has a valid one,
// as incoming metadata: where the request path looks for that of gRPC.
func FromHTTP(ctx context.Context, h http.Header) context.Context {
	parent := h[parentHeader]
	if len(parent) == 0 {
		return ctx
	}
	md := metadata.MD{parentKey: parent}
	if state := h[stateHeader]; len(state) > 0 {
		md[stateKey] = state
	}
	incoming := metadata.NewIncomingContext(ctx, md)
	if of := Context(incoming); of.IsValid() {
		return metadata.NewIncomingContext(ctx, fields(of))
	}
	return ctx
}

// Context is the trace context that came in with a call. It is not valid if there
// is none, or one that cannot be read.
func Context(ctx context.Context) trace.SpanContext {
	parent := metadata.ValueFromIncomingContext(ctx, parentKey)
	if len(parent) != 1 { // two count as none, by the specification
		return trace.SpanContext{}
	}
	c := carrier{parentKey: parent[0]}
	if state := metadata.ValueFromIncomingContext(ctx, stateKey); len(state) > 0 {
		c[stateKey] = strings.Join(state, ",")
	}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), c))
}

// Onward is ctx with a trace context, if that is valid, as outgoing metadata.
func Onward(ctx context.Context, of trace.SpanContext) context.Context {
	if !of.IsValid() {
		return ctx
	}
	md, _ := metadata.FromOutgoingContext(ctx) // a copy
	if md == nil {
		return metadata.NewOutgoingContext(ctx, fields(of))
	}
	delete(md, stateKey)
	for key, values := range fields(of) {
		md[key] = values
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// fields are a trace context as metadata.
func fields(of trace.SpanContext) metadata.MD {
	c := carrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), of), c)
	md := make(metadata.MD, len(c))
	for key, value := range c {
		md[key] = []string{value}
	}
	return md
}

// carrier implements propagation.TextMapCarrier.
type carrier map[string]string

func (c carrier) Get(key string) string { return c[key] }
func (c carrier) Set(key, value string) { c[key] = value }
func (c carrier) Keys() (keys []string) {
	for key := range c {
		keys = append(keys, key)
	}
	return keys
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package spans

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/status"
)

// Scope is the name of the instrumentation scope of all spans.
const Scope = "github.com/conch-serving/conch"

// Names of spans.
const (
	// NameRequest is a request from its arrival to its answer.
	NameRequest = "conch.request"
	// NameQueue is the time of a request in the queue.
	NameQueue = "conch.queue"
	// NameExecution is an execution on a partition: of a batch, or of a request
	// that passes through.
	NameExecution = "conch.execution"
)

// Keys of attributes.
const (
	keyModel         = attribute.Key("conch.model")
	keyVersion       = attribute.Key("conch.version")
	keyID            = attribute.Key("conch.request.id")
	keyRows          = attribute.Key("conch.rows")
	keyRequests      = attribute.Key("conch.requests")
	keyPartition     = attribute.Key("conch.partition")
	keyResult        = attribute.Key("conch.result")
	keyReason        = attribute.Key("conch.reason")
	keyRetried       = attribute.Key("conch.retried")
	keyPassedThrough = attribute.Key("conch.passed_through")
	// By OpenTelemetry's conventions for HTTP.
	keyPath   = attribute.Key("url.path")
	keyStatus = attribute.Key("http.response.status_code")
)

// Tracer makes spans; nil makes none.
type Tracer struct{ tracer trace.Tracer }

// New makes a Tracer of a provider, whose sampler decides which requests have
// spans.
func New(p trace.TracerProvider) *Tracer { return &Tracer{p.Tracer(Scope)} }

// Request is the span of a request; nil if there is none.
type Request struct {
	t    *Tracer
	span trace.Span
	ctx  context.Context // of the span, for its children; never cancelled
}

// Request begins the span of a request that arrived at a moment, as a child of the
// trace context in ctx's incoming metadata. It is nil if the request is not
// sampled. Model and id may be empty, and rows 0, where the request was not read.
func (t *Tracer) Request(ctx context.Context, model, version, id string, rows int, at time.Time) *Request {
	if t == nil {
		return nil
	}
	parent := context.Background()
	if of := Context(ctx); of.IsValid() {
		parent = trace.ContextWithRemoteSpanContext(parent, of)
	}
	children, span := t.tracer.Start(parent, NameRequest, trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(at))
	if !span.IsRecording() {
		return nil
	}
	span.SetAttributes(about(model, rows)...)
	if version != "" {
		span.SetAttributes(keyVersion.String(version))
	}
	if id != "" {
		span.SetAttributes(keyID.String(id))
	}
	return &Request{t: t, span: span, ctx: children}
}

// about are the attributes of a model and a number of rows that are known.
func about(model string, rows int) (known []attribute.KeyValue) {
	if model != "" {
		known = append(known, keyModel.String(model))
	}
	if rows > 0 {
		known = append(known, keyRows.Int(rows))
	}
	return known
}

// TraceID is that of the trace that the span is in; empty: there is no span.
func (r *Request) TraceID() string {
	if r == nil {
		return ""
	}
	return r.span.SpanContext().TraceID().String()
}

// Proxied sets the HTTP path of a request that is passed to a server unchanged.
func (r *Request) Proxied(path string) {
	if r != nil {
		r.span.SetAttributes(keyPath.String(path))
	}
}

// Answered sets the HTTP status of the server's answer.
func (r *Request) Answered(code int) {
	if r != nil {
		r.span.SetAttributes(keyStatus.Int(code))
	}
}

// Queued reports how long the request was in the queue. Step is the model of the step that was, empty for the request itself.
func (r *Request) Queued(step string, from, to time.Time) {
	if r == nil {
		return
	}
	_, span := r.t.tracer.Start(r.ctx, NameQueue, trace.WithTimestamp(from))
	span.SetAttributes(about(step, 0)...)
	span.End(trace.WithTimestamp(to))
}

// End ends the span with the outcome of the request. Result and reason are labels
// of conch_requests_total; err is the error that its caller gets instead of
// tensors.
func (r *Request) End(at time.Time, result, reason string, passedThrough, retried bool, err error) {
	if r == nil {
		return
	}
	r.span.SetAttributes(keyResult.String(result))
	if reason != "" {
		r.span.SetAttributes(keyReason.String(reason))
	}
	if passedThrough {
		r.span.SetAttributes(keyPassedThrough.Bool(true))
	}
	if retried {
		r.span.SetAttributes(keyRetried.Bool(true))
	}
	fail(r.span, err)
	r.span.End(trace.WithTimestamp(at))
}

// Execution is the span of an execution; nil if there is none.
type Execution struct{ span trace.Span }

// Execute begins the span of an execution of requests, those without a span left
// out. It is a child of the first of them and linked with all of them, in both
// directions; so each trace leads to the execution, and Triton's spans, which are
// its children, are in the trace of the first. It is nil without requests.
func Execute(of []*Request, model, partition string, rows, requests int, at time.Time) *Execution {
	if len(of) == 0 {
		return nil
	}
	links := make([]trace.Link, len(of))
	for i, r := range of {
		links[i].SpanContext = r.span.SpanContext()
	}
	_, span := of[0].t.tracer.Start(of[0].ctx, NameExecution, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(at), trace.WithLinks(links...),
		trace.WithAttributes(append(about(model, rows), keyPartition.String(partition), keyRequests.Int(requests))...))
	for _, r := range of {
		r.span.AddLink(trace.Link{SpanContext: span.SpanContext()})
	}
	return &Execution{span}
}

// Onward is ctx, on its way to a server, with the execution as the parent of what
// the server traces.
func (e *Execution) Onward(ctx context.Context) context.Context {
	if e == nil {
		return ctx
	}
	return Onward(ctx, e.span.SpanContext())
}

// OnwardHTTP puts the execution, as the parent of what the server traces, into the
// headers of a request on its way to a server. It replaces the trace context
// there.
func (e *Execution) OnwardHTTP(h http.Header) {
	if e == nil {
		return
	}
	delete(h, stateHeader)
	for key, values := range fields(e.span.SpanContext()) {
		h[http.CanonicalHeaderKey(key)] = values
	}
}

// End ends an execution, with the server's error if it answered with one.
func (e *Execution) End(at time.Time, err error) {
	if e == nil {
		return
	}
	fail(e.span, err)
	e.span.End(trace.WithTimestamp(at))
}

// fail marks a span as failed unless err is nil.
func fail(span trace.Span, err error) {
	if err == nil {
		return
	}
	s, ok := status.FromError(err)
	if ok { // else it is not a gRPC status
		span.SetAttributes(attribute.String("rpc.grpc.status_code", s.Code().String()))
	}
	span.SetStatus(codes.Error, s.Message())
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package tracing sends spans to an OpenTelemetry collector by OTLP over gRPC,
// with the official SDK. What the SDK reads from the environment holds here too:
// OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME say what the spans are of,
// OTEL_EXPORTER_OTLP_HEADERS has the keys of a collector that wants some, and
// OTEL_BSP_* bounds what waits to be sent. Requests never wait for a collector:
// spans that it does not take in time are lost.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/credentials"
)

// Options of New.
type Options struct {
	// Endpoint is host:port of a collector's OTLP over gRPC.
	Endpoint string
	// Credentials are how the collector is reached; nil is in the clear.
	Credentials credentials.TransportCredentials
	// Sample is the part of the traces, from 0 to 1, that are recorded: of those
	// that begin here, and with IgnoreClients of all.
	Sample float64
	// IgnoreClients ignores the decision of callers that send a trace.
	// Otherwise a trace is recorded if, and only if, its caller records it.
	IgnoreClients bool
	// Version of conch, as the spans' resource has it.
	Version string
	// Logger logs a collector that takes no spans; nil discards.
	Logger *slog.Logger
}

const (
	// flush bounds the end: a collector that is not there costs no more than this.
	flush = 2 * time.Second
	// maxLinks is above the requests of any batch that Triton's models take.
	maxLinks = 4096
	// maxValue bounds the bytes of what callers say, such as a request's id.
	maxValue = 256
)

// Provider makes tracers whose spans go to the collector.
type Provider struct{ *sdktrace.TracerProvider }

var _ trace.TracerProvider = Provider{}

// New makes a provider. It does not wait for the collector.
func New(ctx context.Context, o Options) (Provider, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	way := otlptracegrpc.WithInsecure()
	if o.Credentials != nil {
		way = otlptracegrpc.WithTLSCredentials(o.Credentials)
	}
	client, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpoint(o.Endpoint), way)
	if err != nil {
		return Provider{}, fmt.Errorf("tracing to %s: %w", o.Endpoint, err)
	}
	what, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "conch"), attribute.String("service.version", o.Version)),
		resource.WithHost(), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		return Provider{}, fmt.Errorf("tracing: %w; mend OTEL_RESOURCE_ATTRIBUTES", err)
	}
	limits := sdktrace.NewSpanLimits()
	limits.LinkCountLimit, limits.AttributeValueLengthLimit = maxLinks, maxValue
	return Provider{sdktrace.NewTracerProvider(
		sdktrace.WithResource(what), sdktrace.WithSampler(sampler(o)), sdktrace.WithRawSpanLimits(limits),
		sdktrace.WithBatcher(&logged{SpanExporter: client, log: o.Logger, endpoint: o.Endpoint}),
	)}, nil
}

func sampler(o Options) sdktrace.Sampler {
	own := sdktrace.TraceIDRatioBased(o.Sample)
	if o.IgnoreClients {
		return own
	}
	return sdktrace.ParentBased(own)
}

// Close sends what waits, for two seconds at most, and ends.
func (p Provider) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), flush)
	defer cancel()
	_ = p.Shutdown(ctx) // what could not be sent was logged
	return nil
}

// logged says when a collector begins to take no spans, and when it takes them
// again, in place of the SDK's own handler of errors, which is global.
type logged struct {
	sdktrace.SpanExporter
	log      *slog.Logger
	endpoint string
	failing  atomic.Bool
}

// ExportSpans implements sdktrace.SpanExporter.
func (l *logged) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := l.SpanExporter.ExportSpans(ctx, spans)
	switch {
	case err != nil && !l.failing.Swap(true):
		l.log.Warn("the collector takes no spans: they are lost until it does", "endpoint", l.endpoint, "error", err)
	case err == nil && l.failing.Swap(false):
		l.log.Info("the collector takes spans again", "endpoint", l.endpoint)
	}
	return nil
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package spans_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/conch-serving/conch/sidecar/dispatch/spans"
)

const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// The trace context of an HTTP request is passed on only if it is valid: an invalid header must not fail a call to
// Triton.
func TestFromHTTP(t *testing.T) {
	for name, c := range map[string]struct {
		header http.Header
		want   metadata.MD
	}{
		"none":            {http.Header{}, nil},
		"one":             {http.Header{"Traceparent": {parent}}, metadata.Pairs("traceparent", parent)},
		"with state":      {http.Header{"Traceparent": {parent}, "Tracestate": {"a=1", "b=2"}}, metadata.Pairs("traceparent", parent, "tracestate", "a=1,b=2")},
		"state alone":     {http.Header{"Tracestate": {"a=1"}}, nil},
		"two":             {http.Header{"Traceparent": {parent, parent}}, nil},
		"not hexadecimal": {http.Header{"Traceparent": {"00-zzf7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}, nil},
		"zero":            {http.Header{"Traceparent": {"00-00000000000000000000000000000000-b7ad6b7169203331-01"}}, nil},
		"not ASCII":       {http.Header{"Traceparent": {"é"}}, nil},
		"state not ASCII": {http.Header{"Traceparent": {parent}, "Tracestate": {"é=1"}}, metadata.Pairs("traceparent", parent)},
	} {
		t.Run(name, func(t *testing.T) {
			md, _ := metadata.FromIncomingContext(spans.FromHTTP(t.Context(), c.header))
			require.Equal(t, c.want, md)
		})
	}
}

// A request costs no allocation where nothing is traced.
func TestOffAllocatesNothing(t *testing.T) {
	var tracer *spans.Tracer
	ctx, header, now := context.Background(), http.Header{"Content-Type": {"application/json"}}, time.Now()
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		own := spans.FromHTTP(ctx, header)
		r := tracer.Request(own, "m", "1", "id", 1, now)
		e := spans.Execute(nil, "m", "p", 1, 1, now)
		_ = e.Onward(own)
		e.End(now, nil)
		r.Queued("", now, now)
		r.End(now, "ok", "", false, false, nil)
	}))
}

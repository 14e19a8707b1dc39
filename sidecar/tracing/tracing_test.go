// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package tracing_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/conch-serving/conch/internal/collector"
	"github.com/conch-serving/conch/sidecar/tracing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// begin begins and ends traces: those of clients that record, of clients that do not, and its own.
func begin(p tracing.Provider, n int) {
	tracer := p.Tracer("test")
	for i := range n {
		for name, flags := range map[string]trace.TraceFlags{"recorded": trace.FlagsSampled, "unrecorded": 0} {
			var id trace.TraceID
			binary.BigEndian.PutUint64(id[8:], uint64(i+1)*0x9e3779b97f4a7c15) // the ratio is of these bits
			ctx := trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: trace.SpanID{1}, TraceFlags: flags}))
			_, s := tracer.Start(ctx, name)
			s.End()
		}
		_, s := tracer.Start(context.Background(), "own")
		s.End()
	}
}

// What is recorded is a matter of tracing.sample and tracing.clients.
func TestSampling(t *testing.T) {
	const n = 400
	for name, c := range map[string]struct {
		options                   tracing.Options
		recorded, unrecorded, own [2]int // between
	}{
		"clients decide, nothing else": {tracing.Options{}, [2]int{n, n}, [2]int{0, 0}, [2]int{0, 0}},
		"a quarter":                    {tracing.Options{Sample: 0.25}, [2]int{n, n}, [2]int{0, 0}, [2]int{n / 8, n / 2}},
		"all":                          {tracing.Options{Sample: 1}, [2]int{n, n}, [2]int{0, 0}, [2]int{n, n}},
		"a quarter of whatever":        {tracing.Options{Sample: 0.25, IgnoreClients: true}, [2]int{n / 8, n / 2}, [2]int{n / 8, n / 2}, [2]int{n / 8, n / 2}},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := collector.Start()
			require.NoError(t, err)
			defer func() { require.NoError(t, o.Close()) }()
			c.options.Endpoint, c.options.Version = o.GRPC, "v1"
			p, err := tracing.New(t.Context(), c.options)
			require.NoError(t, err)
			begin(p, n)
			require.NoError(t, p.Close())
			for name, between := range map[string][2]int{"recorded": c.recorded, "unrecorded": c.unrecorded, "own": c.own} {
				got := len(o.Named(name))
				require.True(t, between[0] <= got && got <= between[1], "%s: %d, not %v", name, got, between)
			}
		})
	}
}

// A collector that cannot be reached is logged once, and delays nothing for long.
func TestACollectorThatIsNotThere(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "50") // milliseconds
	const nobody = "127.0.0.1:1"
	var log bytes.Buffer
	p, err := tracing.New(t.Context(), tracing.Options{Endpoint: nobody, Sample: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	begin(p, 2)
	_ = p.ForceFlush(t.Context())
	begin(p, 2)
	require.NoError(t, p.Close())
	require.Equal(t, 1, strings.Count(log.String(), "the collector takes no spans"), log.String())
	require.Contains(t, log.String(), nobody)
}

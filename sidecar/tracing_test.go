// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	"github.com/conch-serving/conch/internal/collector"
	"github.com/conch-serving/conch/sidecar/dispatch/spans"
)

// A collector sees requests of both protocols end to end: each in the trace of its client, its time in the queue, and the execution
// that it shares with others, which links to all of them.
func TestACollectorSeesRequestsEndToEnd(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10") // milliseconds
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
	o, err := collector.Start()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, o.Close()) })
	c := startConch(t, text(writeZoo(t, "a"), t.TempDir(), "tracing: {endpoint: \""+o.GRPC+"\", sample: 0}"))
	defer c.stop()
	// Conch records the requests of clients that record their traces. A request of another client is not recorded, even if it shares an
	// execution with one that is.
	parent := func(n int, flags string) string {
		return fmt.Sprintf("00-%032x-%016x-%s", n+1, n+1, flags)
	}
	n := 0
	var shared collector.Span
	require.Eventually(t, func() bool {
		var all sync.WaitGroup
		failed := make(chan error, 13)
		for range 12 {
			n++
			ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", parent(n, "01"))
			all.Go(func() { failed <- c.infer(ctx, "a", 1) })
		}
		all.Go(func() {
			failed <- c.infer(metadata.AppendToOutgoingContext(t.Context(), "traceparent", parent(0, "00")), "a", 1)
		})
		all.Wait()
		for range 13 {
			require.NoError(t, <-failed)
		}
		for _, e := range o.Named(spans.NameExecution) {
			if len(e.Links) > 1 {
				shared = e
				return true
			}
		}
		return false
	}, time.Minute, 10*time.Millisecond, "an execution that several requests share")

	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+c.address("http").String()+"/v2/models/a/infer",
		strings.NewReader(`{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[1,16],"data":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}]}`))
	require.NoError(t, err)
	request.Header.Set("Traceparent", parent(1<<20, "01"))
	r, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	require.Equal(t, http.StatusOK, r.StatusCode)
	c.stop() // sends the rest

	byID := map[collector.Link]collector.Span{}
	for _, s := range o.Spans() {
		require.Equal(t, "conch", s.Service)
		require.NotEqual(t, fmt.Sprintf("%032x", 1), s.Trace, "the client does not record this one")
		byID[s.Link()] = s
	}
	requests := o.Named(spans.NameRequest)
	require.Len(t, requests, n+1)
	for _, r := range requests {
		require.Equal(t, r.Trace[16:], r.Parent, "the client's span is the parent")
		require.Equal(t, "a", r.Attributes["conch.model"])
		require.Equal(t, "1", r.Attributes["conch.rows"])
		require.Contains(t, []string{"ok", "late"}, r.Attributes["conch.result"])
		require.Len(t, r.Links, 1, "to its execution")
		execution, found := byID[r.Links[0]]
		require.True(t, found)
		require.Contains(t, execution.Links, r.Link())
		queued := slices.IndexFunc(o.Named(spans.NameQueue), func(q collector.Span) bool { return q.Parent == r.ID && q.Trace == r.Trace })
		require.GreaterOrEqual(t, queued, 0)
		q := o.Named(spans.NameQueue)[queued]
		require.WithinDuration(t, r.Start, q.Start, 0)
		require.WithinDuration(t, execution.Start, q.End, time.Millisecond)
		require.False(t, execution.End.After(r.End), "an execution ends before its answers")
	}
	require.Contains(t, byID, collector.Link{Trace: shared.Trace, ID: shared.Parent}, "the execution is in the trace of a request")
	require.Equal(t, shared.Links[0], collector.Link{Trace: shared.Trace, ID: shared.Parent})
	require.True(t, strings.HasPrefix(shared.Attributes["conch.partition"], "gpu"), shared.Attributes)
}

// Without a collector to send to nothing is traced, whatever clients bring.
func TestTracingIsOffUnlessConfigured(t *testing.T) {
	t.Parallel()
	c := startConch(t, text(writeZoo(t, "a"), t.TempDir(), ""))
	require.Nil(t, c.tracer)
}

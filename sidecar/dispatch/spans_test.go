// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/dispatch/spans"
)

// newSpans is a tracer that follows its callers' decisions, and the spans that have ended.
func newSpans() (*spans.Tracer, *tracetest.SpanRecorder) {
	ended := tracetest.NewSpanRecorder()
	return spans.New(sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.NeverSample())), sdktrace.WithSpanProcessor(ended))), ended
}

// traceparent of a caller.
func traceparent(n int, flags string) string { return fmt.Sprintf("00-%032x-%016x-%s", n, n, flags) }

func traced(ctx context.Context, parent string) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.Pairs("traceparent", parent, "tracestate", "vendor=1", "x-own", "kept"))
}

func named(ended *tracetest.SpanRecorder, name string) (found []sdktrace.ReadOnlySpan) {
	for _, s := range ended.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	return found
}

// Three requests wait for the partition and share its next execution: two of callers that record their traces, one of a caller that does not.
// Triton receives the execution as the parent of what it traces.
func TestAnExecutionLinksToItsRequests(t *testing.T) {
	tracer, ended := newSpans()
	p := newTriton(t)
	hold, parents := make(chan struct{}), make(chan []string, 2)
	p.hold, p.started = hold, make(chan string, 2)
	p.asked = func(ctx context.Context, _ *tritonpb.ModelInferRequest) {
		parents <- metadata.ValueFromIncomingContext(ctx, "traceparent")
	}
	d, _ := newDispatcher(t, dispatch.Options{Spans: tracer}, table(1, func(m *router.Model) { m.SLO = time.Minute }, p))
	answered := make(chan error, 4)
	ask := func(n int, flags string) {
		go func() { answered <- infer(traced(t.Context(), traceparent(n, flags)), t, d, uint32(n), 1, nil) }()
	}
	ask(1, "01")
	<-p.started
	for n := 2; n <= 4; n++ {
		ask(n, map[int]string{2: "01", 3: "00", 4: "01"}[n])
		require.Eventually(t, func() bool { requests, _ := d.UnderWay(); return requests == int64(n) }, 30*time.Second, time.Millisecond)
	}
	require.Eventually(t, func() bool { return waiting(d) == 3 }, 30*time.Second, time.Millisecond)
	close(hold)
	for range 4 {
		require.NoError(t, <-answered)
	}
	executions := named(ended, spans.NameExecution)
	require.Len(t, executions, 2)
	alone, shared := executions[0], executions[1]
	require.Equal(t, []int{1, 3}, p.executions())
	require.Len(t, alone.Links(), 1)
	require.Len(t, shared.Links(), 2, "the third request has no span")
	for _, e := range executions {
		require.Equal(t, []string{fmt.Sprintf("00-%s-%s-01", e.SpanContext().TraceID(), e.SpanContext().SpanID())}, <-parents, "Triton's parent")
		require.Equal(t, e.Links()[0].SpanContext.SpanID(), e.Parent().SpanID())
	}
	requests := named(ended, spans.NameRequest)
	require.Len(t, requests, 3)
	for _, r := range requests {
		require.True(t, r.Parent().IsRemote())
		require.Equal(t, r.SpanContext().TraceID(), r.Parent().TraceID())
		require.Equal(t, "vendor=1", r.SpanContext().TraceState().String())
		require.Len(t, r.Links(), 1)
	}
	require.Len(t, named(ended, spans.NameQueue), 3)
}

// The steps of an ensemble have waits and executions of their own in the trace of its request.
func TestStepsOfAnEnsembleAreTraced(t *testing.T) {
	tracer, ended := newSpans()
	d, _ := newDispatcher(t, dispatch.Options{Spans: tracer}, ensembleTable(1, nil, newTriton(t)))
	require.NoError(t, infer(traced(t.Context(), traceparent(1, "01")), t, d, 1, 1, toModel("e")))
	requests := named(ended, spans.NameRequest)
	require.Len(t, requests, 1)
	for _, name := range []string{spans.NameQueue, spans.NameExecution} {
		var models []string
		for _, s := range named(ended, name) {
			require.Equal(t, requests[0].SpanContext().SpanID(), s.Parent().SpanID())
			for _, a := range s.Attributes() {
				if a.Key == "conch.model" {
					models = append(models, a.Value.AsString())
				}
			}
		}
		require.Equal(t, []string{"m", "n"}, models, name)
	}
}

// A request that does not wait in the queue is traced too, and the rest of its metadata is passed on.
func TestARequestThatPassesThroughIsTraced(t *testing.T) {
	tracer, ended := newSpans()
	p := newTriton(t)
	var came metadata.MD
	p.asked = func(ctx context.Context, _ *tritonpb.ModelInferRequest) { came, _ = metadata.FromIncomingContext(ctx) }
	p.refuse = func(*tritonpb.ModelInferRequest) error { return status.Error(codes.InvalidArgument, "not this one") }
	d, _ := newDispatcher(t, dispatch.Options{Spans: tracer}, table(1, func(m *router.Model) { m.Batchable = false }, p))
	require.Error(t, infer(traced(t.Context(), traceparent(7, "01")), t, d, 1, 1, nil))
	execution, request := named(ended, spans.NameExecution)[0], named(ended, spans.NameRequest)[0]
	require.Equal(t, execution.SpanContext().SpanID().String(), strings.Split(came.Get("traceparent")[0], "-")[2])
	require.Equal(t, []string{"kept"}, came.Get("x-own"))
	require.Equal(t, "not this one", request.Status().Description)
	require.Empty(t, named(ended, spans.NameQueue))
}

// If tracing is off, or a caller does not record, Triton gets the caller's trace context unchanged. A context that cannot be read does not get
// into an execution that others share.
func TestTheTraceOfACallerGoesOn(t *testing.T) {
	for name, o := range map[string]dispatch.Options{"off": {}, "not sampled": {Spans: func() *spans.Tracer { tracer, _ := newSpans(); return tracer }()}} {
		t.Run(name, func(t *testing.T) {
			p := newTriton(t)
			hold, came := make(chan struct{}), make(chan metadata.MD, 2)
			p.hold, p.started = hold, make(chan string, 2)
			p.asked = func(ctx context.Context, _ *tritonpb.ModelInferRequest) {
				md, _ := metadata.FromIncomingContext(ctx)
				came <- md
			}
			d, _ := newDispatcher(t, o, table(1, func(m *router.Model) { m.SLO = time.Minute }, p))
			answered := make(chan error, 3)
			ask := func(n int, parent string) {
				go func() { answered <- infer(traced(t.Context(), parent), t, d, uint32(n), 1, nil) }()
			}
			ask(1, traceparent(1, "00"))
			<-p.started
			ask(2, "nonsense\x00")
			require.Eventually(t, func() bool { return waiting(d) == 1 }, 30*time.Second, time.Millisecond)
			ask(3, traceparent(3, "00"))
			require.Eventually(t, func() bool { return waiting(d) == 2 }, 30*time.Second, time.Millisecond)
			close(hold)
			for range 3 {
				require.NoError(t, <-answered)
			}
			require.Equal(t, []string{traceparent(1, "00")}, (<-came).Get("traceparent"))
			second := <-came
			require.Equal(t, []string{traceparent(3, "00")}, second.Get("traceparent"))
			require.Equal(t, []string{"vendor=1"}, second.Get("tracestate"))
			require.Equal(t, []int{1, 2}, p.executions())
		})
	}
}

func waiting(d *dispatch.Dispatcher) int {
	c, _ := d.Counts("m")
	return c.Waiting
}

// BenchmarkSpans is the cost of a request whose trace is off, not recorded, and recorded (sent nowhere): the path of BenchmarkInfer with a
// partition that answers at once.
func BenchmarkSpans(b *testing.B) {
	recorded := spans.New(sdktrace.NewTracerProvider())
	unrecorded, _ := newSpans()
	for _, c := range []struct {
		name   string
		tracer *spans.Tracer
	}{{"off", nil}, {"unrecorded", unrecorded}, {"recorded", recorded}} {
		b.Run(c.name, func(b *testing.B) {
			r := newRig(b, 1, "identity")
			d := dispatch.New(dispatch.Options{Spans: c.tracer})
			b.Cleanup(func() { require.NoError(b, d.Close()) })
			require.NoError(b, d.Swap(b.Context(), r.table))
			wire, err := proto.Marshal(&tritonpb.ModelInferRequest{
				ModelName: "identity", Inputs: []*input{{Name: "INPUT0", Datatype: "FP32", Shape: []int64{1, 256}}}, RawInputContents: [][]byte{make([]byte, 1<<10)},
			})
			require.NoError(b, err)
			b.ReportAllocs()
			for b.Loop() {
				request, err := batch.ReadRequest(mem.BufferSlice{mem.SliceBuffer(wire)})
				require.NoError(b, err)
				answer, err := d.Infer(b.Context(), request)
				require.NoError(b, err)
				answer.Free()
			}
		})
	}
}

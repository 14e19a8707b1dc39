// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/spans"
)

// drains reports whether a drain ends while something is under way.
func drains(t *testing.T, d *dispatch.Dispatcher) bool {
	t.Helper()
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := d.Drain(short)
	if err != nil {
		require.ErrorIs(t, err, context.DeadlineExceeded)
	}
	return err == nil
}

// TestADrainWaitsForWhatIsProxied: an exchange that was accepted is finished, and none begins any more.
func TestADrainWaitsForWhatIsProxied(t *testing.T) {
	for _, model := range []string{"m", ""} {
		t.Run("model "+model, func(t *testing.T) {
			d, seen := newDispatcher(t, dispatch.Options{}, table(1, nil, newTriton(t)))
			_, done, err := d.Pick(t.Context(), model)
			require.NoError(t, err)
			requests, _ := d.UnderWay()
			require.EqualValues(t, 1, requests)
			require.False(t, drains(t, d), "the exchange is under way")
			_, _, err = d.Pick(t.Context(), model)
			requireCode(t, codes.Unavailable, err)
			require.ErrorContains(t, err, "Server is exiting")
			done(nil)
			require.True(t, drains(t, d))
			if model != "" {
				require.Equal(t, 1, seen.count(t)[dispatch.OK])
			}
		})
	}
}

// TestADrainWaitsForMethodsThatPassThrough: as for what is proxied.
func TestADrainWaitsForMethodsThatPassThrough(t *testing.T) {
	p := newTriton(t)
	entered, held := make(chan struct{}, 1), make(chan struct{})
	p.stopAnd(func(s *grpc.Server) {
		s.RegisterService(&grpc.ServiceDesc{ServiceName: "new.Service", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
			StreamName: "Method", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, s grpc.ServerStream) error {
				entered <- struct{}{}
				<-held
				return s.SendMsg(&tritonpb.ServerLiveResponse{Live: true})
			},
		}}}, nil)
	})
	routes := table(1, nil, p)
	d, _ := newDispatcher(t, dispatch.Options{}, routes)
	address, _ := fronts(t, d, routes)
	conn := dialTo(t, address)
	open := func() grpc.ClientStream {
		s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/new.Service/Method")
		require.NoError(t, err)
		return s
	}
	first := open()
	<-entered
	require.False(t, drains(t, d))
	requireCode(t, codes.Unavailable, open().RecvMsg(&tritonpb.ServerLiveResponse{}))
	close(held)
	var answer tritonpb.ServerLiveResponse
	require.NoError(t, first.RecvMsg(&answer))
	require.True(t, answer.Live)
	require.NoError(t, d.Drain(t.Context()))
}

// TestADrainRefusesRequestsOnOpenStreams, and answers those that it accepted. A stream that owes nothing more ends, with the reason.
func TestADrainRefusesRequestsOnOpenStreams(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	d, seen, client := streamed(t, dispatch.Options{}, table(1, nil, p))
	busy, idle := openStream(t.Context(), t, client, message("a", 1, 1)), openStream(t.Context(), t, client)
	require.Equal(t, "a", <-p.started)
	drained := make(chan error, 1)
	go func() { drained <- d.Drain(t.Context()) }()
	require.Eventually(t, d.Draining, 30*time.Second, time.Millisecond)
	require.NoError(t, busy.Send(message("b", 1, 1))) // an idle stream may have ended by now
	require.Eventually(t, func() bool { return seen.refused() == 1 }, 30*time.Second, time.Millisecond)

	close(p.hold)
	r, err := busy.Recv()
	require.NoError(t, err)
	require.Empty(t, r.ErrorMessage)
	require.Equal(t, "a", r.InferResponse.Id)
	if r, err = busy.Recv(); err == nil { // else the stream has ended with the same words
		require.Contains(t, r.ErrorMessage, "Server is exiting")
		require.Equal(t, "b", r.InferResponse.Id)
	}
	require.NoError(t, <-drained)
	for _, s := range []inferClient{busy, idle} {
		_, err = s.Recv()
		require.False(t, errors.Is(err, io.EOF), "an open stream does not end as if its caller had ended it")
		requireCode(t, codes.Unavailable, err)
	}
	n := resultsInTime(seen.count(t))
	require.Equal(t, 1, n[dispatch.OK])
	require.Positive(t, n[dispatch.Refused], "the idle stream may have come after the drain began, and was not let in")
}

// slowSpans takes a moment at the end of each span, after the request was counted out and before its last answer is sent.
type slowSpans struct{ *tracetest.SpanRecorder }

func (s slowSpans) OnEnd(of sdktrace.ReadOnlySpan) {
	time.Sleep(20 * time.Millisecond)
	s.SpanRecorder.OnEnd(of)
}

// TestADrainLosesNoLastAnswer: the last request that is under way is one of a decoupled model. Its answer reaches the caller, although the drain ends the stream
// as soon as the request is counted out.
func TestADrainLosesNoLastAnswer(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	traces := spans.New(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(slowSpans{tracetest.NewSpanRecorder()})))
	d, _, client := streamed(t, dispatch.Options{Spans: traces}, table(1, decoupled, p))
	s := openStream(metadata.AppendToOutgoingContext(t.Context(), "traceparent", traceparent(1, "01")), t, client, message("a", 1, 1))
	require.Equal(t, "a", <-p.started)
	drained := make(chan error, 1)
	go func() { drained <- d.Drain(t.Context()) }()
	require.Eventually(t, d.Draining, 30*time.Second, time.Millisecond)
	close(p.hold)
	r, err := s.Recv()
	require.NoError(t, err)
	require.Equal(t, "a", r.InferResponse.Id)
	require.NoError(t, <-drained)
	_, err = s.Recv()
	requireCode(t, codes.Unavailable, err)
}

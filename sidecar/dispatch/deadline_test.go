// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/grpc"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// TestADeferredRequestMeetsItsCallersDeadline: a discipline that waits until the latest moment gets the deadline that the front answers by, and
// not the client's own, a little after it.
func TestADeferredRequestMeetsItsCallersDeadline(t *testing.T) {
	for _, patience := range []time.Duration{100 * time.Millisecond, 900 * time.Millisecond} {
		t.Run(patience.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				parts, o := inBubble(t, 1)
				parts[0].asked = func(context.Context, *tritonpb.ModelInferRequest) { time.Sleep(4 * time.Millisecond) }
				d, _ := newDispatcher(t, o, table(1, func(m *router.Model) { m.SLO, m.Discipline = time.Hour, "deferred" }, parts...))
				// The profile's upper quantile is above the server's time, as in real
				// profiles: the part that the front reserves is taken from the rest.
				d.SetProfile(linear(0, 5*time.Millisecond))
				client := frontInBubble(t, d)
				for range 5 {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					began := time.Now()
					_, err := client.ModelInfer(ctx, message("a", 1, 1))
					cancel()
					require.NoError(t, err)
					require.Greater(t, time.Since(began), patience/2, "it waited for others")
				}
			})
		})
	}
}

// frontInBubble is a client of a dispatcher's gRPC front, over a connection in memory.
func frontInBubble(t *testing.T, d *dispatch.Dispatcher) tritonpb.GRPCInferenceServiceClient {
	s := front.New(front.Options{Inferer: d, Refused: d.Refused})
	l := bufconn.Listen(1 << 20)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	conn, err := grpc.NewClient("passthrough:///front", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return tritonpb.NewGRPCInferenceServiceClient(conn)
}

// deaf is a context whose timer has not fired although its deadline has passed.
type deaf struct {
	context.Context
	deadline time.Time
}

func (c deaf) Deadline() (time.Time, bool) { return c.deadline, true }

// TestADeadlineComesThoughItsTimerIsLate: an answer after its caller's deadline is DEADLINE_EXCEEDED, and counted so, whatever the server
// answers.
func TestADeadlineComesThoughItsTimerIsLate(t *testing.T) {
	p := newTriton(t)
	for name, change := range map[string]func(*tritonpb.ModelInferRequest){
		"queued": nil,
		"passed through": func(m *tritonpb.ModelInferRequest) {
			m.Parameters = map[string]*tritonpb.InferParameter{"sequence_id": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 7}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, seen := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
			ctx := deaf{t.Context(), time.Now().Add(-time.Millisecond)}
			requireCode(t, codes.DeadlineExceeded, infer(ctx, t, d, 1, 1, change))
			require.Equal(t, map[dispatch.Result]int{dispatch.Cancelled: 1}, seen.count(t))
			require.Equal(t, dispatch.GoneDeadline, seen.outcomes[0].Reason)
		})
	}
}

// lateStream is a stream of one request, whose caller's deadline has passed and whose timer has not fired.
type lateStream struct {
	grpc.ServerStream
	ctx  context.Context
	sent bool
}

func (s *lateStream) Context() context.Context { return s.ctx }

func (s *lateStream) RecvMsg(m any) error {
	if s.sent {
		return io.EOF
	}
	s.sent = true
	wire, err := proto.Marshal(message("a", 1, 1))
	m.(*batch.Frame).Data = mem.BufferSlice{mem.SliceBuffer(wire)}
	return err
}

func (s *lateStream) SendMsg(any) error { return nil }

// TestAStreamPastItsDeadlineNeverEndsOK although all its requests were answered.
func TestAStreamPastItsDeadlineNeverEndsOK(t *testing.T) {
	p := newTriton(t)
	d, seen := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	requireCode(t, codes.DeadlineExceeded, d.InferStream(&lateStream{ctx: deaf{t.Context(), time.Now().Add(-time.Millisecond)}}))
	require.Equal(t, map[dispatch.Result]int{dispatch.Cancelled: 1}, seen.count(t))
}

// TestServersAreNotToldDeadlines: a server receives the cancellation, and no deadline that it could enforce itself.
func TestServersAreNotToldDeadlines(t *testing.T) {
	p := newTriton(t)
	p.hold, p.cancelled = make(chan struct{}), make(chan string, 1)
	deadlines := make(chan bool, 1)
	p.asked = func(ctx context.Context, _ *tritonpb.ModelInferRequest) {
		_, has := ctx.Deadline()
		deadlines <- has
	}
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, nil, p))
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	result := make(chan error, 1)
	go func() { result <- infer(ctx, t, d, 1, 1, nil) }()
	require.False(t, <-deadlines)
	cancel() // and it is alone: no other call shares the execution
	require.Equal(t, "id1", <-p.cancelled)
	requireCode(t, codes.Canceled, <-result)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/grpc"
)

// reading is a request path that reads its streams to their end.
type reading struct{ path }

func (*reading) InferStream(s grpc.ServerStream) error {
	for {
		var f batch.Frame
		if err := s.RecvMsg(&f); err != nil {
			return err
		}
		f.Data.Free()
	}
}

// refusals collects what a front refuses by itself.
type refusals struct {
	mu  sync.Mutex
	all []error
}

func (r *refusals) refused(_ context.Context, _ string, cause error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, cause)
}

// codes waits until there are n, and returns their codes.
func (r *refusals) codes(t *testing.T, n int) (all []codes.Code) {
	t.Helper()
	require.Eventually(t, func() bool { r.mu.Lock(); defer r.mu.Unlock(); return len(r.all) >= n }, 30*time.Second, time.Millisecond)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, err := range r.all {
		all = append(all, status.Code(err))
	}
	return all
}

// gated serves the front behind a gate.
func gated(t *testing.T, g gate.Options, largest int) (*refusals, tritonpb.GRPCInferenceServiceClient) {
	seen := &refusals{}
	s := front.New(front.Options{Inferer: &reading{}, Aggregator: &control{ready: true}, MaxMessage: largest, Refused: seen.refused})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g.Connections, g.Stall = 10, time.Minute
	door := gate.New(g)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(door.Listener(l, true)) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()); s.Stop(); <-done; door.Close() })
	return seen, tritonpb.NewGRPCInferenceServiceClient(conn)
}

// TestMessagesThatCannotBeReadAreToldOf: Options.Refused is called once for each. It is not called for calls that are not for inference, nor for
// a stream that its caller cancels.
func TestMessagesThatCannotBeReadAreToldOf(t *testing.T) {
	seen, client := gated(t, gate.Options{Requests: 10, Bytes: 1 << 20}, 100)
	large := &tritonpb.ModelInferRequest{ModelName: "m", RawInputContents: [][]byte{make([]byte, 200)}}
	_, err := client.ModelInfer(t.Context(), large)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	s, err := client.ModelStreamInfer(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.Send(&tritonpb.ModelInferRequest{ModelName: "m"}))
	require.NoError(t, s.Send(large))
	_, err = s.Recv()
	require.Equal(t, codes.ResourceExhausted, status.Code(err))

	_, err = client.ModelConfig(t.Context(), &tritonpb.ModelConfigRequest{Name: string(bytes.Repeat([]byte("m"), 200))})
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	left, leave := context.WithCancel(t.Context())
	s, err = client.ModelStreamInfer(left)
	require.NoError(t, err)
	require.NoError(t, s.Send(&tritonpb.ModelInferRequest{ModelName: "m"}))
	leave()
	_, err = s.Recv()
	require.Equal(t, codes.Canceled, status.Code(err))
	_, err = client.ModelInfer(t.Context(), large)
	require.Error(t, err)
	require.Equal(t, []codes.Code{codes.ResourceExhausted, codes.ResourceExhausted, codes.ResourceExhausted}, seen.codes(t, 3))
}

// TestACallThatIsEvictedIsToldOf: Options.Refused is called once, with the error
// that the client gets.
func TestACallThatIsEvictedIsToldOf(t *testing.T) {
	for name, send := range map[string]func(tritonpb.GRPCInferenceServiceClient, *tritonpb.ModelInferRequest) error{
		"a request": func(client tritonpb.GRPCInferenceServiceClient, m *tritonpb.ModelInferRequest) error {
			_, err := client.ModelInfer(t.Context(), m)
			return err
		},
		"on a stream": func(client tritonpb.GRPCInferenceServiceClient, m *tritonpb.ModelInferRequest) error {
			s, err := client.ModelStreamInfer(t.Context())
			require.NoError(t, err)
			_ = s.Send(m) // it may have its answer before
			_, err = s.Recv()
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			seen, client := gated(t, gate.Options{Requests: 10, Bytes: 256 << 10}, 0)
			// Long enough that the gate checks while it arrives: one that is whole within a millisecond may be admitted.
			err := send(client, &tritonpb.ModelInferRequest{ModelName: "m", RawInputContents: [][]byte{make([]byte, 64<<20)}})
			require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
			require.Equal(t, []codes.Code{codes.Unavailable}, seen.codes(t, 1))
			limit := seen.all[0].(interface{ Limit() string }).Limit()
			require.Contains(t, []string{"evicted", "queue_bytes"}, limit, "so much may be there before its handler that it is not let in")
		})
	}
}

// TestACallWhoseMessageNeverComesIsToldOf: Options.Refused is called with the
// reason, which is that the caller cancelled or half-closed the call.
func TestACallWhoseMessageNeverComesIsToldOf(t *testing.T) {
	seen := &refusals{}
	s := front.New(front.Options{Inferer: &reading{}, Aggregator: &control{}, Refused: seen.refused})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	door := gate.New(gate.Options{Requests: 10, Bytes: 1 << 20, Connections: 10, Stall: time.Minute})
	go func() { defer close(done); _ = s.Serve(door.Listener(l, true)) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()); s.Stop(); <-done; door.Close() })
	method := tritonpb.GRPCInferenceService_ModelInfer_FullMethodName
	description := &grpc.StreamDesc{ClientStreams: true}
	ctx, leave := context.WithCancel(t.Context())
	_, err = conn.NewStream(ctx, description, method)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return door.Stats().Requests == 1 }, 30*time.Second, time.Millisecond)
	leave()
	require.Equal(t, []codes.Code{codes.Canceled}, seen.codes(t, 1))
	call, err := conn.NewStream(t.Context(), description, method)
	require.NoError(t, err)
	require.NoError(t, call.CloseSend())
	require.Error(t, call.RecvMsg(&tritonpb.ModelInferResponse{}))
	require.Equal(t, []codes.Code{codes.Canceled, codes.Internal}, seen.codes(t, 2))
}

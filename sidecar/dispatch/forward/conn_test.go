// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forward_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type server struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer
	infer func(context.Context, *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error)
}

func (s *server) ModelInfer(ctx context.Context, r *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
	return s.infer(ctx, r)
}

func serve(t *testing.T, infer func(context.Context, *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error)) (*forward.Conn, *grpc.Server) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	tritonpb.RegisterGRPCInferenceServiceServer(s, &server{infer: infer})
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	c, err := forward.Dial(l.Addr().String(), forward.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()); s.Stop(); <-done })
	return c, s
}

func frame(t *testing.T, id string) *batch.Frame {
	b, err := proto.Marshal(&tritonpb.ModelInferRequest{ModelName: "m", Id: id})
	require.NoError(t, err)
	return &batch.Frame{Data: mem.BufferSlice{mem.SliceBuffer(b)}}
}

// call makes a call and waits for its end.
func call(ctx context.Context, c *forward.Conn, request *batch.Frame) (*forward.Answer, error) {
	type end struct {
		a   *forward.Answer
		err error
	}
	ended := make(chan end, 1)
	c.Start(ctx, nil, method, request.Data, func(_ *wire.Turn, a *forward.Answer, err error) { ended <- end{a, err} })
	got := <-ended
	return got.a, got.err
}

const method = tritonpb.GRPCInferenceService_ModelInfer_FullMethodName

func TestCallPassesMessagesAndMetadata(t *testing.T) {
	c, _ := serve(t, func(ctx context.Context, r *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
		_ = grpc.SetHeader(ctx, metadata.Pairs("h", "1"))
		_ = grpc.SetTrailer(ctx, metadata.Pairs("t", "2"))
		return &tritonpb.ModelInferResponse{Id: r.Id}, nil
	})
	a, err := call(t.Context(), c, frame(t, "x"))
	require.NoError(t, err)
	var m tritonpb.ModelInferResponse
	require.NoError(t, proto.Unmarshal(a.Frame.Data.Materialize(), &m))
	a.Frame.Data.Free()
	require.Equal(t, "x", m.Id)
	require.Equal(t, []string{"1"}, a.Header["h"])
	require.Equal(t, []string{"2"}, a.Trailer["t"])
}

// TestAnswersAreNotLosses: an error that a server returns, UNAVAILABLE included,
// is an answer.
func TestAnswersAreNotLosses(t *testing.T) {
	c, _ := serve(t, func(ctx context.Context, r *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
		code, _ := strconv.Atoi(r.Id)
		_ = grpc.SendHeader(ctx, metadata.MD{})
		return nil, status.Error(codes.Code(code), "Request timeout expired")
	})
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		_, err := call(t.Context(), c, frame(t, strconv.Itoa(int(code))))
		require.Equal(t, code, status.Code(err))
		require.False(t, forward.Lost(err), "%v", err)
	}
}

func TestTrailersOnlyAnswerIsNoLoss(t *testing.T) {
	c, _ := serve(t, func(context.Context, *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
		return nil, status.Error(codes.Unavailable, "Exceeds maximum queue size")
	})
	_, err := call(t.Context(), c, frame(t, ""))
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.False(t, forward.Lost(err))
}

func TestDeathUnderACallIsALoss(t *testing.T) {
	started := make(chan struct{})
	c, s := serve(t, func(ctx context.Context, _ *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
		close(started)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	go func() { <-started; s.Stop() }()
	_, err := call(t.Context(), c, frame(t, ""))
	require.True(t, forward.Lost(err), "%v", err)
	require.ErrorIs(t, err, forward.ErrLost)
	require.Equal(t, codes.Unavailable, status.Code(err))

	_, err = call(t.Context(), c, frame(t, "")) // refused: the listener is closed
	require.True(t, forward.Lost(err), "%v", err)
}

func TestClosedConnectionIsALoss(t *testing.T) {
	c, _ := serve(t, nil)
	require.NoError(t, c.Close())
	_, err := call(t.Context(), c, frame(t, ""))
	require.True(t, forward.Lost(err), "%v", err)
}

func TestCallersEndIsNoLoss(t *testing.T) {
	c, _ := serve(t, func(ctx context.Context, _ *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := call(ctx, c, frame(t, ""))
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	require.False(t, forward.Lost(err))
}

type counted struct{ out atomic.Int32 }

func (p *counted) Get(n int) *[]byte { p.out.Add(1); b := make([]byte, n, n+4096); return &b }
func (p *counted) Put(*[]byte)       { p.out.Add(-1) }

// TestCallConsumesTheRequest even if it is never sent.
func TestCallConsumesTheRequest(t *testing.T) {
	c, _ := serve(t, nil)
	require.NoError(t, c.Close())
	p := &counted{}
	_, err := call(t.Context(), c, &batch.Frame{Data: mem.BufferSlice{mem.NewBuffer(p.Get(10), p)}})
	require.Error(t, err)
	require.Zero(t, p.out.Load())
}

// TestReplacedConnectionsLoseTheirCalls: calls to a server that never answers end, and the next
// one goes over a new connection.
func TestReplacedConnectionsLoseTheirCalls(t *testing.T) {
	started := make(chan struct{}, 1)
	c, _ := serve(t, func(ctx context.Context, r *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
		if r.Id == "hangs" {
			started <- struct{}{}
			<-ctx.Done()
		}
		return &tritonpb.ModelInferResponse{Id: r.Id}, nil
	})
	go func() {
		<-started
		drop, err := c.Replace()
		assert.NoError(t, err)
		assert.NoError(t, drop())
	}()
	_, err := call(t.Context(), c, frame(t, "hangs"))
	require.True(t, forward.Lost(err), "%v", err)

	a, err := call(t.Context(), c, frame(t, "next"))
	require.NoError(t, err)
	a.Frame.Data.Free()
}

// cut is a connection that is cut after so many writes.
type cut struct {
	net.Conn
	left *atomic.Int32
}

func (w cut) Write(b []byte) (int, error) {
	if w.left.Add(-1) < 0 {
		return 0, errors.Join(errors.New("cut"), w.Close())
	}
	return w.Conn.Write(b)
}

// TestACutWireIsALoss: on a stream too, whenever the wire is cut and whatever the error's text is. An error that a
// server returns is no loss.
func TestACutWireIsALoss(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	ask := func(writes int32) error {
		left := new(atomic.Int32)
		left.Store(writes)
		c, err := forward.Dial(l.Addr().String(), forward.Options{DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			return cut{conn, left}, err
		})}})
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
		stream, err := c.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, tritonpb.GRPCInferenceService_ModelStreamInfer_FullMethodName)
		if err != nil {
			return err
		}
		return stream.RecvMsg(&batch.Frame{})
	}
	lost := 0
	for writes := range int32(20) {
		err := ask(writes)
		if status.Code(err) == codes.Unimplemented {
			require.False(t, forward.Lost(err), "%v", err)
			continue
		}
		require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
		require.True(t, forward.Lost(err), "%v", err)
		lost++
	}
	require.Positive(t, lost)
	require.Less(t, lost, 20)
}

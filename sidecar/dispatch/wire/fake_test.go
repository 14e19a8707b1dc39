// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	echo  = "/test.Service/Echo"
	other = "/test.Service/Other"
)

// echoes answers calls with their messages, on the goroutine that reads.
type echoes struct {
	// serve replaces that; nil: it does not.
	serve func(*wire.Call, mem.BufferSlice)
	begin func(*wire.Call) error

	mu   sync.Mutex
	lost []error
}

func (e *echoes) Begin(c *wire.Call) error {
	if e.begin != nil {
		return e.begin(c)
	}
	return nil
}

func (e *echoes) Serve(c *wire.Call, message mem.BufferSlice) {
	if e.serve != nil {
		e.serve(c, message)
		return
	}
	c.Reply(nil, message)
	c.Done()
}

func (e *echoes) Lost(_ *wire.Call, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost = append(e.lost, err)
}

func (e *echoes) losses() []error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]error(nil), e.lost...)
}

// served is a server that runs.
type served struct {
	*wire.Server
	inner   *grpc.Server
	address string
}

var errDeadline = status.Error(codes.DeadlineExceeded, "Deadline Exceeded")

func options(h wire.Handler) wire.Options {
	return wire.Options{
		Method: echo, Handler: h, MaxMessage: 64 << 20, Window: 4 << 20, MaxStreams: 100, MaxHeaderList: 16 << 10, Handshake: 5 * time.Second,
		PingInterval: 10 * time.Millisecond, Ahead: func(left time.Duration) time.Duration { return left / 10 }, Exceeded: errDeadline,
	}
}

// holding is a server that answers its one call only when answer is called, or the test ends; begun is closed once it has the call.
func holding(t testing.TB) (s *served, begun <-chan struct{}, answer func()) {
	came, release := make(chan struct{}), make(chan struct{})
	answer = sync.OnceFunc(func() { close(release) })
	s = serve(t, options(&echoes{serve: func(c *wire.Call, m mem.BufferSlice) {
		close(came)
		go func() {
			<-release
			c.Reply(nil, m)
			c.Done()
		}()
	}}))
	t.Cleanup(answer)
	return s, came, answer
}

// serve starts a server whose inner server echoes the messages of streams of every other method.
func serve(t testing.TB, o wire.Options, inner ...grpc.ServerOption) *served {
	s := &served{Server: wire.New(o)}
	s.inner = grpc.NewServer(append([]grpc.ServerOption{
		grpc.ForceServerCodecV2(batch.Codec{}), grpc.MaxRecvMsgSize(64 << 20), grpc.MaxSendMsgSize(64 << 20), grpc.InitialWindowSize(int32(o.Window)), grpc.InitialConnWindowSize(4 * int32(o.Window)), grpc.WaitForHandlers(true),
		grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
			for {
				var f batch.Frame
				if err := stream.RecvMsg(&f); err != nil {
					return nil //nolint:nilerr // the end of the client's messages
				}
				if err := stream.SendMsg(&f); err != nil {
					return err
				}
			}
		}),
	}, inner...)...)
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s.address = l.Addr().String()
	var running sync.WaitGroup
	running.Go(func() { _ = s.inner.Serve(s.Inner()) })
	running.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() {
		s.Stop()
		s.inner.Stop()
		running.Wait()
	})
	return s
}

// dial is a client of grpc-go's.
func (s *served) dial(t testing.TB, o ...grpc.DialOption) *grpc.ClientConn {
	conn, err := grpc.NewClient(s.address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(batch.Codec{}), grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)),
	}, o...)...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

// call makes a unary call.
func call(ctx context.Context, conn *grpc.ClientConn, method string, message []byte, o ...grpc.CallOption) ([]byte, error) {
	var got batch.Frame
	err := conn.Invoke(ctx, method, &batch.Frame{Data: mem.BufferSlice{mem.SliceBuffer(message)}}, &got, o...)
	b := got.Data.Materialize()
	got.Data.Free()
	return b, err
}

func secure(c credentials.TransportCredentials) grpc.DialOption {
	return grpc.WithTransportCredentials(c)
}

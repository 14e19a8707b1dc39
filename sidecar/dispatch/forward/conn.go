// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// Options of Dial. The zero value is usable.
type Options struct {
	// Connections to the partition; zero means one. With Triton 2.51 one
	// connection was faster than four for small messages (it carried 600 calls at
	// once) and slower for many callers with large ones.
	Connections int
	// DialOptions are added to the package's own for grpc-go's connections. With any, grpc-go makes all calls.
	DialOptions []grpc.DialOption
	// Credentials secure the connections; nil: they are in the clear.
	Credentials credentials.TransportCredentials
	// GRPC has grpc-go make the calls of inference, too.
	GRPC bool
	// Pool supplies buffers for answers; nil means one of grpc's.
	Pool mem.BufferPool
}

// Conn is the connection to one partition. It implements grpc.ClientConnInterface
// for generated clients; Call and NewStream with *batch.Frame messages pass
// messages on without decoding them.
type Conn struct {
	address string
	o       Options
	next    atomic.Uint32

	ways  atomic.Pointer[ways]
	mu    sync.Mutex // held to replace or close ways
	ended bool
}

// ways are the connections that calls are made on: as many of each kind.
type ways struct {
	conns []*grpc.ClientConn
	lanes []*lane // none: calls of inference are grpc-go's
}

var _ grpc.ClientConnInterface = (*Conn)(nil)

const (
	window = 4 << 20 // Triton's own stream window
	// connectionBuffer is larger than grpc-go's 32 KiB: fewer system calls for
	// large tensors.
	connectionBuffer = 128 << 10
)

// Dial makes a connection to a gRPC address, host:port or unix:PATH. It does not
// wait for the server; a lost connection is made again automatically.
func Dial(address string, o Options) (*Conn, error) {
	o.Connections, o.GRPC = max(1, o.Connections), o.GRPC || len(o.DialOptions) > 0
	c := &Conn{address: address, o: o}
	w, err := c.dial()
	if err != nil {
		return nil, fmt.Errorf("connection to partition at %q: %w", address, err)
	}
	c.ways.Store(w)
	return c, nil
}

// options are those of grpc-go's connections.
func (c *Conn) options() []grpc.DialOption {
	secured := c.o.Credentials
	if secured == nil {
		secured = insecure.NewCredentials()
	}
	all := []grpc.DialOption{
		grpc.WithTransportCredentials(secured),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		// Conch retries itself, elsewhere, and once.
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
		grpc.WithReadBufferSize(connectionBuffer),
		grpc.WithWriteBufferSize(connectionBuffer),
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(4 * window),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(batch.Codec{}),
			grpc.MaxCallRecvMsgSize(math.MaxInt32),
			grpc.MaxCallSendMsgSize(math.MaxInt32),
		),
		// Triton answers pings on an idle connection with GOAWAY; while calls are
		// under way it accepts them.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: silence, Timeout: silencePatient}),
		// A restarted server should be found soon, not after grpc's two minutes.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: firstPause, Multiplier: 1.6, Jitter: 0.2, MaxDelay: longestPause},
			MinConnectTimeout: connectTimeout,
		}),
	}
	if c.o.Pool != nil {
		all = append(all, experimental.WithBufferPool(c.o.Pool))
	}
	return append(all, c.o.DialOptions...)
}

func (c *Conn) dial() (*ways, error) {
	target := c.address
	if !strings.HasPrefix(target, "unix:") {
		// The address is the operator's or our own: no proxy, and grpc's default
		// resolver only where there is a name to resolve.
		target = "dns:///" + target
	}
	w := &ways{}
	for range c.o.Connections {
		conn, err := grpc.NewClient(target, c.options()...)
		if err != nil {
			return nil, errors.Join(err, w.close())
		}
		conn.Connect()
		w.conns = append(w.conns, conn)
		if !c.o.GRPC {
			w.lanes = append(w.lanes, newLane(c.address, c.o.Credentials, c.o.Pool))
		}
	}
	return w, nil
}

// Close ends all connections. Calls under way fail with an error for which Lost
// is true. Further calls of Close do nothing.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil
	}
	c.ended = true
	return c.ways.Load().close()
}

// Replace begins new connections for all further calls: for a server that keeps its connections open and answers nothing. The returned
// function closes the old connections, which ends the calls under way on them with errors for which Lost is true.
func (c *Conn) Replace() (drop func() error, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return func() error { return nil }, nil
	}
	fresh, err := c.dial()
	if err != nil {
		return nil, err
	}
	return c.ways.Swap(fresh).close, nil
}

func (w *ways) close() error {
	var first error
	for _, conn := range w.conns {
		if err := conn.Close(); err != nil && first == nil {
			first = err
		}
	}
	for _, l := range w.lanes {
		l.close()
	}
	return first
}

// Reconnect makes connections that wait for their next attempt try to connect now.
func (c *Conn) Reconnect() {
	w := c.ways.Load()
	for _, conn := range w.conns {
		conn.ResetConnectBackoff()
		conn.Connect()
	}
	for _, l := range w.lanes {
		l.reconnect()
	}
}

// pick returns the connections in turn, and the lane beside it; nil: there is none.
func (c *Conn) pick() (*grpc.ClientConn, *lane) {
	w, i := c.ways.Load(), 0
	if len(w.conns) > 1 {
		i = int(c.next.Add(1)) % len(w.conns)
	}
	if w.lanes == nil {
		return w.conns[i], nil
	}
	return w.conns[i], w.lanes[i]
}

// Invoke implements grpc.ClientConnInterface.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	conn, _ := c.pick()
	return conn.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface. An error for which Lost is true
// means that nothing was sent.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	conn, _ := c.pick()
	s, err := conn.NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, classify(err, false)
	}
	return s, nil
}

// Answer is the result of a unary call besides its error.
type Answer struct {
	// Frame owns its buffers; empty when the call failed.
	Frame           batch.Frame
	Header, Trailer metadata.MD
	// LastWord is whether the server has answered, with a message or with an error of its own: it is done with the request, and with the memory that
	// the request names. Without, it may go on: the call was cancelled, or its connection failed.
	LastWord bool
}

// Call makes one unary call. The request's buffers are consumed in every case. An
// error for which Lost is true means that the server may or may not have received
// the request; any other error is the server's answer, or ctx's end.
func (c *Conn) Call(ctx context.Context, method string, request *batch.Frame) (*Answer, error) {
	conn, way := c.pick()
	if way != nil && ctx.Err() == nil {
		if a, err, made := way.call(ctx, method, request); made {
			return a, err
		}
	}
	var a Answer
	err := conn.Invoke(ctx, method, request, &a.Frame, grpc.Header(&a.Header), grpc.Trailer(&a.Trailer))
	if request.Data != nil {
		// The call ended before the message was handed over.
		request.Data.Free()
		request.Data = nil
	}
	if err == nil {
		a.LastWord = true
		return &a, nil
	}
	a.Frame.Data.Free()
	a.Frame.Data = nil
	err = classify(err, a.Header != nil || a.Trailer != nil)
	// What grpc-go makes up comes without metadata of the server.
	a.LastWord = len(a.Header)+len(a.Trailer) > 0 && ctx.Err() == nil && !Lost(err)
	return &a, err
}

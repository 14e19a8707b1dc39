// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// Options of Dial. The zero value is usable.
type Options struct {
	// DialOptions are added to the package's own for grpc-go's connections. With any, grpc-go makes all calls.
	DialOptions []grpc.DialOption
	// Credentials secure the connections; nil: they are in the clear.
	Credentials credentials.TransportCredentials
	// GRPC has grpc-go make the calls of inference, too.
	GRPC bool
	// HTTP is the server's HTTP port, host:port or unix:PATH; empty: StartHTTP does not use it. Nor does it where GRPC or Credentials are set: what goes
	// over one port secured does not go over the other in the clear.
	HTTP string
	// IdleHTTP is how long a connection to that port is kept without a request: Triton does not end while one is open. Zero means five seconds.
	IdleHTTP time.Duration
	// Pool supplies buffers for answers; nil means one of grpc's.
	Pool mem.BufferPool
}

// Conn is the connection to one partition. It implements grpc.ClientConnInterface
// for generated clients; Call and NewStream with *batch.Frame messages pass
// messages on without decoding them.
type Conn struct {
	address string
	o       Options

	ways  atomic.Pointer[ways]
	mu    sync.Mutex // held to replace or close ways
	ended bool
}

// ways are the connections that calls are made on. With Triton 2.51 one of grpc-go's
// was faster than four for small messages (it carried 600 calls at once), and slower
// for many callers with large ones, which have a connection of their own.
type ways struct {
	grpc         *grpc.ClientConn
	small, large *inferenceConn // for requests of these sizes; nil: calls of inference are grpc-go's
	http         *httpPort      // nil: it is not used
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
	o.GRPC = o.GRPC || len(o.DialOptions) > 0
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
		UnsentIsLost(),
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
	conn, err := grpc.NewClient(target, c.options()...)
	if err != nil {
		return nil, err
	}
	conn.Connect()
	w := &ways{grpc: conn}
	if !c.o.GRPC {
		w.small, w.large = newInferenceConn(c.address, c.o.Credentials, c.o.Pool, conn), newInferenceConn(c.address, c.o.Credentials, c.o.Pool, conn)
		if c.o.HTTP != "" && c.o.Credentials == nil {
			w.http = newHTTPPort(c.o.HTTP, c.o.Pool, cmp.Or(c.o.IdleHTTP, idleHTTP))
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
	err := w.grpc.Close()
	if w.small != nil {
		w.small.close()
		w.large.close()
	}
	if w.http != nil {
		w.http.close()
	}
	return err
}

// Reconnect makes connections that wait for their next attempt try to connect now.
func (c *Conn) Reconnect() {
	w := c.ways.Load()
	w.grpc.ResetConnectBackoff()
	w.grpc.Connect()
	if w.small != nil {
		w.small.reconnect()
		w.large.reconnect()
	}
}

// large is the size of a request from which it has another connection than small ones: these would wait until it has gone through the socket, and what of
// several lies there takes milliseconds.
const large = 64 << 10

// Invoke implements grpc.ClientConnInterface.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	return c.ways.Load().grpc.Invoke(ctx, method, args, reply, opts...)
}

// NewStream implements grpc.ClientConnInterface. An error for which Lost is true
// means that nothing was sent.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := c.ways.Load().grpc.NewStream(ctx, desc, method, opts...)
	if err != nil {
		return nil, classify(err, false)
	}
	return s, nil
}

// Answer is the result of a unary call besides its error.
type Answer struct {
	// Frame owns its buffers; empty when the call failed.
	Frame batch.Frame
	// HTTP is the answer of StartHTTP; nil when the call failed. Whoever has the Answer frees it.
	HTTP            *batch.HTTP
	Header, Trailer metadata.MD
	// LastWord is whether the server has answered, with a message or with an error of its own: it is done with the request, and with the memory that
	// the request names. Without, it may go on: the call was cancelled, or its connection failed.
	LastWord bool
}

// Start begins one unary call and does not wait. The request's buffers are consumed in every case. The call is cancelled when ctx ends. Then is called once,
// with the call's end, by another goroutine and also before Start returns; it must not block. What it sends belongs to the turn that it gets, as the request
// belongs to the turn t of the goroutine that calls Start; nil: there is none. An error for which Lost is true means that the server may or may not have
// received the request; any other error is the server's answer, or ctx's end.
func (c *Conn) Start(ctx context.Context, t *wire.Turn, method string, request mem.BufferSlice, then func(*wire.Turn, *Answer, error)) {
	w := c.ways.Load()
	way := w.small
	if request.Len() >= large {
		way = w.large
	}
	if way != nil && ctx.Err() == nil && way.start(ctx, t, method, request, then) {
		return
	}
	begin(ctx, w.grpc, method, request, then)
}

// begin is Start on a connection of grpc-go's.
func begin(ctx context.Context, conn *grpc.ClientConn, method string, request mem.BufferSlice, then func(*wire.Turn, *Answer, error)) {
	go func() {
		a, err := invoke(ctx, conn, method, request)
		then(nil, a, err)
	}()
}

// StartHTTP is Start for a request that came over HTTP, to the server's HTTP port. It returns false, and has not begun the call, if no connection to that port
// is there. The request stays the caller's, who keeps it until then is called. A call ends by the server's answer or with its connection only, and not with ctx,
// which may carry the trace context: a server of Triton's does not notice that a caller over HTTP has left, and goes on. An error for which errors.Is(err, ErrForeign)
// holds is no answer of Triton's.
func (c *Conn) StartHTTP(ctx context.Context, r *HTTPRequest, then func(*wire.Turn, *Answer, error)) bool {
	p := c.ways.Load().http
	return p != nil && p.start(ctx, r, then)
}

// FaultError says that a call has panicked, and with what.
type FaultError struct{ Fault any }

func (e *FaultError) Error() string { return fmt.Sprintf("a call has panicked: %v", e.Fault) }

// invoke makes a call on a connection of grpc-go's.
func invoke(ctx context.Context, conn *grpc.ClientConn, method string, data mem.BufferSlice) (_ *Answer, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = &FaultError{fault}
		}
	}()
	var a Answer
	request := batch.Frame{Data: data}
	err = conn.Invoke(ctx, method, &request, &a.Frame, grpc.Header(&a.Header), grpc.Trailer(&a.Trailer))
	if request.Data != nil {
		// The call ended before the message was handed over.
		request.Data.Free()
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

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// Times of an inferenceConn, which are those of the grpc-go connections.
const (
	firstPause     = 20 * time.Millisecond
	longestPause   = time.Second
	connectTimeout = 5 * time.Second
	silence        = 30 * time.Second
	silencePatient = 20 * time.Second
)

// inferenceConn is a connection of package wire, for the calls of inference: it costs a third of what grpc-go's does. While it is not there, its calls take the grpc-go
// connection, which knows why. So do calls that the server has not begun, because it refuses them or drains the connection. What is not begun there either, grpc-go makes
// once more at the most: a server that begins nothing is not asked for ever.
type inferenceConn struct {
	network, address, authority string
	credentials                 credentials.TransportCredentials // nil: in the clear
	pool                        mem.BufferPool
	grpc                        *grpc.ClientConn

	client  atomic.Pointer[wire.Client] // nil: there is none
	again   chan struct{}               // holds one to connect without a pause
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// newInferenceConn begins to connect to an address as Dial takes it.
func newInferenceConn(address string, secured credentials.TransportCredentials, pool mem.BufferPool, conn *grpc.ClientConn) *inferenceConn {
	l := &inferenceConn{network: "tcp", address: address, authority: address, credentials: secured, pool: pool, grpc: conn, again: make(chan struct{}, 1)}
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		l.network, l.address, l.authority = "unix", strings.TrimPrefix(path, "//"), "localhost"
	}
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	l.running.Go(func() { l.keep(ctx) })
	return l
}

// keep keeps the connection until ctx ends.
func (l *inferenceConn) keep(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		client, err := l.connect(ctx)
		if err == nil {
			pause = firstPause
			l.client.Store(client)
			select {
			case <-client.Done():
			case <-ctx.Done():
			}
			l.client.Store(nil)
			client.Close()
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-l.again:
		case <-ctx.Done():
		}
		timer.Stop()
		pause = min(2*pause, longestPause)
	}
}

// connect makes a connection.
func (l *inferenceConn) connect(ctx context.Context) (*wire.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, l.network, l.address)
	if err != nil {
		return nil, err
	}
	if l.credentials != nil {
		secured, _, err := l.credentials.Clone().ClientHandshake(ctx, l.authority, conn)
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		conn = secured
	}
	return wire.NewClient(conn, wire.ClientOptions{
		Authority: l.authority, Secure: l.credentials != nil, UserAgent: "conch", Window: window, MaxMessage: math.MaxInt32,
		Idle: silence, Patience: silencePatient, Pool: l.pool,
	}), nil
}

// reconnect ends a pause between two attempts.
func (l *inferenceConn) reconnect() {
	select {
	case l.again <- struct{}{}:
	default:
	}
}

// close ends the connection and its calls.
func (l *inferenceConn) close() {
	l.cancel()
	if c := l.client.Load(); c != nil {
		c.Close()
	}
	l.running.Wait()
}

// typed makes an error of package wire one of this package.
func typed(err error) error {
	if errors.Is(err, wire.ErrLost) {
		return &lostError{status.Error(codes.Unavailable, fmt.Sprint(err))}
	}
	return err
}

// start begins a call. It returns false if the connection is not there; the request is not consumed then.
func (l *inferenceConn) start(ctx context.Context, t *wire.Turn, method string, request mem.BufferSlice, then func(*wire.Turn, *Answer, error)) bool {
	c := l.client.Load()
	if c == nil {
		return false
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	request.Ref() // until the end: the server may not begin the call
	k := &inferenceCall{conn: l, ctx: ctx, method: method, request: request, then: then}
	if ctx.Done() != nil {
		k.stop = context.AfterFunc(ctx, k.cancel)
	}
	of, err := c.Start(t, method, md, request, k.ended)
	if err != nil {
		if k.stop != nil {
			k.stop()
		}
		request.Free()
		return false
	}
	k.of.Store(of)
	if k.cancelled.Load() {
		of.Cancel() // cancel may have come too early for that
	}
	return true
}

// inferenceCall is a call on an inferenceConn.
type inferenceCall struct {
	conn      *inferenceConn
	ctx       context.Context
	method    string
	request   mem.BufferSlice
	then      func(*wire.Turn, *Answer, error)
	stop      func() bool // of the watch over ctx; nil: it never ends
	of        atomic.Pointer[wire.ClientCall]
	cancelled atomic.Bool
}

// cancel ends the call with its context.
func (k *inferenceCall) cancel() {
	k.cancelled.Store(true)
	if of := k.of.Load(); of != nil {
		of.Cancel()
	}
}

// ended takes the end of the call.
func (k *inferenceCall) ended(t *wire.Turn, got wire.Answer, err error) {
	if k.stop != nil {
		k.stop()
	}
	if errors.Is(err, wire.ErrNotBegun) {
		begin(k.ctx, k.conn.grpc, k.method, k.request, k.then)
		return
	}
	k.request.Free()
	if errors.Is(err, wire.ErrCancelled) {
		err = status.FromContextError(k.ctx.Err()).Err()
	}
	k.then(t, &Answer{Frame: batch.Frame{Data: got.Data}, Header: got.Header, Trailer: got.Trailer, LastWord: got.LastWord}, typed(err))
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http1_test

import (
	"context"
	"io"
	"net"
	nethttp "net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestShutdownFinishesRequests and closes connections that have none.
func TestShutdownFinishesRequests(t *testing.T) {
	for name, before := range map[string]string{"first": "", "after a plain one": infer, "after another": health} {
		t.Run(name, func(t *testing.T) {
			both(t, nil, nil, func(t *testing.T, s *server) {
				h := newWaiting()
				s.handler = h
				idle, busy := s.dial(), s.dial()
				for _, conn := range []net.Conn{idle, busy} {
					if before != "" || conn == idle {
						go func() { h.goOn <- struct{}{} }()
						ask(t, conn, max(before, health))
						<-h.begun
					}
				}
				_, err := io.WriteString(busy, infer)
				require.NoError(t, err)
				<-h.begun
				down := make(chan error, 1)
				go func() { down <- s.shutdown(t.Context()) }()
				ended(t, idle)
				select {
				case <-down:
					t.Fatal("it does not wait for the request")
				case <-time.After(50 * time.Millisecond):
				}
				h.goOn <- struct{}{}
				require.True(t, read(t, busy).Close)
				ended(t, busy)
				require.NoError(t, <-down)
			})
		})
	}
}

// TestShutdownGivesUpWithItsContext, and Close then cuts requests off.
func TestShutdownGivesUpWithItsContext(t *testing.T) {
	h := newWaiting()
	bothLater(t, h, nil, func(t *testing.T, s *server) {
		conn := s.dial()
		go func() { h.goOn <- struct{}{} }()
		ask(t, conn, health) // net/http takes the connection for idle from here on
		<-h.begun
		_, err := io.WriteString(conn, infer)
		require.NoError(t, err)
		<-h.begun
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, s.shutdown(ctx), context.DeadlineExceeded)
		require.NoError(t, s.close())
		ended(t, conn)
		require.ErrorIs(t, <-h.left, context.Canceled)
	})
}

// TestShutdownWhileAHandlerBegins: the handler has handed its answer to another goroutine, and comes back to a server that leaves. A client that leaves then
// cancels its request all the same, and so does Close, also where the next request has come and waits for its turn.
func TestShutdownWhileAHandlerBegins(t *testing.T) {
	for name, end := range map[string]func(*server, *net.TCPConn) error{
		"the client leaves":                    func(_ *server, conn *net.TCPConn) error { return conn.Close() },
		"the server closes":                    func(s *server, _ *net.TCPConn) error { return s.close() },
		"the server closes, a request is next": func(s *server, _ *net.TCPConn) error { return s.close() },
	} {
		t.Run(name, func(t *testing.T) {
			begun, comeBack, left := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			s := start(t, true, nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				done := w.(interface{ Later() func(bool) }).Later()
				go func() {
					<-r.Context().Done()
					left <- r.Context().Err()
					done(false)
				}()
				close(begun)
				<-comeBack
			}), nil)
			conn := s.dial()
			_, err := io.WriteString(conn, infer)
			require.NoError(t, err)
			<-begun
			if strings.HasSuffix(name, "next") {
				_, err := io.WriteString(conn, infer)
				require.NoError(t, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			require.ErrorIs(t, s.shutdown(ctx), context.DeadlineExceeded)
			close(comeBack)
			require.NoError(t, end(s, conn))
			require.ErrorIs(t, <-left, context.Canceled)
		})
	}
}

// halves counts the connections of which one half was closed.
type halves struct {
	net.Listener
	closed atomic.Int64
}

func (l *halves) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &halved{c.(*net.TCPConn), l}, nil
}

type halved struct {
	*net.TCPConn
	of *halves
}

func (c *halved) CloseWrite() error {
	c.of.closed.Add(1)
	return c.TCPConn.CloseWrite()
}

// TestTheEndOfARefusalArrives: who goes on to send a head that is too long sees the answer and its end, and no reset in its place.
func TestTheEndOfARefusalArrives(t *testing.T) {
	for _, own := range []bool{false, true} {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		half := &halves{Listener: l}
		closed := make(chan struct{})
		serve(t, half, own, false, nethttp.NotFoundHandler(), func(n *nethttp.Server) {
			n.ConnState = func(_ net.Conn, now nethttp.ConnState) {
				if now == nethttp.StateClosed {
					close(closed)
				}
			}
		})
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close()) }()
		require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
		_, err = conn.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 70<<10)))
		require.NoError(t, err)
		answer, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Contains(t, string(answer), " 431 ")
		require.EqualValues(t, 1, half.closed.Load(), "own: %v", own)
		<-closed
	}
}

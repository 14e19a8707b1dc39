// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http1_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	nethttp "net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/http1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a server under test: net/http's, or that with the connections of this package.
type server struct {
	t       testing.TB
	address string
	net     *nethttp.Server
	handler nethttp.Handler // of a server that was started without one
	own     *http1.Server   // nil: net/http alone
	later   bool            // handlers answer later
	// theirs counts the requests that net/http has begun to read.
	theirs atomic.Int32
}

// isInfer is what the tests take for plain.
func isInfer(path string) bool { return strings.HasSuffix(path, "/infer") }

func start(t testing.TB, own bool, handler nethttp.Handler, change func(*nethttp.Server)) *server {
	return startLater(t, own, false, handler, change)
}

// startLater is start with a handler that may answer later.
func startLater(t testing.TB, own, later bool, handler nethttp.Handler, change func(*nethttp.Server)) *server {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return serve(t, l, own, later, handler, change)
}

// serve starts a server on a listener.
func serve(t testing.TB, l net.Listener, own, later bool, handler nethttp.Handler, change func(*nethttp.Server)) *server {
	s := &server{t: t, later: later}
	s.net = &nethttp.Server{
		Handler: nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
			of := handler
			if of == nil {
				of = s.handler
			}
			if later {
				of = laterOn{of}
			}
			of.ServeHTTP(w, r)
		}), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: -1, MaxHeaderBytes: 60 << 10, ConnContext: gate.WithConn,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ConnState: func(_ net.Conn, now nethttp.ConnState) {
			if now == nethttp.StateActive {
				s.theirs.Add(1)
			}
		},
	}
	if change != nil {
		change(s.net)
	}
	s.address = l.Addr().String()
	run := s.net.Serve
	if own {
		s.own = http1.New(s.net, isInfer)
		run = s.own.Serve
	}
	stall := time.Minute
	if _, is := handler.(impatient); is {
		stall = time.Second
	}
	g := gate.New(gate.Options{Requests: 100, Bytes: 1 << 30, Connections: 100, Stall: stall})
	done := make(chan struct{})
	go func() { defer close(done); _ = run(g.Listener(l, false)) }()
	t.Cleanup(func() { _ = s.close(); <-done; g.Close() })
	return s
}

func (s *server) close() error {
	if s.own != nil {
		return s.own.Close()
	}
	return s.net.Close()
}

func (s *server) shutdown(ctx context.Context) error {
	if s.own != nil {
		return s.own.Shutdown(ctx)
	}
	return s.net.Shutdown(ctx)
}

func (s *server) dial() *net.TCPConn {
	conn, err := (&net.Dialer{}).DialContext(s.t.Context(), "tcp", s.address)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(s.t, conn.SetDeadline(time.Now().Add(time.Minute)))
	return conn.(*net.TCPConn)
}

// converse sends parts, ends the sending, and returns everything that comes.
func (s *server) converse(parts ...string) string {
	conn := s.dial()
	defer conn.Close()
	go func() {
		for _, part := range parts {
			if _, err := io.WriteString(conn, part); err != nil {
				return // the server has closed it, as it may
			}
		}
		_ = conn.CloseWrite()
	}()
	all, _ := io.ReadAll(conn) // a reset ends it like a close
	return string(all)
}

// both runs a test with net/http alone and with this package, whose handlers answer at once or later: what is asserted is what net/http does.
func both(t *testing.T, handler nethttp.Handler, change func(*nethttp.Server), test func(t *testing.T, s *server)) {
	t.Run("own", func(t *testing.T) { test(t, start(t, true, handler, change)) })
	bothLater(t, handler, change, test)
}

// bothLater is both for what holds only where handlers answer later: that the departure of clients is noticed.
func bothLater(t *testing.T, handler nethttp.Handler, change func(*nethttp.Server), test func(t *testing.T, s *server)) {
	t.Run("net", func(t *testing.T) { test(t, start(t, false, handler, change)) })
	t.Run("later", func(t *testing.T) { test(t, startLater(t, true, true, handler, change)) })
}

// impatient is a handler whose server cuts clients off that take nothing for a second.
type impatient struct{ nethttp.Handler }

// laterOn is a handler that reads the body and has another goroutine give the answer, where that is possible.
type laterOn struct{ nethttp.Handler }

func (h laterOn) ServeHTTP(w nethttp.ResponseWriter, r *nethttp.Request) {
	l, ok := w.(interface{ Later() func(bool) })
	if !ok {
		h.Handler.ServeHTTP(w, r)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		r.Body = failing{bytes.NewReader(body), err}
		h.Handler.ServeHTTP(w, r)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	done := l.Later()
	go func() {
		whole := false
		defer func() {
			_ = recover() // as the handler's caller does
			done(whole)
		}()
		if len(body)%2 == 0 { // not of the large answers below, which are copied as far as the socket is full
			w.(interface{ Waits() }).Waits()
		}
		h.Handler.ServeHTTP(w, r)
		whole = true
	}()
}

// failing is a body of which the last read fails.
type failing struct {
	io.Reader
	err error
}

func (f failing) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if err == io.EOF { //nolint:errorlint // it comes unwrapped
		err = f.err
	}
	return n, err
}

func (failing) Close() error { return nil }

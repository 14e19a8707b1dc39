// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	nethttp "net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/http1"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// before is the ResponseWriter of a plain request, which calls a function before an answer that comes later is sent.
type before struct {
	nethttp.ResponseWriter
	sent func()
}

// Unwrap is for http.ResponseController.
func (b before) Unwrap() nethttp.ResponseWriter { return b.ResponseWriter }

func (b before) Later() func(bool) {
	done := b.ResponseWriter.(interface{ Later() func(bool) }).Later()
	return func(whole bool) {
		b.sent()
		done(whole)
	}
}

func (b before) Waits() { b.ResponseWriter.(interface{ Waits() }).Waits() }

// TestAnAnsweredRequestIsUnderWayNoMore: a client that has its answer may send its next request where the limit is one at a time.
func TestAnAnsweredRequestIsUnderWayNoMore(t *testing.T) {
	h := front.New(front.Options{Inferer: waiting{echo(t).(inferFunc)}, Picker: nowhere{}, Endpoints: nowhere{}, Catalog: catalog{}, Aggregator: aggregator{}})
	t.Cleanup(h.Close)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ask := func() int {
		const body = `{"inputs":[{"name":"INPUT0","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}`
		conn := &nethttp.Client{Transport: &nethttp.Transport{DisableCompression: true}}
		defer conn.CloseIdleConnections()
		answer, err := conn.Post("http://"+l.Addr().String()+"/v2/models/id_fp32/infer", "application/json", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return 0
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	var first atomic.Bool
	next := make(chan int, 1)
	server := &nethttp.Server{ConnContext: gate.WithConn, Handler: nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		h.ServeHTTP(before{w, func() {
			if !first.Swap(true) {
				next <- ask()
			}
		}}, r)
	})}
	over := http1.New(server, front.Plain)
	g := gate.New(gate.Options{Requests: 1, Bytes: 1 << 30, Connections: 100, Stall: time.Minute})
	done := make(chan struct{})
	go func() { defer close(done); _ = over.Serve(g.Listener(l, false)) }()
	t.Cleanup(func() { _ = over.Close(); <-done; g.Close() })
	require.Equal(t, 200, ask())
	require.Equal(t, 200, <-next)
}

// panics is an Inferer that panics before it has taken the request.
type panics struct{}

func (panics) Begin(context.Context, *wire.Turn, *batch.Request, func(*wire.Turn, *batch.Response, error)) {
	panic("a fault")
}

// TestAPanicEndsTheConnection, as it does under net/http: the client does not wait for an answer that nobody gives, and the request counts no more.
func TestAPanicEndsTheConnection(t *testing.T) {
	for _, own := range []bool{false, true} {
		h := front.New(front.Options{Inferer: panics{}, Picker: nowhere{}, Endpoints: nowhere{}, Catalog: catalog{}, Aggregator: aggregator{}})
		t.Cleanup(h.Close)
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		server := &nethttp.Server{ConnContext: gate.WithConn, Handler: h, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
		serve, stop := server.Serve, server.Close
		if own {
			over := http1.New(server, front.Plain)
			serve, stop = over.Serve, over.Close
		}
		g := gate.New(gate.Options{Requests: 1, Bytes: 1 << 30, Connections: 100, Stall: time.Minute})
		done := make(chan struct{})
		go func() { defer close(done); _ = serve(g.Listener(l, false)) }()
		t.Cleanup(func() { _ = stop(); <-done; g.Close() })
		for range 3 { // one at a time may be under way
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
			require.NoError(t, err)
			require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
			const body = `{"inputs":[{"name":"INPUT0","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}`
			_, err = fmt.Fprintf(conn, "POST /v2/models/id_fp32/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			require.NoError(t, err)
			all, err := io.ReadAll(conn)
			require.NoError(t, err)
			require.Empty(t, string(all))
			require.NoError(t, conn.Close())
		}
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http1_test

import (
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/http1"
)

// echo answers with as many bytes as it was sent, as the front answers.
var echo = nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
	b := make([]byte, r.ContentLength)
	if _, err := io.ReadFull(r.Body, b); err != nil {
		w.WriteHeader(nethttp.StatusBadRequest)
		return
	}
	if d, ok := w.(interface{ SetReadDeadline(time.Time) error }); ok {
		_ = d.SetReadDeadline(time.Time{})
	}
	h := w.Header()
	h["Date"] = nil
	h["Content-Type"] = []string{"application/octet-stream"}
	h["Content-Length"] = []string{fmt.Sprint(len(b))}
	w.WriteHeader(nethttp.StatusOK)
	_, _ = w.Write(b)
})

// kept is a connection to a server, and one exchange on it.
func kept(t testing.TB, own bool, size int) (exchange func()) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := gate.New(gate.Options{Requests: 100, Bytes: 1 << 30, Connections: 100, Stall: time.Minute})
	s := &nethttp.Server{Handler: echo, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: -1, ConnContext: gate.WithConn}
	serve := s.Serve
	if own {
		serve = http1.New(s, func(string) bool { return true }).Serve
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = serve(g.Listener(l, false)) }()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(); _ = s.Close(); <-done; g.Close() })
	request := append(fmt.Appendf(nil, "POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost:8000\r\nUser-Agent: x\r\nInference-Header-Content-Length: 100\r\nContent-Length: %d\r\n\r\n", size),
		make([]byte, size)...)
	answer := make([]byte, len(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\nContent-Type: application/octet-stream\r\n\r\n", size))+size)
	return func() {
		if _, err := conn.Write(request); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, answer); err != nil {
			t.Fatal(err)
		}
	}
}

// BenchmarkExchange is one request at a time on a kept connection.
func BenchmarkExchange(b *testing.B) {
	for _, size := range []int{1 << 10, 600 << 10} {
		for _, own := range []bool{false, true} {
			b.Run(fmt.Sprintf("bytes=%d/own=%t", size, own), func(b *testing.B) {
				exchange := kept(b, own, size)
				exchange()
				b.ReportAllocs()
				for b.Loop() {
					exchange()
				}
			})
		}
	}
}

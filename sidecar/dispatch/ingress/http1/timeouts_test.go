// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http1_test

import (
	"io"
	"net"
	nethttp "net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
)

// TestTimeouts: of a connection without a request, of half a head, of half a body; none of an idle connection.
func TestTimeouts(t *testing.T) {
	const header, whole = 10 * time.Second, time.Minute
	times := func(s *nethttp.Server) { s.ReadHeaderTimeout, s.ReadTimeout = header, whole }
	const line = "POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n"
	for name, text := range map[string]string{"nothing": "", "half a line": "POST /", "half a head": line + "Content-Le"} {
		bothAlone(t, name, mirror, times, func(t *testing.T, dial func() net.Conn) {
			began := time.Now()
			conn := dial()
			_, err := io.WriteString(conn, text)
			require.NoError(t, err)
			halfway := rest(t, conn)
			require.Equal(t, header, time.Since(began).Truncate(time.Second))
			if text == "" {
				return // an idle connection stays
			}
			conn = dial()
			ask(t, conn, infer)
			began = time.Now()
			_, err = io.WriteString(conn, text)
			require.NoError(t, err)
			require.Equal(t, halfway, rest(t, conn))
			require.Equal(t, header, time.Since(began).Truncate(time.Second))
			require.Contains(t, halfway, "400 Bad Request")
		})
	}
	for name, before := range map[string]string{"first": "", "after a plain one": infer, "after another": health} {
		bothAlone(t, "half a body "+name, mirror, times, func(t *testing.T, dial func() net.Conn) {
			conn := dial()
			if before != "" {
				ask(t, conn, before)
			}
			began := time.Now()
			answer := ask(t, conn, line+"Content-Length: 10\r\n\r\nabc")
			require.Equal(t, whole, time.Since(began))
			require.True(t, answer.Close, "what comes later is no request")
			ended(t, conn)
		})
	}
	bothAlone(t, "idle", mirror, times, func(t *testing.T, dial func() net.Conn) {
		conn := dial()
		for _, text := range []string{infer, index, health} {
			ask(t, conn, text)
			time.Sleep(2 * whole)
		}
		ask(t, conn, infer)
	})
	bothAlone(t, "first of net/http's after a while", mirror, times, func(t *testing.T, dial func() net.Conn) {
		conn := dial()
		ask(t, conn, infer)
		time.Sleep(2 * header)
		head, body, _ := strings.Cut(index, "\r\n\r\n")
		_, err := io.WriteString(conn, head+"\r\n\r\n")
		require.NoError(t, err)
		time.Sleep(header / 2)
		require.False(t, ask(t, conn, body).Close)
	})
}

// TestIdleTimeout holds for connections that wait here.
func TestIdleTimeout(t *testing.T) {
	const idle = time.Minute
	bothAlone(t, "idle", mirror, func(s *nethttp.Server) { s.IdleTimeout = idle }, func(t *testing.T, dial func() net.Conn) {
		conn := dial()
		ask(t, conn, health)
		ask(t, conn, infer)
		began := time.Now()
		ended(t, conn)
		require.Equal(t, idle, time.Since(began))
	})
}

// bothAlone is both for what takes time: each test has a server of its own, in a bubble whose clock waits for nobody, and dial connects to it in memory.
func bothAlone(t *testing.T, name string, handler nethttp.Handler, change func(*nethttp.Server), test func(t *testing.T, dial func() net.Conn)) {
	for _, kind := range []struct {
		name       string
		own, later bool
	}{{"own", true, false}, {"net", false, false}, {"later", true, true}} {
		t.Run(kind.name+"/"+name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				l := pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
				serve(t, l, kind.own, kind.later, handler, change)
				test(t, func() net.Conn {
					client, server := net.Pipe()
					l.conns <- server
					t.Cleanup(func() { _ = client.Close() })
					return client
				})
			})
		})
	}
}

// pipes is a listener in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l pipes) Close() error {
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	return nil
}

func (pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc

import (
	"net"
	"sync/atomic"
)

// Listen makes the connections of a listener report, through the peer address of
// their calls, whether they have ended: the context of a call ends alike for a
// lost connection and for a cancel. The address has a method Disconnected() bool.
func Listen(l net.Listener) net.Listener { return &listener{l} }

type listener struct{ net.Listener }

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, remote: &remote{Addr: c.RemoteAddr()}}, nil
}

// conn is closed by grpc-go before it cancels the calls that were on it.
type conn struct {
	net.Conn
	remote *remote
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.remote.ended.Store(true)
	return c.Conn.Close()
}

// CloseWrite is that of the connection below, if it has one.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// NetConn is the connection below.
func (c *conn) NetConn() net.Conn { return c.Conn }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

type remote struct {
	net.Addr
	ended atomic.Bool
}

// Disconnected reports whether the connection has ended.
func (r *remote) Disconnected() bool { return r.ended.Load() }

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net"
	"sync/atomic"
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// Listener accepts connections as *Conn.
type Listener struct {
	net.Listener
	gate    *Gate
	counted bool
	last    atomic.Int64 // when a connection was last accepted, Unix nanoseconds
}

// Listener puts the gate before a listener. Counted is for fronts whose transport
// reads ahead of the handlers of requests.
func (g *Gate) Listener(l net.Listener, counted bool) *Listener {
	return &Listener{Listener: l, gate: g, counted: counted}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		now := time.Now()
		l.last.Store(now.UnixNano())
		c := &Conn{Conn: conn, gate: l.gate, listener: l, counted: l.counted}
		c.since.Store(now.UnixNano())
		below := conn
		if wrapped, ok := conn.(interface{ NetConn() net.Conn }); ok {
			below = wrapped.NetConn()
		}
		if tcp, ok := below.(*net.TCPConn); ok {
			c.socket = wire.NewSocket(tcp)
			c.reads = c.socket != nil && below == conn
		}
		if l.gate.add(c) {
			return c, nil
		}
		_ = conn.Close() // too many, all of them busy
	}
}

// add admits a connection. If there are too many, it closes the one that has been
// without a request for longest.
func (g *Gate) add(c *Conn) bool {
	var displaced *Conn
	g.mu.Lock()
	full := len(g.connections) >= g.o.Connections
	if full {
		for other := range g.connections {
			if other.busy.Load() == 0 && (displaced == nil || other.since.Load() < displaced.since.Load()) {
				displaced = other
			}
		}
	}
	if !full || displaced != nil {
		g.connections[c] = struct{}{}
	}
	g.mu.Unlock()
	switch {
	case displaced != nil:
		g.refused[Displaced].Add(1)
		_ = displaced.Close() // it is gone in any case
	case full:
		g.refused[TooManyConnections].Add(1)
		return false
	}
	return true
}

func (g *Gate) remove(c *Conn) {
	g.mu.Lock()
	delete(g.connections, c)
	g.mu.Unlock()
}

// LastAccepted is when a connection was last accepted.
func (l *Listener) LastAccepted() time.Time { return time.Unix(0, l.last.Load()) }

// Shaken reports whether the protocol has begun on all connections that are
// open.
func (l *Listener) Shaken() bool {
	l.gate.mu.Lock()
	defer l.gate.mu.Unlock()
	for c := range l.gate.connections {
		if c.listener == l && !c.shaken.Load() {
			return false
		}
	}
	return true
}

// Open counts the listener's connections.
func (l *Listener) Open() (n int) {
	l.gate.mu.Lock()
	defer l.gate.mu.Unlock()
	for c := range l.gate.connections {
		if c.listener == l {
			n++
		}
	}
	return n
}

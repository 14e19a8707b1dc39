// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"context"
	"crypto/tls"
	"net"
	nethttp "net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Server is a net/http server whose plain requests are answered by this package.
type Server struct {
	net   *nethttp.Server
	takes func(path string) bool

	leaving atomic.Bool   // no further request is read
	cut     chan struct{} // closed once requests under way are cut off
	cutOnce sync.Once

	busy atomic.Int64 // connections that answer a plain request

	mu    sync.Mutex
	conns map[*conn]struct{}
}

// New makes a server of one that has not begun to serve, and takes it over: it sets its ConnState and ConnContext. Plain reports whether POSTs to a path may be
// answered here. Their handler answers at once or later (exchange.Later), sets the Content-Length of its answer, reads no body after it has begun to answer, keeps neither request nor ResponseWriter, and
// does not change the request's Header.
func New(s *nethttp.Server, plain func(path string) bool) *Server {
	server := &Server{net: s, takes: plain, cut: make(chan struct{}), conns: map[*conn]struct{}{}}
	inner, state := s.ConnContext, s.ConnState
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if inner != nil {
			ctx = inner(ctx, c)
		}
		if c, ok := c.(*conn); ok {
			c.ctx = ctx
		}
		return ctx
	}
	s.ConnState = func(raw net.Conn, now nethttp.ConnState) {
		if state != nil {
			state(raw, now)
		}
		c, ok := raw.(*conn)
		switch {
		case !ok:
		case now == nethttp.StateIdle:
			c.between, c.theirs = true, c.theirs || c.given > 0
		case now == nethttp.StateHijacked:
			c.theirs = true
		}
	}
	s.RegisterOnShutdown(server.leave)
	return server
}

// Serve is that of net/http's Server.
func (s *Server) Serve(l net.Listener) error { return s.net.Serve(listener{l, s}) }

// Shutdown is that of net/http's Server. It waits for plain requests, too.
func (s *Server) Shutdown(ctx context.Context) error {
	if err := s.net.Shutdown(ctx); err != nil {
		return err
	}
	s.leave() // where nothing was served
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for s.busy.Load() > 0 {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Close is that of net/http's Server.
func (s *Server) Close() error {
	s.cutOnce.Do(func() { close(s.cut) })
	s.leaving.Store(true)
	err := s.net.Close()
	for _, c := range s.all() {
		_ = c.Close() // net/http has forgotten those that Shutdown closed
	}
	return err
}

// isCut reports whether requests under way are cut off.
func (s *Server) isCut() bool {
	select {
	case <-s.cut:
		return true
	default:
		return false
	}
}

// leave closes connections that answer nothing, and has the others end with their answer.
func (s *Server) leave() {
	s.leaving.Store(true)
	for _, c := range s.all() {
		if c.looks.Load() {
			_ = c.Close() // it is gone in any case
		}
	}
}

func (s *Server) all() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		list = append(list, c)
	}
	return list
}

// listener accepts connections as *conn. What is inside TLS is net/http's.
type listener struct {
	net.Listener
	server *Server
}

// Accept implements net.Listener.
func (l listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if _, secured := raw.(*tls.Conn); secured {
		return raw, nil
	}
	return newConn(raw, l.server), nil
}

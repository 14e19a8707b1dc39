// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
)

// Handler runs the calls of a Server's method. No function of it may block: it is called by the goroutine that reads the connection, and all other calls of
// the connection wait meanwhile.
type Handler interface {
	// Begin admits a call of which only the headers have come, or refuses it with a gRPC status error. If it does, no other function is called for the call.
	Begin(*Call) error
	// Serve is called once with the call's message, of which it takes over one reference to each buffer. The call's context may have ended by then. Exactly
	// one of Reply and Fail is to be called some time later, by any goroutine, also if the context ends; then Done is to be called.
	Serve(*Call, mem.BufferSlice)
	// Lost is called in place of Serve for a call that ends before its message is whole, with the status that ended it.
	Lost(*Call, error)
}

// Options of New.
type Options struct {
	// Method is the method that Handler runs, "/package.Service/Method".
	Method  string
	Handler Handler
	// Credentials make the connections secure; nil: they are in the clear.
	Credentials credentials.TransportCredentials
	// MaxMessage bounds a message, in bytes.
	MaxMessage int
	// Window is the flow-control window of a stream, and a quarter of that of a connection.
	Window int
	// MaxStreams bounds the streams of a connection, calls that were reset and whose handler goes on included.
	MaxStreams int
	// MaxHeaderList bounds the header fields of a call, in bytes as HTTP/2 counts them.
	MaxHeaderList uint32
	// Handshake is how long a client may take to begin.
	Handshake time.Duration
	// PingInterval: pings more frequent than this are a flood.
	PingInterval time.Duration
	// MaxAge returns how old a connection may become before its client is asked to go elsewhere, as in a drain; nil, or 0: as old as it likes. Its calls
	// then have Grace to end, after which they are cut off; 0: as long as they take.
	MaxAge func() time.Duration
	Grace  time.Duration
	// Ahead returns by how much before its deadline, which is after left, a call is answered that its handler has not answered: clients report a
	// call as cancelled whose answer comes at the deadline or after it.
	Ahead func(left time.Duration) time.Duration
	// Exceeded is the answer to a call whose deadline has come.
	Exceeded error
	// Pool supplies buffers; nil means those of grpc.
	Pool mem.BufferPool
	// Logger logs connections that end for their client's fault, at level debug; nil discards.
	Logger *slog.Logger
}

// Server serves one method by a Handler and everything else by another gRPC server, on the same connections. Make one with New, and serve Inner with the
// other server.
type Server struct {
	o     Options
	inner *innerListener

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*serverConn]struct{}
	raw       map[net.Conn]struct{} // connections in their handshake
	draining  bool
	stopped   bool
	running   sync.WaitGroup // connections, and calls that are handled
}

// ErrStopped is returned by Serve after GracefulStop or Stop.
var ErrStopped = errors.New("wire: the server has been stopped")

// New makes a server.
func New(o Options) *Server {
	if o.Pool == nil {
		o.Pool = mem.DefaultBufferPool()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Server{
		o: o, inner: newInnerListener(), listeners: map[net.Listener]struct{}{}, conns: map[*serverConn]struct{}{}, raw: map[net.Conn]struct{}{},
	}
}

// Inner is the listener of the server that everything goes to that the Handler does not run. Its connections have the addresses of the clients'
// connections, and the methods NetConn, which returns the connection that was accepted, and AuthInfo.
func (s *Server) Inner() net.Listener { return s.inner }

// Serve serves the connections of a listener until it fails or the server is stopped, which closes it.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		_ = l.Close() // nothing is served
		return ErrStopped
	}
	s.listeners[l] = struct{}{}
	s.running.Add(1)
	s.mu.Unlock()
	defer s.running.Done()
	var pause time.Duration
	for {
		conn, err := l.Accept()
		if err == nil {
			pause = 0
			s.serve(conn)
			continue
		}
		if temporary, ok := err.(interface{ Temporary() bool }); ok && temporary.Temporary() { //nolint:errorlint // net gives it bare
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			time.Sleep(pause) // as grpc-go and net/http do while there are no descriptors
			continue
		}
		s.mu.Lock()
		delete(s.listeners, l)
		draining := s.draining
		s.mu.Unlock()
		_ = l.Close() // it has failed
		if draining {
			return ErrStopped
		}
		return err
	}
}

// serve serves a connection on a goroutine of its own.
func (s *Server) serve(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		_ = conn.Close() // its client tries elsewhere
		return
	}
	s.raw[conn] = struct{}{}
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		s.serveConn(conn)
	}()
}

// serveConn serves a connection to its end.
func (s *Server) serveConn(raw net.Conn) {
	conn, info, err := s.handshake(raw)
	s.mu.Lock()
	delete(s.raw, raw)
	if err == nil && s.stopped {
		err = ErrStopped
	}
	if err != nil {
		s.mu.Unlock()
		_ = raw.Close() // it never began
		s.o.Logger.Debug("a connection failed in its handshake", "client", raw.RemoteAddr().String(), "error", err)
		return
	}
	c := newServerConn(s, raw, conn, info)
	s.conns[c] = struct{}{}
	draining := s.draining
	s.mu.Unlock()
	if draining {
		c.drain("graceful_stop")
	}
	c.ages()
	err = c.serve()
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	c.end(err)
}

// handshake secures a connection.
func (s *Server) handshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if err := raw.SetDeadline(time.Now().Add(s.o.Handshake)); err != nil {
		return nil, nil, err
	}
	if s.o.Credentials == nil {
		return raw, nil, nil
	}
	return s.o.Credentials.ServerHandshake(raw)
}

// Leave takes no more connections and calls, and asks clients to go elsewhere (GOAWAY). It does not wait. Whatever a call is answered after it returns, its client
// receives after that.
func (s *Server) Leave() {
	for _, c := range s.close(false) {
		c.drain("graceful_stop")
	}
}

// GracefulStop is Leave, and waits until every call has ended. Those of the inner server are to be waited for before it is stopped, which is the caller's to
// do after this returns.
func (s *Server) GracefulStop() {
	s.Leave()
	s.running.Wait()
}

// Stop ends all connections, and waits until the handlers of their calls have ended.
func (s *Server) Stop() {
	for _, c := range s.close(true) {
		c.abort(errClosed)
	}
	s.running.Wait()
}

// close closes the listeners and returns the connections.
func (s *Server) close(stop bool) []*serverConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	for l := range s.listeners {
		_ = l.Close() // Serve returns
	}
	for c := range s.raw {
		if stop {
			_ = c.Close() // it never began
		}
	}
	s.stopped = s.stopped || stop
	all := make([]*serverConn, 0, len(s.conns))
	for c := range s.conns {
		all = append(all, c)
	}
	return all
}

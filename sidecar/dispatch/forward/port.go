// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	nethttp "net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// HTTPRequest is a request for inference as a server's HTTP port takes it.
type HTTPRequest struct {
	// Model and Version are those of the path; an empty version is the one that the server's policy picks.
	Model, Version string
	*batch.HTTP
}

// ErrForeign means that the answer of a server's HTTP port is none that Triton gives to a request for inference: something else listens there, or stands
// before it. The port is not used for a while then; the gRPC port may take the request.
var ErrForeign = errors.New("the HTTP port did not answer as Triton's")

const (
	// mostHTTP is how many connections to a server's HTTP port there are at most. Each carries one request at a time.
	mostHTTP = 64
	// idleHTTP is the default of Options.IdleHTTP.
	idleHTTP = 5 * time.Second
	// foreignPause is how long a port is not used that has answered as none of Triton's.
	foreignPause = time.Minute
	// longestHTTPPause is the longest time between two attempts to connect to a port that does not take connections.
	longestHTTPPause = 30 * time.Second
	// longestHead is the most that is read of an answer before its body. Triton's heads are a few lines.
	longestHead = 64 << 10
)

// httpPort is the HTTP port of a server: connections that are there already, each for one request at a time. A request that finds none takes another way, and
// has one made for those that follow; so no request waits for a connection, and a port that cannot be reached costs none anything.
type httpPort struct {
	network, address, host string
	pool                   mem.BufferPool
	keep                   time.Duration // how long a connection may be idle

	ctx     context.Context // ends with the port
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex // guards what follows
	open    map[*httpConn]struct{}
	idle    []*httpConn // the last one was used last
	dialing bool
	next    time.Time // no attempt to connect before it
	pause   time.Duration
	reaper  *time.Timer // nil: no connection is idle
	closed  bool
}

// newHTTPPort is for an endpoint, host:port or unix:PATH.
func newHTTPPort(endpoint string, pool mem.BufferPool, keep time.Duration) *httpPort {
	p := &httpPort{network: "tcp", address: endpoint, host: endpoint, pool: pool, keep: keep, open: map[*httpConn]struct{}{}, pause: firstPause}
	if path, ok := strings.CutPrefix(endpoint, "unix:"); ok {
		p.network, p.address, p.host = "unix", strings.TrimPrefix(path, "//"), "localhost"
	}
	if p.pool == nil {
		p.pool = mem.DefaultBufferPool()
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// take returns a connection without a request; nil: there is none, and one is made for later unless there are too many.
func (p *httpPort) take() *httpConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle[n-1] = nil
		p.idle = p.idle[:n-1]
		return c
	}
	if !p.closed && !p.dialing && len(p.open) < mostHTTP && !time.Now().Before(p.next) {
		p.dialing = true
		p.running.Go(p.dial)
	}
	return nil
}

// dial makes a connection.
func (p *httpPort) dial() {
	ctx, cancel := context.WithTimeout(p.ctx, connectTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, p.network, p.address)
	var socket *wire.Socket
	if err == nil {
		socket = wire.NewSocket(conn)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialing = false
	if err != nil || socket == nil || p.closed {
		if conn != nil {
			_ = conn.Close() // nothing was sent
		}
		p.next = time.Now().Add(p.pause)
		p.pause = min(2*p.pause, longestHTTPPause)
		return
	}
	p.pause = firstPause
	c := &httpConn{port: p, conn: conn, socket: socket}
	p.open[c] = struct{}{}
	p.rest(c)
	p.running.Go(c.read)
}

// rest has a connection wait for its next request. Guarded by mu.
func (p *httpPort) rest(c *httpConn) {
	c.since = time.Now()
	p.idle = append(p.idle, c)
	if p.reaper == nil && !p.closed {
		p.reaper = time.AfterFunc(p.keep, p.reap)
	}
}

// reap closes connections that were idle for too long.
func (p *httpPort) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reaper = nil
	if p.closed {
		return
	}
	now := time.Now()
	for len(p.idle) > 0 && now.Sub(p.idle[0].since) >= p.keep {
		_ = p.idle[0].conn.Close() // its reader sees to the rest
		p.idle = p.idle[1:]
	}
	if len(p.idle) > 0 {
		p.reaper = time.AfterFunc(p.keep-now.Sub(p.idle[0].since), p.reap)
	}
}

// avoid has the port not used for a while.
func (p *httpPort) avoid() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = time.Now().Add(foreignPause)
	for _, c := range p.idle {
		_ = c.conn.Close() // its reader sees to the rest
	}
	p.idle = nil
}

// forget takes out a connection that has ended.
func (p *httpPort) forget(c *httpConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
	for i, other := range p.idle {
		if other == c {
			p.idle = append(p.idle[:i], p.idle[i+1:]...)
			return
		}
	}
}

// close ends the connections and the calls on them.
func (p *httpPort) close() {
	p.cancel()
	p.mu.Lock()
	p.closed = true
	if p.reaper != nil {
		p.reaper.Stop()
	}
	for c := range p.open {
		_ = c.conn.Close() // its reader sees to the rest
	}
	p.mu.Unlock()
	p.running.Wait()
}

// start begins a call. It returns false, with nothing sent, if no connection is there.
func (p *httpPort) start(ctx context.Context, r *HTTPRequest, then func(*wire.Turn, *Answer, error)) bool {
	for {
		c := p.take()
		if c == nil {
			return false
		}
		if c.start(ctx, r, then) {
			return true
		}
	}
}

// httpConn is a connection to a server's HTTP port. A goroutine of its own reads it, and ends its calls.
type httpConn struct {
	port   *httpPort
	conn   net.Conn
	socket *wire.Socket
	since  time.Time // when its last request ended; guarded by httpPort.mu

	mu      sync.Mutex // guards what follows
	then    func(*wire.Turn, *Answer, error)
	head    []byte
	pieces  [2][]byte
	writing bool // a goroutine writes what the socket did not take at once
	ended   bool
}

// start begins a call, unless the connection has ended. It does not wait: what the socket does not take at once is written by another goroutine.
func (c *httpConn) start(ctx context.Context, r *HTTPRequest, then func(*wire.Turn, *Answer, error)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.then = then
	c.head = c.port.appendHead(c.head[:0], ctx, r)
	body := r.Body.ReadOnlyData()
	c.pieces = [2][]byte{c.head, body}
	n, err := c.socket.TryWrite(c.pieces[:])
	switch {
	case err != nil:
		_ = c.conn.Close() // its reader ends the call
	case n < len(c.head)+len(body):
		// The body stays until it is written, also where the server has answered before.
		r.Body.Ref()
		c.writing = true
		of := r.Body
		c.port.running.Go(func() { c.finish(of, n) })
		return true
	}
	c.pieces = [2][]byte{}
	return true
}

// finish writes what is left of a request after its first n bytes.
func (c *httpConn) finish(body mem.Buffer, n int) {
	defer body.Free()
	pieces := c.pieces[:]
	var err error
	for err == nil {
		for len(pieces) > 0 && n >= len(pieces[0]) {
			n -= len(pieces[0])
			pieces = pieces[1:]
		}
		if len(pieces) == 0 {
			break
		}
		pieces[0] = pieces[0][n:]
		n, err = c.socket.AwaitWrite(pieces)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing, c.pieces = false, [2][]byte{}
	if err != nil {
		_ = c.conn.Close() // its reader ends the call
	}
}

// appendHead appends the lines before the body. Triton reads a request line that comes in two pieces wrongly: all of it goes with the body, in one write.
func (p *httpPort) appendHead(b []byte, ctx context.Context, r *HTTPRequest) []byte {
	b = append(append(b, "POST /v2/models/"...), r.Model...)
	if r.Version != "" {
		b = append(append(b, "/versions/"...), r.Version...)
	}
	b = append(append(b, "/infer HTTP/1.1\r\nHost: "...), p.host...)
	if r.HeaderLength >= 0 {
		b = strconv.AppendInt(append(b, "\r\nInference-Header-Content-Length: "...), int64(r.HeaderLength), 10)
		b = append(b, "\r\nContent-Type: application/octet-stream"...)
	} else {
		b = append(b, "\r\nContent-Type: application/json"...)
	}
	if md, ok := metadata.FromOutgoingContext(ctx); ok { // the trace context
		for _, name := range [...]string{"traceparent", "tracestate"} {
			for _, value := range md[name] {
				b = append(append(append(append(b, "\r\n"...), name...), ": "...), value...)
			}
		}
	}
	b = strconv.AppendInt(append(b, "\r\nContent-Length: "...), int64(r.Body.Len()), 10)
	return append(b, "\r\n\r\n"...)
}

// read reads the connection to its end.
func (c *httpConn) read() {
	from := &source{conn: c.socket, left: -1}
	in := bufio.NewReader(from)
	var turn wire.Turn
	for {
		_, err := in.Peek(1) // an answer begins, or the connection ends
		var got *batch.HTTP
		again := false
		switch {
		case err != nil:
		case !c.asked():
			err = errUnasked
		default:
			got, again, err = c.answer(from, in)
		}
		if !c.end(&turn, got, err, again && in.Buffered() == 0) {
			break
		}
		turn.End()
	}
	turn.End()
}

var errUnasked = errors.New("an answer to no request")

// asked reports whether a call is under way. If none is, none begins any more: what has come would be taken for its answer.
func (c *httpConn) asked() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = c.then == nil
	return !c.ended
}

// end ends the call that is under way, if one is, and reports whether the connection goes on.
func (c *httpConn) end(t *wire.Turn, got *batch.HTTP, err error, again bool) bool {
	c.mu.Lock()
	then := c.then
	c.then = nil
	again = again && then != nil && !c.writing
	c.ended = !again
	c.mu.Unlock()
	if again {
		c.port.mu.Lock()
		c.port.rest(c)
		c.port.mu.Unlock()
	} else {
		_ = c.conn.Close() // the call has its end in any case
		c.port.forget(c)
	}
	a := &Answer{LastWord: true, HTTP: got}
	switch {
	case errors.Is(err, ErrForeign):
		c.port.avoid()
	case errors.As(err, new(interface{ GRPCStatus() *status.Status })):
		err = status.Convert(err).Err()
	case err != nil:
		err = &lostError{status.Error(codes.Unavailable, fmt.Sprintf("%v: %v", wire.ErrLost, err))}
		a.LastWord = false
	}
	if then == nil { // nobody had asked
		return again
	}
	then(t, a, err)
	return again
}

// source is what a connection is read from. It ends a head that is too long.
type source struct {
	conn   io.Reader
	left   int   // of the head that is being read; negative: none is
	failed error // of the connection
}

// Read implements io.Reader.
func (s *source) Read(p []byte) (n int, err error) {
	if s.left == 0 {
		return 0, fmt.Errorf("%w: a head of more than %d bytes", ErrForeign, longestHead)
	}
	if s.left > 0 {
		p = p[:min(len(p), s.left)]
	}
	n, err = s.conn.Read(p)
	if s.failed = err; s.left > 0 {
		s.left -= n
	}
	return n, err
}

// head reads an answer's lines before its body. What is none of HTTP's is foreign; what has not come whole is lost with its connection.
func (s *source) head(in *bufio.Reader) (*nethttp.Response, error) {
	s.left = longestHead
	defer func() { s.left = -1 }()
	const begins = "HTTP/1."
	if begin, err := in.Peek(len(begins)); !strings.HasPrefix(begins, string(begin)) {
		return nil, fmt.Errorf("%w: it begins with %q", ErrForeign, begin)
	} else if err != nil {
		return nil, err
	}
	r, err := nethttp.ReadResponse(in, nil) //nolint:bodyclose // to close a body is to read it to its end, which may never come; what is left of it goes with the connection
	if err != nil && s.failed == nil && !errors.Is(err, ErrForeign) {
		err = fmt.Errorf("%w: %w", ErrForeign, err)
	}
	return r, err
}

// answer reads an answer of which something has come: tensors, or the server's error as a status. Again says that the connection takes another request.
func (c *httpConn) answer(from *source, in *bufio.Reader) (got *batch.HTTP, again bool, err error) {
	r, err := from.head(in)
	if err != nil {
		return nil, false, err
	}
	if r.ContentLength < 0 || r.ContentLength > math.MaxInt32 || r.StatusCode < nethttp.StatusOK {
		return nil, false, fmt.Errorf("%w: status %d with a length of %d", ErrForeign, r.StatusCode, r.ContentLength)
	}
	buf := c.port.pool.Get(int(r.ContentLength))
	if _, err := io.ReadFull(r.Body, *buf); err != nil {
		c.port.pool.Put(buf)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, false, err
	}
	body := mem.NewBuffer(buf, c.port.pool)
	if r.StatusCode != nethttp.StatusOK {
		defer body.Free()
		return nil, !r.Close, httpError(r.StatusCode, body.ReadOnlyData())
	}
	got = &batch.HTTP{Body: body, HeaderLength: -1}
	if text := r.Header.Get("Inference-Header-Content-Length"); text != "" {
		if got.HeaderLength, err = strconv.Atoi(text); err != nil || got.HeaderLength < 0 || got.HeaderLength > body.Len() {
			body.Free()
			return nil, false, fmt.Errorf("%w: a JSON part of %q bytes", ErrForeign, text)
		}
	}
	if begin := body.ReadOnlyData(); len(begin) == 0 || begin[0] != '{' || r.Header.Get("Content-Encoding") != "" {
		body.Free()
		return nil, false, fmt.Errorf("%w: an answer that is no JSON", ErrForeign)
	}
	return got, !r.Close, nil
}

// httpError is the error that a server's HTTP port has answered with.
func httpError(code int, body []byte) error {
	of, known := batch.CodeOfHTTP(code)
	text, ok := batch.ErrorOfHTTP(body)
	if !known || !ok {
		return fmt.Errorf("%w: status %d", ErrForeign, code)
	}
	return status.Error(of, text)
}

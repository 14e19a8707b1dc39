// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
)

const (
	// innerWindow is how much the inner server may have sent to a client that was not written yet.
	innerWindow = 1 << 20
	// innerBacklog is how much may wait for the inner server to read it, before the client is not read from.
	innerBacklog = 1 << 20
	// innerHeaders bounds the inner server's own header fields, which hold the texts of errors.
	innerHeaders = 16 << 20
)

// innerListener hands connections to the inner server.
type innerListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newInnerListener() *innerListener {
	return &innerListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *innerListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *innerListener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr implements net.Listener.
func (*innerListener) Addr() net.Addr { return innerAddr{} }

type innerAddr struct{}

func (innerAddr) Network() string { return "inner" }

func (innerAddr) String() string { return "inner" }

// innerConn is the connection of the inner server, for the streams of one client's connection that the Handler does not run. The streams keep their
// numbers, and their windows are between the client and the inner server. The connection's windows, settings and pings are not passed on.
type innerConn struct {
	outer   *serverConn
	offer   sync.Once
	stopped error // of offer: the inner server is

	mu      sync.Mutex // guards what follows; the connection's lock comes before it
	changed sync.Cond
	waiting []byte // for the inner server to read
	missing int    // of the DATA frame at the end of waiting
	after   []byte // frames that go after it
	closed  bool   // by either side
	encoder *hpack.Encoder
	block   bytes.Buffer
	moved   int // bytes of data that went out, and that the inner server may send again

	// Of the goroutine that writes.
	carry  []byte // of a frame that is not whole
	fields *fields
}

var _ net.Conn = (*innerConn)(nil)

// newInnerConn is called with the connection's lock.
func newInnerConn(c *serverConn) *innerConn {
	in := &innerConn{outer: c, fields: newFields(innerHeaders)}
	in.fields.maxBlock = innerHeaders
	in.changed.L = &in.mu
	in.encoder = hpack.NewEncoder(&in.block)
	in.waiting = append(in.waiting, http2.ClientPreface...)
	in.waiting = appendSettings(in.waiting, c.settings...)
	in.waiting = appendWindowUpdate(in.waiting, 0, innerWindow-defaultWindow)
	return in
}

// offered hands the connection to the inner server, once.
func (in *innerConn) offered(to *innerListener) error {
	in.offer.Do(func() {
		select {
		case to.conns <- in:
		case <-to.done:
			in.stopped = ErrStopped
		}
	})
	return in.stopped
}

// write queues whole frames for the inner server.
func (in *innerConn) write(b []byte) {
	in.mu.Lock()
	in.queue(b)
	in.mu.Unlock()
}

// queue is write for a caller that holds mu. While the payload of a DATA frame comes, other frames wait for its end.
func (in *innerConn) queue(b []byte) {
	switch {
	case in.closed:
	case in.missing > 0:
		in.after = append(in.after, b...)
	default:
		in.waiting = append(in.waiting, b...)
	}
}

// dataFrame queues the head of a DATA frame, of which the payload is to follow.
func (in *innerConn) dataFrame(h head) {
	in.mu.Lock()
	if !in.closed {
		in.waiting = h.append(in.waiting)
		in.missing = h.length
	}
	in.mu.Unlock()
}

// payload queues a part of the payload.
func (in *innerConn) payload(b []byte) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return
	}
	in.waiting = append(in.waiting, b...)
	if in.missing -= len(b); in.missing == 0 {
		in.waiting = append(in.waiting, in.after...)
		in.after = in.after[:0]
	}
}

// headers queues a block of header fields.
func (in *innerConn) headers(stream uint32, list []hpack.HeaderField, end bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return
	}
	in.block.Reset()
	for i := range list {
		_ = in.encoder.WriteField(list[i]) // into memory
	}
	in.waiting = appendHeaders(in.waiting, stream, in.block.Bytes(), end)
}

// behind reports whether more waits for the inner server than may.
func (in *innerConn) behind() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.waiting) > innerBacklog
}

// wake has the inner server read, and waits while it is behind.
func (in *innerConn) wake() {
	in.mu.Lock()
	if len(in.waiting) > 0 {
		in.changed.Broadcast()
	}
	for len(in.waiting) > innerBacklog && !in.closed {
		in.changed.Wait()
	}
	in.mu.Unlock()
}

// signal has the inner server read, and does not wait.
func (in *innerConn) signal() {
	in.mu.Lock()
	in.changed.Broadcast()
	in.mu.Unlock()
}

// sent counts data that went out. It is called with the connection's lock.
func (in *innerConn) sent(n int) {
	in.mu.Lock()
	if in.moved += n; in.moved >= innerWindow/4 && !in.closed {
		in.queue(appendWindowUpdate(nil, 0, uint32(in.moved)))
		in.moved = 0
		in.changed.Broadcast()
	}
	in.mu.Unlock()
}

// Read implements net.Conn.
func (in *innerConn) Read(p []byte) (int, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.waiting) == 0 {
		if in.closed {
			return 0, io.EOF
		}
		in.changed.Wait()
	}
	n := copy(p, in.waiting)
	rest := copy(in.waiting, in.waiting[n:])
	if in.waiting = in.waiting[:rest]; rest == 0 && cap(in.waiting) > largestArena {
		in.waiting = nil
	}
	in.changed.Broadcast()
	return n, nil
}

// ReadOnReady takes a buffer once there is something to read: grpc-go's transport uses it where a connection has it.
func (in *innerConn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	in.mu.Lock()
	for len(in.waiting) == 0 && !in.closed {
		in.changed.Wait()
	}
	in.mu.Unlock()
	buf := pool.Get(size)
	n, err := in.Read(*buf)
	if err != nil {
		pool.Put(buf)
		return nil, 0, err
	}
	return buf, n, nil
}

// Write implements net.Conn: frames of the inner server go to the client.
func (in *innerConn) Write(p []byte) (int, error) {
	in.mu.Lock()
	closed := in.closed
	in.mu.Unlock()
	if closed {
		return 0, net.ErrClosed
	}
	b := p
	if len(in.carry) > 0 {
		in.carry = append(in.carry, p...)
		b = in.carry
	}
	for len(b) >= headLen {
		h := readHead(b)
		if len(b) < headLen+h.length {
			break
		}
		if err := in.frame(h, b[headLen:headLen+h.length]); err != nil {
			in.outer.abort(err)
			return 0, err
		}
		b = b[headLen+h.length:]
	}
	in.carry = append(in.carry[:0], b...)
	if cap(in.carry) > largestArena && len(in.carry) == 0 {
		in.carry = nil
	}
	in.outer.flush()
	in.outer.mu.Lock()
	failed := in.outer.failed
	in.outer.mu.Unlock()
	if failed != nil {
		return 0, failed
	}
	return len(p), nil
}

// frame passes a frame of the inner server on.
func (in *innerConn) frame(h head, payload []byte) error {
	c := in.outer
	switch h.kind {
	case http2.FrameHeaders:
		in.fields.beginBlock(h.stream, h.flags)
		fallthrough
	case http2.FrameContinuation:
		if err := in.fields.write(payload, h.has(http2.FlagHeadersEndHeaders)); err != nil || in.fields.stream != 0 {
			return err
		}
		in.answer(h.stream)
	case http2.FrameData:
		c.mu.Lock()
		defer c.mu.Unlock()
		s := c.streams[h.stream]
		if s == nil {
			in.sent(len(payload))
			return nil
		}
		buf := c.server.o.Pool.Get(len(payload))
		copy(*buf, payload)
		s.out.end = h.has(http2.FlagDataEndStream)
		c.give(s.out, mem.BufferSlice{mem.NewBuffer(buf, c.server.o.Pool)})
		in.advance(s)
	case http2.FrameRSTStream:
		c.mu.Lock()
		defer c.mu.Unlock()
		code := http2.ErrCode(binary.BigEndian.Uint32(payload))
		s := c.streams[h.stream]
		switch {
		case s == nil: // it has ended
		case code == http2.ErrCodeNo && s.out.left > 0:
			s.reset = true // after its data
		default:
			c.isOurs(h.stream)
			c.drop(s.out)
			c.frame(func(b []byte) []byte { return append(h.append(b), payload...) })
			c.forget(h.stream)
		}
	case http2.FrameSettings:
		if !h.has(http2.FlagSettingsAck) {
			in.write(head{kind: http2.FrameSettings, flags: http2.FlagSettingsAck}.append(nil))
			in.signal()
		}
	case http2.FramePing:
		if !h.has(http2.FlagPingAck) {
			in.write(appendPing(nil, http2.FlagPingAck, [8]byte(payload)))
			in.signal()
		}
	case http2.FrameGoAway:
		if code := http2.ErrCode(binary.BigEndian.Uint32(payload[4:])); code != http2.ErrCodeNo {
			c.mu.Lock()
			c.frame(func(b []byte) []byte { return append(h.append(b), payload...) })
			c.mu.Unlock()
		}
	case http2.FrameWindowUpdate:
		if h.stream == 0 {
			return nil // the client has the connection's window from here
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.streams[h.stream] != nil {
			c.frame(func(b []byte) []byte { return append(h.append(b), payload...) })
		}
	}
	return nil
}

// answer passes header fields of the inner server on, in their place after the stream's data.
func (in *innerConn) answer(id uint32) {
	c := in.outer
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.streams[id]
	if s == nil {
		return
	}
	if in.fields.flags&http2.FlagHeadersEndStream == 0 {
		c.headers(id, in.fields.list, false)
		return
	}
	s.out.trailer = append([]hpack.HeaderField{}, in.fields.list...)
	s.out.end = false
	in.advance(s)
}

// advance sends what is there of a stream's answer. Guarded by the connection's lock.
func (in *innerConn) advance(s *stream) {
	s.out.open = s.out.trailer == nil && !s.out.end
	in.outer.send(s.out)
}

// Close implements net.Conn: the inner server ends the client's connection.
func (in *innerConn) Close() error {
	if in.close() {
		c := in.outer
		c.mu.Lock()
		if !c.over {
			c.leave(farewell)
		}
		c.mu.Unlock()
	}
	return nil
}

// closeByClient tells the inner server that the client's connection has ended.
func (in *innerConn) closeByClient() { in.close() }

func (in *innerConn) close() (first bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	first = !in.closed
	in.closed = true
	in.changed.Broadcast()
	return first
}

// NetConn is the client's connection, as it was accepted.
func (in *innerConn) NetConn() net.Conn { return in.outer.raw }

// AuthInfo is the result of the client's handshake; nil: there was none.
func (in *innerConn) AuthInfo() credentials.AuthInfo { return in.outer.auth }

// LocalAddr implements net.Conn.
func (in *innerConn) LocalAddr() net.Addr { return in.outer.conn.LocalAddr() }

// RemoteAddr implements net.Conn.
func (in *innerConn) RemoteAddr() net.Addr { return in.outer.conn.RemoteAddr() }

// SetDeadline implements net.Conn. Nothing here waits for the network.
func (*innerConn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn.
func (*innerConn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn.
func (*innerConn) SetWriteDeadline(time.Time) error { return nil }

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// Conn is a client's connection.
type Conn struct {
	net.Conn
	gate     *Gate
	listener *Listener
	// counted: bytes that are read count as held until they belong to a whole
	// request. It is set for gRPC, whose transport reads ahead of the handlers.
	counted bool
	socket  *wire.Socket // nil where there is none
	reads   bool         // the connection is nothing more than its socket
	piece   [1][]byte    // what Write writes, so that it is no allocation

	shaken   atomic.Bool // the protocol has begun
	received atomic.Int64
	unsent   atomic.Int64 // bytes of answers that the transport holds
	busy     atomic.Int32 // requests under way
	since    atomic.Int64 // when busy last became or ceased to be 0, Unix nanoseconds
	moved    atomic.Int64 // when the client last took part of an answer
	armed    atomic.Int64 // when the write deadline was last set

	mu        sync.Mutex
	receiving map[*Request]struct{}
	evicted   map[*Request]error // until their Received is called
	closed    atomic.Bool        // set under mu
}

// Bounds of one write whose progress is not visible, and of what counts as an
// answer: acknowledgements to a client that floods with pings do not.
const (
	writeChunk = 64 << 10
	answerSize = 1 << 10
)

// slack is subtracted from a connection's received bytes in addition to the size
// of a whole message: its headers and the frames around it, generously.
const slack = 4 << 10

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (int, error) {
	from := io.Reader(c.Conn)
	if c.reads {
		from = c.socket
	}
	n, err := from.Read(p)
	c.got(n)
	return n, err
}

// got counts what was read.
func (c *Conn) got(n int) {
	if !c.counted || n <= 0 {
		return
	}
	c.received.Add(int64(n))
	c.gate.bytes.Add(int64(n))
	if c.closed.Load() {
		c.forget() // Close may have done so before these
	}
	if c.gate.crowded() {
		c.gate.relieve()
	}
}

// ReadOnReady reads like Read, into a buffer that it takes from the pool once
// there is something to read: an idle connection holds none. gRPC's transport
// uses it where a connection has it.
func (c *Conn) ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error) {
	if c.socket != nil {
		buf, n, err := c.socket.ReadOnReady(size, pool)
		c.got(n)
		return buf, n, err
	}
	buf := pool.Get(size)
	n, err := c.Read(*buf)
	if err != nil {
		pool.Put(buf)
		return nil, 0, err
	}
	return buf, n, nil
}

// Waited reports whether the last ReadOnReady found nothing at first. It is for who reads.
func (c *Conn) Waited() bool { return c.socket != nil && c.socket.Waited() }

// Write implements net.Conn. Every part of p must be taken within about Stall. It must not be called by two goroutines at once, like AwaitWrite: every protocol's
// connection has one writer.
func (c *Conn) Write(p []byte) (written int, err error) {
	if c.counted && c.busy.Load() > 1 {
		// GRPC's transport writes the answers of many calls. If other goroutines
		// that are ready hand over theirs first, one write has more of them.
		runtime.Gosched()
	}
	for first := true; err == nil && (first || written < len(p)); first = false {
		var n int
		if c.socket != nil && len(p)-written > writeChunk {
			c.piece[0] = p[written:]
			n, err = c.AwaitWrite(c.piece[:])
			c.piece[0] = nil
		} else {
			n, err = c.writeChunk(p[written:])
		}
		written += n
	}
	if err != nil && !errors.As(err, new(*net.OpError)) {
		err = &net.OpError{Op: "write", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
	}
	return written, err
}

// writeChunk writes a part of p, whose progress is not visible: what is small, and all where the connection is no socket.
func (c *Conn) writeChunk(p []byte) (n int, err error) {
	now := time.Now()
	if err := c.extend(now); err != nil {
		return 0, err
	}
	n, err = c.Conn.Write(p[:min(len(p), writeChunk)])
	c.wrote(n, now, err)
	return n, err
}

// wrote notes what the client has taken of an answer, and closes a connection that takes nothing: its reader, by which transports find out that a connection is
// broken, would go on reading from it.
func (c *Conn) wrote(n int, now time.Time, err error) {
	if n > answerSize {
		c.moved.Store(now.UnixNano())
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.gate.stall(c)
	}
}

// Gathers implements wire.GatherWriter: a connection in the clear does.
func (c *Conn) Gathers() bool { return c.socket != nil }

// TryWrite implements wire.GatherWriter. Where the client takes nothing for about Stall, its answers stay unsent, by which the gate closes the connection, or
// a Write that waits for it fails.
func (c *Conn) TryWrite(pieces [][]byte) (int, error) {
	now := time.Now()
	if err := c.extend(now); err != nil { // one that has passed would fail the write
		return 0, err
	}
	n, err := c.socket.TryWrite(pieces)
	if n > answerSize {
		c.moved.Store(now.UnixNano())
	}
	return n, err
}

// AwaitWrite implements wire.GatherWriter. Something must be taken within about Stall.
func (c *Conn) AwaitWrite(pieces [][]byte) (int, error) {
	if err := c.extend(time.Now()); err != nil {
		return 0, err
	}
	n, err := c.socket.AwaitWrite(pieces)
	c.wrote(n, time.Now(), err)
	return n, err
}

// extend renews the write deadline for what is written from now on. Setting a
// deadline costs more than checking whether the last one is recent enough.
func (c *Conn) extend(now time.Time) error {
	if now.UnixNano()-c.armed.Load() > int64(c.gate.o.Stall)/4 {
		return c.arm(now)
	}
	return nil
}

// arm sets the write deadline for what is being written now, or soon.
func (c *Conn) arm(now time.Time) error {
	c.armed.Store(now.UnixNano())
	return c.Conn.SetWriteDeadline(now.Add(c.gate.o.Stall + c.gate.o.Stall/4))
}

// SetDeadline implements net.Conn, like SetWriteDeadline.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetWriteDeadline implements net.Conn. Without a deadline of the caller's a write
// still has the gate's: gRPC's transport clears its own deadline after the
// handshake, when the first writes may be under way.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	if t.IsZero() {
		return c.arm(time.Now())
	}
	c.armed.Store(0)
	return c.Conn.SetWriteDeadline(t)
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.mu.Lock()
	first := !c.closed.Swap(true)
	if first {
		// The transport may drop answers that wait, without freeing them.
		c.gate.bytes.Add(-c.unsent.Swap(0))
	}
	c.mu.Unlock()
	if first {
		c.forget()
		c.gate.remove(c)
	}
	return c.Conn.Close()
}

func (c *Conn) ended() bool { return c.closed.Load() }

// forget no longer counts the bytes received so far.
func (c *Conn) forget() { c.gate.bytes.Add(-c.received.Swap(0)) }

// explain subtracts a whole message of n bytes, and its headers and frames, from
// the bytes received.
func (c *Conn) explain(n int64) {
	for {
		had := c.received.Load()
		left := max(0, had-n-n/64-slack)
		if c.received.CompareAndSwap(had, left) {
			c.gate.bytes.Add(left - had)
			return
		}
	}
}

// evict refuses the requests that are being received. If there are none, the bytes
// that were read belong to no request and are not held.
func (c *Conn) evict() {
	c.mu.Lock()
	victims := make([]*Request, 0, len(c.receiving))
	cause := error(nil)
	for r := range c.receiving {
		if c.evicted == nil {
			c.evicted = map[*Request]error{}
		}
		cause = c.gate.refuse(Evicted) // counts each
		c.evicted[r] = cause
		victims = append(victims, r)
	}
	clear(c.receiving)
	c.mu.Unlock()
	for _, r := range victims {
		r.evict(cause)
	}
	c.forget()
}

// owe counts n bytes of an answer in; paid counts them out.
func (c *Conn) owe(n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return
	}
	if c.unsent.Add(n) == n {
		c.moved.Store(time.Now().UnixNano())
	}
	c.gate.bytes.Add(n)
}

// paid counts n bytes of an answer out. Taken: by the client, which has moved then.
func (c *Conn) paid(n int64, taken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return
	}
	if taken {
		c.moved.Store(time.Now().UnixNano())
	}
	c.unsent.Add(-n)
	c.gate.bytes.Add(-n)
}

// stalled reports whether answers wait and the client has taken nothing for too
// long.
func (c *Conn) stalled(now time.Time) bool {
	return c.unsent.Load() > 0 && now.UnixNano()-c.moved.Load() > int64(c.gate.o.Stall)
}

// CloseWrite shows the client the end of what it receives, where the connection below can do so: a server that closes it later then loses nothing of that.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// NetConn is the connection below.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// RemoteAddr implements net.Conn. The address is all that the request way has of the connection of a gRPC call. It has a method Disconnected() bool, by which a
// cancel is known from a connection that has ended.
func (c *Conn) RemoteAddr() net.Addr { return remote{c.Conn.RemoteAddr(), c} }

// remote is the address of a connection's client.
type remote struct {
	net.Addr
	conn *Conn
}

// Disconnected reports whether the connection has ended.
func (r remote) Disconnected() bool { return r.conn.ended() }

// Shaken marks that the protocol on this connection has begun: a server that
// drains the connection now can tell its client so.
func (c *Conn) Shaken() { c.shaken.Store(true) }

type connKey struct{}

// WithConn is for net/http's ConnContext: requests on the connection carry it.
func WithConn(ctx context.Context, conn net.Conn) context.Context {
	for conn != nil {
		if c, ok := conn.(*Conn); ok {
			c.Shaken()
			return context.WithValue(ctx, connKey{}, c)
		}
		below, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = below.NetConn()
	}
	return ctx
}

// ConnOf is the connection that WithConn put there, or nil.
func ConnOf(ctx context.Context) *Conn {
	c, _ := ctx.Value(connKey{}).(*Conn)
	return c
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"io"
	"net"
	"sync/atomic"

	"google.golang.org/grpc/mem"
)

// chunkSize is how much is read at once. A 600 KB message takes five reads.
const chunkSize = 128 << 10

// onReady is a connection that takes the buffer that it reads into once there is something to read.
type onReady interface {
	ReadOnReady(size int, pool mem.BufferPool) (*[]byte, int, error)
}

// chunk is the buffer of one read, or of several. It is shared with the messages that lie in it, and put back when nobody has it any more.
type chunk struct {
	buf  *[]byte
	pool mem.BufferPool
	refs atomic.Int32
}

func newChunk(buf *[]byte, pool mem.BufferPool) *chunk {
	c := &chunk{buf: buf, pool: pool}
	c.refs.Store(1)
	return c
}

// Get implements mem.BufferPool, of which a part of a chunk needs Put only.
func (c *chunk) Get(n int) *[]byte { return c.pool.Get(n) }

// Put implements mem.BufferPool: a part of the chunk is not used any more.
func (c *chunk) Put(*[]byte) { c.free() }

func (c *chunk) free() {
	if c.refs.Add(-1) == 0 {
		c.pool.Put(c.buf)
	}
}

// share returns a part of the chunk as a buffer.
func (c *chunk) share(b []byte) mem.Buffer {
	c.refs.Add(1)
	return mem.NewBuffer(&b, c)
}

// intake is the receiving half of a connection: bytes as they were read, in one buffer that is only held while there are some.
type intake struct {
	conn  net.Conn
	ready onReady // nil: the connection is none
	asked bool    // the last read was one of ready's
	// records: one read brings a record of TLS at the most.
	records bool
	pool    mem.BufferPool
	chunk   *chunk // nil: there is none
	full    int    // bytes of chunk that were read
	data    []byte // of chunk, not taken yet
}

// newIntake makes the receiving half of a connection. Secure says that the connection is more than its socket.
func newIntake(conn net.Conn, secure bool, pool mem.BufferPool) *intake {
	in := &intake{conn: conn, pool: pool}
	in.ready, _ = conn.(onReady)
	if s := NewSocket(conn); in.ready == nil && !secure && s != nil {
		in.ready = s
	}
	return in
}

// waited reports whether the last read has waited, where the connection says so.
func (in *intake) waited() bool {
	w, ok := in.ready.(interface{ Waited() bool })
	return in.asked && ok && w.Waited()
}

// readOnReady reads once there is something to read.
func (in *intake) readOnReady() (*[]byte, int, error) {
	in.asked = true
	return in.ready.ReadOnReady(chunkSize, in.pool)
}

// more reads. What is not taken stays.
func (in *intake) more() error {
	in.asked = false
	if in.chunk != nil && len(in.data) == 0 {
		in.release()
	}
	if in.chunk == nil && in.ready != nil {
		buf, n, err := in.readOnReady()
		if err != nil {
			return err
		}
		in.chunk, in.full, in.data = newChunk(buf, in.pool), n, (*buf)[:n]
		return nil
	}
	if in.ready != nil && len(in.data) <= mostRest {
		return in.behind()
	}
	size, large := chunkSize, false
	if in.records && len(in.data) <= mostRest {
		size, large = recordSize, in.chunk != nil && cap(*in.chunk.buf) >= chunkSize
	}
	if in.chunk == nil || in.chunk.refs.Load() > 1 || cap(*in.chunk.buf) < size || large { // what is shared stays as it is
		next := newChunk(in.pool.Get(size), in.pool)
		kept := copy(*next.buf, in.data)
		in.release()
		in.chunk, in.data = next, (*next.buf)[:kept]
	}
	buf := (*in.chunk.buf)[:cap(*in.chunk.buf)]
	kept := copy(buf, in.data)
	n, err := in.conn.Read(buf[kept:])
	in.full = kept + n
	in.data = buf[:kept+n]
	if n > 0 {
		return nil
	}
	if err == nil {
		err = io.ErrNoProgress
	}
	return err
}

const (
	// mostRest is how much of a frame's head and the like may have come, so that no buffer is held until more does: who sends a part of a head and no more holds no chunk.
	mostRest = 512
	// recordSize is the most that one read of a TLS connection brings, which takes its buffer before there is something to read.
	recordSize = 16 << 10
)

// behind reads once there is something to read, behind the little that is not taken.
func (in *intake) behind() error {
	var rest [mostRest]byte
	kept := copy(rest[:], in.data)
	in.release()
	buf, n, err := in.readOnReady()
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	read := (*buf)[:n]
	if cap(*buf) < kept+n {
		next := in.pool.Get(kept + n)
		copy((*next)[kept:], read)
		in.pool.Put(buf)
		buf = next
	} else {
		copy((*buf)[kept:cap(*buf)], read)
	}
	all := (*buf)[:kept+n]
	copy(all, rest[:kept])
	in.chunk, in.full, in.data = newChunk(buf, in.pool), kept+n, all
	return nil
}

// need reads until n bytes are there, at most chunkSize.
func (in *intake) need(n int) error {
	for len(in.data) < n {
		had := len(in.data)
		if err := in.more(); err != nil {
			if errors.Is(err, io.EOF) && had > 0 {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// take takes n bytes that are there. They are valid until the next read.
func (in *intake) take(n int) []byte {
	b := in.data[:n]
	in.data = in.data[n:]
	return b
}

// release gives the buffer back.
func (in *intake) release() {
	if in.chunk != nil {
		in.chunk.free()
		in.chunk, in.data, in.full = nil, nil, 0
	}
}

const (
	// shareFrom is the size of a part of a message from which it stays in the chunk that it was read into, if that is at least shareFull full: who sends
	// little by little does not hold chunks.
	shareFrom = 8 << 10
	shareFull = chunkSize / 4
	// pieceLeast and pieceMost bound the buffers into which smaller parts are copied. Who announces a message does not yet send it: they grow with it.
	pieceLeast = 1 << 10
	// mostPinned is how many times its own size a whole message may hold in chunks, which other frames may have filled.
	mostPinned = 4
	pieceMost  = 64 << 10
)

// message is a gRPC message that is being received.
type message struct {
	pool   mem.BufferPool
	prefix [prefixLen]byte
	got    int // of the prefix
	size   int // of the message, once the prefix is whole
	left   int // of the message
	parts  mem.BufferSlice
	last   *[]byte // the buffer that is filled
	filled int
	in     *chunk // that the last part lies in; nil: none does
	pinned int    // bytes of the chunks that parts lie in
}

// whole reports whether nothing is missing.
func (m *message) whole() bool { return m.got == prefixLen && m.left == 0 }

// begun reports whether anything has come.
func (m *message) begun() bool { return m.got > 0 }

// readPrefix takes the message's prefix from b, as far as it is there, and returns the rest. Known says that the prefix has become whole by it.
func (m *message) readPrefix(b []byte) (rest []byte, known bool) {
	if m.got == prefixLen {
		return b, false
	}
	n := copy(m.prefix[m.got:], b)
	m.got += n
	if m.got < prefixLen {
		return b[n:], false
	}
	m.size = int(m.prefix[1])<<24 | int(m.prefix[2])<<16 | int(m.prefix[3])<<8 | int(m.prefix[4])
	m.left = m.size
	return b[n:], true
}

// fill takes the message's bytes from b, which was taken from in.
func (m *message) fill(b []byte, in *intake) {
	for len(b) > 0 && m.left > 0 {
		n := min(len(b), m.left)
		if m.last == nil && n >= shareFrom && in.full >= shareFull {
			if m.in != in.chunk {
				m.in, m.pinned = in.chunk, m.pinned+cap(*in.chunk.buf)
			}
			m.parts = append(m.parts, in.chunk.share(b[:n:n]))
			m.left -= n
			b = b[n:]
			continue
		}
		if m.last == nil {
			size := max(n, min(max(m.size-m.left, pieceLeast), pieceMost))
			m.last, m.filled = m.pool.Get(min(m.left, size)), 0
		}
		n = copy((*m.last)[m.filled:], b)
		m.filled += n
		m.left -= n
		b = b[n:]
		if m.filled == len(*m.last) || m.left == 0 {
			*m.last = (*m.last)[:m.filled]
			m.parts = append(m.parts, mem.NewBuffer(m.last, m.pool))
			m.last = nil
		}
	}
}

// take returns the whole message. One that is small beside the chunks that it lies in is copied: who sends it together with other frames would hold many
// times what counts for it.
func (m *message) take() mem.BufferSlice {
	parts := m.parts
	m.parts, m.in = nil, nil
	if m.pinned <= mostPinned*m.size {
		return parts
	}
	buf := m.pool.Get(m.size)
	parts.CopyTo(*buf)
	parts.Free()
	return mem.BufferSlice{mem.NewBuffer(buf, m.pool)}
}

// free gives everything back.
func (m *message) free() {
	m.parts.Free()
	if m.last != nil {
		m.pool.Put(m.last)
	}
	m.parts, m.last, m.in = nil, nil, nil
}

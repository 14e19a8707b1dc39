// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/mem"
)

// link is the sending half of a connection, for either side: frames in their order, flow control, and writes that gather.
//
// Frames are queued with the lock held and written without it, by flush: by the goroutine that flushes as long as the socket takes them at once, and by
// one of the connection's own as soon as it does not. So nobody waits for a peer that reads slowly.
type link struct {
	conn net.Conn
	try  *tryWriter // nil: what is written may block, and a goroutine of the connection's own does it
	// wake is signalled when a write has ended. Its lock is mu.
	wake *sync.Cond

	mu      sync.Mutex // guards what follows
	queued  pending
	sending pending // of the write under way
	writing bool
	failed  error // nothing more is written
	encoder *hpack.Encoder
	block   bytes.Buffer
	window  int64 // how much may be sent on the connection
	initial int64 // how much may be sent on a new stream
	blocked []*outgoing
	active  bool // header fields or data were sent since it was last reset
	writers sync.WaitGroup
}

// pending is what waits to be written: frames' heads and small payloads in the arena, large payloads by reference.
type pending struct {
	arena   []byte
	parts   []part
	buffers []mem.Buffer // given back once written
	control int          // bytes of frames that answer frames
	size    int          // bytes of data
}

// part is a part of the output: of the arena if data is nil.
type part struct {
	from, to int
	data     []byte
}

// outgoing is the sending half of a stream. Guarded by link.mu.
type outgoing struct {
	id      uint32
	window  int64
	data    mem.BufferSlice
	offset  int // into data[0]
	left    int // bytes of data
	trailer []hpack.HeaderField
	// end: the last DATA frame ends the stream.
	end    bool
	waits  bool        // it is in link.blocked
	open   bool        // more data come
	over   bool        // everything was queued, or nothing more is
	server *serverConn // whose stream it is; nil: it is a client's
	inner  *innerConn  // that the data are of; nil: none
}

// newLink makes the sending half of a connection. Secure says that the connection is more than its socket, also if it gives that away, as grpc-go's do.
func newLink(conn net.Conn, secure bool) *link {
	l := &link{conn: conn, window: defaultWindow, initial: defaultWindow}
	if !secure {
		l.try = newTryWriter(conn)
	}
	l.encoder = hpack.NewEncoder(&l.block)
	l.wake = sync.NewCond(&l.mu)
	return l
}

// frame queues a frame of which the bytes were appended to the arena by add. Guarded by mu, like the others that queue.
func (l *link) frame(add func([]byte) []byte) {
	from := len(l.queued.arena)
	l.queued.arena = add(l.queued.arena)
	l.appended(from)
}

// answerFrame is frame for one that answers a frame of the peer's.
func (l *link) answerFrame(add func([]byte) []byte) {
	before := len(l.queued.arena)
	l.frame(add)
	l.queued.control += len(l.queued.arena) - before
}

// appended notes that the arena has grown since it was that long.
func (l *link) appended(from int) {
	if n := len(l.queued.parts); n > 0 && l.queued.parts[n-1].data == nil && l.queued.parts[n-1].to == from {
		l.queued.parts[n-1].to = len(l.queued.arena)
		return
	}
	l.queued.parts = append(l.queued.parts, part{from: from, to: len(l.queued.arena)})
}

// headers queues a block of header fields.
func (l *link) headers(stream uint32, list []hpack.HeaderField, end bool) {
	l.block.Reset()
	l.active = true
	for i := range list {
		_ = l.encoder.WriteField(list[i]) // into memory
	}
	from := len(l.queued.arena)
	l.queued.arena = appendHeaders(l.queued.arena, stream, l.block.Bytes(), end)
	l.appended(from)
}

// mostQueued bounds what is queued while a write is under way: more data stay with their streams, and no more frames of a client are read. It is about
// what one turn makes.
const mostQueued = 1 << 20

// small is the size up to which a payload is copied into the arena, instead of being a part of its own.
const small = 512

// send queues as much of a stream's data as the windows allow, and its trailers after all of it.
func (l *link) send(o *outgoing) {
	if o.over {
		return
	}
	for o.left > 0 {
		n := int(min(int64(o.left), o.window, l.window, maxFrame))
		if l.full() {
			n = 0
		}
		if n <= 0 {
			if o.window > 0 && !o.waits {
				o.waits = true
				l.blocked = append(l.blocked, o)
			}
			return
		}
		o.window -= int64(n)
		l.window -= int64(n)
		o.left -= n
		l.queued.size += n
		l.active = true
		h := head{length: n, kind: http2.FrameData, stream: o.id}
		if o.left == 0 && o.end {
			h.flags = http2.FlagDataEndStream
		}
		from := len(l.queued.arena)
		l.queued.arena = h.append(l.queued.arena)
		l.appended(from)
		l.payload(o, n)
		if o.inner != nil {
			o.inner.sent(n)
		}
	}
	if o.open {
		return
	}
	o.over = true
	if o.trailer != nil {
		l.headers(o.id, o.trailer, true)
		o.trailer = nil
	}
	if o.server != nil {
		o.server.sentAll(o)
	}
}

// payload queues the next n bytes of a stream's data.
func (l *link) payload(o *outgoing, n int) {
	for n > 0 {
		b := o.data[0]
		bytes := b.ReadOnlyData()[o.offset:]
		took := min(n, len(bytes))
		if took <= small {
			from := len(l.queued.arena)
			l.queued.arena = append(l.queued.arena, bytes[:took]...)
			l.appended(from)
			if took == len(bytes) {
				b.Free()
			}
		} else {
			l.queued.parts = append(l.queued.parts, part{data: bytes[:took]})
			if took < len(bytes) {
				b.Ref()
			}
			l.queued.buffers = append(l.queued.buffers, b)
		}
		if n -= took; took == len(bytes) {
			o.data, o.offset = o.data[1:], 0
		} else {
			o.offset += took
		}
	}
}

// give queues data for a stream to send. It consumes data.
func (l *link) give(o *outgoing, data mem.BufferSlice) {
	if o.over || l.failed != nil {
		data.Free()
		return
	}
	for _, b := range data {
		if n := b.Len(); n > 0 {
			o.data, o.left = append(o.data, b), o.left+n
		} else {
			b.Free()
		}
	}
}

// drop ends a stream's sending. What is queued of it is still written.
func (l *link) drop(o *outgoing) {
	o.data.Free()
	if o.inner != nil {
		o.inner.sent(o.left) // or the inner server would miss it in its window
	}
	if o.waits {
		o.waits = false
		l.blocked = slices.DeleteFunc(l.blocked, func(other *outgoing) bool { return other == o })
	}
	o.data, o.left, o.trailer, o.over = nil, 0, nil, true
}

// widen adds to the window of a stream, or with nil to that of the connection. It returns false if the window would be too large.
func (l *link) widen(o *outgoing, n uint32) bool {
	if o != nil {
		if o.window += int64(n); o.window > maxWindow {
			return false
		}
		l.send(o)
		return true
	}
	if l.window += int64(n); l.window > maxWindow {
		return false
	}
	l.resume()
	return true
}

// full reports whether data have to wait for the end of the write under way.
func (l *link) full() bool { return l.writing && l.queued.size >= mostQueued }

// resume sends data that waited for the connection.
func (l *link) resume() {
	for len(l.blocked) > 0 && l.window > 0 && !l.full() {
		next := l.blocked[0]
		l.blocked = l.blocked[1:]
		next.waits = false
		l.send(next)
	}
}

const (
	// longWrite is how many bytes of data a goroutine writes in one turn before it leaves the rest to goroutines of the connections' own: it reads for
	// others, too.
	longWrite = 1 << 20
	// shortWrite is what it writes in any case.
	shortWrite = 64 << 10
)

// flush writes what is queued, unless that is being done.
func (l *link) flush() { l.flushMost(longWrite) }

// flushMost is flush for a goroutine that may write so many bytes of data. It returns how many it has written.
func (l *link) flushMost(most int) (wrote int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writing || len(l.queued.parts) == 0 || l.failed != nil {
		return 0
	}
	l.writing = true
	for most = max(most, shortWrite); ; {
		size := l.queued.size
		if l.try == nil || wrote+size > most {
			l.writers.Add(1)
			go l.write(0, true)
			return wrote
		}
		l.swap()
		l.mu.Unlock()
		n, all, err := l.try.write(&l.sending)
		l.mu.Lock()
		wrote += size
		if err == nil && !all && l.failed == nil { // the socket is full; after a failure nobody may wait for one more writer
			l.writers.Add(1)
			go l.write(n, false)
			return wrote
		}
		if l.wrote(err) {
			return wrote
		}
	}
}

// swap makes what is queued the write under way.
func (l *link) swap() { l.queued, l.sending = l.sending, l.queued }

// wrote gives back what was written, and reports whether nothing more is to be written now.
func (l *link) wrote(err error) (done bool) {
	l.sending.reset()
	if err != nil {
		l.fail(err)
	}
	l.resume()
	l.wake.Broadcast()
	if l.failed != nil || len(l.queued.parts) == 0 {
		l.writing = false
		return true
	}
	return false
}

// write is the goroutine of the connection's own. It goes on with a write of which the socket has taken n bytes, or begins one if it is fresh.
func (l *link) write(n int, fresh bool) {
	defer l.writers.Done()
	for ; ; n, fresh = 0, true {
		if fresh {
			l.mu.Lock()
			l.swap()
			l.mu.Unlock()
		}
		var err error
		if l.try != nil {
			err = l.try.finish(&l.sending, n)
		} else {
			err = l.sending.writeTo(l.conn)
		}
		l.mu.Lock()
		done := l.wrote(err)
		l.mu.Unlock()
		if done {
			return
		}
	}
}

// fail ends the sending: nothing more is written.
func (l *link) fail(err error) {
	if l.failed == nil {
		l.failed = err
	}
	l.queued.reset()
	l.blocked = nil
	l.wake.Broadcast()
}

// awaitRoom waits while answers to the peer's frames are not taken by it, or more than so much of frames' heads, header fields and small payloads: a peer
// that sends and does not read is not read from.
func (l *link) awaitRoom(mostArena int) {
	const most = 64 << 10
	l.mu.Lock()
	for l.writing && l.failed == nil && (l.queued.control > most || len(l.queued.arena) > mostArena) {
		l.wake.Wait()
	}
	l.mu.Unlock()
}

// awaitWritten waits until everything is written that was queued.
func (l *link) awaitWritten() {
	l.flush()
	l.mu.Lock()
	for l.failed == nil && (l.writing || len(l.queued.parts) > 0) {
		l.wake.Wait()
	}
	l.mu.Unlock()
}

// largestArena is what is kept for the next write.
const largestArena = 64 << 10

// reset gives back the buffers.
func (p *pending) reset() {
	for _, b := range p.buffers {
		b.Free()
	}
	clear(p.buffers)
	clear(p.parts)
	p.buffers, p.parts, p.arena, p.control = p.buffers[:0], p.parts[:0], p.arena[:0], 0
	p.size = 0
	if cap(p.arena) > largestArena {
		p.arena = nil
	}
	if cap(p.parts) > largestArena/64 {
		p.buffers, p.parts = nil, nil
	}
}

// bytes returns a part's bytes.
func (p *pending) bytes(i int) []byte {
	if d := p.parts[i].data; d != nil {
		return d
	}
	return p.arena[p.parts[i].from:p.parts[i].to]
}

// writeTo writes everything to a connection that does not gather, and waits while the peer takes nothing.
func (p *pending) writeTo(conn net.Conn) error {
	// TLS makes records of what it is given at once: what is small goes in one piece.
	var gather []byte
	for i := range p.parts {
		b := p.bytes(i)
		if len(gather)+len(b) <= gatherSize {
			gather = append(gather, b...)
			continue
		}
		for _, piece := range [][]byte{gather, b} {
			if len(piece) > 0 {
				if _, err := conn.Write(piece); err != nil {
					return err
				}
			}
		}
		gather = gather[:0]
	}
	if len(gather) == 0 {
		return nil
	}
	_, err := conn.Write(gather)
	return err
}

// gatherSize is how much is gathered for one write where writes do not gather themselves.
const gatherSize = 32 << 10

// errClosed is why a connection that was closed here writes nothing more.
var errClosed = errors.New("the connection was closed")

// Turn is what one goroutine does without waiting, such as handling the frames that one read has brought. The connections that have got something to send
// meanwhile are written to at its end, once each. A nil Turn is none: what is sent is written at once.
type Turn struct{ links []*link }

// touched notes that a connection has something to send.
func (t *Turn) touched(l *link) {
	if t == nil {
		l.flush()
		return
	}
	for _, other := range t.links {
		if other == l {
			return
		}
	}
	t.links = append(t.links, l)
}

// End ends the turn. The next one may begin.
func (t *Turn) End() {
	left := longWrite
	for i, l := range t.links {
		left -= l.flushMost(left)
		t.links[i] = nil
	}
	t.links = t.links[:0]
}

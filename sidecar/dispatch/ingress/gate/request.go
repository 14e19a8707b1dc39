// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"
)

// Request is one request or stream of a client. Its methods but End are called by one
// goroutine, those of a nil Request do nothing.
type Request struct {
	c     *Conn
	evict func(error)
	ended atomic.Bool
	last  *owed // the answer that Sent counted last
}

// Admit admits a request of this connection before anything of it is read, or
// refuses it with UNAVAILABLE. Evict is called at most once, by another goroutine,
// and is to end the request with the error given while it is not whole; nil if
// that cannot be done. A nil Conn, of a server without a gate, admits every
// request.
func (c *Conn) Admit(evict func(error)) (*Request, error) {
	if c == nil {
		return nil, nil //nolint:nilnil // a nil Request is usable
	}
	g := c.gate
	if g.requests.Add(1) > int64(g.o.Requests) {
		g.requests.Add(-1)
		return nil, g.refuse(TooManyRequests)
	}
	if g.over() {
		g.requests.Add(-1)
		return nil, g.refuse(TooManyBytes)
	}
	if c.busy.Add(1) == 1 {
		c.since.Store(time.Now().UnixNano())
	}
	return &Request{c: c, evict: evict}, nil
}

// Receive marks that a message of the request is read from now on.
func (r *Request) Receive() {
	if r == nil {
		return
	}
	r.c.mu.Lock()
	if r.c.receiving == nil {
		r.c.receiving = map[*Request]struct{}{}
	}
	r.c.receiving[r] = struct{}{}
	r.c.mu.Unlock()
}

// Received marks that the message is whole, of n bytes on the wire (0 if that is
// not known), or that none came. The error is the one with which the request was
// evicted before this call. Such a request has its answer and must not be
// processed.
func (r *Request) Received(n int) (evicted error) {
	if r == nil {
		return nil
	}
	r.c.mu.Lock()
	delete(r.c.receiving, r)
	none := len(r.c.receiving) == 0
	evicted = r.c.evicted[r]
	delete(r.c.evicted, r)
	r.c.mu.Unlock()
	if none {
		// Whatever was read belongs to whole requests.
		r.c.forget()
		return evicted
	}
	r.c.explain(int64(n))
	return evicted
}

// End counts the request out. Any goroutine may call it, and only the first call counts: an answer and a panic beside it may both end a request.
func (r *Request) End() {
	if r == nil || r.ended.Swap(true) {
		return
	}
	r.c.gate.requests.Add(-1)
	if r.c.busy.Add(-1) == 0 {
		r.c.since.Store(time.Now().UnixNano())
	}
}

// Hold counts n bytes of a request in that are not counted elsewhere. It fails,
// with nothing counted, if that is too much. A nil Conn holds everything.
func (c *Conn) Hold(n int) error {
	if c == nil || n == 0 {
		return nil
	}
	return c.gate.hold(int64(n))
}

// Owe counts n bytes in that cannot be refused, because their request was
// accepted.
func (c *Conn) Owe(n int) {
	if c != nil {
		c.gate.bytes.Add(int64(n))
	}
}

// Release counts out what Hold or Owe counted in.
func (c *Conn) Release(n int) {
	if c != nil {
		c.gate.bytes.Add(int64(-n))
	}
}

// Sent counts an answer as held until gRPC's transport frees its buffers. It
// consumes data and returns what to send in its place.
func (r *Request) Sent(data mem.BufferSlice) mem.BufferSlice {
	n := data.Len()
	if r == nil || n == 0 {
		return data
	}
	// One buffer stands for all: the transport frees an answer as a whole, except
	// for the part that it is sending.
	largest := 0
	for i := range data {
		if data[i].Len() > data[largest].Len() {
			largest = i
		}
	}
	r.c.owe(int64(n))
	if !mem.IsBelowBufferPoolingThreshold(data[largest].Len()) {
		under := data[largest]
		bytes := under.ReadOnlyData()
		r.last = &owed{c: r.c, under: under}
		r.last.n.Store(int64(n))
		data[largest] = mem.NewBuffer(&bytes, r.last)
		return data
	}
	// gRPC does not report when its small buffers are freed, so a small answer is
	// copied into a larger one.
	o := &owed{c: r.c, small: true}
	o.n.Store(int64(n))
	r.last = o
	bytes := o.Get(n)
	data.CopyTo(*bytes)
	data.Free()
	return mem.BufferSlice{mem.NewBuffer(bytes, o)}
}

// smallAnswer is the capacity of a pooled buffer for small answers: above what
// gRPC refuses to pool.
const smallAnswer = 4 << 10

var smallAnswers = sync.Pool{New: func() any { b := make([]byte, smallAnswer); return &b }}

// Undelivered counts out what Sent counted last, where it was handed to a stream that ended meanwhile: gRPC's transport drops a frame of a stream that it has forgotten, and
// does not free it.
func (r *Request) Undelivered() {
	if r != nil && r.last != nil {
		r.last.pay(false)
	}
}

// owed is the pool of one answer's buffer: a buffer that is put back was sent.
type owed struct {
	c     *Conn
	n     atomic.Int64 // 0 once it is counted out
	small bool
	under mem.Buffer
}

// Get implements mem.BufferPool.
func (*owed) Get(n int) *[]byte {
	if n > smallAnswer {
		b := make([]byte, n)
		return &b
	}
	b := smallAnswers.Get().(*[]byte)
	*b = (*b)[:n]
	return b
}

// pay counts the answer out, once.
func (o *owed) pay(taken bool) {
	if n := o.n.Swap(0); n > 0 {
		o.c.paid(n, taken)
	}
}

// Put implements mem.BufferPool.
func (o *owed) Put(b *[]byte) {
	o.pay(true)
	switch {
	case !o.small:
		o.under.Free()
	case cap(*b) == smallAnswer:
		smallAnswers.Put(b)
	}
}

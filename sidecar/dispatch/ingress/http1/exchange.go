// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"context"
	"errors"
	"io"
	nethttp "net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// exchange is a plain request and its answer. It is the handler's ResponseWriter.
type exchange struct {
	c      *conn
	gather wire.GatherWriter // nil: it has none

	left int64 // of the request's body
	cut  bool  // the client has ended it too early, as the handler knows

	header   nethttp.Header
	code     int       // 0: no answer has begun
	declared int64     // its length
	written  int64     // of it
	out      *[]byte   // what waits to be written
	pieces   [2][]byte // what is being written
	close    bool      // the connection ends with it
	linger   bool      // after a while: more of the request comes than is read
	err      error

	cancel context.CancelFunc // of the request's context
	over   atomic.Bool        // it is answered or given up: who comes second does nothing
	later  bool               // the handler has returned, or may have
	waits  bool               // writes may wait for the client, though it has
	ended  chan struct{}      // gets one when an answer that came later has ended
}

const (
	outBuffer = 4 << 10
	// mostKept is the largest buffer that is kept for other answers.
	mostKept = 64 << 10
	// maxDiscard is how much of a body that the handler did not read is read for it, to answer on; and lingering is how long a connection stays open where more
	// comes. Both are net/http's.
	maxDiscard = 256 << 10
	lingering  = 500 * time.Millisecond
)

var outs = sync.Pool{New: func() any { b := make([]byte, 0, outBuffer); return &b }}

func (x *exchange) reset(length int64) {
	if x.header == nil {
		x.header = nethttp.Header{}
	}
	clear(x.header)
	x.over.Store(false)
	x.later, x.waits = false, false
	x.left, x.cut, x.code, x.declared, x.written, x.close, x.linger, x.err = length, false, 0, -1, 0, false, false, nil
}

// Header implements http.ResponseWriter.
func (x *exchange) Header() nethttp.Header { return x.header }

// SetReadDeadline sets the time until which the next part of the body must come, for http.ResponseController.
func (x *exchange) SetReadDeadline(t time.Time) error {
	x.c.setReadDeadline(t)
	return nil
}

// Later says that the answer comes after the handler has returned, by any goroutine, which calls done once: Whole says that the answer is; otherwise the connection
// ends. The body has been read. From now on no write waits for the client, and what its socket does not take at once is copied: for large answers see Waits. The
// connection is read meanwhile: the request's context ends as soon as its client has left. A handler that panics after it gives up the answer: the connection ends,
// and done does nothing any more.
func (x *exchange) Later() (done func(whole bool)) {
	if x.left > 0 {
		panic("http1: an answer that comes later, to a request whose body has not been read")
	}
	x.c.setReadDeadline(time.Time{})
	x.later, x.c.owed = true, true
	return x.done
}

// Waits has the writes of an answer that comes later wait for the client. Done waits, too.
func (x *exchange) Waits() { x.waits = true }

// done ends an answer that came later, on the goroutine that gave it.
func (x *exchange) done(whole bool) {
	if x.over.Swap(true) {
		return
	}
	if !whole {
		x.err = errAborted
	}
	if x.begun(); x.err == nil && len(*x.out) > 0 {
		x.send(nil)
	}
	if x.err == nil && len(*x.out) > 0 { // the client's socket is full
		x.waits = true
		go x.end()
		return
	}
	x.end()
}

// end ends an answer that came later. The goroutine that reads the connection may go on from there.
func (x *exchange) end() {
	c := x.c
	err := x.finish()
	x.err = err
	x.cancel()
	switch idle := c.server.idleTimeout(); {
	case err != nil:
		_ = c.Conn.SetReadDeadline(past) // its reader looks at the error
	case idle > 0:
		_ = c.Conn.SetReadDeadline(in(idle)) // a connection that has gone fails the next read
	}
	c.done()
	x.ended <- struct{}{}
}

var errAborted = errors.New("the answer was given up")

// WriteHeader implements http.ResponseWriter. What remains of the request's body is read first: a client may send it all before it reads.
func (x *exchange) WriteHeader(code int) {
	if x.code != 0 {
		return
	}
	x.code = code
	if v := x.header["Content-Length"]; len(v) > 0 {
		if n, ok := number([]byte(v[0])); ok {
			x.declared = n
		}
	}
	var late string // a field after all others
	if v := x.header["Connection"]; len(v) > 0 && v[0] == "close" {
		x.close = true
	}
	switch {
	case x.close:
	case x.c.server.leaving.Load() || x.declared < 0:
		x.close, late = true, "Connection: close\r\n"
	case x.cut: // nothing comes any more
	case x.left >= maxDiscard:
		x.close, x.linger, late = true, true, "Connection: close\r\n"
	case x.left > 0 && x.discard() != nil:
		x.close, late = true, "Connection: close\r\n"
	}
	if late != "" {
		delete(x.header, "Connection")
	}
	x.out = outs.Get().(*[]byte)
	b := append((*x.out)[:0], "HTTP/1.1 "...)
	b = append(strconv.AppendInt(b, int64(code), 10), ' ')
	b = append(append(b, nethttp.StatusText(code)...), "\r\n"...)
	b = x.fields(b)
	*x.out = append(append(b, late...), "\r\n"...)
}

// fields appends the answer's header as net/http writes it.
func (x *exchange) fields(b []byte) []byte {
	var room [8]string
	names := room[:0]
	for name := range x.header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, value := range x.header[name] {
			b = append(append(b, name...), ": "...)
			if strings.ContainsAny(value, "\r\n") {
				value = lines.Replace(value)
			}
			b = append(append(b, strings.Trim(value, " \t")...), "\r\n"...)
		}
	}
	if _, ok := x.header["Date"]; !ok {
		b = time.Now().UTC().AppendFormat(append(b, "Date: "...), nethttp.TimeFormat)
		b = append(b, "\r\n"...)
	}
	return b
}

var lines = strings.NewReplacer("\n", " ", "\r", " ")

// Write implements http.ResponseWriter.
func (x *exchange) Write(p []byte) (int, error) {
	if x.code == 0 {
		x.WriteHeader(nethttp.StatusOK)
	}
	if x.declared >= 0 && x.written+int64(len(p)) > x.declared {
		return 0, nethttp.ErrContentLength
	}
	x.written += int64(len(p))
	if x.kept() || len(*x.out)+len(p) <= outBuffer {
		*x.out = append(*x.out, p...)
		return len(p), nil
	}
	if x.send(p); x.err != nil {
		return 0, x.err
	}
	return len(p), nil
}

// send writes what waits, and p.
func (x *exchange) send(p []byte) {
	pieces := x.pieces[:]
	pieces[0], pieces[1] = *x.out, p
	defer clear(pieces)
	*x.out = (*x.out)[:0]
	if x.later && !x.waits {
		x.try(pieces)
		return
	}
	if x.err != nil {
		return
	}
	if x.gather != nil && len(p) > 0 && x.gather.Gathers() {
		var n int
		n, x.err = x.gather.TryWrite(pieces)
		for i := range pieces {
			part := min(n, len(pieces[i]))
			pieces[i] = pieces[i][part:]
			n -= part
		}
	}
	for _, piece := range pieces {
		if len(piece) > 0 && x.err == nil {
			_, x.err = x.c.Conn.Write(piece)
		}
	}
}

// kept reports whether something is kept that the client's socket has not taken.
func (x *exchange) kept() bool { return x.later && !x.waits && len(*x.out) > outBuffer }

// try writes what the socket takes at once, and keeps the rest.
func (x *exchange) try(pieces [][]byte) {
	n := 0
	if x.err == nil && x.gather != nil && x.gather.Gathers() {
		n, x.err = x.gather.TryWrite(pieces)
	}
	for _, piece := range pieces {
		part := min(n, len(piece))
		n -= part
		if x.err == nil {
			*x.out = append(*x.out, piece[part:]...) // the first one to its own beginning
		}
	}
}

// begun begins the answer of a handler that gave none.
func (x *exchange) begun() {
	if x.code == 0 {
		x.header["Content-Length"] = []string{"0"}
		x.WriteHeader(nethttp.StatusOK)
	}
}

// finish ends the answer. With an error the connection ends, too.
func (x *exchange) finish() error {
	if x.begun(); len(*x.out) > 0 {
		x.send(nil)
	}
	if cap(*x.out) <= mostKept {
		outs.Put(x.out)
	}
	x.out = nil
	switch {
	case x.err != nil:
		return x.err
	case x.close:
		if x.linger || x.left > maxDiscard {
			time.Sleep(lingering)
		} else {
			_ = x.discard() // whether it comes or not, the connection ends
		}
		return io.EOF
	case x.declared != x.written:
		return io.ErrUnexpectedEOF
	}
	return nil
}

// discard reads what is left of the body.
func (x *exchange) discard() error {
	buf := outs.Get().(*[]byte)
	defer outs.Put(buf)
	for x.left > 0 {
		if _, err := x.read((*buf)[:outBuffer]); err != nil {
			return err
		}
	}
	return nil
}

// read reads a part of the body.
func (x *exchange) read(p []byte) (n int, err error) {
	c := x.c
	p = p[:min(int64(len(p)), x.left)]
	if c.r < c.w {
		n = copy(p, c.buf[c.r:c.w])
		c.took(n)
	} else if n, err = c.Conn.Read(p); err == io.EOF { //nolint:errorlint // it comes unwrapped
		err = io.ErrUnexpectedEOF
	}
	if x.left -= int64(n); x.left == 0 {
		err = nil
	}
	return n, err
}

// body is the body of a plain request.
type body struct{ x *exchange }

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	switch {
	case b.x.left == 0:
		return 0, io.EOF
	case len(p) == 0:
		return 0, nil
	}
	n, err := b.x.read(p)
	b.x.cut = err == io.ErrUnexpectedEOF //nolint:errorlint // as above
	return n, err
}

// Close implements io.Closer.
func (b *body) Close() error { return nil }

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"context"
	"errors"
	"io"
	"net"
	nethttp "net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// conn is a client's connection as net/http has it. Its Read, between two requests of net/http's, answers plain ones.
//
// Its fields belong to the goroutine that net/http has for the connection, which calls Read, and to another of net/http's or of ours that reads while that one
// is in a handler.
type conn struct {
	net.Conn
	server *Server
	client string
	ctx    context.Context // of the connection

	buf  []byte // buf[r:w] was read and belongs to nobody yet
	r, w int

	between bool  // the next request is looked at before net/http has it
	first   bool  // net/http has had no request yet
	given   int64 // bytes of net/http's request that it has not read
	theirs  bool  // all bytes are net/http's from now on
	waited  bool  // plain requests were answered while net/http waited for its first one
	armed   bool  // there is a read deadline
	late    bool  // half a head has come, and its time is over
	posted  bool  // the last request was answered here

	head head
	// text is the last plain head, and request what it says: a client mostly repeats itself.
	text    string
	request *nethttp.Request
	x       exchange
	owed    bool // the last request has no answer yet, as far as this goroutine knows

	looks atomic.Bool // it waits for a request, or answers a plain one

	mu        sync.Mutex
	busy      bool       // it answers a plain request
	ended     bool       // Close was called
	unwatched bool       // the read deadline is over: net/http sets one that is to end watch
	changed   *sync.Cond // of ended and unwatched
}

const (
	firstBuffer = 4 << 10
	// tolerated are the CRs and LFs after a POST that are no request yet: old clients send them, and net/http skips as many.
	tolerated = 4
	// begins is how many bytes after a request begin another one: net/http has no answer to fewer.
	begins = 4
)

var errLeaving = errors.New("the server shuts down")

func newConn(raw net.Conn, s *Server) *conn {
	c := &conn{Conn: raw, server: s, between: true, first: true}
	if a := raw.RemoteAddr(); a != nil {
		c.client = a.String()
	}
	c.changed = sync.NewCond(&c.mu)
	c.x.c, c.x.ended = c, make(chan struct{}, 1)
	c.x.gather, _ = raw.(wire.GatherWriter)
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	return c
}

// NetConn is the connection below.
func (c *conn) NetConn() net.Conn { return c.Conn }

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if c.between && !c.theirs {
		c.between = false
		c.looks.Store(true)
		ends := c.look()
		c.looks.Store(false)
		if ends {
			return 0, io.EOF // to any other error net/http might answer
		}
	}
	if !c.theirs && c.given == 0 {
		return 0, c.watch()
	}
	if n := c.w - c.r; n > 0 {
		if !c.theirs {
			n = int(min(int64(n), c.given))
		}
		n = copy(p, c.buf[c.r:c.r+n])
		c.took(n)
		return n, nil
	}
	if c.theirs {
		c.buf = nil
		return c.Conn.Read(p)
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.given)])
	c.given -= int64(n)
	return n, err
}

// watch is net/http's wait, while a handler of its request runs and a moment longer, for a client that leaves. What comes instead begins the next request and
// stays here: net/http, which keeps what it has read, would have that request and all later ones.
func (c *conn) watch() error {
	if c.w == c.r {
		c.room()
		n, err := c.Conn.Read(c.buf[c.w:])
		c.w += n
		if err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.unwatched && !c.ended {
		c.changed.Wait()
	}
	if c.ended {
		return net.ErrClosed
	}
	return os.ErrDeadlineExceeded
}

// took counts n bytes of buf as given to net/http.
func (c *conn) took(n int) {
	c.given = max(0, c.given-int64(n))
	if c.r += n; c.r == c.w {
		c.r, c.w = 0, 0
	}
}

// look answers plain requests until there is one for net/http. The connection may end before.
func (c *conn) look() (ends bool) {
	defer c.leaves(&ends)
	before := c.first // net/http waits for its first request
	c.first = false
	for {
		v, err := c.next(before && !c.waited)
		if err == nil && v == plain {
			c.waited = before
			err = c.answer()
		}
		switch {
		case err != nil:
			return true
		case v == plain:
			continue
		}
		c.given, c.theirs = int64(c.head.size)+c.head.length, v == unbounded
		c.posted = false
		switch {
		case c.late:
		case !before: // net/http sets one
			c.setReadDeadline(time.Time{})
		case c.waited: // that of net/http is over
			c.setReadDeadline(in(c.server.headTimeout()))
		}
		return false
	}
}

// next reads until it is clear whose the next request is. Timed: net/http has set a deadline for it.
func (c *conn) next(timed bool) (verdict, error) {
	for skipped := 0; ; {
		for ; c.posted && skipped < tolerated && c.r < c.w && (c.buf[c.r] == '\r' || c.buf[c.r] == '\n'); skipped++ {
			c.r++
		}
		// What has come of a next request shows that the client is there, and has to wait for its turn.
		if c.r < c.w {
			if err := c.lastAnswered(); err != nil {
				return 0, err
			}
			if v := c.verdict(); v != incomplete {
				return v, nil
			}
		}
		switch {
		case c.owed: // who answers sets the deadline for the next request, or closes the connection of a server that leaves
		case c.server.leaving.Load():
			return 0, errLeaving
		case timed:
		case c.r < c.w:
			timed = true
			c.setReadDeadline(in(c.server.headTimeout()))
		case c.posted:
			c.setReadDeadline(in(c.server.idleTimeout()))
		}
		c.room()
		n, err := c.Conn.Read(c.buf[c.w:])
		c.w += n
		switch {
		case err == nil:
		case c.owed: // the client has left, or the answer has ended the connection
			return 0, err
		case c.w == c.r, c.posted && skipped+c.w-c.r < begins:
			return 0, err
		default: // net/http has an answer to half a head, and finds the same error
			c.late = errors.Is(err, os.ErrDeadlineExceeded)
			return unbounded, nil
		}
	}
}

// verdict is that of the bytes that are there.
func (c *conn) verdict() verdict {
	data := c.buf[c.r:c.w]
	if n := len(c.text); n > 0 && len(data) >= n && string(data[:n]) == c.text {
		return plain
	}
	v := c.head.read(data, c.server.takes)
	if v == plain {
		c.text = string(data[:c.head.size])
		c.request = c.head.form(c.text, c.client)
	}
	return v
}

// room makes room for more bytes of a head.
func (c *conn) room() {
	switch {
	case c.buf == nil:
		c.buf = make([]byte, firstBuffer)
	case c.w < len(c.buf):
	case c.r > 0:
		c.w = copy(c.buf, c.buf[c.r:c.w])
		c.r = 0
	default: // read gives up before it holds more
		grown := make([]byte, min(4*len(c.buf), maxHead))
		c.w = copy(grown, c.buf[:c.w])
		c.buf = grown
	}
}

// lastAnswered waits for the answer to the last request. With an error the connection ends.
func (c *conn) lastAnswered() error {
	if !c.owed {
		return nil
	}
	select {
	case <-c.x.ended:
	case <-c.server.cut: // nobody reads the connection, and would see that it is closed
		c.x.cancel()
		<-c.x.ended
	}
	c.owed, c.armed = false, c.server.idleTimeout() > 0
	return c.x.err
}

// leaves cancels the request under way of a client that has left, and waits for its end.
func (c *conn) leaves(left *bool) {
	if *left && c.owed {
		c.x.cancel()
		_ = c.lastAnswered() // the connection ends in any case
	}
}

// answer has the handler answer the plain request whose head is there, or begin to.
func (c *conn) answer() error {
	if !c.markBusy() {
		return net.ErrClosed
	}
	panics := true
	defer func() {
		// Nobody may have the answer that a handler owes which panics, or another goroutine writes it now: so what is written of it is left alone.
		if panics && (!c.owed || !c.x.over.Swap(true)) {
			c.x.cancel()
			c.done()
		}
	}()
	c.took(len(c.text))
	c.posted = true
	x := &c.x
	x.reset(c.request.ContentLength)
	if int64(c.w-c.r) >= x.left {
		c.setReadDeadline(time.Time{})
	} else {
		c.setReadDeadline(in(c.server.net.ReadTimeout))
	}
	var ctx context.Context
	ctx, x.cancel = context.WithCancel(c.ctx)
	r := c.request.WithContext(ctx)
	r.Body = &body{x}
	if x.left == 0 {
		r.Body = nethttp.NoBody
	}
	c.server.net.Handler.ServeHTTP(x, r)
	panics = false
	if c.owed {
		return nil
	}
	defer c.done()
	defer x.cancel()
	return x.finish()
}

// markBusy marks the connection as busy, if it is still open.
func (c *conn) markBusy() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.busy = true
	c.server.busy.Add(1)
	return true
}

// done ends what begin began. A Close that came meanwhile takes effect.
func (c *conn) done() {
	c.mu.Lock()
	c.busy = false
	ended := c.ended
	c.mu.Unlock()
	if ended {
		_ = c.end() // it is gone in any case
	}
	c.server.busy.Add(-1)
}

// CloseWrite shows the client the end of what it receives. net/http asks for it where it answers before it has read the request, and reads on for a while: closing the
// socket at once would reset it, and the client might lose the answer.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close implements net.Conn. A connection that answers a plain request closes with its answer: net/http, which takes it for idle, closes it in Shutdown.
func (c *conn) Close() error {
	c.mu.Lock()
	c.ended = true
	c.changed.Broadcast()
	later := c.busy && !c.server.isCut()
	c.mu.Unlock()
	if later {
		return nil
	}
	return c.end()
}

func (c *conn) end() error {
	c.server.mu.Lock()
	delete(c.server.conns, c)
	c.server.mu.Unlock()
	return c.Conn.Close()
}

// in is the time after d from now on; zero where d is none.
func in(d time.Duration) time.Time {
	if d <= 0 {
		return time.Time{}
	}
	return time.Now().Add(d)
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	over := func() bool { return !t.IsZero() && !t.After(time.Now()) }
	if c.late {
		t = past
	} else if c.waited && !over() { // one that is over ends watch
		// It is that of net/http's first request, and counts from when net/http began to wait.
		c.waited = false
		t = in(c.server.net.ReadTimeout)
	}
	c.armed = !t.IsZero()
	err := c.Conn.SetReadDeadline(t)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unwatched = over()
	c.changed.Broadcast()
	return err
}

// setReadDeadline sets or clears a deadline of this package's.
func (c *conn) setReadDeadline(t time.Time) {
	if t.IsZero() && !c.armed {
		return
	}
	c.armed = !t.IsZero()
	_ = c.Conn.SetReadDeadline(t) // a connection that has gone fails the next read
}

// past is a deadline that is over.
var past = time.Unix(1, 0)

// headTimeout is how long a head may take.
func (s *Server) headTimeout() time.Duration {
	if s.net.ReadHeaderTimeout > 0 {
		return s.net.ReadHeaderTimeout
	}
	return s.net.ReadTimeout
}

// idleTimeout is how long a connection may be without a request; negative: for ever.
func (s *Server) idleTimeout() time.Duration {
	if s.net.IdleTimeout != 0 {
		return s.net.IdleTimeout
	}
	return s.net.ReadTimeout
}

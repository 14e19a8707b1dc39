// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// headersFrame handles a HEADERS frame.
func (c *serverConn) headersFrame(h head, payload []byte) error {
	if h.stream%2 == 0 {
		return broken(http2.ErrCodeProtocol, "header fields of a stream that no client may begin")
	}
	parent, err := c.fields.headersFrame(h, payload)
	switch {
	case err != nil:
		return err
	case parent != h.stream:
	case c.fields.stream == 0:
		c.mu.Lock()
		c.last = max(c.last, h.stream)
		c.mu.Unlock()
		c.resetFrame(h.stream, http2.ErrCodeProtocol)
		return nil
	default:
		return broken(http2.ErrCodeProtocol, "a stream that depends on itself")
	}
	if c.fields.stream != 0 {
		return nil
	}
	return c.received(h.stream)
}

// received handles a whole block of header fields.
func (c *serverConn) received(id uint32) error {
	ends := c.fields.flags&http2.FlagHeadersEndStream != 0
	c.mu.Lock()
	if s := c.streams[id]; s != nil {
		return c.trailers(id, s, ends)
	}
	if id <= c.last {
		known := c.ignored(id)
		c.mu.Unlock()
		if known {
			return nil
		}
		if !ends { // whether the stream was answered before them or not: no trailers are without an end
			return broken(http2.ErrCodeProtocol, "header fields after the first of a stream, and no end")
		}
		return broken(http2.ErrCodeStreamClosed, "header fields of a stream that has ended")
	}
	if c.announced(id) {
		c.last = id
		c.mu.Unlock()
		return nil // a GOAWAY has announced it; further frames of it are ignored, too
	}
	c.last = id
	code := http2.ErrCodeNo
	switch {
	case c.fields.over:
		code = http2.ErrCodeFrameSize // as grpc-go has it
	case malformed(c.fields.list, false) != "":
		code = http2.ErrCodeProtocol
	case len(c.streams) >= c.server.o.MaxStreams:
		code = http2.ErrCodeRefusedStream
	case c.handling >= c.server.o.MaxStreams:
		c.mu.Unlock()
		return broken(http2.ErrCodeEnhanceYourCalm, "calls are begun and reset faster than they end")
	}
	if code != http2.ErrCodeNo {
		c.isOurs(id)
		c.answerFrame(func(b []byte) []byte { return appendReset(b, id, code) })
		c.mu.Unlock()
		return nil
	}
	if ok, left := c.plain(c.fields.list); ok {
		if md, ok := received(c.fields.list); ok {
			c.beginCall(id, md, left, ends)
			return nil
		}
	}
	s := &stream{out: &outgoing{id: id, window: c.initial, open: true, server: c}, ended: ends}
	if c.inner == nil {
		c.inner = newInnerConn(c)
	}
	s.out.inner = c.inner
	c.streams[id] = s
	inner := c.inner
	inner.headers(id, c.fields.list, ends)
	c.mu.Unlock()
	if err := inner.offered(c.server.inner); err != nil {
		return err
	}
	if inner.behind() { // header fields may be many times larger for the inner server than they came
		c.pause()
	}
	return nil
}

// trailers handles the header fields after a stream's data. It is called with the lock, which it releases.
func (c *serverConn) trailers(id uint32, s *stream, ends bool) error {
	code := http2.ErrCodeNo
	switch {
	case s.ended:
		code = http2.ErrCodeStreamClosed
	case !ends, malformed(c.fields.list, true) != "":
		code = http2.ErrCodeProtocol
	}
	if code != http2.ErrCodeNo {
		c.reset(id, s, code)
		c.mu.Unlock()
		return nil
	}
	if s.call == nil { // gRPC has no trailers of clients
		c.inner.write(head{kind: http2.FrameData, flags: http2.FlagDataEndStream, stream: id}.append(nil))
	}
	c.mu.Unlock()
	c.endsByClient(id, s)
	return nil
}

// beginCall begins a call of the Handler's. It is called with the lock, which it releases.
func (c *serverConn) beginCall(id uint32, md metadata.MD, left time.Duration, ends bool) {
	call := &Call{conn: c, id: id}
	call.message.pool = c.server.o.Pool
	call.out = outgoing{id: id, window: c.initial, open: true, server: c}
	s := &stream{call: call, out: &call.out, ended: ends, room: int64(c.server.o.Window)}
	c.streams[id] = s
	c.handling++
	c.server.running.Add(1)
	c.mu.Unlock()
	var ctx context.Context
	if left > 0 {
		ctx, call.cancel = context.WithTimeout(c.base, left-c.server.o.Ahead(left))
	} else {
		ctx, call.cancel = context.WithCancel(c.base)
	}
	call.ctx = grpc.NewContextWithServerTransportStream(metadata.NewIncomingContext(ctx, md), call)
	if err := c.server.o.Handler.Begin(call); err != nil {
		call.receiving.Lock()
		call.served = true
		call.receiving.Unlock()
		call.Fail(&c.turn, err)
		call.Done()
		return
	}
	if left > 0 {
		stop := context.AfterFunc(ctx, call.expire)
		call.receiving.Lock()
		call.stop = stop
		call.receiving.Unlock()
	}
	if ends {
		c.endsByClient(id, s)
	}
}

// handled counts a call out that the Handler has done with.
func (c *serverConn) handled() {
	c.mu.Lock()
	c.handling--
	c.mu.Unlock()
	c.server.running.Done()
}

// reset ends a stream from here. Guarded by mu.
func (c *serverConn) reset(id uint32, s *stream, code http2.ErrCode) {
	c.isOurs(id)
	c.answerFrame(func(b []byte) []byte { return appendReset(b, id, code) })
	if s == nil {
		return
	}
	if s.call == nil {
		c.inner.write(appendReset(nil, id, http2.ErrCodeCancel))
	}
	c.gone(id, s)
}

// resetFrame ends a stream, if it is one, for a frame that is wrong.
func (c *serverConn) resetFrame(id uint32, code http2.ErrCode) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reset(id, c.streams[id], code)
}

// gone ends a stream that was reset. Guarded by mu.
func (c *serverConn) gone(id uint32, s *stream) {
	c.drop(s.out)
	c.forget(id)
	if s.call != nil {
		s.call.closed = true
		// Not here: the Handler must not be called with the lock.
		go s.call.abandon(status.FromContextError(context.Canceled).Err())
	}
}

// abandon ends a call that is no more.
func (c *Call) abandon(err error) {
	if c.stop != nil {
		c.stop()
	}
	c.cancel()
	c.lose(err)
}

// forget takes a stream out. Guarded by mu.
func (c *serverConn) forget(id uint32) {
	delete(c.streams, id)
	if c.ignoreFrom != 0 && len(c.streams) == 0 && !c.over {
		c.leave(drainPatience)
	}
}

// leave ends the connection after everything that is queued, once the client has closed it or its patience is over. To close a socket while the client
// sends, such as its updates of windows, resets it, and what the client has not received by then is lost. Guarded by mu.
func (c *serverConn) leave(patience time.Duration) {
	c.over = true
	c.writers.Add(1)
	go func() {
		defer c.writers.Done()
		c.awaitWritten()
		_ = c.conn.SetReadDeadline(time.Now().Add(patience)) // which ends serve
	}()
}

// isOurs remembers a stream that was reset here: what is still under way of it is ignored, like everything of streams above the last of GOAWAY. Guarded by mu.
func (c *serverConn) isOurs(id uint32) {
	c.ours[c.nextOurs] = id
	c.nextOurs = (c.nextOurs + 1) % len(c.ours)
}

// announced reports whether a GOAWAY has said that a stream is ignored. Guarded by mu.
func (c *serverConn) announced(id uint32) bool { return c.ignoreFrom != 0 && id >= c.ignoreFrom }

// ignored reports whether frames of a stream that is no more are. Guarded by mu.
func (c *serverConn) ignored(id uint32) bool {
	if c.announced(id) {
		return true
	}
	for _, o := range c.ours {
		if o == id {
			return true
		}
	}
	return false
}

// sentAll is called when everything of a stream is queued. Guarded by mu.
func (c *serverConn) sentAll(o *outgoing) {
	s := c.streams[o.id]
	if s == nil || s.out != o {
		return
	}
	if s.call != nil {
		s.call.closed = true
	}
	switch {
	case s.ended:
		c.forget(o.id)
	case s.call != nil, s.reset: // an answer before the end of the request
		c.isOurs(o.id)
		c.frame(func(b []byte) []byte { return appendReset(b, o.id, http2.ErrCodeNo) })
		c.forget(o.id)
	}
}

// resetByClient handles an RST_STREAM frame.
func (c *serverConn) resetByClient(h head, payload []byte) error {
	switch {
	case h.stream == 0:
		return broken(http2.ErrCodeProtocol, "an RST_STREAM frame of no stream")
	case h.length != 4:
		return broken(http2.ErrCodeFrameSize, "an RST_STREAM frame that is not four bytes long")
	}
	c.mu.Lock()
	s := c.streams[h.stream]
	if s == nil {
		defer c.mu.Unlock()
		if h.stream > c.last || h.stream%2 == 0 {
			return broken(http2.ErrCodeProtocol, "an RST_STREAM frame of a stream that was never begun")
		}
		return nil
	}
	if s.call == nil {
		c.inner.write(append(h.append(nil), payload...))
	}
	c.drop(s.out)
	c.forget(h.stream)
	if s.call != nil {
		s.call.closed = true
	}
	c.mu.Unlock()
	if s.call != nil {
		s.call.abandon(status.FromContextError(context.Canceled).Err())
	}
	return nil
}

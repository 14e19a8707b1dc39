// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"runtime"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Bounds of what a client may do that is of no use.
const (
	// maxStrikes is how many pings in a row may come too soon, as in grpc-go.
	maxStrikes = 2
	// maxEmpty is how many frames of no data may come in a row.
	maxEmpty = 1000
	// maxConcerned is how many streams changes of the initial window may concern within a second: each change is work for every stream.
	maxConcerned = 1 << 20
	// longTurn is how many bytes are handled before other goroutines get their turn.
	longTurn = 256 << 10
	// longTime is how long what one read has brought may be handled, before what was sent to others meanwhile leaves. It is looked at after so many frames.
	longTime   = time.Millisecond
	longFrames = 32
	// drainPatience is how long a client may take to answer the ping by which it is known to have seen that the connection drains.
	drainPatience = 5 * time.Second
	// farewell is how long a client may take to receive why its connection ends.
	farewell = time.Second
)

// drainPing is the payload of the ping after GOAWAY.
var drainPing = [8]byte{'d', 'r', 'a', 'i', 'n', 'i', 'n', 'g'}

// stream is a stream of a client's.
type stream struct {
	call  *Call // nil: the inner server has it
	out   *outgoing
	ended bool  // the client sends no more
	room  int64 // what the client may send; of calls only: the inner server has its own account
	reset bool  // to be reset after its data; of streams of the inner server only
}

// serverConn is a client's connection.
type serverConn struct {
	*link
	server *Server
	raw    net.Conn // as it was accepted
	auth   credentials.AuthInfo
	base   context.Context
	in     *intake
	fields *fields
	turn   Turn

	// Of the goroutine that reads.
	turns     turns
	frames    int       // that were handled
	began     time.Time // to handle what one read has brought
	room      int64     // what the client may send on the connection
	taken     int64     // of it, not given again yet
	empty     int       // frames of no data in a row
	concerned int       // streams that changes of the initial window concerned since then
	changed   time.Time
	strikes   int // pings in a row that came too soon
	pinged    time.Time

	// Guarded by mu.
	streams    map[uint32]*stream
	last       uint32 // the highest stream that the client began
	handling   int    // calls that the Handler has not done with
	inner      *innerConn
	settings   []setting // that the inner server has to know
	scratch    [8]hpack.HeaderField
	ours       [32]uint32 // streams that were reset here of late
	nextOurs   int
	mostFields int64  // what the client takes of header fields, as HTTP/2 counts them
	drained    bool   // a GOAWAY was queued: no more streams are taken
	why        string // that was
	ignoreFrom uint32 // streams from this one on are ignored; 0: none is
	drainTimer *time.Timer
	ageTimer   *time.Timer // nil: there is none, or it has done its work
	over       bool
}

func newServerConn(s *Server, raw, conn net.Conn, info credentials.AuthInfo) *serverConn {
	c := &serverConn{
		link: newLink(conn, conn != raw), server: s, raw: raw, auth: info, in: newIntake(conn, conn != raw, s.o.Pool), fields: newFields(s.o.MaxHeaderList),
		streams: map[uint32]*stream{}, room: 4 * int64(s.o.Window), mostFields: math.MaxInt64,
	}
	c.in.records = conn != raw
	c.base = peer.NewContext(context.Background(), &peer.Peer{Addr: conn.RemoteAddr(), LocalAddr: conn.LocalAddr(), AuthInfo: info})
	// SETTINGS is the first frame, before the GOAWAY of a drain that has begun already: the connection is nobody else's yet.
	c.frame(func(b []byte) []byte {
		b = appendSettings(b,
			setting{http2.SettingMaxFrameSize, maxFrame}, setting{http2.SettingMaxConcurrentStreams, uint32(s.o.MaxStreams)},
			setting{http2.SettingInitialWindowSize, uint32(s.o.Window)}, setting{http2.SettingMaxHeaderListSize, s.o.MaxHeaderList})
		return appendWindowUpdate(b, 0, uint32(4*s.o.Window-defaultWindow))
	})
	return c
}

// serve reads the connection to its end.
func (c *serverConn) serve() error {
	c.flush()
	if err := c.in.need(len(http2.ClientPreface)); err != nil {
		return err
	}
	if string(c.in.take(len(http2.ClientPreface))) != http2.ClientPreface {
		return broken(http2.ErrCodeProtocol, "the connection does not begin as one of HTTP/2")
	}
	first := true
	for {
		if err := c.fill(headLen); err != nil {
			return err
		}
		h := readHead(c.in.take(headLen))
		c.turns.add(headLen + h.length)
		err := c.fields.allow(h)
		switch {
		case err != nil:
			return err
		case first && (h.kind != http2.FrameSettings || h.has(http2.FlagSettingsAck)):
			return broken(http2.ErrCodeProtocol, "the first frame is no SETTINGS frame")
		}
		if h.kind == http2.FrameData && !h.has(http2.FlagDataPadded) {
			err = c.data(h)
		} else {
			if err := c.fill(h.length); err != nil {
				return err
			}
			err = c.handle(h, c.in.take(h.length))
		}
		if err != nil {
			return err
		}
		c.rest()
		if first {
			first = false
			c.mu.Lock()
			if !c.over { // that has a deadline of its own
				err = c.conn.SetDeadline(time.Time{})
			}
			c.mu.Unlock()
			if err != nil {
				return err
			}
		}
	}
}

// fill waits until n bytes are there. What was handled so far goes out before it waits.
func (c *serverConn) fill(n int) error {
	for len(c.in.data) < n {
		c.pause()
		if err := c.in.more(); err != nil {
			if errors.Is(err, io.EOF) && len(c.in.data) > 0 {
				return io.ErrUnexpectedEOF
			}
			return err
		}
		if c.in.waited() {
			c.turns.waited()
		}
		c.began = time.Now()
	}
	return nil
}

// rest ends a turn that takes long: a read of small frames may be much work.
func (c *serverConn) rest() {
	if c.frames++; c.frames%longFrames == 0 && time.Since(c.began) > longTime {
		c.pause()
		runtime.Gosched()
		c.began = time.Now()
	}
}

// pause ends a turn.
func (c *serverConn) pause() {
	c.mu.Lock()
	inner, queued := c.inner, len(c.queued.parts) > 0
	c.mu.Unlock()
	if queued {
		c.turn.touched(c.link)
	}
	c.turn.End()
	if inner != nil {
		inner.wake() // last, because it may wait
	}
	c.awaitRoom(mostQueued)
	c.turns.rest()
}

// handle handles a frame that is whole.
func (c *serverConn) handle(h head, payload []byte) error {
	switch h.kind {
	case http2.FrameData: // with padding
		data, err := unpadded(h, payload)
		if err != nil {
			return err
		}
		s, err := c.account(h)
		if err != nil {
			return err
		}
		if s != nil && s.call == nil {
			data = payload
		}
		if s != nil {
			c.deliver(h.stream, s, data, len(data))
			c.giveBack(h, s, len(payload)-len(data))
		}
		c.delivered(h, s)
	case http2.FrameHeaders:
		return c.headersFrame(h, payload)
	case http2.FrameContinuation:
		if err := c.fields.continuation(h, payload); err != nil || c.fields.stream != 0 {
			return err
		}
		return c.received(h.stream)
	case http2.FramePriority:
		switch {
		case h.stream == 0:
			return broken(http2.ErrCodeProtocol, "a PRIORITY frame of no stream")
		case h.length != 5:
			c.resetFrame(h.stream, http2.ErrCodeFrameSize)
		case dependsOn(payload) == h.stream:
			c.resetFrame(h.stream, http2.ErrCodeProtocol)
		}
	case http2.FrameRSTStream:
		return c.resetByClient(h, payload)
	case http2.FrameSettings:
		return c.settingsFrame(h, payload)
	case http2.FramePushPromise:
		return broken(http2.ErrCodeProtocol, "a client cannot push")
	case http2.FramePing:
		return c.ping(h, payload)
	case http2.FrameGoAway:
		if h.stream != 0 {
			return broken(http2.ErrCodeProtocol, "a GOAWAY frame of a stream")
		}
		if h.length < 8 {
			return broken(http2.ErrCodeFrameSize, "a short GOAWAY frame")
		}
	case http2.FrameWindowUpdate:
		return c.windowUpdate(h, payload)
	}
	return nil // of a kind that is not known, or that asks for nothing
}

func dependsOn(b []byte) uint32 { return binary.BigEndian.Uint32(b) & (1<<31 - 1) }

// data handles a DATA frame without padding while it comes.
func (c *serverConn) data(h head) error {
	s, err := c.account(h)
	if err != nil {
		return err
	}
	for left := h.length; left > 0; {
		if err := c.fill(1); err != nil {
			return err
		}
		b := c.in.take(min(left, len(c.in.data)))
		left -= len(b)
		if s != nil {
			c.deliver(h.stream, s, b, left+len(b))
		}
	}
	c.delivered(h, s)
	return nil
}

// account takes a DATA frame off the windows and finds its stream; nil: the frame is ignored.
func (c *serverConn) account(h head) (*stream, error) {
	if h.stream == 0 {
		return nil, broken(http2.ErrCodeProtocol, "a DATA frame of no stream")
	}
	n := int64(h.length)
	if c.room -= n; c.room < 0 {
		return nil, broken(http2.ErrCodeFlowControl, "more data than the connection's window")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.taken += n; c.taken >= int64(c.server.o.Window) {
		given := c.taken
		c.room, c.taken = c.room+given, 0
		c.frame(func(b []byte) []byte { return appendWindowUpdate(b, 0, uint32(given)) })
	}
	if c.empty++; n > 0 {
		c.empty = 0
	} else if c.empty > maxEmpty {
		return nil, broken(http2.ErrCodeEnhanceYourCalm, "frames of no data without end")
	}
	s := c.streams[h.stream]
	switch {
	case s == nil && (h.stream > c.last || h.stream%2 == 0):
		return nil, broken(http2.ErrCodeProtocol, "a DATA frame of a stream that was never begun")
	case s == nil:
		if !c.ignored(h.stream) {
			c.answerFrame(func(b []byte) []byte { return appendReset(b, h.stream, http2.ErrCodeStreamClosed) })
		}
		return nil, nil //nolint:nilnil // nil is an answer
	case s.ended:
		c.reset(h.stream, s, http2.ErrCodeStreamClosed)
		return nil, nil //nolint:nilnil // nil is an answer
	case s.call == nil:
		s.ended = h.has(http2.FlagDataEndStream)
		// Its padding counts in the windows, and goes on with it.
		c.inner.dataFrame(head{length: h.length, kind: http2.FrameData, flags: h.flags & (http2.FlagDataEndStream | http2.FlagDataPadded), stream: h.stream})
		return s, nil
	}
	if s.room -= n; s.room < 0 {
		c.reset(h.stream, s, http2.ErrCodeFlowControl)
		return nil, nil //nolint:nilnil // nil is an answer
	}
	s.ended = h.has(http2.FlagDataEndStream) // before the Handler may answer the call
	return s, nil
}

// deliver gives a stream data. Of the frame that they belong to, so much is to come, these included.
func (c *serverConn) deliver(id uint32, s *stream, b []byte, left int) {
	if s.call == nil {
		c.inner.payload(b)
		return
	}
	call := s.call
	call.receiving.Lock()
	if call.served || call.ignores {
		call.receiving.Unlock()
		return
	}
	m := &call.message
	rest, known := m.readPrefix(b)
	var failure error
	if known {
		switch {
		case m.prefix[0] != 0:
			failure = status.Error(codes.Internal, "grpc: compressed flag set with identity or empty encoding")
			if m.prefix[0] > 1 {
				failure = status.Errorf(codes.Internal, "grpc: received unexpected payload format %d", m.prefix[0])
			}
		case m.size > c.server.o.MaxMessage:
			failure = status.Errorf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", m.size, c.server.o.MaxMessage)
		}
	}
	if failure != nil {
		call.receiving.Unlock()
		call.Fail(&c.turn, failure)
		call.lose(failure)
		return
	}
	if known {
		// The client may send the whole message, even beyond the stream's window.
		if missing := int64(m.left - (left - len(b) + len(rest))); missing > s.room {
			more := uint32(missing - s.room)
			s.room = missing
			c.mu.Lock()
			c.frame(func(b []byte) []byte { return appendWindowUpdate(b, id, more) })
			c.mu.Unlock()
		}
	}
	m.fill(rest, c.in)
	if !m.whole() {
		call.receiving.Unlock()
		return
	}
	call.served = true
	message := m.take()
	call.receiving.Unlock()
	c.server.o.Handler.Serve(call, message)
}

// giveBack gives the padding of a DATA frame of n bytes back to the window of its call: the window is widened for what the message needs only.
func (c *serverConn) giveBack(h head, s *stream, n int) {
	if s.call == nil || n == 0 || h.has(http2.FlagDataEndStream) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[h.stream] == s {
		s.room += int64(n)
		c.answerFrame(func(b []byte) []byte { return appendWindowUpdate(b, h.stream, uint32(n)) })
	}
}

// delivered ends the handling of a DATA frame.
func (c *serverConn) delivered(h head, s *stream) {
	if s != nil && h.has(http2.FlagDataEndStream) {
		c.endsByClient(h.stream, s)
	}
}

// endsByClient handles the end of what the client sends on a stream.
func (c *serverConn) endsByClient(id uint32, s *stream) {
	c.mu.Lock()
	s.ended = true
	if s.out.over {
		c.forget(id)
	}
	c.mu.Unlock()
	if s.call == nil {
		return
	}
	s.call.receiving.Lock()
	whole, begun := s.call.served, s.call.message.begun()
	s.call.receiving.Unlock()
	if whole {
		return
	}
	err := status.Error(codes.Internal, "the call ended without a request")
	if begun {
		err = status.Error(codes.Internal, io.ErrUnexpectedEOF.Error())
	}
	s.call.Fail(&c.turn, err)
	s.call.lose(err)
}

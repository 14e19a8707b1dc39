// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	spb "google.golang.org/genproto/googleapis/rpc/status"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// read reads the connection to its end.
func (c *Client) read() error {
	for first := true; ; first = false {
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
		if err := c.belongs(h); err != nil {
			return err
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
	}
}

// fill waits until n bytes are there. What was queued so far goes out before it waits.
func (c *Client) fill(n int) error {
	for len(c.in.data) < n {
		c.mu.Lock()
		queued := len(c.queued.parts) > 0
		c.mu.Unlock()
		if queued {
			c.turn.touched(c.link)
		}
		c.turn.End()
		c.awaitRoom(math.MaxInt) // a server's answers make room for requests
		c.turns.rest()
		if err := c.in.more(); err != nil {
			return err
		}
		if c.in.waited() {
			c.turns.waited()
		}
		c.mu.Lock()
		c.lastRead, c.asked = time.Now(), time.Time{}
		c.mu.Unlock()
	}
	return nil
}

// belongs returns an error for a frame that cannot be one of its stream, or of the connection.
func (c *Client) belongs(h head) error {
	switch h.kind {
	case http2.FrameSettings, http2.FramePing, http2.FrameGoAway:
		if h.stream != 0 {
			return broken(http2.ErrCodeProtocol, "a frame of a stream that is one of the connection")
		}
	case http2.FrameData, http2.FrameHeaders, http2.FrameRSTStream:
		if h.stream == 0 || c.isIdle(h.stream) {
			return broken(http2.ErrCodeProtocol, "a frame of a stream that was never begun")
		}
	case http2.FrameWindowUpdate:
		if c.isIdle(h.stream) {
			return broken(http2.ErrCodeProtocol, "a frame of a stream that was never begun")
		}
	case http2.FramePriority:
		if h.stream == 0 {
			return broken(http2.ErrCodeProtocol, "a PRIORITY frame of no stream")
		}
	}
	return nil
}

// isIdle reports whether a stream was never begun.
func (c *Client) isIdle(id uint32) bool {
	if id == 0 {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return id%2 == 0 || id >= c.next
}

// handle handles a frame that is whole.
func (c *Client) handle(h head, payload []byte) error {
	switch h.kind {
	case http2.FrameData: // with padding
		data, err := unpadded(h, payload)
		if err != nil {
			return err
		}
		k, err := c.account(h)
		if err != nil {
			return err
		}
		if k != nil {
			c.deliver(k, data, len(data))
			c.giveBack(h, k, len(payload)-len(data))
		}
		c.ended(h, k)
	case http2.FrameHeaders:
		if _, err := c.fields.headersFrame(h, payload); err != nil || c.fields.stream != 0 {
			return err
		}
		c.received(h.stream)
	case http2.FrameContinuation:
		if err := c.fields.continuation(h, payload); err != nil || c.fields.stream != 0 {
			return err
		}
		c.received(h.stream)
	case http2.FrameRSTStream:
		if h.length != 4 {
			return broken(http2.ErrCodeFrameSize, "an RST_STREAM frame that is not four bytes long")
		}
		c.resetByServer(h.stream, http2.ErrCode(binary.BigEndian.Uint32(payload)))
	case http2.FrameSettings:
		return c.settingsFrame(h, payload)
	case http2.FramePing:
		if h.length != 8 {
			return broken(http2.ErrCodeFrameSize, "a PING frame that is not eight bytes long")
		}
		if !h.has(http2.FlagPingAck) {
			data := [8]byte(payload)
			c.mu.Lock()
			c.answerFrame(func(b []byte) []byte { return appendPing(b, http2.FlagPingAck, data) })
			c.mu.Unlock()
		}
	case http2.FrameGoAway:
		return c.goAway(h, payload)
	case http2.FrameWindowUpdate:
		return c.windowUpdate(h, payload)
	case http2.FramePushPromise:
		return broken(http2.ErrCodeProtocol, "a push that was declined")
	}
	return nil
}

// data handles a DATA frame without padding while it comes.
func (c *Client) data(h head) error {
	k, err := c.account(h)
	if err != nil {
		return err
	}
	for left := h.length; left > 0; {
		if err := c.fill(1); err != nil {
			return err
		}
		b := c.in.take(min(left, len(c.in.data)))
		left -= len(b)
		if k != nil {
			c.deliver(k, b, left+len(b))
		}
	}
	c.ended(h, k)
	return nil
}

// account gives the windows back and finds the frame's call; nil: it has ended.
func (c *Client) account(h head) (*ClientCall, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.freeLeft()
	if c.taken += int64(h.length); c.taken >= int64(c.o.Window) {
		given := uint32(c.taken)
		c.taken = 0
		c.frame(func(b []byte) []byte { return appendWindowUpdate(b, 0, given) })
	}
	k := c.calls[h.stream]
	if k == nil {
		return nil, nil //nolint:nilnil // nil is an answer
	}
	if k.room -= int64(h.length); k.room < 0 {
		return nil, broken(http2.ErrCodeFlowControl, "more data than a stream's window")
	}
	return k, nil
}

// deliver gives a call data. Of the frame that they belong to, so much is to come, these included.
func (c *Client) deliver(k *ClientCall, b []byte, left int) {
	if k.declined {
		return
	}
	m := &k.message
	rest, known := m.readPrefix(b)
	if known {
		switch {
		case m.prefix[0] != 0:
			c.decline(k, false, http2.ErrCodeCancel, status.Error(codes.Internal, "the server's answer is compressed, which was not offered"))
			return
		case m.size > c.o.MaxMessage:
			c.decline(k, false, http2.ErrCodeCancel, status.Errorf(codes.ResourceExhausted, "the server's answer is of %d bytes, more than %d", m.size, c.o.MaxMessage))
			return
		}
		// One byte more than the message, if a window may be as large: a second one shall be noticed.
		if missing := min(int64(m.left-(left-len(b)+len(rest)))+1, maxWindow); missing > k.room {
			more := uint32(missing - k.room)
			k.room = missing
			c.mu.Lock()
			c.frame(func(b []byte) []byte { return appendWindowUpdate(b, k.id, more) })
			c.mu.Unlock()
		}
	}
	if len(rest) > m.left {
		c.decline(k, false, http2.ErrCodeCancel, status.Error(codes.Internal, "the server sent more than one message in its answer"))
		return
	}
	m.fill(rest, c.in)
}

// giveBack gives the padding of a DATA frame of n bytes back to the window of its call.
func (c *Client) giveBack(h head, k *ClientCall, n int) {
	if n == 0 || k.declined || h.has(http2.FlagDataEndStream) {
		return
	}
	k.room += int64(n)
	c.mu.Lock()
	c.answerFrame(func(b []byte) []byte { return appendWindowUpdate(b, h.stream, uint32(n)) })
	c.mu.Unlock()
}

// ended handles the end of a stream whose last frame is one of data: an answer without a status.
func (c *Client) ended(h head, k *ClientCall) {
	if k != nil && h.has(http2.FlagDataEndStream) {
		c.finish(k, status.Error(codes.Internal, "the server ended the call without a status"))
	}
}

// received handles a whole block of header fields.
func (c *Client) received(id uint32) {
	c.mu.Lock()
	c.freeLeft()
	k := c.calls[id]
	c.mu.Unlock()
	if k == nil {
		return
	}
	ends := c.fields.flags&http2.FlagHeadersEndStream != 0
	if fault := malformedAnswer(c.fields.list, k.headed); fault != "" {
		c.decline(k, ends, http2.ErrCodeProtocol, status.Error(codes.Internal, "the server's answer has "+fault))
		return
	}
	md, s, httpStatus := readAnswer(c.fields.list)
	k.answer.LastWord = s != nil && ends // not by a status of a proxy's
	switch {
	case !k.headed && !ends:
		if httpStatus != "" && httpStatus[0] == '1' {
			return
		}
		k.headed = true
		k.answer.Header = md
		if httpStatus != "200" { // of a proxy, whose page follows
			c.decline(k, false, http2.ErrCodeCancel, status.Errorf(httpCode(httpStatus), "unexpected HTTP status code received from server: %s", httpStatus))
		}
		return
	case !ends:
		c.decline(k, false, http2.ErrCodeProtocol, status.Error(codes.Internal, "the server sent header fields in the middle of its answer"))
		return
	case !k.headed && httpStatus != "200" && s == nil:
		s = status.Newf(httpCode(httpStatus), "unexpected HTTP status code received from server: %s", httpStatus)
	case s == nil:
		s = status.New(codes.Internal, "the server ended the call without a status")
	}
	k.answer.Trailer = md
	err := s.Err()
	if err == nil && !k.message.whole() {
		err = status.Error(codes.Internal, "the server ended the call before its answer was whole")
	}
	c.finish(k, err)
}

// decline ends a call whose answer is none that is taken, with an error and without the rest of the answer: its stream has no window for that.
func (c *Client) decline(k *ClientCall, ends bool, code http2.ErrCode, err error) {
	k.declined = true
	c.mu.Lock()
	if c.calls[k.id] == k && !(ends && k.out.over) {
		c.frame(func(b []byte) []byte { return appendReset(b, k.id, code) })
		c.drop(&k.out) // finish has nothing to reset
	}
	c.mu.Unlock()
	c.finish(k, err)
}

// finish ends a call by what the server has sent.
func (c *Client) finish(k *ClientCall, err error) {
	c.mu.Lock()
	if c.calls[k.id] != k {
		c.mu.Unlock()
		k.message.free() // it was cancelled
		return
	}
	if !k.out.over { // an answer before the end of the request
		c.frame(func(b []byte) []byte { return appendReset(b, k.id, http2.ErrCodeCancel) })
	}
	c.remove(k)
	c.mu.Unlock()
	if err == nil {
		k.answer.Data = k.message.take()
	}
	k.message.free()
	k.then(&c.turn, k.answer, err)
}

// resetByServer ends a call that the server has reset.
func (c *Client) resetByServer(id uint32, code http2.ErrCode) {
	c.mu.Lock()
	k := c.calls[id]
	c.mu.Unlock()
	switch {
	case k == nil:
	case code == http2.ErrCodeRefusedStream:
		c.finish(k, fmt.Errorf("%w: REFUSED_STREAM", ErrNotBegun))
	default:
		c.finish(k, fmt.Errorf("%w: the stream was reset: %w", ErrLost, status.Errorf(codeOf(code), "stream terminated by RST_STREAM with error code: %v", code)))
	}
}

// settingsFrame handles a SETTINGS frame.
func (c *Client) settingsFrame(h head, payload []byte) error {
	switch {
	case h.has(http2.FlagSettingsAck) && h.length != 0:
		return broken(http2.ErrCodeFrameSize, "an acknowledgement with settings")
	case h.has(http2.FlagSettingsAck):
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		c.known, c.most = true, maxWindow // as many as there are streams, if it does not say
	}
	windows := false
	err := readSettings(payload, func(s setting) error {
		switch s.id {
		case http2.SettingHeaderTableSize:
			c.encoder.SetMaxDynamicTableSizeLimit(min(s.value, headerTable))
			c.encoder.SetMaxDynamicTableSize(min(s.value, headerTable))
		case http2.SettingMaxConcurrentStreams:
			c.most = s.value
		case http2.SettingInitialWindowSize:
			delta := int64(s.value) - c.initial
			c.initial = int64(s.value)
			for _, k := range c.calls {
				if k.out.window += delta; k.out.window > maxWindow {
					return broken(http2.ErrCodeFlowControl, "the window of a stream is above its limit")
				}
			}
			windows = true
		case http2.SettingEnablePush:
			if s.value != 0 {
				return broken(http2.ErrCodeProtocol, "a server cannot be pushed to")
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if windows { // after all values of the frame: it may have several of one setting
		for _, k := range c.calls {
			c.send(&k.out)
		}
	}
	c.answerFrame(func(b []byte) []byte { return head{kind: http2.FrameSettings, flags: http2.FlagSettingsAck}.append(b) })
	return nil
}

// goAway handles a GOAWAY frame: calls that the server has not begun end with ErrNotBegun.
func (c *Client) goAway(h head, payload []byte) error {
	if h.length < 8 {
		return broken(http2.ErrCodeFrameSize, "a short GOAWAY frame")
	}
	last := binary.BigEndian.Uint32(payload) & (1<<31 - 1)
	if last > 0 && last%2 == 0 || c.lastBegun > 0 && last > c.lastBegun {
		return broken(http2.ErrCodeProtocol, "a GOAWAY whose last stream was never begun, or that goes up")
	}
	c.lastBegun = last
	var unbegun []*ClientCall
	c.mu.Lock()
	c.leaving = true
	for id, k := range c.calls {
		if id > last {
			unbegun = append(unbegun, k)
		}
	}
	idle := len(c.calls) == len(unbegun)
	c.mu.Unlock()
	for _, k := range unbegun {
		c.finish(k, fmt.Errorf("%w: it is draining", ErrNotBegun))
	}
	if idle {
		return errClosed
	}
	return nil
}

// windowUpdate handles a WINDOW_UPDATE frame.
func (c *Client) windowUpdate(h head, payload []byte) error {
	if h.length != 4 {
		return broken(http2.ErrCodeFrameSize, "a WINDOW_UPDATE frame that is not four bytes long")
	}
	n := binary.BigEndian.Uint32(payload) & (1<<31 - 1)
	if n == 0 {
		return broken(http2.ErrCodeProtocol, "a WINDOW_UPDATE frame of nothing")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var of *outgoing
	if h.stream != 0 {
		k := c.calls[h.stream]
		if k == nil {
			return nil
		}
		of = &k.out
	}
	if !c.widen(of, n) {
		return broken(http2.ErrCodeFlowControl, "a window is above its limit")
	}
	return nil
}

// readAnswer reads header fields of an answer: its metadata, its gRPC status (nil: it has none) and its HTTP status.
func readAnswer(list []hpack.HeaderField) (md metadata.MD, s *status.Status, httpStatus string) {
	var message, details string
	code := -1
	for i := range list {
		switch h := &list[i]; h.Name {
		case ":status":
			httpStatus = h.Value
		case "grpc-status":
			if n, err := strconv.ParseUint(h.Value, 10, 16); err == nil {
				code = int(n)
			}
		case "grpc-message":
			message = decodeMessage(h.Value)
		case "grpc-status-details-bin":
			details = h.Value
		}
	}
	md, _ = received(list)
	if code < 0 {
		return md, nil, httpStatus
	}
	s = status.New(codes.Code(code), message)
	if details != "" {
		if b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(details, "=")); err == nil {
			var p spb.Status
			if proto.Unmarshal(b, &p) == nil {
				s = status.FromProto(&p)
			}
		}
	}
	return md, s, httpStatus
}

// httpCode is gRPC's code for an HTTP status.
func httpCode(s string) codes.Code {
	switch s {
	case "400":
		return codes.Internal
	case "401":
		return codes.Unauthenticated
	case "403":
		return codes.PermissionDenied
	case "404":
		return codes.Unimplemented
	case "429", "502", "503", "504":
		return codes.Unavailable
	}
	return codes.Unknown
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/status"
)

// settingsFrame handles a SETTINGS frame.
func (c *serverConn) settingsFrame(h head, payload []byte) error {
	switch {
	case h.stream != 0:
		return broken(http2.ErrCodeProtocol, "a SETTINGS frame of a stream")
	case h.has(http2.FlagSettingsAck) && h.length != 0:
		return broken(http2.ErrCodeFrameSize, "an acknowledgement with settings")
	case h.has(http2.FlagSettingsAck):
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var onward []setting
	windows := false
	err := readSettings(payload, func(s setting) error {
		switch s.id {
		case http2.SettingHeaderTableSize:
			c.encoder.SetMaxDynamicTableSizeLimit(min(s.value, headerTable))
			c.encoder.SetMaxDynamicTableSize(min(s.value, headerTable))
		case http2.SettingInitialWindowSize:
			if err := c.concern(len(c.streams)); err != nil {
				return err
			}
			delta := int64(s.value) - c.initial
			c.initial = int64(s.value)
			for _, s := range c.streams {
				if s.out.window += delta; s.out.window > maxWindow {
					return broken(http2.ErrCodeFlowControl, "the window of a stream is above its limit")
				}
			}
			windows = true
			onward = append(onward, s)
		case http2.SettingMaxHeaderListSize:
			c.mostFields = int64(s.value)
			onward = append(onward, s)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if windows { // after all values of the frame: it may have several of one setting
		for _, s := range c.streams {
			c.send(s.out)
		}
	}
	if onward != nil {
		c.noted(onward)
	}
	c.answerFrame(func(b []byte) []byte { return head{kind: http2.FrameSettings, flags: http2.FlagSettingsAck}.append(b) })
	return nil
}

// concern counts the streams that a change of the initial window concerns.
func (c *serverConn) concern(streams int) error {
	if now := time.Now(); now.Sub(c.changed) > time.Second {
		c.changed, c.concerned = now, 0
	}
	if c.concerned += streams; c.concerned > maxConcerned {
		return broken(http2.ErrCodeEnhanceYourCalm, "changes of many streams' windows without end")
	}
	return nil
}

// noted keeps settings for the inner server. Guarded by mu.
func (c *serverConn) noted(settings []setting) {
	for _, s := range settings {
		kept := false
		for i := range c.settings {
			if c.settings[i].id == s.id {
				c.settings[i], kept = s, true
			}
		}
		if !kept {
			c.settings = append(c.settings, s)
		}
	}
	if c.inner != nil {
		c.inner.write(appendSettings(nil, settings...))
	}
}

// ping handles a PING frame.
func (c *serverConn) ping(h head, payload []byte) error {
	switch {
	case h.stream != 0:
		return broken(http2.ErrCodeProtocol, "a PING frame of a stream")
	case h.length != 8:
		return broken(http2.ErrCodeFrameSize, "a PING frame that is not eight bytes long")
	}
	data := [8]byte(payload)
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.has(http2.FlagPingAck) {
		if data == drainPing && c.drained {
			c.takeNoMore()
		}
		return nil
	}
	c.answerFrame(func(b []byte) []byte { return appendPing(b, http2.FlagPingAck, data) })
	now := time.Now()
	switch {
	case c.active:
		c.strikes, c.active = 0, false
	case now.Sub(c.pinged) < c.server.o.PingInterval:
		c.strikes++
	}
	c.pinged = now
	if c.strikes > maxStrikes {
		return broken(http2.ErrCodeEnhanceYourCalm, "too_many_pings")
	}
	return nil
}

// windowUpdate handles a WINDOW_UPDATE frame.
func (c *serverConn) windowUpdate(h head, payload []byte) error {
	if h.length != 4 {
		return broken(http2.ErrCodeFrameSize, "a WINDOW_UPDATE frame that is not four bytes long")
	}
	n := binary.BigEndian.Uint32(payload) & (1<<31 - 1)
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.stream == 0 {
		if n == 0 {
			return broken(http2.ErrCodeProtocol, "a WINDOW_UPDATE frame of nothing")
		}
		if !c.widen(nil, n) {
			return broken(http2.ErrCodeFlowControl, "the connection's window is above its limit")
		}
		return nil
	}
	s := c.streams[h.stream]
	switch {
	case s == nil && (h.stream > c.last || h.stream%2 == 0):
		return broken(http2.ErrCodeProtocol, "a WINDOW_UPDATE frame of a stream that was never begun")
	case c.announced(h.stream):
	case n == 0:
		c.reset(h.stream, s, http2.ErrCodeProtocol)
	case s == nil:
	case !c.widen(s.out, n):
		c.reset(h.stream, s, http2.ErrCodeFlowControl)
	case c.streams[h.stream] == s && s.call == nil:
		c.inner.write(append(h.append(nil), payload...))
	}
	return nil
}

// ages sets the timers of a connection that may only become so old.
func (c *serverConn) ages() {
	if c.server.o.MaxAge == nil {
		return
	}
	age := c.server.o.MaxAge()
	if age <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ageTimer = time.AfterFunc(age, func() {
		c.drain("max_age")
		if c.server.o.Grace <= 0 {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.over {
			c.ageTimer = time.AfterFunc(c.server.o.Grace, func() { c.abort(errAged) })
		}
	})
}

// errAged is why a connection ends whose calls have outlasted its age.
var errAged = errors.New("the connection was too old")

// drain asks the client to begin no more streams, and says why.
func (c *serverConn) drain(why string) {
	c.mu.Lock()
	if !c.drained && !c.over {
		c.drained = true
		c.frame(func(b []byte) []byte {
			return appendPing(appendGoAway(b, maxWindow, http2.ErrCodeNo, why), 0, drainPing)
		})
		c.writers.Add(1)
		timer := time.AfterFunc(drainPatience, func() {
			defer c.writers.Done()
			c.mu.Lock()
			c.takeNoMore()
			c.mu.Unlock()
			c.flush()
		})
		c.why, c.drainTimer = why, timer
	}
	c.mu.Unlock()
	c.flush()
}

// takeNoMore ends the drain: streams that the client has begun by now are the last ones. Guarded by mu.
func (c *serverConn) takeNoMore() {
	if c.ignoreFrom != 0 {
		return
	}
	c.ignoreFrom = c.last + 1
	c.frame(func(b []byte) []byte { return appendGoAway(b, c.last, http2.ErrCodeNo, c.why) })
	if len(c.streams) == 0 {
		c.forget(0)
	}
}

// abort ends the connection at once.
func (c *serverConn) abort(err error) {
	c.mu.Lock()
	c.fail(err)
	inner := c.inner
	c.mu.Unlock()
	_ = c.conn.Close() // which ends serve
	if inner != nil {
		inner.close() // which serve may wait for
	}
}

// end ends everything that belongs to a connection that is no more read.
func (c *serverConn) end(err error) {
	c.turn.End() // its last requests may have had something sent to others
	var why *connError
	if errors.As(err, &why) {
		c.server.o.Logger.Debug("a client's connection is closed", "client", c.raw.RemoteAddr().String(), "error", err)
		defer time.AfterFunc(farewell, func() { _ = c.conn.Close() }).Stop() // it ends soon in any case
		c.mu.Lock()
		last := c.last
		if c.ignoreFrom != 0 {
			last = c.ignoreFrom - 1
		}
		c.frame(func(b []byte) []byte { return appendGoAway(b, last, why.code, why.text) })
		c.mu.Unlock()
		c.awaitWritten()
		c.linger()
	}
	_ = c.conn.Close() // before calls are cancelled, so that they can tell why
	c.mu.Lock()
	c.fail(errClosed)
	c.over = true
	streams, inner := c.streams, c.inner
	c.streams = map[uint32]*stream{}
	for _, s := range streams {
		c.drop(s.out)
		if s.call != nil {
			s.call.closed = true
		}
	}
	if c.drainTimer != nil && c.drainTimer.Stop() {
		c.writers.Done()
	}
	if c.ageTimer != nil {
		c.ageTimer.Stop()
	}
	c.mu.Unlock()
	for _, s := range streams {
		if s.call != nil {
			s.call.abandon(status.FromContextError(context.Canceled).Err())
		}
	}
	if inner != nil {
		inner.closeByClient()
	}
	c.in.release()
	c.writers.Wait()
}

// linger reads what the client has sent meanwhile, for a moment: closing a socket with unread bytes resets it, and the client might not see why.
func (c *serverConn) linger() {
	if half, ok := c.conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() != nil {
		return
	}
	c.in.release()
	buf := make([]byte, 4<<10)
	for range 64 {
		if _, err := c.conn.Read(buf); err != nil {
			return
		}
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// streamShare bounds one stream: it may have one part in streamShare of all
// requests, and of their bytes, under way.
const streamShare = 4

// turn is the place of a request in the order of a stream's answers.
type turn struct {
	message any   // its answer; nil: none, or sent
	ended   bool  // its answer has come
	size    int64 // of the request
}

// nextTurn counts a request of so many bytes in and gives its answer the next turn.
func (s *inferStream) nextTurn(size int64) *turn {
	t := &turn{size: size}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turns = append(s.turns, t)
	s.owed++
	s.bytes += size
	return t
}

// deliver hands over the message that answers a turn, or nil. It is sent at once
// if all earlier turns are over. While it waits, it counts as bytes under way, as
// the request did. Once the call is over, the message is discarded.
func (s *inferStream) deliver(t *turn, m any) {
	held := sizeOf(m)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		discard(m)
		return
	}
	s.d.admission.hold(held)
	t.message, t.ended = m, true
	s.bytes += held - t.size
	if s.sending {
		return
	}
	s.sending = true
	for len(s.turns) > 0 && s.advance(s.turns[0]) {
		s.turns[0] = nil
		s.turns = s.turns[1:]
		s.discharge(0)
	}
	s.sending = false
}

// advance sends the message of the first turn, and reports whether the turn is
// over. It is called with s.mu, which it releases while it sends; meanwhile the
// call may have ended and taken all turns.
func (s *inferStream) advance(t *turn) (over bool) {
	if m := t.message; m != nil {
		t.message = nil
		n := sizeOf(m)
		s.mu.Unlock()
		if err := s.write(m); err != nil {
			s.cancel(err)
		}
		s.d.admission.hold(-n)
		s.mu.Lock()
		s.bytes -= n
	}
	return t.ended && !s.over
}

// discharge counts a request out, of which so many bytes are still counted. Guarded
// by s.mu.
func (s *inferStream) discharge(size int64) {
	s.owed--
	s.bytes -= size
	select {
	case s.less <- struct{}{}:
	default: // a signal waits to be read
	}
}

// takesMore waits until the stream owes little enough to take another request.
func (s *inferStream) takesMore() error {
	for {
		s.mu.Lock()
		room := s.owed == 0 || (s.owed < s.d.o.MaxQueuedRequests/streamShare && s.bytes < s.d.o.MaxQueuedBytes/streamShare)
		s.mu.Unlock()
		if room {
			return nil
		}
		select {
		case <-s.less:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
}

// write sends one message to the caller, or returns the error that ends the call.
func (s *inferStream) write(m any) error {
	s.send.Lock()
	defer s.send.Unlock()
	if s.ended {
		discard(m)
		return nil
	}
	switch m := m.(type) {
	case callEnd:
		s.ended = true
		return m.error
	case *batch.Frame:
		return sendDown(s.down, m)
	}
	return s.down.SendMsg(m)
}

// discard frees a message that is not sent.
func discard(m any) {
	if f, ok := m.(*batch.Frame); ok {
		f.Data.Free()
	}
}

// sizeOf is the length of a message on the wire.
func sizeOf(m any) int64 {
	switch m := m.(type) {
	case *batch.Frame:
		return int64(m.Data.Len())
	case proto.Message:
		return int64(proto.Size(m))
	}
	return 0
}

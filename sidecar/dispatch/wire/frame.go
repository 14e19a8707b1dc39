// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/net/http2"
)

const (
	// headLen is the length of a frame's head.
	headLen = 9
	// maxFrame is the longest payload that is accepted, which is what HTTP/2 has every endpoint accept.
	maxFrame = 16 << 10
	// defaultWindow is every flow-control window before SETTINGS and WINDOW_UPDATE.
	defaultWindow = 64<<10 - 1
	// maxWindow is the largest window that HTTP/2 allows.
	maxWindow = 1<<31 - 1
	// prefixLen is the length of what gRPC puts before a message: a flag for compression, and the message's length.
	prefixLen = 5
)

// head is the head of a frame.
type head struct {
	length int
	kind   http2.FrameType
	flags  http2.Flags
	stream uint32
}

// readHead reads the head of a frame from its nine bytes.
func readHead(b []byte) head {
	return head{
		length: int(b[0])<<16 | int(b[1])<<8 | int(b[2]), kind: http2.FrameType(b[3]), flags: http2.Flags(b[4]),
		stream: binary.BigEndian.Uint32(b[5:]) & (1<<31 - 1),
	}
}

// append appends the head to b.
func (h head) append(b []byte) []byte {
	b = append(b, byte(h.length>>16), byte(h.length>>8), byte(h.length), byte(h.kind), byte(h.flags))
	return binary.BigEndian.AppendUint32(b, h.stream)
}

// has reports whether a flag is set.
func (h head) has(f http2.Flags) bool { return h.flags&f != 0 }

// connError ends a connection.
type connError struct {
	code http2.ErrCode
	text string
}

// Error implements error.
func (e *connError) Error() string { return fmt.Sprintf("%v: %s", e.code, e.text) }

// broken is a connError.
func broken(code http2.ErrCode, text string) error { return &connError{code, text} }

// unpadded returns the part of a frame's payload that is not padding.
func unpadded(h head, payload []byte) ([]byte, error) {
	if !h.has(http2.FlagDataPadded) { // the same flag for DATA and for HEADERS
		return payload, nil
	}
	if len(payload) == 0 {
		return nil, broken(http2.ErrCodeFrameSize, "a padded frame without the length of its padding")
	}
	n := int(payload[0])
	if payload = payload[1:]; n > len(payload) {
		return nil, broken(http2.ErrCodeProtocol, "the padding of a frame is longer than the frame")
	}
	return payload[:len(payload)-n], nil
}

// setting is one value of a SETTINGS frame.
type setting struct {
	id    http2.SettingID
	value uint32
}

// readSettings calls each with every setting of a frame, after it has checked their bounds.
func readSettings(payload []byte, each func(setting) error) error {
	if len(payload)%6 != 0 {
		return broken(http2.ErrCodeFrameSize, "a SETTINGS frame whose length is no multiple of six")
	}
	for ; len(payload) > 0; payload = payload[6:] {
		s := setting{http2.SettingID(binary.BigEndian.Uint16(payload)), binary.BigEndian.Uint32(payload[2:])}
		switch {
		case s.id == http2.SettingEnablePush && s.value > 1:
			return broken(http2.ErrCodeProtocol, "SETTINGS_ENABLE_PUSH is neither 0 nor 1")
		case s.id == http2.SettingInitialWindowSize && s.value > maxWindow:
			return broken(http2.ErrCodeFlowControl, "SETTINGS_INITIAL_WINDOW_SIZE is above its limit")
		case s.id == http2.SettingMaxFrameSize && (s.value < 16<<10 || s.value > 1<<24-1):
			return broken(http2.ErrCodeProtocol, "SETTINGS_MAX_FRAME_SIZE is out of its bounds")
		}
		if err := each(s); err != nil {
			return err
		}
	}
	return nil
}

// appendSettings appends a SETTINGS frame.
func appendSettings(b []byte, all ...setting) []byte {
	b = head{length: 6 * len(all), kind: http2.FrameSettings}.append(b)
	for _, s := range all {
		b = binary.BigEndian.AppendUint16(b, uint16(s.id))
		b = binary.BigEndian.AppendUint32(b, s.value)
	}
	return b
}

// appendHeaders appends a block of header fields: a HEADERS frame, and CONTINUATION frames for what it does not hold. End says that they end the stream.
func appendHeaders(b []byte, stream uint32, block []byte, end bool) []byte {
	h := head{kind: http2.FrameHeaders, stream: stream}
	if end {
		h.flags |= http2.FlagHeadersEndStream
	}
	for first := true; first || len(block) > 0; first = false {
		n := min(len(block), maxFrame)
		if h.length = n; n == len(block) {
			h.flags |= http2.FlagHeadersEndHeaders
		}
		b = append(h.append(b), block[:n]...)
		block = block[n:]
		h.kind, h.flags = http2.FrameContinuation, 0
	}
	return b
}

// appendWindowUpdate appends a WINDOW_UPDATE frame; stream 0 is the connection.
func appendWindowUpdate(b []byte, stream uint32, n uint32) []byte {
	b = head{length: 4, kind: http2.FrameWindowUpdate, stream: stream}.append(b)
	return binary.BigEndian.AppendUint32(b, n)
}

// appendReset appends an RST_STREAM frame.
func appendReset(b []byte, stream uint32, code http2.ErrCode) []byte {
	b = head{length: 4, kind: http2.FrameRSTStream, stream: stream}.append(b)
	return binary.BigEndian.AppendUint32(b, uint32(code))
}

// appendPing appends a PING frame.
func appendPing(b []byte, flags http2.Flags, data [8]byte) []byte {
	b = head{length: 8, kind: http2.FramePing, flags: flags}.append(b)
	return append(b, data[:]...)
}

// appendGoAway appends a GOAWAY frame.
func appendGoAway(b []byte, last uint32, code http2.ErrCode, text string) []byte {
	b = head{length: 8 + len(text), kind: http2.FrameGoAway}.append(b)
	b = binary.BigEndian.AppendUint32(b, last)
	b = binary.BigEndian.AppendUint32(b, uint32(code))
	return append(b, text...)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package onnx

import (
	"errors"
	"fmt"
	"io"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
)

// FormatError is a file that is not the ONNX model it should be.
type FormatError struct {
	Path string
	// Offset is where in the file, in bytes.
	Offset int64
	Text   string
}

// Error names the file, the place and what is wrong there.
func (e *FormatError) Error() string {
	return fmt.Sprintf("%s: byte %d: %s", e.Path, e.Offset, e.Text)
}

// ErrTooLarge is wrapped by errors of models that exceed Limits.
var ErrTooLarge = errors.New("the model exceeds the limits of the reader")

// window is how much of a file is read at a time: a few nodes, or the head of one tensor message.
const window = 16 << 10

// source reads a file through one window.
type source struct {
	r     io.ReaderAt
	path  string
	start int64
	buf   []byte
	held  int
}

// view is the bytes [at, at+n) of the file, valid until the next call. n is at most window.
func (s *source) view(at int64, n int) ([]byte, error) {
	if at < s.start || at+int64(n) > s.start+int64(s.held) {
		if s.buf == nil {
			s.buf = make([]byte, window)
		}
		read, err := s.r.ReadAt(s.buf, at)
		if err != nil && (!errors.Is(err, io.EOF) || read < n) {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			s.held = 0
			return nil, fmt.Errorf("%s: byte %d: %w", s.path, at, err)
		}
		s.start, s.held = at, read
	}
	from := int(at - s.start)
	return s.buf[from : from+n], nil
}

// cursor walks the fields of one message. The first error stays: next ends then, and values are zero.
type cursor struct {
	s        *source
	pos, end int64
	err      *error
}

func (c *cursor) fail(format string, args ...any) {
	if *c.err == nil {
		*c.err = &FormatError{Path: c.s.path, Offset: c.pos, Text: fmt.Sprintf(format, args...)}
	}
	c.pos = c.end
}

// next is the tag of the following field; ok is false at the end of the message.
func (c *cursor) next() (field protowire.Number, wire protowire.Type, ok bool) {
	if *c.err != nil || c.pos >= c.end {
		return 0, 0, false
	}
	tag := c.varint()
	field, wire = protowire.DecodeTag(tag)
	if *c.err == nil && field < protowire.MinValidNumber {
		c.fail("not a protobuf message: field number %d", field)
	}
	return field, wire, *c.err == nil
}

func (c *cursor) varint() uint64 {
	n := min(c.end-c.pos, 10)
	b, ok := c.view(n)
	if !ok {
		return 0
	}
	v, used := protowire.ConsumeVarint(b)
	if used < 0 {
		c.fail("not a protobuf message: broken varint")
		return 0
	}
	c.pos += int64(used)
	return v
}

func (c *cursor) view(n int64) ([]byte, bool) {
	if *c.err != nil {
		return nil, false
	}
	b, err := c.s.view(c.pos, int(n))
	if err != nil {
		*c.err = err
		return nil, false
	}
	return b, true
}

// message is a cursor over the length-delimited field that follows; c moves behind it.
func (c *cursor) message(wire protowire.Type) cursor {
	if wire != protowire.BytesType {
		c.fail("wire type %d where a length was expected", wire)
	}
	n := c.varint()
	if n > uint64(c.end-c.pos) {
		c.fail("a field of %d bytes in a message with %d left", n, c.end-c.pos)
		n = 0
	}
	inner := cursor{s: c.s, pos: c.pos, end: c.pos + int64(n), err: c.err}
	c.pos += int64(n)
	return inner
}

func (c *cursor) number(wire protowire.Type) uint64 {
	if wire != protowire.VarintType {
		c.fail("wire type %d where a varint was expected", wire)
	}
	return c.varint()
}

func (c *cursor) fixed32(wire protowire.Type) uint32 {
	if wire != protowire.Fixed32Type || c.end-c.pos < 4 {
		c.fail("wire type %d where four bytes were expected", wire)
		return 0
	}
	b, ok := c.view(4)
	if !ok {
		return 0
	}
	v, _ := protowire.ConsumeFixed32(b)
	c.pos += 4
	return v
}

func (c *cursor) fixed64(wire protowire.Type) uint64 {
	if wire != protowire.Fixed64Type || c.end-c.pos < 8 {
		c.fail("wire type %d where eight bytes were expected", wire)
		return 0
	}
	b, ok := c.view(8)
	if !ok {
		return 0
	}
	v, _ := protowire.ConsumeFixed64(b)
	c.pos += 8
	return v
}

func (c *cursor) skip(wire protowire.Type) {
	switch wire {
	case protowire.VarintType:
		c.varint()
	case protowire.Fixed32Type:
		c.fixed32(wire)
	case protowire.Fixed64Type:
		c.fixed64(wire)
	case protowire.BytesType:
		c.message(wire)
	default:
		c.fail("not an ONNX model: wire type %d", wire)
	}
}

// bytes copies the length-delimited field that follows.
func (c *cursor) bytes(wire protowire.Type, b *budget) []byte {
	inner := c.message(wire)
	n := inner.end - inner.pos
	if !b.take(c, n) || n == 0 {
		return nil
	}
	out := make([]byte, 0, n)
	for inner.pos < inner.end {
		part, ok := inner.view(min(inner.end-inner.pos, window))
		if !ok {
			return nil
		}
		out = append(out, part...)
		inner.pos += int64(len(part))
	}
	return out
}

// text is a string; equal strings share memory.
func (c *cursor) text(wire protowire.Type, b *budget) string {
	at := *c
	inner := c.message(wire)
	n := inner.end - inner.pos
	if n == 0 || *c.err != nil {
		return ""
	}
	if n <= window {
		if view, ok := inner.view(n); ok {
			if known, ok := b.strings[string(view)]; ok {
				return known
			}
		}
	}
	*c = at
	s := string(c.bytes(wire, b))
	if !utf8.ValidString(s) {
		c.fail("a name that is not UTF-8")
	}
	if b.strings != nil {
		b.take(c, 32)
		b.strings[s] = s
	}
	return s
}

// int64s appends a repeated integer field, packed or not.
func (c *cursor) int64s(wire protowire.Type, into []int64, b *budget) []int64 {
	if wire == protowire.VarintType {
		b.take(c, 8)
		return append(into, int64(c.varint())) //nolint:gosec // protobuf's int64 is this conversion
	}
	inner := c.message(wire)
	for inner.pos < inner.end && *c.err == nil && b.take(c, 8) {
		into = append(into, int64(inner.varint())) //nolint:gosec // protobuf's int64 is this conversion
	}
	return into
}

// float32s appends a repeated float field, packed or not.
func (c *cursor) float32s(wire protowire.Type, into []float32, b *budget) []float32 {
	if wire == protowire.Fixed32Type {
		b.take(c, 4)
		return append(into, math.Float32frombits(c.fixed32(wire)))
	}
	inner := c.message(wire)
	for inner.pos < inner.end && *c.err == nil && b.take(c, 4) {
		into = append(into, math.Float32frombits(inner.fixed32(protowire.Fixed32Type)))
	}
	return into
}

// budget is the memory that an index may still take.
type budget struct {
	left    int64
	depth   int
	strings map[string]string
}

// take accounts for n bytes; false if they are too many.
func (b *budget) take(c *cursor, n int64) bool {
	if b.left -= n; b.left < 0 && *c.err == nil {
		*c.err = fmt.Errorf("%s: byte %d: %w: its graph takes too much memory", c.s.path, c.pos, ErrTooLarge)
	}
	return *c.err == nil
}

// deeper accounts for one level of nesting; the returned function leaves it.
func (b *budget) deeper(c *cursor) (leave func(), ok bool) {
	if b.depth--; b.depth < 0 && *c.err == nil {
		*c.err = fmt.Errorf("%s: byte %d: %w: too deeply nested", c.s.path, c.pos, ErrTooLarge)
	}
	return func() { b.depth++ }, *c.err == nil
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// cursor reads a message that lies in several buffers, as the connection
// received it.
type cursor struct {
	bufs mem.BufferSlice
	i    int    // the buffer that cur is the rest of
	cur  []byte // unread bytes of bufs[i]
	left int    // unread bytes of the message
}

func newCursor(bufs mem.BufferSlice) cursor {
	c := cursor{bufs: bufs, i: -1, left: bufs.Len()}
	c.refill()
	return c
}

// refill moves to the next buffer that has bytes.
func (c *cursor) refill() {
	for len(c.cur) == 0 && c.i+1 < len(c.bufs) {
		c.i++
		c.cur = c.bufs[c.i].ReadOnlyData()
	}
}

// skip moves on by n bytes, which must be there.
func (c *cursor) skip(n int) {
	c.left -= n
	for n >= len(c.cur) && n > 0 {
		n -= len(c.cur)
		c.cur = nil
		c.refill()
	}
	c.cur = c.cur[n:]
	if len(c.cur) == 0 {
		c.refill()
	}
}

func (c *cursor) varint() (uint64, bool) {
	v, n := protowire.ConsumeVarint(c.cur)
	if n <= 0 {
		// It may continue in the next buffer.
		var b [10]byte
		v, n = protowire.ConsumeVarint(b[:c.peek(b[:])])
		if n <= 0 {
			return 0, false
		}
	}
	c.skip(n)
	return v, true
}

// length reads a length that the rest of the message can hold.
func (c *cursor) length() (int, bool) {
	v, ok := c.varint()
	if !ok || v > uint64(c.left) {
		return 0, false
	}
	return int(v), true
}

// peek copies the next bytes without moving on.
func (c *cursor) peek(dst []byte) int {
	n := copy(dst, c.cur)
	for i := c.i + 1; n < len(dst) && i < len(c.bufs); i++ {
		n += copy(dst[n:], c.bufs[i].ReadOnlyData())
	}
	return n
}

// bytes returns the next n bytes in one piece: the received memory itself where
// they lie in one buffer, a copy otherwise.
func (c *cursor) bytes(n int) []byte {
	var b []byte
	if n <= len(c.cur) {
		b = c.cur[:n:n]
	} else {
		b = make([]byte, n)
		c.peek(b)
	}
	c.skip(n)
	return b
}

// view appends references to the next n bytes to list.
func (c *cursor) view(list mem.BufferSlice, n int) mem.BufferSlice {
	for n > 0 {
		k := min(n, len(c.cur))
		start := c.bufs[c.i].Len() - len(c.cur)
		list = append(list, c.bufs[c.i].Slice(start, start+k))
		c.skip(k)
		n -= k
	}
	return list
}

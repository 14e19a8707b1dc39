// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package onnx

import (
	"math"
	"math/bits"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// maxRank bounds the dimensions of one tensor; real ones have fewer than ten.
const maxRank = 64

// The fields of TensorProto that hold elements.
const (
	fieldFloats  protowire.Number = 4
	fieldInt32s  protowire.Number = 5
	fieldStrings protowire.Number = 6
	fieldInt64s  protowire.Number = 7
	fieldRaw     protowire.Number = 9
	fieldDoubles protowire.Number = 10
	fieldUint64s protowire.Number = 11
)

func (d *decoder) tensor(c *cursor) *Tensor {
	t := &Tensor{}
	d.budget.take(c, 144)
	whole := Location{Offset: c.pos, Length: c.end - c.pos, Encoding: Message}
	var at, packed Location // packed: of the first typed field, if it is the only one and packed
	var typed protowire.Number
	external := map[string]string{}
	outside := false
	for field, wire, ok := c.next(); ok; field, wire, ok = c.next() {
		switch field {
		case 1:
			if t.Dims = c.int64s(wire, t.Dims, &d.budget); len(t.Dims) > maxRank {
				c.fail("a tensor of more than %d dimensions", maxRank)
			}
		case 2:
			t.Type = DataType(c.number(wire)) //nolint:gosec // an enum of 32 bits
		case 3:
			c.fail("a tensor in segments, which no version of ONNX Runtime reads")
		case 8:
			t.Name = c.text(wire, &d.budget)
		case fieldRaw:
			inner := c.message(wire)
			at = Location{Offset: inner.pos, Length: inner.end - inner.pos, Encoding: Raw}
		case fieldFloats, fieldDoubles, fieldInt32s, fieldInt64s, fieldUint64s, fieldStrings:
			begin := *c
			c.skip(wire)
			if at = whole; typed == 0 && wire == protowire.BytesType {
				inner := begin.message(wire)
				packed = Location{Offset: inner.pos, Length: inner.end - inner.pos, Encoding: Raw}
			} else {
				packed = Location{}
			}
			typed = field
		case 13:
			inner := c.message(wire)
			key, value := d.entry(&inner)
			external[key] = value
		case 14:
			outside = c.number(wire) == 1
		default:
			c.skip(wire)
		}
	}
	if *c.err != nil {
		return t
	}
	d.checkSize(c, t)
	switch {
	case *c.err != nil:
		return t
	case outside:
		t.Location = d.external(c, t, external)
	case at.Encoding == Raw && at.Length == 0 && typed == 0:
		t.Location = Location{} // an empty raw_data is no data
	case packed.Encoding == Raw && sameBytes(t.Type, typed):
		t.Location = packed
	default:
		t.Location = at
	}
	if t.Location.Encoding == Raw && t.Location.Length != t.Bytes() {
		c.fail("tensor %q has %d bytes of data, its type and dimensions want %d", t.Name, t.Location.Length, t.Bytes())
	}
	return t
}

// sameBytes says whether a packed field of that number holds elements of the type as raw_data would.
func sameBytes(t DataType, field protowire.Number) bool {
	return field == fieldFloats && (t == Float || t == Complex64) || field == fieldDoubles && (t == Double || t == Complex128)
}

// checkSize refuses dimensions whose product, in elements or bytes, is absurd.
func (d *decoder) checkSize(c *cursor, t *Tensor) {
	if !t.Type.Known() {
		c.fail("tensor %q has an unknown element type (%d)", t.Name, int32(t.Type))
		return
	}
	n := uint64(1)
	for _, dim := range t.Dims {
		if dim < 0 {
			c.fail("tensor %q has a dimension of %d", t.Name, dim)
			return
		}
		hi, lo := bits.Mul64(n, uint64(dim))
		if hi != 0 || lo > math.MaxInt64/16 {
			c.fail("tensor %q has dimensions %v, more than can be", t.Name, t.Dims)
			return
		}
		n = lo
	}
}

// external is where external data lies; a place outside the model's directory is refused.
func (d *decoder) external(c *cursor, t *Tensor, entries map[string]string) Location {
	at := Location{Encoding: Raw, Length: t.Bytes()}
	name := strings.ReplaceAll(entries["location"], `\`, "/")
	if !filepath.IsLocal(filepath.FromSlash(name)) || strings.ContainsRune(name, 0) {
		c.fail("tensor %q has its data in %q, outside of the model's directory", t.Name, entries["location"])
		return at
	}
	at.File = path.Clean(name)
	if at.File == "." {
		c.fail("tensor %q has its data in a directory", t.Name)
	}
	for key, into := range map[string]*int64{"offset": &at.Offset, "length": &at.Length} {
		text, given := entries[key]
		if !given || text == "" {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/2 {
			c.fail("tensor %q has external data with %s %q", t.Name, key, text)
		}
		*into = n
	}
	if t.Type == String {
		c.fail("tensor %q has strings as external data, which the format excludes", t.Name)
	}
	return at
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package onnx

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// Data is the tensor's elements, little-endian, one after another: at most Limits.Data bytes, otherwise the error wraps ErrTooLarge.
// Tensors of strings have no such form and are an error.
func (m *Model) Data(t *Tensor) ([]byte, error) {
	size := t.Bytes()
	if size > m.weights.limit {
		return nil, fmt.Errorf("%s: tensor %q: %w: %d bytes", m.Path, t.Name, ErrTooLarge, size)
	}
	r, err := m.Reader(t)
	if err != nil {
		return nil, err
	}
	// A typed field may hold less than the dimensions promise: grow with what is there.
	var out bytes.Buffer
	if t.Location.Encoding == Raw && t.Location.File == "" {
		out.Grow(int(size)) // the message holds them: the index has checked it
	}
	n, err := io.Copy(&out, r)
	switch {
	case err != nil:
		return nil, err
	case n != size:
		return nil, fmt.Errorf("%s: tensor %q has %d bytes of data, its type and dimensions want %d", m.Path, t.Name, n, size)
	}
	return out.Bytes(), nil
}

// Reader streams what Data returns, whatever its size. It ends early, with io.ErrUnexpectedEOF, where the file holds less than the
// tensor's dimensions promise.
func (m *Model) Reader(t *Tensor) (io.Reader, error) {
	size := t.Bytes()
	switch {
	case t.Type == String:
		return nil, fmt.Errorf("%s: tensor %q holds strings", m.Path, t.Name)
	case size == 0:
		return bytes.NewReader(nil), nil
	case t.Location.Encoding == NoData:
		return nil, fmt.Errorf("%s: tensor %q has no data", m.Path, t.Name)
	}
	file, err := m.weights.file(t.Location.File)
	if err != nil {
		return nil, err
	}
	if t.Location.Encoding == Raw {
		return &exactly{r: io.NewSectionReader(file, t.Location.Offset, size), m: m, t: t, left: size}, nil
	}
	e := &elements{width: int(max(t.Type.Bits(), 8) / 8), kind: t.Type}
	e.c = cursor{s: &source{r: file, path: m.Path}, pos: t.Location.Offset, end: t.Location.Offset + t.Location.Length, err: &e.err}
	return &exactly{r: e, m: m, t: t, left: size}, nil
}

// Strings is the elements of a tensor of strings.
func (m *Model) Strings(t *Tensor) ([][]byte, error) {
	if t.Type != String {
		return nil, fmt.Errorf("%s: tensor %q is of type %s, not of strings", m.Path, t.Name, t.Type)
	}
	file, err := m.weights.file("")
	if err != nil {
		return nil, err
	}
	b := budget{left: m.weights.limit}
	c := cursor{s: &source{r: file, path: m.Path}, pos: t.Location.Offset, end: t.Location.Offset + t.Location.Length, err: &err}
	var out [][]byte
	for field, wire, ok := c.next(); ok; field, wire, ok = c.next() {
		if field != fieldStrings {
			c.skip(wire)
			continue
		}
		b.take(&c, 24)
		out = append(out, c.bytes(wire, &b))
	}
	if err == nil && int64(len(out)) != t.Elements() {
		err = fmt.Errorf("%s: tensor %q has %d strings, its dimensions want %d", m.Path, t.Name, len(out), t.Elements())
	}
	return out, err
}

// exactly reads so many bytes of a tensor; less is an error, more is an error too.
type exactly struct {
	r    io.Reader
	m    *Model
	t    *Tensor
	left int64
}

func (e *exactly) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	e.left -= int64(n)
	switch {
	case errors.Is(err, io.EOF) && e.left > 0:
		return n, e.wrong(fmt.Errorf("%d bytes are missing of the %d that its type and dimensions want: %w", e.left, e.t.Bytes(), io.ErrUnexpectedEOF))
	case e.left < 0:
		return n, e.wrong(errors.New("it holds more elements than its dimensions say"))
	case err != nil && !errors.Is(err, io.EOF):
		return n, e.wrong(err)
	}
	return n, err
}

// wrong says which tensor an error is of, and which file.
func (e *exactly) wrong(err error) error {
	where := ""
	if e.t.Location.File != "" {
		where = fmt.Sprintf(" (external data in %s)", e.t.Location.File)
	}
	return fmt.Errorf("%s: tensor %q%s: %w", e.m.Path, e.t.Name, where, err)
}

// elements decodes the typed fields of a tensor message into little-endian bytes.
type elements struct {
	c       cursor
	packed  cursor
	wire    protowire.Type // of the elements in packed
	width   int
	kind    DataType
	err     error
	pending []byte
}

func (e *elements) Read(p []byte) (int, error) {
	for len(e.pending) == 0 {
		if !e.fill() {
			if e.err != nil {
				return 0, e.err
			}
			return 0, io.EOF
		}
	}
	n := copy(p, e.pending)
	e.pending = e.pending[n:]
	return n, nil
}

// fill decodes the next few elements; false at the end.
func (e *elements) fill() bool {
	buf := e.pending[:0]
	for len(buf) < 4096 && e.err == nil {
		if e.packed.pos < e.packed.end {
			buf = e.element(&e.packed, e.wire, buf)
			continue
		}
		field, wire, ok := e.c.next()
		if !ok {
			break
		}
		inner, is := map[protowire.Number]protowire.Type{
			fieldFloats: protowire.Fixed32Type, fieldDoubles: protowire.Fixed64Type,
			fieldInt32s: protowire.VarintType, fieldInt64s: protowire.VarintType, fieldUint64s: protowire.VarintType,
		}[field]
		switch {
		case !is:
			e.c.skip(wire)
		case wire == protowire.BytesType:
			e.packed, e.wire = e.c.message(wire), inner
		default:
			buf = e.element(&e.c, wire, buf)
		}
	}
	e.pending = buf
	return len(buf) > 0 && e.err == nil
}

func (e *elements) element(c *cursor, wire protowire.Type, buf []byte) []byte {
	switch wire {
	case protowire.Fixed32Type:
		return binary.LittleEndian.AppendUint32(buf, c.fixed32(wire))
	case protowire.Fixed64Type:
		return binary.LittleEndian.AppendUint64(buf, c.fixed64(wire))
	}
	var le [8]byte
	binary.LittleEndian.PutUint64(le[:], c.number(wire))
	return append(buf, le[:min(e.width, 8)]...)
}

// Int64s is the elements of an integer tensor, widened: shapes, axes, indices.
func (m *Model) Int64s(t *Tensor) ([]int64, error) {
	data, err := m.Data(t)
	if err != nil {
		return nil, err
	}
	out := make([]int64, t.Elements())
	for i := range out {
		switch t.Type {
		case Int64:
			out[i] = int64(binary.LittleEndian.Uint64(data[8*i:])) //nolint:gosec // two's complement
		case Int32:
			out[i] = int64(int32(binary.LittleEndian.Uint32(data[4*i:]))) //nolint:gosec // two's complement
		default:
			return nil, fmt.Errorf("%s: tensor %q is of type %s, not of integers", m.Path, t.Name, t.Type)
		}
	}
	return out, nil
}

// Float32s is the elements of a float or double tensor as floats.
func (m *Model) Float32s(t *Tensor) ([]float32, error) {
	data, err := m.Data(t)
	if err != nil {
		return nil, err
	}
	out := make([]float32, t.Elements())
	for i := range out {
		switch t.Type {
		case Float:
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		case Double:
			out[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:])))
		default:
			return nil, fmt.Errorf("%s: tensor %q is of type %s, not of floats", m.Path, t.Name, t.Type)
		}
	}
	return out, nil
}

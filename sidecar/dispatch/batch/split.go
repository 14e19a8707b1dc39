// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/internal/triton"
)

// ErrUnsplittable means an answer that does not have the batch's rows along its
// first dimension, so that it cannot be divided among the requests.
var ErrUnsplittable = errors.New("answer cannot be split by rows")

// Rows returns the size of the batch dimension: the first dimension of the
// first input, 0 without one.
func (r *Request) Rows() int {
	if len(r.Inputs) == 0 || len(r.Inputs[0].Shape) == 0 {
		return 0
	}
	return int(max(0, r.Inputs[0].Shape[0]))
}

// A response and room for the usual number of parts, in one allocation.
type splitRoom struct {
	Response
	outputs [2]Tensor
	buffers [2][2]mem.Buffer
	dims    [2][4]int64
}

// Split gives each request of a batch its part of the answer, in order: its
// rows of every output it asked for, as references to the answer's buffers,
// under its own id. The results are freed on their own.
func Split(resp *Response, reqs []*Request) ([]*Response, error) { return split(resp, reqs, nil) }

// split is Split, with the names that each request's member has for the outputs if there are members.
func split(resp *Response, reqs []*Request, members []*Membership) ([]*Response, error) {
	total := 0
	for _, r := range reqs {
		total += r.Rows()
	}
	rooms := make([]splitRoom, len(reqs))
	parts := make([]*Response, len(reqs))
	for i, r := range reqs {
		p := &rooms[i].Response
		p.Model, p.Version, p.ID = resp.Model, resp.Version, r.ID
		p.Parameters, p.Unknown = resp.Parameters, resp.Unknown
		p.Outputs = rooms[i].outputs[:0]
		parts[i] = p
	}
	for i := range resp.Outputs {
		if err := splitOutput(&resp.Outputs[i], reqs, members, rooms, total); err != nil {
			for _, p := range parts {
				p.Free()
			}
			return nil, fmt.Errorf("split the answer of model %q: %w", resp.Model, err)
		}
	}
	return parts, nil
}

func splitOutput(out *Tensor, reqs []*Request, members []*Membership, rooms []splitRoom, total int) error {
	if out.typed() {
		if err := out.Normalize(); err != nil {
			return fmt.Errorf("%w: %w", ErrUnsplittable, err)
		}
	}
	if len(out.Shape) == 0 || out.Shape[0] != int64(total) {
		return fmt.Errorf("%w: output %q has shape %v for %d rows", ErrUnsplittable, out.Name, out.Shape, total)
	}
	perRow, ok := triton.Elements(out.Shape[1:])
	if _, fits := triton.Elements(out.Shape); !fits {
		ok = false // rows times perRow overflows
	}
	size := triton.SizeOf(out.Datatype)
	have := int64(out.Data.Len())
	if !ok || size < 0 || (size > 0 && perRow > 0 && (have/int64(size)/perRow != int64(total) || have != int64(total)*perRow*int64(size))) || (perRow == 0 && have != 0) {
		return fmt.Errorf("%w: output %q of datatype %s and shape %v has %d bytes", ErrUnsplittable, out.Name, out.Datatype, out.Shape, have)
	}
	c := newCursor(out.Data)
	for i, r := range reqs {
		rows := int64(r.Rows())
		bytes := rows * perRow * int64(size)
		if size == 0 {
			ahead := c
			if bytes, ok = ahead.skipElements(rows * perRow); !ok {
				return fmt.Errorf("%w: output %q of datatype BYTES ends inside an element", ErrUnsplittable, out.Name)
			}
		}
		name := out.Name
		if members != nil {
			name = members[i].outputOf(name)
		}
		if members != nil && name == "" || !wants(r, name) {
			c.skip(int(bytes))
			continue
		}
		room := &rooms[i]
		k := len(room.Outputs)
		room.Outputs = append(room.Outputs, Tensor{Name: name, Datatype: out.Datatype, Parameters: out.Parameters})
		t := &room.Outputs[k]
		if k < len(room.buffers) {
			t.Data, t.Shape = room.buffers[k][:0:2], room.dims[k][:0:4]
		} else {
			t.Data = mem.BufferSlice{}
		}
		t.Shape = append(append(t.Shape, rows), out.Shape[1:]...)
		t.Data = c.view(t.Data, int(bytes))
	}
	if c.left != 0 {
		return fmt.Errorf("%w: output %q has %d bytes too many", ErrUnsplittable, out.Name, c.left)
	}
	return nil
}

func wants(r *Request, output string) bool {
	if len(r.Outputs) == 0 {
		return true
	}
	for i := range r.Outputs {
		if r.Outputs[i].Name == output {
			return true
		}
	}
	return false
}

// skipElements moves past n elements of a BYTES tensor and returns their size.
func (c *cursor) skipElements(n int64) (size int64, ok bool) {
	for ; n > 0; n-- {
		var head [4]byte
		if c.left < len(head) {
			return 0, false
		}
		c.peek(head[:])
		c.skip(len(head))
		length := binary.LittleEndian.Uint32(head[:])
		if int64(length) > int64(c.left) {
			return 0, false
		}
		c.skip(int(length))
		size += int64(len(head)) + int64(length)
	}
	return size, true
}

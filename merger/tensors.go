// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/conch-serving/conch/internal/onnx"
)

// owners is a source of tensors that come from several members.
type owners map[*onnx.Tensor]*onnx.Model

// Reader reads the tensor from the model that it belongs to.
func (o owners) Reader(t *onnx.Tensor) (io.Reader, error) {
	if m := o[t]; m != nil {
		return m.Reader(t)
	}
	return nil, fmt.Errorf("tensor %q belongs to no member", t.Name)
}

// Strings reads the tensor from the model that it belongs to.
func (o owners) Strings(t *onnx.Tensor) ([][]byte, error) {
	if m := o[t]; m != nil {
		return m.Strings(t)
	}
	return nil, fmt.Errorf("tensor %q belongs to no member", t.Name)
}

// derived is a source of tensors: those of members, and those that are computed from them when they are written.
type derived struct {
	owners owners
	made   map[*onnx.Tensor]func() ([]byte, error)
}

// Reader computes or reads the tensor.
func (d *derived) Reader(t *onnx.Tensor) (io.Reader, error) {
	if made := d.made[t]; made != nil {
		b, err := made()
		return bytes.NewReader(b), err
	}
	return d.owners.Reader(t)
}

// Strings reads the tensor from its member.
func (d *derived) Strings(t *onnx.Tensor) ([][]byte, error) { return d.owners.Strings(t) }

// matrix is a tensor's elements as a matrix, to pick from.
type matrix struct {
	rows, columns, width int
	data                 []byte
}

// pickRows is the matrix of these rows, in this order.
func (m matrix) pickRows(rows []int) matrix {
	out := matrix{rows: len(rows), columns: m.columns, width: m.width}
	line := m.columns * m.width
	for _, r := range rows {
		out.data = append(out.data, m.data[r*line:(r+1)*line]...)
	}
	return out
}

// pickColumns is the matrix of these columns, in this order.
func (m matrix) pickColumns(columns []int) matrix {
	out := matrix{rows: m.rows, columns: len(columns), width: m.width, data: make([]byte, 0, m.rows*len(columns)*m.width)}
	for r := range m.rows {
		for _, c := range columns {
			at := (r*m.columns + c) * m.width
			out.data = append(out.data, m.data[at:at+m.width]...)
		}
	}
	return out
}

// where is the matrix with zeros in all places that keep excludes.
func (m matrix) where(keep func(row, column int) bool) matrix {
	out := matrix{rows: m.rows, columns: m.columns, width: m.width, data: make([]byte, len(m.data))}
	for r := range m.rows {
		for c := range m.columns {
			if keep(r, c) {
				at := (r*m.columns + c) * m.width
				copy(out.data[at:at+m.width], m.data[at:at+m.width])
			}
		}
	}
	return out
}

// span is the numbers from a up to b.
func span(a, b int) []int {
	out := make([]int, 0, max(b-a, 0))
	for i := a; i < b; i++ {
		out = append(out, i)
	}
	return out
}

// others are the numbers up to n that are not in the sorted list.
func others(list []int, n int) []int {
	var out []int
	next := 0
	for i := range n {
		if next < len(list) && list[next] == i {
			next++
			continue
		}
		out = append(out, i)
	}
	return out
}

// int64Bytes are the elements of an int64 tensor.
func int64Bytes(values ...int64) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, uint64(v)) //nolint:gosec // two's complement
	}
	return b
}

// weights reads one member's weights of a linear operator.
func (f *fusion) weights(l *linear, side int) (matrix, error) {
	m := f.graphs[side].model
	t := m.Graph.Initializer(l.weights[side])
	data, err := m.Data(t)
	if err != nil {
		return matrix{}, fmt.Errorf("%s: %w", f.graphs[side].Name, err)
	}
	return matrix{rows: l.rows, columns: l.columns, width: l.width, data: data}, nil
}

// channelsOf picks output channels.
func (l *linear) channelsOf(m matrix, channels []int) matrix {
	if l.channelRows {
		return m.pickRows(channels)
	}
	return m.pickColumns(channels)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package graphs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"math/rand/v2"

	"github.com/conch-serving/conch/internal/onnx"
)

const opset, irVersion = 17, 8

// Weights are the seeds of a model's weights: weights of Base are equal in all models with the same Base, weights of Own are the model's.
type Weights struct {
	Base, Own uint64
	// Shared is the part of a tensor that comes from the base. nil: all of every tensor.
	Shared func(tensor string) Region
}

// Region is a part of a weight matrix, in fractions from 0 to 1.
type Region struct {
	// From and To bound the output channels.
	From, To float64
	// Inputs bounds the inputs that a channel adds up, from the first on; 0 stands for all of them.
	Inputs float64
}

// Everything is a whole tensor.
func Everything() Region { return Region{To: 1} }

// bounds are the rows and columns of the region in a matrix whose channels are its columns, or its rows.
func (r Region) bounds(rows, columns int, channelColumns bool) (r0, r1, c0, c1 int) {
	part := func(f float64, n int) int { return int(f*float64(n) + .5) }
	if r.Inputs == 0 {
		r.Inputs = 1
	}
	if channelColumns {
		return 0, part(r.Inputs, rows), part(r.From, columns), part(r.To, columns)
	}
	return part(r.From, rows), part(r.To, rows), 0, part(r.Inputs, columns)
}

// Model is a generated model: its graph, and the source of its weights for onnx.Write.
type Model struct {
	*onnx.Model
	weights Weights
	scale   map[string]float32
	// last says that the output channels of a tensor are on its last axis, not on its first.
	last   map[string]bool
	values map[string][]byte
	count  int
}

func start(name string, w Weights) *Model {
	return &Model{
		Model:   &onnx.Model{IR: irVersion, Producer: "conch", Opsets: map[string]int64{"": opset}, Graph: &onnx.Graph{Name: name}},
		weights: w, scale: map[string]float32{}, last: map[string]bool{}, values: map[string][]byte{},
	}
}

// Strings is there for onnx.Source; no generated model has strings.
func (m *Model) Strings(t *onnx.Tensor) ([][]byte, error) {
	return nil, fmt.Errorf("%s is no string", t.Name)
}

// Reader generates the tensor's elements, row by row. Those of half precision are zeros.
func (m *Model) Reader(t *onnx.Tensor) (io.Reader, error) {
	if v, fixed := m.values[t.Name]; fixed {
		return bytes.NewReader(v), nil
	}
	if t.Type == onnx.Float16 {
		return bytes.NewReader(make([]byte, t.Bytes())), nil
	}
	seed := func(s uint64) *rand.Rand {
		h := fnv.New64a()
		_, _ = io.WriteString(h, t.Name) // a hash never fails
		return rand.New(rand.NewPCG(s, h.Sum64()))
	}
	base, own := seed(m.weights.Base), seed(m.weights.Own)
	shared := Everything()
	if m.weights.Shared != nil {
		shared = m.weights.Shared(t.Name)
	}
	rows, columns := 1, int(t.Elements())
	if len(t.Dims) > 1 {
		rows = int(t.Dims[0])
		columns /= rows
	}
	scale := m.scale[t.Name]
	r0, r1, c0, c1 := shared.bounds(rows, columns, m.last[t.Name])
	fill := func(i int, b []byte) {
		for j := range columns {
			source := own
			if i >= r0 && i < r1 && j >= c0 && j < c1 {
				source = base
			}
			binary.LittleEndian.PutUint32(b[4*j:], math.Float32bits((source.Float32()*2-1)*scale))
		}
	}
	return &rowReader{rows: rows, row: fill, whole: make([]byte, 4*columns)}, nil
}

// rowReader reads generated rows.
type rowReader struct {
	rows, at   int
	row        func(i int, b []byte)
	whole, buf []byte // one row, and what of it was not read yet
}

func (r *rowReader) Read(p []byte) (int, error) {
	if len(r.buf) == 0 {
		if r.at == r.rows {
			return 0, io.EOF
		}
		r.row(r.at, r.whole)
		r.at++
		r.buf = r.whole
	}
	n := copy(p, r.buf)
	r.buf = r.buf[n:]
	return n, nil
}

func (m *Model) fresh(kind string) string {
	m.count++
	return fmt.Sprintf("%s_%d", kind, m.count)
}

// weight adds a tensor of random floats within scale of 0. With last, its output channels are on the last axis.
func (m *Model) weight(name string, scale float64, last bool, dims ...int64) string {
	m.Graph.AddInitializer(&onnx.Tensor{Name: name, Type: onnx.Float, Dims: dims})
	m.scale[name], m.last[name] = float32(scale), last
	return name
}

// ints adds a vector of constants.
func (m *Model) ints(values ...int64) string {
	name := m.fresh("shape")
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, uint64(v)) //nolint:gosec // two's complement
	}
	m.Graph.AddInitializer(&onnx.Tensor{Name: name, Type: onnx.Int64, Dims: []int64{int64(len(values))}})
	m.values[name] = b
	return name
}

// float adds a scalar constant.
func (m *Model) float(v float32) string {
	name := m.fresh("scalar")
	m.Graph.AddInitializer(&onnx.Tensor{Name: name, Type: onnx.Float, Dims: []int64{}})
	m.values[name] = binary.LittleEndian.AppendUint32(nil, math.Float32bits(v))
	return name
}

// constant adds a vector of equal floats, the same in every model.
func (m *Model) constant(name string, v float32, n int64) string {
	m.Graph.AddInitializer(&onnx.Tensor{Name: name, Type: onnx.Float, Dims: []int64{n}})
	for range n {
		m.values[name] = binary.LittleEndian.AppendUint32(m.values[name], math.Float32bits(v))
	}
	return name
}

func (m *Model) add(op string, inputs []string, attributes ...*onnx.Attribute) string {
	out := m.fresh(op)
	m.Graph.Nodes = append(m.Graph.Nodes, &onnx.Node{Name: out, Op: op, Inputs: inputs, Outputs: []string{out}, Attributes: attributes})
	return out
}

func integer(name string, v int64) *onnx.Attribute {
	return &onnx.Attribute{Name: name, Kind: onnx.KindInt, Int: v}
}

func list(name string, v ...int64) *onnx.Attribute {
	return &onnx.Attribute{Name: name, Kind: onnx.KindInts, Ints: v}
}

func (m *Model) input(name string, kind onnx.DataType, dims ...int64) string {
	m.Graph.Inputs = append(m.Graph.Inputs, declared(name, kind, dims))
	return name
}

// output renames the result.
func (m *Model) output(name, value string, dims ...int64) {
	m.Graph.Nodes = append(m.Graph.Nodes, &onnx.Node{Name: "result", Op: "Identity", Inputs: []string{value}, Outputs: []string{name}})
	m.Graph.Outputs = append(m.Graph.Outputs, declared(name, onnx.Float, dims))
}

func declared(name string, kind onnx.DataType, dims []int64) *onnx.Value {
	t := onnx.Type{Kind: onnx.TensorKind, Elem: kind, HasShape: true, Dims: []onnx.Dim{{Size: -1, Name: "N"}}}
	for _, d := range dims {
		t.Dims = append(t.Dims, onnx.Dim{Size: d})
	}
	return &onnx.Value{Name: name, Type: t}
}

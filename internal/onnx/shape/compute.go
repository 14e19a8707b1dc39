// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/conch-serving/conch/internal/onnx"
)

// matmul is the rule of numpy's product of the first input and input b; t is the output's type, or that of the first input.
func matmul(b int, t onnx.DataType) rule {
	return func(c *call) ([]*Tensor, error) {
		x, err := c.need(0)
		if err != nil {
			return nil, err
		}
		y, err := c.need(b)
		if err != nil {
			return nil, err
		}
		dims, err := productShape(x.Dims, y.Dims)
		if err != nil {
			return nil, err
		}
		if t == onnx.Undefined {
			return tensor(x.Type, dims), nil
		}
		return tensor(t, dims), nil
	}
}

func productShape(x, y []int64) ([]int64, error) {
	if len(x) == 0 || len(y) == 0 {
		return nil, fmt.Errorf("product of %v and %v: a scalar has no rows", x, y)
	}
	row, column := len(x) == 1, len(y) == 1
	if row {
		x = []int64{1, x[0]}
	}
	if column {
		y = []int64{y[0], 1}
	}
	if x[len(x)-1] != y[len(y)-2] {
		return nil, fmt.Errorf("product of %v and %v: %d columns meet %d rows", x, y, x[len(x)-1], y[len(y)-2])
	}
	dims, err := broadcast(x[:len(x)-2], y[:len(y)-2])
	if err != nil {
		return nil, err
	}
	if !row {
		dims = append(dims, x[len(x)-2])
	}
	if !column {
		dims = append(dims, y[len(y)-1])
	}
	return dims, nil
}

func fusedMatMul(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	y, err := c.need(1)
	if err != nil {
		return nil, err
	}
	dims, err := productShape(flip(x.Dims, c.node.Int("transA", 0)), flip(y.Dims, c.node.Int("transB", 0)))
	return tensor(x.Type, dims), err
}

func flip(dims []int64, yes int64) []int64 {
	if yes == 0 || len(dims) < 2 {
		return dims
	}
	out := slices.Clone(dims)
	n := len(out)
	out[n-1], out[n-2] = out[n-2], out[n-1]
	return out
}

func matmulBits(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	if len(x.Dims) == 0 {
		return nil, errors.New("a scalar has no rows")
	}
	return tensor(x.Type, append(slices.Clone(x.Dims[:len(x.Dims)-1]), c.node.Int("N", 1))), nil
}

func gemm(a, b int) rule {
	return func(c *call) ([]*Tensor, error) {
		x, err := c.need(a)
		if err != nil {
			return nil, err
		}
		y, err := c.need(b)
		if err != nil {
			return nil, err
		}
		if len(x.Dims) != 2 || len(y.Dims) != 2 {
			return nil, fmt.Errorf("product of %v and %v: Gemm is of two matrices", x.Dims, y.Dims)
		}
		dims, err := productShape(flip(x.Dims, c.node.Int("transA", 0)), flip(y.Dims, c.node.Int("transB", 0)))
		return tensor(x.Type, dims), err
	}
}

// Window is how a convolution or pooling slides: one value per spatial dimension.
type Window struct {
	Kernel, Strides, Dilations []int64
	Begin, End                 []int64
	Group                      int64
	same                       string
}

// Windowed reads the sliding window of a Conv, ConvTranspose or pooling; kernel is the weight's spatial shape where there is one.
func Windowed(n *onnx.Node, spatial int, kernel []int64) (Window, error) {
	w := Window{Kernel: n.Ints("kernel_shape"), Strides: n.Ints("strides"), Dilations: n.Ints("dilations"), Group: n.Int("group", 1), same: n.Text("auto_pad", "NOTSET")}
	if w.Kernel == nil {
		w.Kernel = kernel
	}
	if w.Strides == nil {
		w.Strides = repeated(1, spatial)
	}
	if w.Dilations == nil {
		w.Dilations = repeated(1, spatial)
	}
	pads := n.Ints("pads")
	if pads == nil {
		pads = repeated(0, 2*spatial)
	}
	if len(w.Kernel) != spatial || len(w.Strides) != spatial || len(w.Dilations) != spatial || len(pads) != 2*spatial {
		return w, fmt.Errorf("kernel %v, strides %v, dilations %v, pads %v do not fit %d spatial dimensions", w.Kernel, w.Strides, w.Dilations, pads, spatial)
	}
	w.Begin, w.End = pads[:spatial], pads[spatial:]
	for i := range spatial {
		if w.Strides[i] < 1 || w.Dilations[i] < 1 || w.Kernel[i] < 1 || w.Begin[i] < -1<<30 || w.End[i] < -1<<30 || max(w.Begin[i], w.End[i], w.Kernel[i], w.Dilations[i], w.Strides[i]) > 1<<30 {
			return w, fmt.Errorf("kernel %v, strides %v, dilations %v, pads %v are out of range", w.Kernel, w.Strides, w.Dilations, pads)
		}
	}
	if w.Group < 1 {
		return w, fmt.Errorf("group is %d", w.Group)
	}
	return w, nil
}

func repeated(v int64, n int) []int64 {
	out := make([]int64, n)
	for i := range out {
		out[i] = v
	}
	return out
}

// slide is the output size along dimension i of an input of that size.
func (w *Window) slide(size int64, i int, up bool) (int64, error) {
	if strings.HasPrefix(w.same, "SAME") {
		return (size + w.Strides[i] - 1) / w.Strides[i], nil
	}
	room := size + w.Begin[i] + w.End[i] - w.Dilations[i]*(w.Kernel[i]-1) - 1
	if w.same == "VALID" {
		room = size - w.Dilations[i]*(w.Kernel[i]-1) - 1
	}
	if room < 0 {
		return 0, fmt.Errorf("a window of %d does not fit into %d", w.Dilations[i]*(w.Kernel[i]-1)+1, size+w.Begin[i]+w.End[i])
	}
	if up {
		return (room+w.Strides[i]-1)/w.Strides[i] + 1, nil
	}
	return room/w.Strides[i] + 1, nil
}

func convolution(b int, t onnx.DataType) rule {
	return func(c *call) ([]*Tensor, error) {
		x, err := c.need(0)
		if err != nil {
			return nil, err
		}
		weight, err := c.need(b)
		if err != nil {
			return nil, err
		}
		if len(x.Dims) < 3 || len(weight.Dims) != len(x.Dims) {
			return nil, fmt.Errorf("convolution of %v with weights %v", x.Dims, weight.Dims)
		}
		w, err := Windowed(c.node.Node, len(x.Dims)-2, weight.Dims[2:])
		if err != nil {
			return nil, err
		}
		if x.Dims[1] != weight.Dims[1]*w.Group {
			return nil, fmt.Errorf("convolution of %v with weights %v in %d groups: the channels do not agree", x.Dims, weight.Dims, w.Group)
		}
		dims := []int64{x.Dims[0], weight.Dims[0]}
		for i, size := range x.Dims[2:] {
			d, err := w.slide(size, i, false)
			if err != nil {
				return nil, err
			}
			dims = append(dims, d)
		}
		if t == onnx.Undefined {
			return tensor(x.Type, dims), nil
		}
		return tensor(t, dims), nil
	}
}

func transposed(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	weight, err := c.need(1)
	if err != nil {
		return nil, err
	}
	if len(x.Dims) < 3 || len(weight.Dims) != len(x.Dims) {
		return nil, fmt.Errorf("convolution of %v with weights %v", x.Dims, weight.Dims)
	}
	spatial := len(x.Dims) - 2
	w, err := Windowed(c.node.Node, spatial, weight.Dims[2:])
	if err != nil {
		return nil, err
	}
	more := c.node.Ints("output_padding")
	if more == nil {
		more = repeated(0, spatial)
	}
	shape := c.node.Ints("output_shape")
	dims := []int64{x.Dims[0], weight.Dims[1] * w.Group}
	for i, size := range x.Dims[2:] {
		switch {
		case len(shape) == spatial:
			dims = append(dims, shape[i])
		case strings.HasPrefix(w.same, "SAME"):
			dims = append(dims, size*w.Strides[i])
		case len(more) == spatial:
			dims = append(dims, w.Strides[i]*(size-1)+more[i]+w.Dilations[i]*(w.Kernel[i]-1)+1-w.Begin[i]-w.End[i])
		default:
			return nil, fmt.Errorf("output_padding %v does not fit %d spatial dimensions", more, spatial)
		}
	}
	return tensor(x.Type, dims), nil
}

func pool(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	if len(x.Dims) < 3 {
		return nil, fmt.Errorf("pooling of %v", x.Dims)
	}
	w, err := Windowed(c.node.Node, len(x.Dims)-2, nil)
	if err != nil {
		return nil, err
	}
	dims := slices.Clone(x.Dims[:2])
	for i, size := range x.Dims[2:] {
		d, err := w.slide(size, i, c.node.Int("ceil_mode", 0) == 1)
		if err != nil {
			return nil, err
		}
		dims = append(dims, d)
	}
	return []*Tensor{{Type: x.Type, Dims: dims}, {Type: onnx.Int64, Dims: dims}}, nil
}

func globalPool(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	dims := slices.Clone(x.Dims)
	for i := 2; i < len(dims); i++ {
		dims[i] = 1
	}
	return tensor(x.Type, dims), nil
}

func einsum(c *call) ([]*Tensor, error) {
	left, right, explicit := strings.Cut(strings.ReplaceAll(c.node.Text("equation", ""), " ", ""), "->")
	terms := strings.Split(left, ",")
	if !explicit || strings.Contains(left, ".") || len(terms) != len(c.in) {
		return nil, errUnknown
	}
	size := map[rune]int64{}
	for i, term := range terms {
		x, err := c.need(i)
		if err != nil {
			return nil, err
		}
		if len(term) != len(x.Dims) {
			return nil, fmt.Errorf("term %q is not of %v", term, x.Dims)
		}
		for j, letter := range term {
			size[letter] = max(size[letter], x.Dims[j])
		}
	}
	var dims []int64
	for _, letter := range right {
		dims = append(dims, size[letter])
	}
	return tensor(c.in[0].Type, dims), nil
}

func recurrent(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	r, err := c.need(2)
	if err != nil {
		return nil, err
	}
	if len(x.Dims) != 3 || len(r.Dims) != 3 {
		return nil, fmt.Errorf("%s of %v with recurrence weights %v", c.node.Op, x.Dims, r.Dims)
	}
	directions, hidden := r.Dims[0], r.Dims[2]
	length, batch := x.Dims[0], x.Dims[1]
	if c.node.Int("layout", 0) == 1 {
		length, batch = batch, length
	}
	last := &Tensor{Type: x.Type, Dims: []int64{directions, batch, hidden}}
	state := *last
	return []*Tensor{{Type: x.Type, Dims: []int64{length, directions, batch, hidden}}, last, &state}, nil
}

// attention is that of com.microsoft: one matrix of weights for queries, keys and values.
func attention(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	weight, err := c.need(1)
	if err != nil {
		return nil, err
	}
	if len(weight.Dims) != 2 || len(x.Dims) != 3 || c.node.Domain == "" {
		return firstShape(c)
	}
	return tensor(x.Type, []int64{x.Dims[0], x.Dims[1], weight.Dims[1] / 3}), nil
}

// firstShape is the rule of attention over queries that were projected before: like the queries, unless these have the keys and values beside them.
func firstShape(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	switch heads := c.node.Int("num_heads", 1); {
	case len(x.Dims) == 5:
		return tensor(x.Type, []int64{x.Dims[0], x.Dims[1], x.Dims[2] * x.Dims[4]}), nil
	case c.node.Op == "GroupQueryAttention" && c.at(1) == nil && len(x.Dims) == 3:
		return tensor(x.Type, []int64{x.Dims[0], x.Dims[1], x.Dims[2] * heads / max(1, heads+2*c.node.Int("kv_num_heads", heads))}), nil
	}
	return same(c)
}

func embed(c *call) ([]*Tensor, error) {
	ids, err := c.need(0)
	if err != nil {
		return nil, err
	}
	words, err := c.need(2)
	if err != nil {
		return nil, err
	}
	dims := append(slices.Clone(ids.Dims), words.dim(-1))
	return []*Tensor{{Type: words.Type, Dims: dims}, {Type: onnx.Int32, Dims: ids.Dims[:min(1, len(ids.Dims))]}}, nil
}

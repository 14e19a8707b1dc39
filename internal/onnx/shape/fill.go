// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"fmt"
	"math"
	"slices"

	"github.com/conch-serving/conch/internal/onnx"
)

// This file has the operators whose values come from shapes, attributes and few numbers; where these are known, so are their values.

func shapeOf(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	from, to := bound(c.node.Int("start", 0), int64(len(x.Dims))), bound(c.node.Int("end", math.MaxInt64), int64(len(x.Dims)))
	from, to = min(max(from, 0), int64(len(x.Dims))), min(max(to, 0), int64(len(x.Dims)))
	part := []int64{}
	if to > from {
		part = x.Dims[from:to]
	}
	out := &Tensor{Type: onnx.Int64, Dims: []int64{int64(len(part))}, Ints: part}
	if x.Unknown {
		out.Ints = nil
	}
	return []*Tensor{out}, nil
}

func sizeOf(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	return []*Tensor{{Type: onnx.Int64, Dims: []int64{}, Ints: []int64{product(x.Dims)}}}, nil
}

func constant(c *call) ([]*Tensor, error) {
	for _, a := range c.node.Attributes {
		switch a.Name {
		case "value":
			if a.Tensor == nil {
				return nil, errUnknown
			}
			copied := *c.g.constant(a.Tensor)
			return []*Tensor{&copied}, nil
		case "value_int":
			return []*Tensor{{Type: onnx.Int64, Dims: []int64{}, Ints: []int64{a.Int}}}, nil
		case "value_ints":
			return []*Tensor{{Type: onnx.Int64, Dims: []int64{int64(len(a.Ints))}, Ints: a.Ints}}, nil
		case "value_float":
			return []*Tensor{{Type: onnx.Float, Dims: []int64{}, Floats: []float64{float64(a.Float)}}}, nil
		case "value_floats":
			return tensor(onnx.Float, []int64{int64(len(a.Floats))}), nil
		case "value_string":
			return tensor(onnx.String, []int64{}), nil
		case "value_strings":
			return tensor(onnx.String, []int64{int64(len(a.Strings))}), nil
		}
	}
	return nil, errUnknown
}

func constantOfShape(c *call) ([]*Tensor, error) {
	want, ok := c.ints(0, "")
	if !ok {
		return nil, errUnknown
	}
	out := &Tensor{Type: onnx.Float, Dims: slices.Clone(want)}
	value := int64(0)
	if a := c.node.Attribute("value"); a != nil && a.Tensor != nil {
		v := c.g.constant(a.Tensor)
		out.Type = v.Type
		if len(v.Ints) == 1 {
			value = v.Ints[0]
		}
	}
	if err := check(out.Dims); err == nil && out.Type == onnx.Int64 && product(out.Dims) <= mostKnown {
		out.Ints = repeated(value, int(product(out.Dims)))
	}
	return []*Tensor{out}, nil
}

func rangeOf(c *call) ([]*Tensor, error) {
	var v [3]float64
	for i := range v {
		t, err := c.need(i)
		if err != nil {
			return nil, err
		}
		switch {
		case len(t.Ints) == 1:
			v[i] = float64(t.Ints[0])
		case len(t.Floats) == 1:
			v[i] = t.Floats[0]
		default:
			return nil, errUnknown
		}
	}
	n := math.Ceil((v[1] - v[0]) / v[2])
	if math.IsNaN(n) || n > mostElements {
		return nil, fmt.Errorf("range from %g to %g by %g", v[0], v[1], v[2])
	}
	out := &Tensor{Type: c.in[0].Type, Dims: []int64{int64(max(n, 0))}}
	if out.Dims[0] <= mostKnown && c.in[0].Ints != nil {
		out.Ints = []int64{}
		for i := range out.Dims[0] {
			out.Ints = append(out.Ints, int64(v[0])+i*int64(v[2]))
		}
	}
	return []*Tensor{out}, nil
}

func oneHot(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	depth, ok := c.ints(1, "")
	values, err := c.need(2)
	if err != nil {
		return nil, err
	}
	a, in := axis(c.node.Int("axis", -1), len(x.Dims)+1)
	if !ok || len(depth) != 1 || !in {
		return nil, errUnknown
	}
	return tensor(values.Type, slices.Insert(slices.Clone(x.Dims), a, depth[0])), nil
}

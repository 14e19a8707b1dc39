// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"fmt"
	"math"
	"slices"

	"github.com/conch-serving/conch/internal/onnx"
)

// This file has the operators that reduce axes.

func arg(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	dims, err := reduced(x.Dims, []int64{c.node.Int("axis", 0)}, c.node.Int("keepdims", 1) == 1)
	return tensor(onnx.Int64, dims), err
}

func reduce(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	axes, ok := c.ints(1, "axes")
	if !ok {
		if c.at(1) != nil {
			return nil, errUnknown
		}
		if c.node.Int("noop_with_empty_axes", 0) == 1 {
			return same(c)
		}
		for i := range x.Dims {
			axes = append(axes, int64(i))
		}
	}
	dims, err := reduced(x.Dims, axes, c.node.Int("keepdims", 1) == 1)
	if err != nil {
		return nil, err
	}
	out := &Tensor{Type: x.Type, Dims: dims}
	if x.Ints != nil && product(dims) == 1 {
		v := int64(0)
		switch c.node.Op {
		case "ReduceProd":
			v = product(x.Ints)
		case "ReduceSum":
			for _, i := range x.Ints {
				v += i
			}
		case "ReduceMax":
			v = slices.Max(append([]int64{math.MinInt64}, x.Ints...))
		case "ReduceMin":
			v = slices.Min(append([]int64{math.MaxInt64}, x.Ints...))
		default:
			return []*Tensor{out}, nil
		}
		out.Ints = []int64{v}
	}
	return []*Tensor{out}, nil
}

func reduced(dims, axes []int64, keep bool) ([]int64, error) {
	gone := map[int]bool{}
	for _, a := range axes {
		i, ok := axis(a, len(dims))
		if !ok {
			return nil, fmt.Errorf("reduction of %v over %v", dims, axes)
		}
		gone[i] = true
	}
	out := []int64{}
	for i, d := range dims {
		switch {
		case !gone[i]:
			out = append(out, d)
		case keep:
			out = append(out, 1)
		}
	}
	return out, nil
}

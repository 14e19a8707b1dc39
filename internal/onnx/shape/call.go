// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"errors"
	"fmt"
	"slices"

	"github.com/conch-serving/conch/internal/onnx"
)

// call is one operator being inferred.
type call struct {
	*run
	node *node
	in   []*Tensor
}

// rule gives the outputs of an operator. It may leave later ones out.
type rule func(c *call) ([]*Tensor, error)

// errUnknown is a rule's way to say that the shape depends on contents that are not known.
var errUnknown = errors.New("shape depends on contents that are not known before it runs")

func (c *call) at(i int) *Tensor {
	if i < len(c.in) {
		return c.in[i]
	}
	return nil
}

// need is input i, which must be there.
func (c *call) need(i int) (*Tensor, error) {
	if t := c.at(i); t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("input %d is missing", i)
}

// ints is the known contents of input i, or the attribute of that name that older versions of the operator have instead.
func (c *call) ints(i int, attribute string) ([]int64, bool) {
	if t := c.at(i); t != nil {
		return t.Ints, t.Ints != nil
	}
	if attribute != "" {
		if v := c.node.Ints(attribute); v != nil {
			return v, true
		}
	}
	return nil, false
}

func tensor(t onnx.DataType, dims []int64) []*Tensor {
	if dims == nil {
		dims = []int64{}
	}
	return []*Tensor{{Type: t, Dims: dims}}
}

// outputs applies the rule; where there is none, or contents are missing, it guesses and warns.
func (c *call) outputs(unknown bool) ([]*Tensor, error) {
	guess := func() []*Tensor {
		for _, t := range c.in {
			if t != nil && !t.Unknown && !t.Weight {
				if w := c.at(1); (c.node.Op == "MatMul" || c.node.Op == "Gemm") && w != nil && w.Weight && len(w.Dims) == 2 && len(t.Dims) > 0 {
					return []*Tensor{{Type: t.Type, Dims: append(slices.Clone(t.Dims[:len(t.Dims)-1]), w.Dims[1])}}
				}
				return []*Tensor{{Type: t.Type, Dims: t.Dims, Unknown: false}}
			}
		}
		return []*Tensor{{Unknown: true, Dims: []int64{}}}
	}
	name := c.node.Op
	if c.node.Domain != "" {
		name = c.node.Domain + "." + name
	}
	if c.node.rule == nil {
		c.warn("operator %s is not known: it is taken for one that reads its inputs once and writes as much as its first", name)
		return guess(), nil
	}
	if unknown {
		out, err := c.node.rule(c)
		if err != nil {
			return guess(), nil //nolint:nilerr // what the rule cannot know is guessed
		}
		return out, nil
	}
	out, err := c.node.rule(c)
	if errors.Is(err, errUnknown) {
		c.warn("%s: the output's shape depends on contents; it is taken to be its first input's", name)
		return guess(), nil
	}
	return out, err
}

// same is the rule of operators whose output is like their first input.
func same(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	return tensor(x.Type, x.Dims), nil
}

// typed is same with an element type of its own.
func typed(t onnx.DataType) rule {
	return func(c *call) ([]*Tensor, error) {
		x, err := c.need(0)
		if err != nil {
			return nil, err
		}
		return tensor(t, x.Dims), nil
	}
}

// kept is same for operators that may act on shapes: contents stay.
func kept(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	return []*Tensor{{Type: x.Type, Dims: x.Dims, Ints: x.Ints, Floats: x.Floats}}, nil
}

// elementwise is the rule of operators that broadcast, with contents where both are known.
func elementwise(f func(a, b int64) int64, g func(a, b float64) float64, t onnx.DataType) rule {
	return func(c *call) ([]*Tensor, error) {
		x, err := c.need(0)
		if err != nil {
			return nil, err
		}
		shapes := [][]int64{x.Dims}
		for i := 1; i < len(c.in); i++ {
			if c.in[i] != nil {
				shapes = append(shapes, c.in[i].Dims)
			}
		}
		dims, err := broadcast(shapes...)
		if err != nil {
			return nil, err
		}
		out := &Tensor{Type: x.Type, Dims: dims}
		if t != onnx.Undefined {
			out.Type = t
		}
		if y := c.at(1); y != nil && len(c.in) == 2 {
			if n := product(dims); n <= mostKnown {
				if f != nil && x.Ints != nil && y.Ints != nil && aligned(x, y, n) {
					out.Ints = make([]int64, n)
					for i := range out.Ints {
						out.Ints[i] = f(x.Ints[i%len(x.Ints)], y.Ints[i%len(y.Ints)])
					}
				}
				if g != nil && x.Floats != nil && y.Floats != nil && aligned(x, y, n) {
					out.Floats = make([]float64, n)
					for i := range out.Floats {
						out.Floats[i] = g(x.Floats[i%len(x.Floats)], y.Floats[i%len(y.Floats)])
					}
				}
			}
		}
		return []*Tensor{out}, nil
	}
}

// aligned says whether contents can be combined one by one: equal counts, or one of them single.
func aligned(x, y *Tensor, n int64) bool {
	a, b := int64(max(len(x.Ints), len(x.Floats))), int64(max(len(y.Ints), len(y.Floats)))
	return (a == n || a == 1) && (b == n || b == 1)
}

func unary(g func(float64) float64) rule {
	return func(c *call) ([]*Tensor, error) {
		out, err := same(c)
		if err != nil {
			return nil, err
		}
		if x := c.in[0]; x.Floats != nil {
			out[0].Floats = make([]float64, len(x.Floats))
			for i, v := range x.Floats {
				out[0].Floats[i] = g(v)
			}
		}
		return out, nil
	}
}

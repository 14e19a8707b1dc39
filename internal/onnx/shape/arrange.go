// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"errors"
	"fmt"
	"slices"
)

// This file has the operators that keep the elements of their inputs, in another shape, order or number.

func reshape(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	want, ok := c.ints(1, "shape")
	if !ok {
		return nil, errUnknown
	}
	dims := slices.Clone(want)
	rest, known := -1, int64(1)
	for i, d := range dims {
		switch {
		case d == 0 && c.node.Int("allowzero", 0) == 0:
			dims[i] = x.dim(i)
		case d == -1 && rest < 0:
			rest = i
			continue
		case d < 0:
			return nil, fmt.Errorf("reshape of %v to %v", x.Dims, want)
		}
		known *= dims[i]
		if known < 0 || known > mostElements {
			return nil, fmt.Errorf("reshape of %v to %v", x.Dims, want)
		}
	}
	total := product(x.Dims)
	if rest >= 0 {
		if known == 0 || total%known != 0 {
			return nil, fmt.Errorf("reshape of %v to %v: %d elements do not divide by %d", x.Dims, want, total, known)
		}
		dims[rest] = total / known
	} else if known != total && !x.Unknown {
		return nil, fmt.Errorf("reshape of %v to %v: %d elements cannot become %d", x.Dims, want, total, known)
	}
	return []*Tensor{{Type: x.Type, Dims: dims, Ints: x.Ints, Floats: x.Floats}}, nil
}

func flatten(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	a := c.node.Int("axis", 1)
	if a < 0 {
		a += int64(len(x.Dims))
	}
	if a < 0 || a > int64(len(x.Dims)) {
		return nil, fmt.Errorf("flatten of %v at %d", x.Dims, a)
	}
	return tensor(x.Type, []int64{product(x.Dims[:a]), product(x.Dims[a:])}), nil
}

func transpose(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	perm := c.node.Ints("perm")
	dims := make([]int64, len(x.Dims))
	if perm == nil {
		for i, d := range x.Dims {
			dims[len(dims)-1-i] = d
		}
		return tensor(x.Type, dims), nil
	}
	if len(perm) != len(dims) {
		return nil, fmt.Errorf("transpose of %v by %v", x.Dims, perm)
	}
	for i, p := range perm {
		if p < 0 || int(p) >= len(dims) {
			return nil, fmt.Errorf("transpose of %v by %v", x.Dims, perm)
		}
		dims[i] = x.Dims[p]
	}
	return tensor(x.Type, dims), nil
}

func squeeze(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	axes, some := c.ints(1, "axes")
	if !some && c.at(1) != nil {
		return nil, errUnknown
	}
	drop := map[int]bool{}
	for _, a := range axes {
		i, ok := axis(a, len(x.Dims))
		if !ok {
			return nil, fmt.Errorf("squeeze of %v at %v", x.Dims, axes)
		}
		drop[i] = true
	}
	dims := []int64{}
	for i, d := range x.Dims {
		if drop[i] || !some && d == 1 {
			continue
		}
		dims = append(dims, d)
	}
	return []*Tensor{{Type: x.Type, Dims: dims, Ints: x.Ints, Floats: x.Floats}}, nil
}

func unsqueeze(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	axes, ok := c.ints(1, "axes")
	if !ok {
		return nil, errUnknown
	}
	rank := len(x.Dims) + len(axes)
	if rank > mostRank {
		return nil, fmt.Errorf("unsqueeze of %v at %d axes", x.Dims, len(axes))
	}
	dims := repeated(-1, rank)
	for _, a := range axes {
		i, ok := axis(a, rank)
		if !ok || dims[i] == 1 {
			return nil, fmt.Errorf("unsqueeze of %v at %v", x.Dims, axes)
		}
		dims[i] = 1
	}
	next := 0
	for i := range dims {
		if dims[i] < 0 {
			dims[i] = x.Dims[next]
			next++
		}
	}
	return []*Tensor{{Type: x.Type, Dims: dims, Ints: x.Ints, Floats: x.Floats}}, nil
}

func concat(c *call) ([]*Tensor, error) { return joined(c, c.in) }

func qlinearConcat(c *call) ([]*Tensor, error) {
	var in []*Tensor
	for i := 2; i < len(c.in); i += 3 {
		in = append(in, c.in[i])
	}
	return joined(c, in)
}

func joined(c *call, in []*Tensor) ([]*Tensor, error) {
	if len(in) == 0 || in[0] == nil {
		return nil, errors.New("nothing to concatenate")
	}
	a, ok := axis(c.node.Int("axis", 0), len(in[0].Dims))
	if !ok {
		return nil, fmt.Errorf("concatenation of %v at %d", in[0].Dims, c.node.Int("axis", 0))
	}
	out := &Tensor{Type: in[0].Type, Dims: slices.Clone(in[0].Dims)}
	out.Dims[a] = 0
	known := len(out.Dims) == 1
	for _, x := range in {
		if x == nil || len(x.Dims) != len(out.Dims) {
			return nil, errors.New("concatenation of tensors of different ranks")
		}
		for i, d := range x.Dims {
			if i != a && d != out.Dims[i] {
				return nil, fmt.Errorf("concatenation of %v and %v at %d", in[0].Dims, x.Dims, a)
			}
		}
		out.Dims[a] += x.Dims[a]
		known = known && x.Ints != nil
	}
	if known && out.Dims[0] <= mostKnown {
		out.Ints = []int64{}
		for _, x := range in {
			out.Ints = append(out.Ints, x.Ints...)
		}
	}
	return []*Tensor{out}, nil
}

func expand(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	want, ok := c.ints(1, "")
	if !ok {
		return nil, errUnknown
	}
	dims, err := broadcast(x.Dims, want)
	if err != nil {
		return nil, err
	}
	out := &Tensor{Type: x.Type, Dims: dims}
	if err := check(dims); err == nil && len(x.Ints) == 1 && product(dims) <= mostKnown {
		out.Ints = repeated(x.Ints[0], int(product(dims)))
	}
	return []*Tensor{out}, nil
}

func tile(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	times, ok := c.ints(1, "")
	if !ok || len(times) != len(x.Dims) {
		return nil, errUnknown
	}
	dims := slices.Clone(x.Dims)
	for i, n := range times {
		if n < 0 || n > 1<<30 || dims[i] > 1<<30 {
			return nil, fmt.Errorf("tile of %v by %v", x.Dims, times)
		}
		dims[i] *= n
	}
	return tensor(x.Type, dims), nil
}

func pad(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	pads, ok := c.ints(1, "pads")
	if !ok {
		return nil, errUnknown
	}
	axes, ok := c.ints(3, "")
	if !ok {
		for i := range x.Dims {
			axes = append(axes, int64(i))
		}
	}
	if len(pads) != 2*len(axes) {
		return nil, fmt.Errorf("pad of %v by %v", x.Dims, pads)
	}
	dims := slices.Clone(x.Dims)
	for i, a := range axes {
		at, ok := axis(a, len(dims))
		if !ok || max(pads[i], pads[len(axes)+i]) > 1<<40 {
			return nil, fmt.Errorf("pad of %v by %v", x.Dims, pads)
		}
		dims[at] += pads[i] + pads[len(axes)+i]
	}
	return tensor(x.Type, dims), nil
}

func depthToSpace(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	b := c.node.Int("blocksize", 1)
	if len(x.Dims) != 4 || b < 1 || b > 1<<15 {
		return nil, fmt.Errorf("%v in blocks of %d", x.Dims, b)
	}
	return tensor(x.Type, []int64{x.Dims[0], x.Dims[1] / (b * b), x.Dims[2] * b, x.Dims[3] * b}), nil
}

func spaceToDepth(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	b := c.node.Int("blocksize", 1)
	if len(x.Dims) != 4 || b < 1 || b > 1<<15 {
		return nil, fmt.Errorf("%v in blocks of %d", x.Dims, b)
	}
	return tensor(x.Type, []int64{x.Dims[0], x.Dims[1] * b * b, x.Dims[2] / b, x.Dims[3] / b}), nil
}

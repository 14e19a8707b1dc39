// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/conch-serving/conch/internal/onnx"
)

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

func split(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	a, ok := axis(c.node.Int("axis", 0), len(x.Dims))
	if !ok {
		return nil, fmt.Errorf("split of %v at %d", x.Dims, c.node.Int("axis", 0))
	}
	n := len(c.node.Outputs)
	sizes, known := c.ints(1, "split")
	if !known {
		if c.at(1) != nil {
			return nil, errUnknown
		}
		part := (x.Dims[a] + int64(n) - 1) / int64(max(n, 1))
		for i := range n {
			sizes = append(sizes, max(0, min(part, x.Dims[a]-part*int64(i))))
		}
	}
	if len(sizes) != n {
		return nil, fmt.Errorf("split of %v into %d parts of %v", x.Dims, n, sizes)
	}
	var out []*Tensor
	at := int64(0)
	for _, size := range sizes {
		t := &Tensor{Type: x.Type, Dims: slices.Clone(x.Dims)}
		t.Dims[a] = size
		if x.Ints != nil && len(x.Dims) == 1 && size >= 0 && at+size <= int64(len(x.Ints)) {
			t.Ints = x.Ints[at : at+size]
		}
		at += size
		out = append(out, t)
	}
	return out, nil
}

func slice(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	starts, ok := c.ints(1, "starts")
	ends, ok2 := c.ints(2, "ends")
	if !ok || !ok2 {
		return nil, errUnknown
	}
	axes, ok := c.ints(3, "axes")
	if !ok {
		if c.at(3) != nil {
			return nil, errUnknown
		}
		for i := range starts {
			axes = append(axes, int64(i))
		}
	}
	steps, ok := c.ints(4, "")
	if !ok {
		if c.at(4) != nil {
			return nil, errUnknown
		}
		steps = repeated(1, len(starts))
	}
	if len(ends) != len(starts) || len(axes) != len(starts) || len(steps) != len(starts) {
		return nil, fmt.Errorf("slice from %v to %v of axes %v by %v", starts, ends, axes, steps)
	}
	out := &Tensor{Type: x.Type, Dims: slices.Clone(x.Dims)}
	ints := x.Ints
	for i, a := range axes {
		at, ok := axis(a, len(x.Dims))
		step := steps[i]
		if !ok || step == 0 || step == math.MinInt64 {
			return nil, fmt.Errorf("slice of %v at axis %d by %d", x.Dims, a, step)
		}
		size := x.Dims[at]
		from, to := bound(starts[i], size), bound(ends[i], size)
		count := int64(0)
		if step > 0 {
			from, to = min(max(from, 0), size), min(max(to, 0), size)
			if to > from {
				count = (to-from-1)/step + 1
			}
		} else {
			from, to = min(max(from, -1), size-1), min(max(to, -1), size-1)
			if from > to {
				count = (from-to-1)/(-step) + 1
			}
		}
		out.Dims[at] = count
		if ints != nil && len(x.Dims) == 1 && int64(len(ints)) == size {
			picked := []int64{}
			for k := range count {
				picked = append(picked, ints[from+k*step])
			}
			out.Ints = picked
		}
	}
	return []*Tensor{out}, nil
}

// bound counts a negative position from the end, however far it lies.
func bound(v, size int64) int64 {
	if v < 0 {
		return max(v, -1<<50) + size
	}
	return min(v, 1<<50)
}

func gather(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	index, err := c.need(1)
	if err != nil {
		return nil, err
	}
	a, ok := axis(c.node.Int("axis", 0), len(x.Dims))
	if !ok {
		return nil, fmt.Errorf("gather from %v at %d", x.Dims, c.node.Int("axis", 0))
	}
	out := &Tensor{Type: x.Type, Dims: slices.Concat(x.Dims[:a], index.Dims, x.Dims[a+1:])}
	if x.Ints != nil && index.Ints != nil && len(x.Dims) == 1 {
		picked := []int64{}
		for _, i := range index.Ints {
			if i < 0 {
				i += int64(len(x.Ints))
			}
			if i < 0 || i >= int64(len(x.Ints)) {
				return nil, fmt.Errorf("gather of element %d from %d", i, len(x.Ints))
			}
			picked = append(picked, x.Ints[i])
		}
		out.Ints = picked
	}
	return []*Tensor{out}, nil
}

func gatherElements(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	index, err := c.need(1)
	if err != nil {
		return nil, err
	}
	return tensor(x.Type, index.Dims), nil
}

func gatherND(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	index, err := c.need(1)
	if err != nil {
		return nil, err
	}
	batch := c.node.Int("batch_dims", 0)
	if len(index.Dims) == 0 || batch < 0 || batch+index.dim(-1) > int64(len(x.Dims)) {
		return nil, fmt.Errorf("gather from %v by %v", x.Dims, index.Dims)
	}
	return tensor(x.Type, slices.Concat(index.Dims[:len(index.Dims)-1], x.Dims[batch+index.dim(-1):])), nil
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

func resize(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	dims := slices.Clone(x.Dims)
	axes := c.node.Ints("axes")
	if axes == nil {
		for i := range dims {
			axes = append(axes, int64(i))
		}
	}
	set := func(i int, v float64) error {
		at, ok := axis(axes[i], len(dims))
		if !ok || math.IsNaN(v) || v < 0 || v > 1<<40 {
			return fmt.Errorf("resize of %v to %g", x.Dims, v)
		}
		dims[at] = int64(v)
		return nil
	}
	if sizes := c.at(3); sizes != nil && len(sizes.Ints) == len(axes) && len(axes) > 0 {
		for i, v := range sizes.Ints {
			if err := set(i, float64(v)); err != nil {
				return nil, err
			}
		}
		return tensor(x.Type, dims), nil
	}
	scales := c.at(2)
	if c.node.Op == "Upsample" || scales == nil && len(c.in) == 2 {
		scales = c.at(1)
	}
	var factors []float64
	if scales != nil {
		factors = scales.Floats
	} else if a := c.node.Attribute("scales"); a != nil {
		for _, f := range a.Floats {
			factors = append(factors, float64(f))
		}
	}
	if len(factors) != len(axes) {
		return nil, errUnknown
	}
	for i, f := range factors {
		at, ok := axis(axes[i], len(dims))
		if !ok {
			return nil, fmt.Errorf("resize of %v along %v", x.Dims, axes)
		}
		if err := set(i, math.Floor(float64(x.Dims[at])*f)); err != nil {
			return nil, err
		}
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

// nonZero has as many columns as its input has elements: the most that there can be.
func nonZero(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	c.warn("NonZero: how many elements are not zero is not known beforehand; all are counted")
	return tensor(onnx.Int64, []int64{int64(len(x.Dims)), product(x.Dims)}), nil
}

func contents(*call) ([]*Tensor, error) { return nil, errUnknown }

func topK(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	k, ok := c.ints(1, "")
	if !ok {
		k = []int64{c.node.Int("k", 0)}
		if k[0] == 0 {
			return nil, errUnknown
		}
	}
	a, ok := axis(c.node.Int("axis", -1), len(x.Dims))
	if !ok || len(k) != 1 {
		return nil, fmt.Errorf("the largest %v of %v", k, x.Dims)
	}
	dims := slices.Clone(x.Dims)
	dims[a] = k[0]
	return []*Tensor{{Type: x.Type, Dims: dims}, {Type: onnx.Int64, Dims: dims}}, nil
}

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

// suppression keeps at most max_output_boxes_per_class boxes per class and batch.
func suppression(c *call) ([]*Tensor, error) {
	scores, err := c.need(1)
	if err != nil {
		return nil, err
	}
	most := int64(100)
	if v, ok := c.ints(2, ""); ok && len(v) == 1 {
		most = min(max(v[0], 0), scores.dim(2))
	}
	c.warn("NonMaxSuppression: how many boxes stay is not known beforehand; the most that may stay are counted")
	if scores.dim(0) > 1<<20 || scores.dim(1) > 1<<20 || most > 1<<20 {
		return nil, fmt.Errorf("scores %v", scores.Dims)
	}
	return tensor(onnx.Int64, []int64{scores.dim(0) * scores.dim(1) * most, 3}), nil
}

func roiAlign(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	rois, err := c.need(1)
	if err != nil {
		return nil, err
	}
	h, w := c.node.Int("output_height", 1), c.node.Int("output_width", 1)
	if p := c.node.Ints("pooled_shape"); len(p) == 2 {
		h, w = p[0], p[1]
	}
	return tensor(x.Type, []int64{rois.dim(0), x.dim(1), h, w}), nil
}

func gridSample(c *call) ([]*Tensor, error) {
	x, err := c.need(0)
	if err != nil {
		return nil, err
	}
	grid, err := c.need(1)
	if err != nil {
		return nil, err
	}
	if len(x.Dims) != 4 || len(grid.Dims) != 4 {
		return nil, errUnknown
	}
	return tensor(x.Type, []int64{x.Dims[0], x.Dims[1], grid.Dims[1], grid.Dims[2]}), nil
}

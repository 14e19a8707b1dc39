// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"fmt"
	"math"
	"slices"

	"github.com/conch-serving/conch/internal/onnx"
)

// This file has the operators that pick or sample elements of their inputs.

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

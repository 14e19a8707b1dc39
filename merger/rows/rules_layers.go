// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"errors"
	"fmt"
	"slices"

	"github.com/conch-serving/conch/internal/onnx"
)

func matMul(u *use) ([]Fact, error) {
	if err := u.need(2); err != nil {
		return nil, err
	}
	a, b := u.in[0], u.in[1]
	if a.rank() < 2 || b.rank() < 2 {
		return nil, errors.New("a product with a vector has no rule")
	}
	if columns, lines := a.Shape[a.rank()-1], b.Shape[b.rank()-2]; columns.differs(lines) {
		return nil, fmt.Errorf("%v columns meet %v rows of a matrix", columns, lines)
	}
	batch, err := broadcast([]Fact{{State: Constant, Shape: a.Shape[:a.rank()-2]}, {State: Constant, Shape: b.Shape[:b.rank()-2]}})
	if err != nil {
		return nil, err
	}
	out := Fact{State: Constant, Type: a.Type, Shape: joined(batch.Shape, []Dim{a.Shape[a.rank()-2], b.Shape[b.rank()-1]})}
	if a.State == Constant && b.State == Constant {
		return []Fact{out}, nil
	}
	out.State = Rows
	if a.State == Rows && a.rank() == 2 && b.State == Constant && b.rank() == 2 {
		return []Fact{out}, nil
	}
	// With rows on a batch axis of the product both sides must be there, or be the same for all of them.
	for _, f := range []Fact{a, b} {
		switch {
		case f.State == Rows && (f.rank() != out.rank() || f.rank() < 3 || !f.Shape[0].Equal(out.Shape[0])):
			return nil, errAcross
		case f.State == Constant && f.rank() == out.rank() && !f.Shape[0].is(1):
			return nil, errAcross
		}
	}
	return []Fact{out}, nil
}

func gemm(u *use) ([]Fact, error) {
	if err := errors.Join(u.need(2), u.constants(1)); err != nil {
		return nil, err
	}
	a, b := u.in[0], u.in[1]
	if a.rank() != 2 || b.rank() != 2 {
		return nil, errors.New("its inputs are not matrices")
	}
	if u.n.Int("transA", 0) != 0 {
		return nil, errors.New("it transposes the rows")
	}
	lines, columns := b.Shape[0], b.Shape[1]
	if u.n.Int("transB", 0) != 0 {
		lines, columns = columns, lines
	}
	if a.Shape[1].differs(lines) {
		return nil, fmt.Errorf("%v columns meet %v rows of a matrix", a.Shape[1], lines)
	}
	if c := u.in[min(2, len(u.in)-1)]; u.has(2) && c.rank() > 0 && !c.Shape[c.rank()-1].is(1) && c.Shape[c.rank()-1].differs(columns) {
		return nil, fmt.Errorf("a bias of %v for %v columns", c.Shape[c.rank()-1], columns)
	}
	if u.has(2) && u.in[2].rank() >= 2 && !u.in[2].Shape[0].is(1) {
		return nil, errAcross
	}
	return []Fact{{State: a.State, Type: a.Type, Shape: []Dim{a.Shape[0], columns}}}, nil
}

// spatial is the shape behind a window that slides over axes 2 and up.
func spatial(u *use, f Fact, window []int64, channels Dim) []Dim {
	out := []Dim{f.Shape[0], channels}
	strides, pads, dilations := u.n.Ints("strides"), u.n.Ints("pads"), u.n.Ints("dilations")
	at := func(list []int64, i int, otherwise int64) int64 {
		if i < len(list) {
			return list[i]
		}
		return otherwise
	}
	for i := range f.rank() - 2 {
		size, fixed := f.Shape[2+i].Fixed()
		stride := at(strides, i, 1)
		if !fixed || i >= len(window) || stride < 1 || size < 0 || size > maxFactor || u.n.Int("ceil_mode", 0) != 0 || u.n.Op == "ConvTranspose" {
			out = append(out, unknown())
			continue
		}
		switch u.n.Text("auto_pad", "NOTSET") {
		case "SAME_UPPER", "SAME_LOWER":
			out = append(out, Const((size+stride-1)/stride))
			continue
		case "VALID":
			pads = nil
		}
		whole := at(dilations, i, 1)*(window[i]-1) + 1
		places := (size+at(pads, i, 0)+at(pads, i+f.rank()-2, 0)-whole)/stride + 1
		out = append(out, Const(max(places, 0)))
	}
	return out
}

// fits refuses a window that is larger than what it slides over.
func fits(x, out Fact) error {
	for i := 2; i < out.rank(); i++ {
		if out.Shape[i].is(0) && !x.Shape[i].is(0) {
			return fmt.Errorf("its window is larger than the %v places that it slides over", x.Shape[i])
		}
	}
	return nil
}

func convolution(u *use) ([]Fact, error) {
	if err := errors.Join(u.need(2), u.constants(1)); err != nil {
		return nil, err
	}
	x, w := u.in[0], u.in[1]
	if x.rank() < 3 || w.rank() != x.rank() {
		return nil, errors.New("its input and weights do not fit")
	}
	group := Const(u.n.Int("group", 1))
	channels, wanted := w.Shape[0], w.Shape[1].times(group)
	if u.n.Op == "ConvTranspose" {
		channels, wanted = wanted, channels
	}
	if x.Shape[1].differs(wanted) {
		return nil, fmt.Errorf("%v channels meet weights for %v", x.Shape[1], wanted)
	}
	if u.has(2) && (u.in[2].rank() != 1 || u.in[2].Shape[0].differs(channels)) {
		return nil, fmt.Errorf("a bias of %v for %v channels", u.in[2].Shape, channels)
	}
	var window []int64
	for _, d := range w.Shape[2:] {
		size, fixed := d.Fixed()
		if !fixed || size < 1 || size > maxFactor {
			return nil, errors.New("its window has no fixed size")
		}
		window = append(window, size)
	}
	out := Fact{State: x.State, Type: x.Type, Shape: spatial(u, x, window, channels)}
	return []Fact{out}, fits(x, out)
}

func pool(u *use) ([]Fact, error) {
	if err := u.need(1); err != nil {
		return nil, err
	}
	x := u.in[0]
	if x.rank() < 3 {
		return nil, errors.New("its input has no channels")
	}
	out := Fact{State: x.State, Type: x.Type, Shape: spatial(u, x, u.n.Ints("kernel_shape"), x.Shape[1])}
	return []Fact{out}, fits(x, out) // MaxPool's indices count across the batch: no rule for them
}

func globalPool(u *use) ([]Fact, error) {
	if err := u.need(1); err != nil {
		return nil, err
	}
	x := u.in[0]
	if x.rank() < 3 {
		return nil, errors.New("its input has no channels")
	}
	shape := slices.Clone(x.Shape[:2])
	for range x.rank() - 2 {
		shape = append(shape, Const(1))
	}
	return []Fact{{State: x.State, Type: x.Type, Shape: shape}}, nil
}

// channelwise keeps the shape of its first input and works along axes from 1 on.
func channelwise(u *use) ([]Fact, error) {
	if err := errors.Join(u.need(1), u.constants(1)); err != nil {
		return nil, err
	}
	f := u.in[0]
	if f.rank() < 2 {
		return nil, errors.New("its input has no channels")
	}
	f.Value = nil
	return []Fact{f}, nil
}

func batchNormalization(u *use) ([]Fact, error) {
	if u.n.Int("training_mode", 0) != 0 || len(u.n.Outputs) > 1 {
		return nil, errors.New("it is in training mode: its statistics are of the whole batch")
	}
	if u.opset < 7 && u.n.Int("is_test", 0) == 0 {
		return nil, errors.New("it may be in training mode")
	}
	if u.has(0) && u.in[0].rank() > 1 {
		x := u.in[0]
		for _, f := range u.in[1:] {
			if f.rank() == 1 && f.Shape[0].differs(x.Shape[1]) {
				return nil, fmt.Errorf("%v weights for %v channels", f.Shape[0], x.Shape[1])
			}
		}
	}
	return channelwise(u)
}

func layerNormalization(u *use) ([]Fact, error) {
	if err := errors.Join(u.need(1), u.constants(1)); err != nil {
		return nil, err
	}
	f := u.in[0]
	if _, err := inner(u.n.Int("axis", -1), f); err != nil {
		return nil, err
	}
	for _, w := range u.in[1:] {
		if w.rank() > 0 && !w.Shape[w.rank()-1].is(1) && w.Shape[w.rank()-1].differs(f.Shape[f.rank()-1]) {
			return nil, fmt.Errorf("%v weights for %v places", w.Shape[w.rank()-1], f.Shape[f.rank()-1])
		}
	}
	f.Value = nil
	return []Fact{f}, nil // its further outputs have no rule
}

func softmax(u *use) ([]Fact, error) {
	if err := u.need(1); err != nil {
		return nil, err
	}
	otherwise := int64(-1)
	if u.opset < 13 {
		otherwise = 1 // the axes from this one on are taken together
	}
	f := u.in[0]
	if _, err := inner(u.n.Int("axis", otherwise), f); err != nil {
		return nil, err
	}
	f.Value = nil
	return []Fact{f}, nil
}

func reduce(u *use) ([]Fact, error) {
	if err := u.need(1); err != nil {
		return nil, err
	}
	f := u.in[0]
	axes, given, err := u.axes(1)
	if err != nil {
		return nil, err
	}
	if !given || len(axes) == 0 {
		if u.n.Int("noop_with_empty_axes", 0) != 0 {
			return []Fact{f}, nil
		}
		if f.State == Rows {
			return nil, errors.New("it reduces over all axes, rows included")
		}
	}
	return reduced(u, f, axes, f.Type)
}

// reduced is f without the axes, or with them as ones.
func reduced(u *use, f Fact, axes []int64, kind onnx.DataType) ([]Fact, error) {
	gone := map[int]bool{}
	for _, a := range axes {
		k, err := inner(a, f)
		if err != nil {
			return nil, err
		}
		gone[k] = true
	}
	out := Fact{State: f.State, Type: kind, Shape: []Dim{}}
	for i, d := range f.Shape {
		switch {
		case !gone[i] && len(axes) > 0:
			out.Shape = append(out.Shape, d)
		case u.n.Int("keepdims", 1) != 0:
			out.Shape = append(out.Shape, Const(1))
		}
	}
	return []Fact{out}, nil
}

func argument(u *use) ([]Fact, error) {
	if err := u.need(1); err != nil {
		return nil, err
	}
	return reduced(u, u.in[0], []int64{u.n.Int("axis", 0)}, onnx.Int64)
}

func cumulative(u *use) ([]Fact, error) {
	if err := u.need(2); err != nil {
		return nil, err
	}
	axes, known := u.numbers(1)
	if !known || len(axes) != 1 {
		return nil, errors.New("its axis is not constant")
	}
	f := u.in[0]
	if _, err := inner(axes[0], f); err != nil {
		return nil, err
	}
	f.Value = nil
	return []Fact{f}, nil
}

func rearranged(u *use) ([]Fact, error) {
	if err := u.need(1); err != nil {
		return nil, err
	}
	f := u.in[0]
	if f.rank() != 4 {
		return nil, errors.New("its input has not four dimensions")
	}
	return []Fact{{State: f.State, Type: f.Type, Shape: []Dim{f.Shape[0], unknown(), unknown(), unknown()}}}, nil
}

func resize(u *use) ([]Fact, error) {
	if err := errors.Join(u.need(1), u.constants(1)); err != nil {
		return nil, err
	}
	f := u.in[0]
	if f.State == Constant {
		return []Fact{{State: Constant, Type: f.Type}}, nil
	}
	if u.n.Ints("axes") != nil || u.n.Text("coordinate_transformation_mode", "") == "tf_crop_and_resize" {
		return nil, errors.New("this way to resize has no rule")
	}
	out := Fact{State: Rows, Type: f.Type, Shape: []Dim{f.Shape[0]}}
	for range f.rank() - 1 {
		out.Shape = append(out.Shape, unknown())
	}
	switch {
	case u.has(3):
		sizes := u.in[3].Value
		if len(sizes) != f.rank() || !sizes[0].Equal(f.Shape[0]) {
			return nil, fmt.Errorf("its sizes do not keep axis 0: %v", sizes)
		}
		if slices.ContainsFunc(sizes[1:], func(d Dim) bool { return d.Unknown || d.batches() > 0 }) {
			return nil, errAcross
		}
		copy(out.Shape[1:], sizes[1:])
	case u.has(2) && u.n.Inputs[2] != "":
		t := u.m.Graph.Initializer(u.n.Inputs[2])
		if t == nil {
			return nil, errors.New("its scales are not constant")
		}
		scales, err := u.m.Float32s(t)
		if err != nil || len(scales) != f.rank() || scales[0] != 1 {
			return nil, errors.New("its scales do not keep axis 0")
		}
	default:
		return nil, errors.New("it has neither scales nor sizes")
	}
	return []Fact{out}, nil
}

func pad(u *use) ([]Fact, error) {
	if err := errors.Join(u.need(1), u.constants(1)); err != nil {
		return nil, err
	}
	f := u.in[0]
	pads := u.n.Ints("pads")
	if pads == nil {
		pads, _ = u.numbers(1)
	}
	if len(pads) != 2*f.rank() || u.has(3) {
		return nil, errors.New("its pads are not constant")
	}
	if f.State == Rows && (pads[0] != 0 || pads[f.rank()] != 0) {
		return nil, errors.New("it adds rows")
	}
	out := Fact{State: f.State, Type: f.Type, Shape: slices.Clone(f.Shape)}
	for i := range out.Shape {
		if pads[i] != 0 || pads[i+f.rank()] != 0 {
			if size, fixed := f.Shape[i].Fixed(); fixed && max(pads[i], pads[i+f.rank()], size) < maxFactor && min(pads[i], pads[i+f.rank()]) >= 0 {
				out.Shape[i] = Const(size + pads[i] + pads[i+f.rank()])
			} else {
				out.Shape[i] = unknown()
			}
		}
	}
	return []Fact{out}, nil
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"errors"
	"fmt"
	"slices"

	"github.com/conch-serving/conch/internal/onnx"
)

func constantNode(u *use) ([]Fact, error) {
	if len(u.n.Attributes) != 1 {
		return nil, errors.New("a constant with no value, or several")
	}
	switch a := u.n.Attributes[0]; a.Kind {
	case onnx.KindTensor:
		if a.Tensor == nil {
			return nil, errors.New("a constant with no value")
		}
		return []Fact{constant(u.m, a.Tensor)}, nil
	case onnx.KindInt:
		return []Fact{{State: Constant, Type: onnx.Int64, Shape: []Dim{}, Value: []Dim{Const(a.Int)}}}, nil
	case onnx.KindFloat:
		return []Fact{{State: Constant, Type: onnx.Float, Shape: []Dim{}}}, nil
	case onnx.KindInts:
		f := Fact{State: Constant, Type: onnx.Int64, Shape: []Dim{Const(int64(len(a.Ints)))}}
		if len(a.Ints) <= maxValue {
			f.Value = []Dim{}
			for _, v := range a.Ints {
				f.Value = append(f.Value, Const(v))
			}
		}
		return []Fact{f}, nil
	case onnx.KindFloats:
		return []Fact{{State: Constant, Type: onnx.Float, Shape: []Dim{Const(int64(len(a.Floats)))}}}, nil
	default:
		return nil, errors.New("a constant of this kind has no rule")
	}
}

func shapeOf(u *use) ([]Fact, error) {
	if err := u.need(1); err != nil {
		return nil, err
	}
	f := u.in[0]
	if f.Shape == nil {
		return nil, errors.New("its input has an unknown number of dimensions")
	}
	clamp := func(a int64) int {
		if a < 0 {
			a += int64(f.rank())
		}
		return int(min(max(a, 0), int64(f.rank())))
	}
	from, to := clamp(u.n.Int("start", 0)), clamp(u.n.Int("end", int64(f.rank())))
	dims := slices.Clone(f.Shape[from:max(from, to)])
	if f.Counts && slices.ContainsFunc(dims, func(d Dim) bool { return d.Unknown }) {
		return nil, errors.New("the shape of a value that depends on the number of rows")
	}
	return []Fact{{State: Constant, Type: onnx.Int64, Shape: []Dim{Const(int64(len(dims)))}, Value: dims}}, nil
}

func sizeOf(u *use) ([]Fact, error) {
	if err := u.need(1); err != nil {
		return nil, err
	}
	p := product(u.in[0].Shape)
	if u.in[0].Shape == nil || p.Unknown {
		return nil, errors.New("the size of its input is not known")
	}
	return []Fact{{State: Constant, Type: onnx.Int64, Shape: []Dim{}, Value: []Dim{p}}}, nil
}

func constantOfShape(u *use) ([]Fact, error) {
	if err := u.need(1); err != nil {
		return nil, err
	}
	f := Fact{State: Constant, Type: onnx.Float, Shape: slices.Clone(u.in[0].Value)}
	if a := u.n.Attribute("value"); a != nil && a.Tensor != nil {
		f.Type = a.Tensor.Type
	}
	if u.in[0].Value == nil || slices.ContainsFunc(f.Shape, func(d Dim) bool { return d.Unknown || d.Factor < 0 }) {
		return nil, errors.New("its shape is not known")
	}
	if batches(f.Shape) {
		f.State = Rows // the same for every row
	}
	if n, fixed := product(f.Shape).Fixed(); fixed && n <= maxValue && len(f.Shape) <= 1 && f.Type == onnx.Int64 {
		v := []int64{0}
		if a := u.n.Attribute("value"); a != nil && a.Tensor != nil {
			var err error
			if v, err = u.m.Int64s(a.Tensor); err != nil || len(v) != 1 {
				return nil, errors.New("its value is not readable")
			}
		}
		f.Value = slices.Repeat([]Dim{Const(v[0])}, int(n))
	}
	return []Fact{f}, nil
}

func rangeOf(u *use) ([]Fact, error) {
	if err := errors.Join(u.need(3), u.constants(0)); err != nil {
		return nil, err
	}
	size := unknown()
	if a, b, c := u.in[0].Value, u.in[1].Value, u.in[2].Value; len(a) == 1 && len(b) == 1 && len(c) == 1 && a[0].is(0) && c[0].is(1) {
		size = b[0]
	}
	if size.Unknown && slices.ContainsFunc(u.in, func(f Fact) bool { return f.Counts }) {
		return nil, errors.New("it may count rows")
	}
	return []Fact{{State: Constant, Type: u.in[0].Type, Shape: []Dim{size}}}, nil
}

func reshape(u *use) ([]Fact, error) {
	if err := errors.Join(u.need(2), u.constants(1)); err != nil {
		return nil, err
	}
	f, want := u.in[0], u.in[1].Value
	if want == nil {
		if f.State == Constant && !u.in[1].Counts {
			return []Fact{{State: Constant, Type: f.Type}}, nil
		}
		return nil, errors.New("the new shape is not known")
	}
	shape := slices.Clone(want)
	guess := -1
	for i, d := range shape {
		switch {
		case d.is(0) && u.n.Int("allowzero", 0) == 0:
			if i >= f.rank() {
				return nil, fmt.Errorf("dimension %d of the new shape copies one that is not there", i)
			}
			shape[i] = f.Shape[i]
		case d.is(-1):
			if guess >= 0 {
				return nil, errors.New("two dimensions of the new shape are left open")
			}
			guess = i
		}
	}
	if guess >= 0 {
		rest := Const(1)
		for i, d := range shape {
			if i != guess {
				rest = rest.times(d)
			}
		}
		shape[guess] = product(f.Shape).over(rest)
	}
	out := Fact{State: f.State, Type: f.Type, Shape: shape}
	if f.State == Constant {
		if len(shape) <= 1 {
			out.Value = f.Value
		}
		return []Fact{out}, nil
	}
	if len(shape) == 0 {
		return nil, errors.New("it makes a scalar of rows")
	}
	if before, after := product(f.Shape[1:]), product(shape[1:]); shape[0].Equal(f.Shape[0]) && before.differs(after) {
		return nil, fmt.Errorf("it makes %v of a row of %v elements", shape[1:], before)
	}
	keeps := shape[0].Equal(f.Shape[0]) // then every place of axis 0 keeps its elements, whatever the other sizes are
	for i, d := range shape {
		if i == 0 && (d.Unknown || d.batches() != 1) {
			return nil, fmt.Errorf("axis 0 of the new shape is not the batch: %v", d)
		}
		if i > 0 && d.Unknown && (!keeps || i != guess) {
			return nil, fmt.Errorf("dimension %d of the new shape is not known", i)
		}
	}
	if !keeps && !product(shape).Equal(product(f.Shape)) {
		return nil, fmt.Errorf("the number of rows is written into the new shape: %v of %v", out, f)
	}
	return []Fact{out}, nil
}

func flatten(u *use) ([]Fact, error) {
	if err := u.need(1); err != nil {
		return nil, err
	}
	f := u.in[0]
	a := u.n.Int("axis", 1)
	if a < 0 {
		a += int64(f.rank())
	}
	if a < 0 || a > int64(f.rank()) || a == 0 && f.State == Rows {
		return nil, errors.New("it puts all rows into one")
	}
	front, back := product(f.Shape[:a]), product(f.Shape[a:])
	if front.Unknown {
		return nil, errors.New("the size of its axis 0 is not known")
	}
	return []Fact{{State: f.State, Type: f.Type, Shape: []Dim{front, back}}}, nil
}

func transpose(u *use) ([]Fact, error) {
	if err := u.need(1); err != nil {
		return nil, err
	}
	f := u.in[0]
	perm := u.n.Ints("perm")
	if perm == nil {
		for i := range f.rank() {
			perm = append(perm, int64(f.rank()-1-i))
		}
	}
	if len(perm) != f.rank() {
		return nil, errors.New("its permutation does not fit its input")
	}
	switch {
	case f.State == Rows && perm[0] == 1:
		return nil, errors.New("it moves axis 0; " + sequenceFirst)
	case f.State == Rows && perm[0] != 0:
		return nil, errors.New("it moves axis 0")
	}
	out := Fact{State: f.State, Type: f.Type, Shape: []Dim{}}
	for _, p := range perm {
		if p < 0 || p >= int64(f.rank()) {
			return nil, errors.New("its permutation does not fit its input")
		}
		out.Shape = append(out.Shape, f.Shape[p])
	}
	return []Fact{out}, nil
}

func squeeze(u *use) ([]Fact, error) {
	if err := u.need(1); err != nil {
		return nil, err
	}
	f := u.in[0]
	axes, given, err := u.axes(1)
	switch {
	case err != nil:
		return nil, err
	case !given && f.State == Rows:
		return nil, errors.New("it removes whatever is 1, a batch of one row too")
	case !given:
		return []Fact{{State: Constant, Type: f.Type, Value: f.Value}}, nil
	}
	gone := map[int]bool{}
	for _, a := range axes {
		k, err := inner(a, f)
		if err != nil {
			return nil, err
		}
		gone[k] = true
	}
	out := Fact{State: f.State, Type: f.Type, Shape: []Dim{}, Value: f.Value}
	for i, d := range f.Shape {
		if !gone[i] {
			out.Shape = append(out.Shape, d)
		}
	}
	return []Fact{out}, nil
}

func unsqueeze(u *use) ([]Fact, error) {
	if err := u.need(1); err != nil {
		return nil, err
	}
	f := u.in[0]
	axes, given, err := u.axes(1)
	if err != nil || !given || f.Shape == nil {
		return nil, errors.Join(errors.New("its axes are not known"), err)
	}
	rank := f.rank() + len(axes)
	at := map[int]bool{}
	for _, a := range axes {
		k, err := axis(a, rank)
		if err != nil {
			return nil, err
		}
		if k == 0 && f.State == Rows {
			return nil, errors.New("it moves axis 0")
		}
		at[k] = true
	}
	if len(at) != len(axes) {
		return nil, errors.New("it names an axis twice")
	}
	out := Fact{State: f.State, Type: f.Type, Shape: []Dim{}}
	next := 0
	for i := range rank {
		if at[i] {
			out.Shape = append(out.Shape, Const(1))
			continue
		}
		out.Shape = append(out.Shape, f.Shape[next])
		next++
	}
	if rank <= 1 {
		out.Value = f.Value
	}
	return []Fact{out}, nil
}

func concat(u *use) ([]Fact, error) {
	if err := u.need(max(len(u.in), 1)); err != nil {
		return nil, err
	}
	first := u.in[0]
	out := Fact{State: first.State, Type: first.Type, Shape: slices.Clone(first.Shape)}
	for _, f := range u.in {
		if f.Shape == nil || f.rank() != first.rank() {
			return nil, errors.New("its inputs do not fit together")
		}
		if f.State == Rows {
			out.State = Rows
		}
	}
	k, err := axis(u.n.Int("axis", 0), first.rank())
	if err != nil {
		return nil, err
	}
	if out.State == Rows {
		if k == 0 {
			return nil, errors.New("it works along axis 0, across rows")
		}
		for _, f := range u.in {
			if f.State != Rows || !f.Shape[0].Equal(first.Shape[0]) {
				return nil, errAcross
			}
		}
	}
	for i := range first.Shape {
		for _, f := range u.in {
			if i != k && f.Shape[i].differs(first.Shape[i]) {
				return nil, fmt.Errorf("dimensions %v and %v do not go together", first.Shape[i], f.Shape[i])
			}
		}
	}
	total, known := int64(0), true
	for _, f := range u.in {
		size, fixed := f.Shape[k].Fixed()
		known = known && fixed && size < maxFactor && total < maxFactor
		total += size
	}
	if out.Shape[k] = unknown(); known {
		out.Shape[k] = Const(total)
	}
	if first.rank() == 1 && out.State == Constant {
		out.Value = []Dim{}
		for _, f := range u.in {
			if f.Value == nil {
				out.Value = nil
				break
			}
			out.Value = append(out.Value, f.Value...)
		}
		if len(out.Value) > maxValue {
			out.Value = nil
		}
	}
	return []Fact{out}, nil
}

func split(u *use) ([]Fact, error) {
	if err := errors.Join(u.need(1), u.constants(1)); err != nil {
		return nil, err
	}
	f := u.in[0]
	k, err := inner(u.n.Int("axis", 0), f)
	if err != nil {
		return nil, err
	}
	parts := u.n.Ints("split")
	if parts == nil {
		parts, _ = u.numbers(1)
	}
	if size, fixed := f.Shape[k].Fixed(); fixed && len(parts) > 0 {
		total := int64(0)
		for _, p := range parts {
			total += min(max(p, -1), maxFactor)
		}
		if total != size || len(parts) != len(u.n.Outputs) || slices.Min(parts) < 0 {
			return nil, fmt.Errorf("parts %v of a dimension of %d", parts, size)
		}
	}
	outs := make([]Fact, len(u.n.Outputs))
	for i := range outs {
		outs[i] = Fact{State: f.State, Type: f.Type, Shape: slices.Clone(f.Shape)}
		size, fixed := f.Shape[k].Fixed()
		switch {
		case i < len(parts):
			outs[i].Shape[k] = Const(parts[i])
		case fixed && !u.has(1) && size%int64(len(outs)) == 0:
			outs[i].Shape[k] = Const(size / int64(len(outs)))
		default:
			outs[i].Shape[k] = unknown()
		}
	}
	return outs, nil
}

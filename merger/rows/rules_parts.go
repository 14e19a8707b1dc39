// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"errors"
	"fmt"
	"slices"
)

// bounds are what a Slice takes of its axes: in early operator sets attributes, later inputs.
func bounds(u *use) (starts, ends []Dim, axes, steps []int64, err error) {
	if u.opset < 10 {
		for _, v := range u.n.Ints("starts") {
			starts = append(starts, Const(v))
		}
		for _, v := range u.n.Ints("ends") {
			ends = append(ends, Const(v))
		}
		axes = u.n.Ints("axes")
	} else {
		if err := u.need(3); err != nil {
			return nil, nil, nil, nil, err
		}
		starts, ends = u.in[1].Value, u.in[2].Value
		known := true
		if u.has(3) {
			axes, known = u.numbers(3)
		}
		if u.has(4) && known {
			steps, known = u.numbers(4)
		}
		if !known {
			return nil, nil, nil, nil, errors.New("its axes or steps are not constant")
		}
	}
	if axes == nil {
		for i := range starts {
			axes = append(axes, int64(i))
		}
	}
	if steps == nil {
		steps = slices.Repeat([]int64{1}, len(axes))
	}
	if starts == nil || len(starts) != len(axes) || len(ends) != len(axes) || len(steps) != len(axes) {
		return nil, nil, nil, nil, errors.New("its bounds are not known")
	}
	return starts, ends, axes, steps, nil
}

func slice(u *use) ([]Fact, error) {
	if err := errors.Join(u.need(1), u.constants(1)); err != nil {
		return nil, err
	}
	f := u.in[0]
	starts, ends, axes, steps, err := bounds(u)
	if err != nil {
		return nil, err
	}
	out := Fact{State: f.State, Type: f.Type, Shape: slices.Clone(f.Shape)}
	for i, a := range axes {
		k, err := axis(a, f.rank())
		if err != nil {
			return nil, err
		}
		whole := starts[i].is(0) && steps[i] == 1 && reaches(ends[i], f.Shape[k])
		if k == 0 && f.State == Rows {
			if !whole {
				return nil, errors.New("it takes some rows and leaves others")
			}
			continue
		}
		if whole {
			continue
		}
		counts := u.opset >= 10 && (u.in[1].Counts || u.in[2].Counts)
		if batches(starts[i:i+1]) || batches(ends[i:i+1]) || counts && (starts[i].Unknown || ends[i].Unknown) {
			return nil, errAcross
		}
		out.Shape[k] = sliced(f.Shape[k], starts[i], ends[i], steps[i])
		if f.rank() == 1 && f.Value != nil {
			out.Value = picked(f.Value, starts[i], ends[i], steps[i])
		}
	}
	return []Fact{out}, nil
}

// beyond is an end that no dimension reaches that a request decides: exporters write a slice to the end as 10^9 (tf2onnx), 2^31-1 or 2^63-1. A batch
// of so many rows is none: Triton counts the rows of a batch in 32 bits, and their messages have at most 2^31 bytes.
const beyond = 1_000_000_000

// reaches says whether a slice up to end leaves nothing of the dimension behind it.
func reaches(end, size Dim) bool {
	if end.Equal(size) {
		return true
	}
	e, fixed := end.Fixed()
	if n, known := size.Fixed(); known {
		return fixed && e >= n
	}
	return fixed && e >= beyond
}

// sliced is how many places are from start to end.
func sliced(size, start, end Dim, step int64) Dim {
	n, a := size.Fixed()
	s, b := start.Fixed()
	e, c := end.Fixed()
	if !a || !b || !c || step != 1 {
		return unknown()
	}
	s, e = clamped(s, n), clamped(e, n)
	return Const(max(e-s, 0))
}

func clamped(v, n int64) int64 {
	if v < 0 {
		v += n
	}
	return min(max(v, 0), n)
}

func picked(value []Dim, start, end Dim, step int64) []Dim {
	s, a := start.Fixed()
	e, b := end.Fixed()
	if !a || !b || step != 1 {
		return nil
	}
	n := int64(len(value))
	s, e = clamped(s, n), clamped(e, n)
	return slices.Clone(value[s:max(s, e)])
}

func gather(u *use) ([]Fact, error) {
	if err := u.need(2); err != nil {
		return nil, err
	}
	data, indices := u.in[0], u.in[1]
	if data.Shape == nil || indices.Shape == nil {
		return nil, errors.New("an input has an unknown number of dimensions")
	}
	k, err := axis(u.n.Int("axis", 0), data.rank())
	if err != nil {
		return nil, err
	}
	out := Fact{State: Constant, Type: data.Type, Shape: joined(data.Shape[:k], indices.Shape, data.Shape[k+1:])}
	switch {
	case data.State == Rows && indices.State == Rows:
		return nil, errAcross
	case data.State == Rows && k == 0:
		return nil, errors.New("it picks rows")
	case indices.State == Rows && k != 0:
		return nil, errors.New("it moves axis 0")
	case data.State == Rows || indices.State == Rows:
		out.State = Rows
	case data.Value != nil && data.rank() == 1 && indices.rank() <= 1:
		if at, known := u.numbers(1); known {
			out.Value = []Dim{}
			for _, i := range at {
				if i < 0 {
					i += int64(len(data.Value))
				}
				if i < 0 || i >= int64(len(data.Value)) {
					return nil, fmt.Errorf("index %d of %d", i, len(data.Value))
				}
				out.Value = append(out.Value, data.Value[i])
			}
		}
	}
	return []Fact{out}, nil
}

func expand(u *use) ([]Fact, error) {
	if err := errors.Join(u.need(2), u.constants(1)); err != nil {
		return nil, err
	}
	f, want := u.in[0], u.in[1].Value
	if want == nil || f.Shape == nil || slices.ContainsFunc(want, func(d Dim) bool { return d.Unknown }) {
		return nil, errors.New("the new shape is not known")
	}
	out, err := broadcast([]Fact{{State: Constant, Shape: f.Shape}, {State: Constant, Shape: want}})
	if err != nil {
		return nil, err
	}
	out.Type, out.State = f.Type, f.State
	switch {
	case f.State == Rows && (out.rank() != f.rank() || !out.Shape[0].Equal(f.Shape[0])):
		return nil, errAcross
	case f.State == Constant && batches(out.Shape):
		if f.rank() == out.rank() && !f.Shape[0].is(1) {
			return nil, errAcross
		}
		out.State = Rows // the same for every row
	}
	return []Fact{out}, nil
}

func tile(u *use) ([]Fact, error) {
	if err := errors.Join(u.need(2), u.constants(1)); err != nil {
		return nil, err
	}
	f, times := u.in[0], u.in[1].Value
	if len(times) != f.rank() || times == nil {
		return nil, errors.New("its repeats are not known")
	}
	out := Fact{State: f.State, Type: f.Type, Shape: []Dim{}}
	for i, d := range f.Shape {
		n := d.times(times[i])
		if n.Unknown {
			return nil, errors.New("its repeats are not known")
		}
		out.Shape = append(out.Shape, n)
	}
	if f.State == Rows && !times[0].is(1) {
		return nil, errors.New("it repeats rows")
	}
	if f.State == Constant && batches(out.Shape) {
		if !f.Shape[0].is(1) {
			return nil, errAcross
		}
		out.State = Rows // the same for every row
	}
	return []Fact{out}, nil
}

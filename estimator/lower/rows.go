// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package lower

import (
	"slices"

	"github.com/conch-serving/conch/internal/onnx/shape"
)

// in and out are the values that a step reads at k and makes first, -1 where it has none; input and output what is known of them, never nil.
func (f *fusion) in(i, k int) int {
	if i < 0 || k >= len(f.steps[i].In) {
		return -1
	}
	return f.steps[i].In[k]
}

func (f *fusion) out(i int) int {
	if i < 0 || len(f.steps[i].Out) == 0 {
		return -1
	}
	return f.steps[i].Out[0]
}

func (f *fusion) input(i, k int) *shape.Tensor {
	if i >= 0 && k < len(f.steps[i].Inputs) && f.steps[i].Inputs[k] != nil {
		return f.steps[i].Inputs[k]
	}
	return &shape.Tensor{Unknown: true, Dims: []int64{}}
}

func (f *fusion) output(i int) *shape.Tensor {
	if i >= 0 && len(f.steps[i].Outputs) > 0 && f.steps[i].Outputs[0] != nil {
		return f.steps[i].Outputs[0]
	}
	return &shape.Tensor{Unknown: true, Dims: []int64{}}
}

// made is the step that makes a value, -1 if none does.
func (f *fusion) made(v int) int {
	if v < 0 {
		return -1
	}
	return f.maker[v]
}

// reader is the only step that reads what a step makes first, -1 otherwise.
func (f *fusion) reader(i int) int {
	if v := f.out(i); v >= 0 {
		return f.user[v]
	}
	return -1
}

// scalar says that input k of step i is a number that is known before it runs.
func (f *fusion) scalar(i, k int) bool {
	t := f.input(i, k)
	return !t.Unknown && t.Elements() == 1 && (t.Weight || t.Floats != nil || t.Ints != nil)
}

// other is the input of a step of two that is no scalar.
func (f *fusion) other(i int) int {
	if f.scalar(i, 0) {
		return 1
	}
	return 0
}

// renames says that a step passes its first input on.
func (f *fusion) renames(i int) bool {
	switch f.op(i) {
	case "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout":
		return true
	}
	return false
}

// uncast is a value as it was before casts, with the casts.
func (f *fusion) uncast(v int) (before int, casts []int) {
	for range 4 {
		m := f.made(v)
		if f.op(m) != "Cast" || !f.own(m) {
			break
		}
		v, casts = f.in(m, 0), append(casts, m)
	}
	return v, casts
}

// makes is the maker of a value behind casts if it is that operator and still has a kernel of its own, -1 otherwise; with the casts.
func (f *fusion) makes(v int, ops ...string) (maker int, casts []int) {
	v, casts = f.uncast(v)
	if m := f.made(v); m >= 0 && f.own(m) && slices.Contains(ops, f.op(m)) {
		return m, casts
	}
	return -1, casts
}

// norm finds a layer normalisation written out around its square root: ReduceMean, Sub, Pow or Mul, ReduceMean, Add, Sqrt, Div or Reciprocal and Mul,
// what scales it, and casts between; without the first ReduceMean and Sub it is one by the root of the mean square.
func (f *fusion) norm(i int) {
	if f.op(i) != "Sqrt" || !f.own(i) {
		return
	}
	members := []int{i}
	v := f.in(i, 0)
	if add, casts := f.makes(v, "Add"); add >= 0 && (f.scalar(add, 0) || f.scalar(add, 1)) {
		members = append(append(members, casts...), add)
		v = f.in(add, f.other(add))
	}
	mean, casts := f.makes(v, "ReduceMean")
	if mean < 0 {
		return
	}
	members = append(append(members, casts...), mean)
	square, casts := f.makes(f.in(mean, 0), "Pow", "Mul")
	if square < 0 || f.op(square) == "Mul" && f.in(square, 0) != f.in(square, 1) {
		return
	}
	members = append(append(members, casts...), square)
	x, casts := f.uncast(f.in(square, 0))
	members = append(members, casts...)
	difference := x
	if x < 0 {
		return
	}
	if sub, _ := f.makes(x, "Sub"); sub >= 0 {
		if m, casts := f.makes(f.in(sub, 1), "ReduceMean"); m >= 0 {
			members = append(append(members, casts...), sub, m)
			x, casts = f.uncast(f.in(sub, 0))
			members = append(members, casts...)
		}
	}
	last := f.quotient(i, difference, &members)
	if last < 0 {
		return
	}
	for range 4 {
		n := f.next(last)
		scales := n >= 0 && (f.op(n) == "Mul" || f.op(n) == "Add") && (f.constant(n, 0) || f.constant(n, 1))
		if n < 0 || !f.own(n) || !scales && f.op(n) != "Cast" {
			break
		}
		members, last = append(members, n), n
	}
	root := slices.Min(members)
	w := shape.Work{Class: shape.Normalization, Serial: 1, Batch: 1}
	for _, m := range members {
		for k := range f.steps[m].In {
			t := f.input(m, k)
			if t.Weight && t.Elements() > 1 {
				w.Read, w.Weights = w.Read+t.Bytes(), w.Weights+t.Bytes()
			}
			if f.in(m, k) == x && w.Rows == 0 {
				w.Rows = f.output(mean).Elements()
				w.Width = max(1, t.Elements()/max(1, w.Rows))
				w.Read, w.FLOPs = w.Read+t.Bytes(), 8*t.Elements()
			}
		}
		f.into[m] = root
	}
	w.Write = f.output(last).Bytes()
	f.work[root], f.names[root] = w, "LayerNormalization"
}

// quotient is the step that divides by the root at step i: what it divides is the difference, or the same difference taken once more.
func (f *fusion) quotient(i, difference int, members *[]int) int {
	for _, r := range f.of(f.out(i)) {
		by := r
		if f.op(by) == "Cast" {
			*members = append(*members, by)
			by = f.reader(by)
		}
		if f.op(by) == "Reciprocal" || f.op(by) == "Div" && f.scalar(by, 0) {
			*members = append(*members, by)
			by = f.reader(by)
		}
		if f.op(by) != "Div" && f.op(by) != "Mul" {
			continue
		}
		for _, v := range f.steps[by].In {
			at, casts := f.uncast(v)
			if at == difference {
				*members = append(append(*members, casts...), by)
				return by
			}
			again, _ := f.makes(at, "Sub")
			first := f.made(difference)
			if again >= 0 && f.op(first) == "Sub" && f.in(again, 0) == f.in(first, 0) {
				*members = append(append(*members, casts...), again, by)
				if mean, _ := f.makes(f.in(again, 1), "ReduceMean"); mean >= 0 {
					*members = append(*members, mean)
				}
				return by
			}
		}
	}
	return -1
}

// gelu finds x * (1 + erf(x / sqrt 2)) / 2 around an Erf.
func (f *fusion) gelu(i int) {
	if f.op(i) != "Erf" || !f.own(i) {
		return
	}
	add := f.next(i)
	if f.op(add) != "Add" {
		return
	}
	if before := f.source(i, 0); before >= 0 && f.own(before) && (f.op(before) == "Div" || f.op(before) == "Mul") && f.next(before) == i {
		f.into[before] = i
	}
	f.into[add] = i
	for at := f.next(add); at >= 0 && f.op(at) == "Mul" && f.own(at); at = f.next(at) {
		for k := range f.steps[at].In { // the half that is multiplied elsewhere
			if s := f.source(at, k); s >= 0 && s != i && f.own(s) && f.op(s) == "Mul" && f.next(s) == at && (f.constant(s, 0) || f.constant(s, 1)) {
				f.into[s] = i
			}
		}
		f.into[at] = i
		if n := f.next(at); n < 0 || !f.constant(n, 0) && !f.constant(n, 1) || f.op(n) != "Mul" {
			break
		}
	}
	f.work[i].FLOPs = 20 * f.output(i).Elements()
	f.names[i] = "Gelu"
}

// gate finds x * sigmoid(x), also of x times a number, and x * hardsigmoid(x).
func (f *fusion) gate(i int) {
	if op := f.op(i); op != "Sigmoid" && op != "HardSigmoid" || !f.own(i) {
		return
	}
	if n := f.next(i); f.op(n) == "Mul" && f.own(n) && len(f.steps[n].In) == 2 {
		x := f.in(i, 0)
		if before := f.source(i, 0); f.own(before) && f.op(before) == "Mul" && f.next(before) == i && (f.scalar(before, 0) || f.scalar(before, 1)) {
			if y := f.in(before, f.other(before)); f.in(n, 0) == y || f.in(n, 1) == y {
				f.into[before], x = i, y
			}
		}
		if f.in(n, 0) == x || f.in(n, 1) == x {
			f.into[n] = i
		}
	}
}

// tanh finds the other way to write a Gelu: x/2 * (1 + tanh(a * (x + b * x^3))).
func (f *fusion) tanh(i int) {
	if f.op(i) != "Tanh" || !f.own(i) {
		return
	}
	add := f.next(i)
	if f.op(add) != "Add" || !f.scalar(add, 0) && !f.scalar(add, 1) {
		return
	}
	members := []int{i, add}
	last := add
	for range 2 {
		n := f.next(last)
		if f.op(n) != "Mul" || !f.own(n) {
			break
		}
		members, last = append(members, n), n
	}
	if last == add {
		return
	}
	for grown := true; grown; {
		grown = false
		for _, m := range members {
			for _, v := range f.steps[m].In {
				s := f.made(v)
				if s < 0 || !f.own(s) || slices.Contains(members, s) || !slices.Contains([]string{"Mul", "Add", "Pow"}, f.op(s)) || !f.within(s, members) {
					continue
				}
				if vector := func(k int) bool { return f.constant(s, k) && !f.scalar(s, k) }; vector(0) || vector(1) {
					continue // the bias before it
				}
				members, grown = append(members, s), true
			}
		}
	}
	cubed := false
	for _, m := range members {
		cubed = cubed || f.op(m) == "Pow" || f.op(m) == "Mul" && f.in(m, 0) == f.in(m, 1)
	}
	if !cubed {
		return
	}
	for _, m := range members {
		f.into[m] = i
	}
	f.work[i].FLOPs, f.names[i] = 16*f.output(i).Elements(), "FastGelu"
}

// within says that only members read what a step makes.
func (f *fusion) within(s int, members []int) bool {
	for _, v := range f.steps[s].Out {
		for _, r := range f.of(v) {
			if !slices.Contains(members, r) {
				return false
			}
		}
	}
	return true
}

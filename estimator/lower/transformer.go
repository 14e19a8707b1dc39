// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package lower

import (
	"slices"

	"github.com/conch-serving/conch/internal/onnx/shape"
)

// transformer puts together what a runtime for GPUs puts together of a transformer's blocks, so that a network has the same kernels whether its file
// spells attention, Gelu and normalisations out or names them.
func (f *fusion) transformer() {
	for i := range f.steps {
		f.tanh(i)
		f.turned(i)
	}
	for i := range f.steps {
		f.attention(i)
		f.skip(i)
	}
	for i := range f.steps {
		f.cast(i)
	}
}

// turned takes a transposition of matrices into the product that reads it: products read either order.
func (f *fusion) turned(i int) {
	if f.op(i) != "Transpose" || !f.own(i) {
		return
	}
	rank := len(f.input(i, 0).Dims)
	perm := f.steps[i].Node.Ints("perm")
	if perm == nil && rank == 2 {
		perm = []int64{1, 0}
	}
	if rank < 2 || len(perm) != rank || perm[rank-1] != int64(rank-2) || perm[rank-2] != int64(rank-1) {
		return
	}
	for k, to := range perm[:rank-2] {
		if to != int64(k) {
			return
		}
	}
	if n := f.reader(i); n >= 0 && f.work[n].Class == shape.Product {
		f.into[i] = -1
	}
}

// attention finds the two products around a softmax. What scales and masks the scores runs in the softmax; what arranges queries, keys and values by
// heads is one kernel; products that make them of the same rows are one product.
func (f *fusion) attention(i int) {
	if f.work[i].Class == shape.Attention && f.work[i].From == 0 && len(f.steps[i].In) > 2 {
		f.join([]end{{i, 0}, {i, 1}, {i, 2}})
	}
	if f.work[i].Class != shape.Softmax || !f.own(i) || len(f.steps[i].Out) == 0 {
		return
	}
	scores, members, masks := f.climb(f.in(i, 0), nil, 8)
	if scores < 0 {
		return
	}
	at, mixed := i, -1
	for range 4 {
		n := f.next(at)
		if n < 0 && len(f.of(f.out(at))) == 2 { // Where(IsNaN(p), 0, p)
			r := f.of(f.out(at))
			for k, reader := range r {
				if reader >= 0 && f.op(reader) == "IsNaN" && f.next(reader) == r[1-k] && f.op(r[1-k]) == "Where" {
					members, n = append(members, reader), r[1-k]
				}
			}
		}
		if n >= 0 && f.work[n].Class == shape.Product {
			mixed = n
		}
		if mixed >= 0 || n < 0 || f.op(n) != "Cast" && f.op(n) != "Where" {
			break
		}
		members, at = append(members, n), n
	}
	if mixed < 0 || f.constant(mixed, 1) {
		return
	}
	for _, m := range members {
		f.into[m] = i
	}
	f.work[i].Read = f.output(scores).Bytes() + masks
	f.work[i].Write = f.input(mixed, 0).Bytes()
	heads := []end{{scores, 0}, {scores, 1}, {mixed, 1}}
	f.join(heads)
	f.arrange(heads)
}

// climb goes from a value up to the product that makes it, past what scales, masks and casts: the product, the steps that were passed, and the bytes of
// masks. The product is -1 where there is none of two values.
func (f *fusion) climb(v int, members []int, depth int) (int, []int, float64) {
	if v < 0 || depth == 0 {
		return -1, nil, 0
	}
	m := f.made(v)
	if m < 0 || len(f.of(v)) != 1 {
		return -1, nil, 0
	}
	switch {
	case f.work[m].Class == shape.Product && f.own(m) && !f.constant(m, 0) && !f.constant(m, 1):
		return m, members, 0
	case f.work[m].Class == shape.Free && f.renames(m):
		return f.climb(f.in(m, 0), members, depth-1)
	case !f.own(m) || f.work[m].Class != shape.Pointwise:
		return -1, nil, 0
	}
	switch f.op(m) {
	case "Add", "Sub", "Mul", "Div", "Where", "Cast", "Max", "Min":
	default:
		return -1, nil, 0
	}
	for k, x := range f.steps[m].In {
		t := f.input(m, k)
		if t.Unknown || t.Weight || t.Elements() != f.output(m).Elements() {
			continue
		}
		product, passed, masks := f.climb(x, append(slices.Clone(members), m), depth-1)
		if product < 0 {
			continue
		}
		for other, t := range f.steps[m].Inputs {
			if other != k && t != nil && t.Elements() > 1 {
				masks += t.Bytes()
				passed = f.sliced(f.in(m, other), passed)
			}
		}
		return product, passed, masks
	}
	return -1, nil, 0
}

// sliced adds to members what cuts a mask out of a parameter: a causal mask is not read, it is known where it ends.
func (f *fusion) sliced(v int, members []int) []int {
	var some []int
	for range 4 {
		m := f.made(v)
		if m < 0 || !f.own(m) || !f.within(m, append(slices.Clone(members), some...)) {
			return members
		}
		switch f.op(m) {
		case "Slice", "Gather", "Cast", "Not":
		default:
			return members
		}
		some, v = append(some, m), f.in(m, 0)
		if f.constant(m, 0) {
			return append(members, some...)
		}
	}
	return members
}

// end is an input of a step.
type end struct{ step, input int }

// arrangement says that a step orders values by heads, or scales them.
func (f *fusion) arrangement(m int) bool {
	switch f.op(m) {
	case "Transpose", "Split", "Slice", "Cast":
		return true
	case "Gather":
		return len(f.steps[m].Inputs) > 1 && f.input(m, 1).Elements() == 1
	case "Mul", "Div":
		return f.scalar(m, 0) || f.scalar(m, 1)
	}
	return false
}

// above is the step that makes what is read at an end, before what arranges it, which it adds to members.
func (f *fusion) above(e end, members []int) (int, []int) {
	v := f.in(e.step, e.input)
	for range 12 {
		m := f.made(v)
		switch {
		case m < 0:
			return -1, members
		case f.renames(m) || f.op(m) == "Transpose" && f.into[m] < 0:
			v = f.in(m, 0)
		case f.own(m) && f.arrangement(m):
			if !slices.Contains(members, m) {
				members = append(members, m)
			}
			v = f.in(m, f.other(m))
		default:
			return m, members
		}
	}
	return -1, members
}

// arrange makes one kernel of what arranges the values at these ends.
func (f *fusion) arrange(ends []end) {
	var members []int
	bytes, elements := 0.0, 0.0
	for _, e := range ends {
		before := len(members)
		_, members = f.above(e, members)
		if t := f.input(e.step, e.input); len(members) > before || before > 0 && f.from(e, members) {
			bytes, elements = bytes+t.Bytes(), elements+t.Elements()
		}
	}
	reaches := slices.Clone(members)
	for _, e := range ends {
		reaches = append(reaches, e.step)
	}
	members = slices.DeleteFunc(members, func(m int) bool { return !f.leads(m, reaches, 8) })
	if len(members) == 0 {
		return
	}
	root := slices.Min(members)
	for _, m := range members {
		f.into[m] = root
	}
	f.work[root] = shape.Work{Class: shape.Movement, Serial: 1, Batch: 1, Read: bytes, Write: bytes, Rows: elements}
	f.names[root] = "Transpose"
}

// from says that what is read at an end passes one of the steps.
func (f *fusion) from(e end, steps []int) bool {
	_, passed := f.above(e, nil)
	return slices.ContainsFunc(passed, func(m int) bool { return slices.Contains(steps, m) })
}

// leads says that what a step makes is read by these steps alone, behind renaming.
func (f *fusion) leads(m int, steps []int, depth int) bool {
	if depth == 0 {
		return false
	}
	for _, v := range f.steps[m].Out {
		for _, r := range f.of(v) {
			switch {
			case r < 0:
				return false
			case slices.Contains(steps, r):
			case !f.renames(r) && f.into[r] >= 0 && f.op(r) != "Shape" || f.renames(r) && !f.leads(r, steps, depth-1):
				return false
			}
		}
	}
	return true
}

// join makes one product of those with parameters that make queries, keys and values of the same rows.
func (f *fusion) join(ends []end) {
	first := -1
	for _, e := range ends {
		m, _ := f.above(e, nil)
		bias := -1
		if f.op(m) == "Add" && f.own(m) && (f.constant(m, 0) || f.constant(m, 1)) {
			bias = m
			m, _ = f.passed(f.in(m, f.weighted(m)))
		}
		if m < 0 || !f.own(m) || m == first || f.work[m].Class != shape.Product || !f.constant(m, 1) {
			continue
		}
		if first < 0 {
			first = m
			continue
		}
		a, b := &f.work[first], &f.work[m]
		_, x := f.passed(f.in(first, 0))
		_, y := f.passed(f.in(m, 0))
		if x != y || a.M != b.M || a.Depth != b.Depth || a.Element != b.Element {
			continue
		}
		a.N, a.FLOPs, a.Weights, a.Write = a.N+b.N, a.FLOPs+b.FLOPs, a.Weights+b.Weights, a.Write+b.Write
		a.Read += max(0, b.Read-f.input(m, 0).Bytes())
		f.into[m] = first
		if bias >= 0 {
			f.into[bias] = first
		}
	}
}

// passed is the maker of a value before renaming, and that value.
func (f *fusion) passed(v int) (maker, value int) {
	for range 8 {
		m := f.made(v)
		if m < 0 || !f.renames(m) {
			return m, v
		}
		v = f.in(m, 0)
	}
	return -1, v
}

// skip takes the additions before a normalisation into its kernel, as SkipLayerNormalization does, and look-ups that are added up, as
// EmbedLayerNormalization does.
func (f *fusion) skip(i int) {
	if f.work[i].Class != shape.Normalization || f.root(i) != i || len(f.steps[i].In) == 0 {
		return
	}
	v := f.in(i, 0)
	if f.op(i) == "EmbedLayerNormalization" {
		return
	}
	v, casts := f.uncast(v)
	for _, c := range casts {
		if !f.onlyBy(f.out(c), i) {
			return
		}
		f.work[i].Read += f.input(c, 0).Bytes() - f.output(c).Bytes()
		f.into[c] = i
	}
	for range 3 {
		add := f.made(v)
		if f.op(add) != "Add" || !f.own(add) || f.work[add].Class != shape.Pointwise || f.scalar(add, 0) || f.scalar(add, 1) {
			return
		}
		sum := f.output(add)
		if f.constant(add, 0) || f.constant(add, 1) {
			if s := f.source(add, f.weighted(add)); s >= 0 && f.work[s].Class == shape.Product {
				return // the bias of a product
			}
		}
		f.into[add] = i
		w := &f.work[i]
		w.Read += max(0, f.work[add].Read-sum.Bytes())
		if !f.onlyBy(v, i) {
			w.Write += sum.Bytes() // others go on with the sum
		}
		next := -1
		for _, x := range f.steps[add].In {
			m := f.made(x)
			switch {
			case m < 0 || !f.own(m) || f.user[x] != add:
			case f.op(m) == "Gather" && f.constant(m, 0):
				f.into[m] = i
				w.Weights += f.work[m].Weights
			case f.op(m) == "Add" && f.lookups(m):
				next = x
			}
		}
		v = next
	}
}

// weighted is the input of an addition that is no parameter.
func (f *fusion) weighted(add int) int {
	if f.constant(add, 0) {
		return 1
	}
	return 0
}

// lookups says that a step adds what was looked up in a table of parameters.
func (f *fusion) lookups(add int) bool {
	for k := range f.steps[add].In {
		if s := f.source(add, k); f.op(s) == "Gather" && f.constant(s, 0) {
			return true
		}
	}
	return false
}

// onlyBy says that a value is read within the kernel of step i alone.
func (f *fusion) onlyBy(v, i int) bool {
	for _, r := range f.of(v) {
		if r < 0 || f.into[r] < 0 || f.root(r) != i {
			return false
		}
	}
	return true
}

// cast takes a cast into the element-wise or row-wise kernel whose result alone it reads, or that alone reads it.
func (f *fusion) cast(i int) {
	if f.op(i) != "Cast" || !f.own(i) {
		return
	}
	rows := func(s int) bool {
		return s >= 0 && f.own(s) && (f.work[s].Class == shape.Pointwise || f.work[s].Class == shape.Normalization || f.work[s].Class == shape.Softmax || f.work[s].Class == shape.Movement)
	}
	before := f.source(i, 0)
	if before >= 0 && f.next(before) == i && f.into[before] >= 0 {
		if s := f.root(before); rows(s) {
			f.work[s].Write += f.output(i).Bytes() - f.input(i, 0).Bytes()
			f.into[i] = s
			return
		}
	}
	if after := f.next(i); after >= 0 && f.into[after] >= 0 {
		if s := f.root(after); rows(s) && s != i {
			f.work[s].Read += f.input(i, 0).Bytes() - f.output(i).Bytes()
			f.into[i] = s
		}
	}
}

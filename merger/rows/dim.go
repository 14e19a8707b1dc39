// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Batch is the symbol of the number of rows.
const Batch = "N"

// Dim is a dimension, or an element of a vector of dimensions, as a product: a number times symbols. Symbols stand for sizes that are
// known only when a request comes.
type Dim struct {
	Factor  int64
	Symbols []string // sorted
	// Unknown is a dimension of which nothing is known.
	Unknown bool
}

// Const is a dimension of fixed size.
func Const(n int64) Dim { return Dim{Factor: n} }

// Symbol is a dimension that a request decides.
func Symbol(name string) Dim { return Dim{Factor: 1, Symbols: []string{name}} }

func unknown() Dim { return Dim{Unknown: true} }

// Fixed is the dimension's size if it is a number.
func (d Dim) Fixed() (int64, bool) { return d.Factor, !d.Unknown && len(d.Symbols) == 0 }

// Equal says whether both are known and the same product.
func (d Dim) Equal(e Dim) bool {
	return !d.Unknown && !e.Unknown && d.Factor == e.Factor && slices.Equal(d.Symbols, e.Symbols)
}

// is says whether the dimension is this number.
func (d Dim) is(n int64) bool {
	v, fixed := d.Fixed()
	return fixed && v == n
}

// differs says whether both are numbers, and not the same.
func (d Dim) differs(e Dim) bool {
	v, a := d.Fixed()
	w, b := e.Fixed()
	return a && b && v != w
}

// batches is how often the batch is a factor of the dimension.
func (d Dim) batches() int {
	n := 0
	for _, s := range d.Symbols {
		if s == Batch {
			n++
		}
	}
	return n
}

// maxFactor bounds what a product may come to: larger ones are unknown, so that nothing overflows.
const maxFactor = 1 << 40

func (d Dim) times(e Dim) Dim {
	if d.is(0) || e.is(0) {
		return Const(0)
	}
	if d.Unknown || e.Unknown || d.Factor > maxFactor || e.Factor > maxFactor || d.Factor < -maxFactor || e.Factor < -maxFactor ||
		len(d.Symbols)+len(e.Symbols) > 8 {
		return unknown()
	}
	if p := d.Factor * e.Factor; d.Factor != 0 && (p/d.Factor != e.Factor || p > maxFactor || p < -maxFactor) {
		return unknown()
	}
	all := slices.Concat(d.Symbols, e.Symbols)
	slices.Sort(all)
	return Dim{Factor: d.Factor * e.Factor, Symbols: all}
}

// over divides, if that leaves a product.
func (d Dim) over(e Dim) Dim {
	if d.Unknown || e.Unknown || e.Factor == 0 || d.Factor%e.Factor != 0 {
		return unknown()
	}
	left := slices.Clone(d.Symbols)
	for _, s := range e.Symbols {
		i := slices.Index(left, s)
		if i < 0 {
			return unknown()
		}
		left = slices.Delete(left, i, i+1)
	}
	return Dim{Factor: d.Factor / e.Factor, Symbols: left}
}

// String is the product, as in "12*N*seq".
func (d Dim) String() string {
	if d.Unknown {
		return "?"
	}
	if len(d.Symbols) == 0 {
		return strconv.FormatInt(d.Factor, 10)
	}
	names := strings.Join(d.Symbols, "*")
	if d.Factor == 1 {
		return names
	}
	return fmt.Sprintf("%d*%s", d.Factor, names)
}

func product(dims []Dim) Dim {
	p := Const(1)
	for _, d := range dims {
		p = p.times(d)
	}
	return p
}

// joined is the lists one after another; never nil, because a shape of no dimensions is a scalar and nil is an unknown shape.
func joined(lists ...[]Dim) []Dim { return append([]Dim{}, slices.Concat(lists...)...) }

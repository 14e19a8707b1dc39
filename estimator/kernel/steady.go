// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/conch-serving/conch/estimator/regress"
)

const (
	// nearby is how far apart, in the sum of the logarithms of their dimensions, two products are that should take about as long, each against its bound.
	nearby = .3
	// unsteady is the median difference between such products, in units of the logarithm, from which a GPU's clock must have changed between them. The GPUs that
	// were measured have .008 to .040, but for the two of 70 W: a power limit that is reached within milliseconds makes a kernel as fast as the GPU was cool.
	unsteady = .05
	// fewest is how many such pairs say something.
	fewest = 30
)

// Steady leaves out the products of GPU types whose clock changed while they were timed: those of nearly the same dimensions that differ in their times by
// a factor. What such a GPU does in a whole model is better learnt from other types. It says what it left out, a line each.
func Steady(all []Measurement) (kept []Measurement, left []string) {
	groups := map[string][]*Measurement{}
	name := func(m *Measurement) string {
		if m.Kernel.Shared {
			return m.GPU.Name + ", products with shared weights"
		}
		return m.GPU.Name + ", batched products"
	}
	for i := range all {
		if m := &all[i]; m.Kernel.Family == Product {
			groups[name(m)] = append(groups[name(m)], m)
		}
	}
	out := map[string]bool{}
	for _, g := range slices.Sorted(maps.Keys(groups)) {
		if d := differences(groups[g]); len(d) >= fewest && regress.Quantile(d, .5) > unsteady {
			out[g] = true
			left = append(left, fmt.Sprintf("%s: neighbours differ by %.0f%%", g, 100*(math.Exp(regress.Quantile(d, .5))-1)))
		}
	}
	for i := range all {
		if m := &all[i]; m.Kernel.Family != Product || !out[name(m)] {
			kept = append(kept, *m)
		}
	}
	return kept, left
}

// differences are those of each product from the nearest other one, where that is nearby: of the logarithm of time over bound.
func differences(some []*Measurement) []float64 {
	dims, over := make([][4]float64, len(some)), make([]float64, len(some))
	for i, m := range some {
		k := &m.Kernel
		b := Roofline(k, m.GPU, 1, 1)
		dims[i] = [4]float64{log(k.Batch), log(k.M), log(k.N), log(k.Depth)}
		over[i] = math.Log(m.Seconds / b.Seconds)
	}
	var out []float64
	for i := range some {
		least, at := nearby, -1
		for j := range some {
			d := 0.0
			for n := range dims[i] {
				d += math.Abs(dims[i][n] - dims[j][n])
			}
			if i != j && d < least {
				least, at = d, j
			}
		}
		if at >= 0 {
			out = append(out, math.Abs(over[i]-over[at]))
		}
	}
	return out
}

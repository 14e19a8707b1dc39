// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shape

import (
	"fmt"
	"math"

	"github.com/conch-serving/conch/internal/onnx"
)

// Tensor is a value's type and shape, and its contents where shapes may depend on them.
type Tensor struct {
	Type onnx.DataType
	// Dims is nil where nothing is known, and empty for a scalar.
	Dims []int64
	// Ints and Floats are the contents, row by row, where they are known and few.
	Ints   []int64
	Floats []float64
	// Weight says that the value is a parameter, or made of parameters alone.
	Weight bool
	// Guessed says that the shape comes from an operator without a rule: what contradicts it later is no fault of the model.
	Guessed bool
	// Unknown says that the shape was not inferred.
	Unknown bool
}

// Elements is the product of the dimensions, as a float so that nothing overflows.
func (t *Tensor) Elements() float64 {
	n := 1.0
	for _, d := range t.Dims {
		n *= float64(d)
	}
	return n
}

// ElementBytes is the size of an element; four where the type is not known.
func (t *Tensor) ElementBytes() float64 {
	if b := t.Type.Bits(); b > 0 {
		return float64(b) / 8
	}
	return 4
}

// Bytes is the size of all elements.
func (t *Tensor) Bytes() float64 {
	if t == nil || t.Unknown {
		return 0
	}
	return math.Ceil(t.Elements() * t.ElementBytes())
}

// dim is dimension i, counted from the end where it is negative; 1 outside.
func (t *Tensor) dim(i int) int64 {
	if i < 0 {
		i += len(t.Dims)
	}
	if i < 0 || i >= len(t.Dims) {
		return 1
	}
	return t.Dims[i]
}

// limits of what is evaluated and accepted.
const (
	// mostKnown is how many elements a value may have whose contents are kept.
	mostKnown = 4096
	// mostElements is the largest tensor that is believed; beyond it dimensions are absurd.
	mostElements = 1 << 44
	// mostRank is the most dimensions.
	mostRank = 64
	// mostSteps bounds the operators of a model with its subgraphs and functions unfolded.
	mostSteps = 1 << 20
	// mostDepth bounds how deeply subgraphs and functions nest.
	mostDepth = 16
)

func check(dims []int64) error {
	if len(dims) > mostRank {
		return fmt.Errorf("%d dimensions: at most %d are believed", len(dims), mostRank)
	}
	n := 1.0
	for _, d := range dims {
		if d < 0 {
			return fmt.Errorf("shape %v has a negative dimension", dims)
		}
		n *= float64(d)
	}
	if n > mostElements {
		return fmt.Errorf("shape %v has %.3g elements: more than %.3g are not believed", dims, n, float64(mostElements))
	}
	return nil
}

// broadcast is the shape of element-wise operators (numpy's rule).
func broadcast(shapes ...[]int64) ([]int64, error) {
	rank := 0
	for _, s := range shapes {
		rank = max(rank, len(s))
	}
	out := make([]int64, rank)
	for i := range out {
		out[i] = 1
	}
	for _, s := range shapes {
		for i, d := range s {
			o := &out[rank-len(s)+i]
			switch {
			case *o == 1:
				*o = d
			case d != 1 && d != *o:
				return nil, fmt.Errorf("shapes %v do not broadcast", shapes)
			}
		}
	}
	return out, nil
}

// axis brings an axis into 0..rank-1 and says whether it was one.
func axis(a int64, rank int) (int, bool) {
	if a < 0 {
		a += int64(rank)
	}
	return int(a), a >= 0 && a < int64(rank)
}

func product(dims []int64) int64 {
	n := int64(1)
	for _, d := range dims {
		n *= d
	}
	return n
}

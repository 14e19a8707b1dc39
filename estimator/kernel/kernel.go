// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import "math"

// Family is a kind of kernel that shares a correction.
type Family uint8

// The families.
const (
	// Product is a matrix product.
	Product Family = iota
	// Convolution is one, read as a product of output positions by channels (implicit GEMM).
	Convolution
	// Unary reads one tensor and writes one, element by element; Binary reads two.
	Unary
	Binary
	// Power is an element-wise kernel of transcendental functions that does not vectorise well.
	Power
	// Softmax and Norm read rows, reduce them and write them.
	Softmax
	Norm
	// Direct is a convolution with so few channels in a group that no product pays: depthwise, above all.
	Direct
	// Move reads and writes elements in no fixed order: gather, transpose, pooling, reductions.
	Move
	families
)

var familyNames = [families]string{"product", "convolution", "unary", "binary", "power", "softmax", "norm", "direct", "move"}

func (f Family) String() string {
	if f < families {
		return familyNames[f]
	}
	return "unknown"
}

// Precision is the arithmetic of a kernel.
type Precision uint8

// The precisions: TF32 is what tensor cores make of FP32 where the runtime allows it.
const (
	FP32 Precision = iota
	TF32
	FP16
	INT8
)

// Kernel is one launch: what it computes and what it moves. Counts are float64: a product of absurd dimensions must not overflow.
type Kernel struct {
	Family    Family
	Precision Precision
	// Batch products of (M x Depth) by (Depth x N) for a Product. A Softmax or Norm has M rows of N elements; others have M elements in all.
	Batch, M, N, Depth float64
	// Window is how many positions a convolution's kernel has; 0 or 1 for pointwise ones and for other families.
	Window float64
	// Winograd says that a convolution can be computed with fewer multiplications than FLOPs counts: 3 x 3 positions, one step at a time.
	Winograd bool
	// Sources are the elements that a reduction reads: its threads share those out, not the few that it writes. 0 for other kernels.
	Sources float64
	// Shared says that all products of the batch have the same second factor: a linear layer, a convolution.
	Shared bool
	// FLOPs counts a multiplication and an addition as two.
	FLOPs float64
	// Read and Write are bytes of device memory that must move at least once; Weights are those of Read that are parameters.
	Read, Write, Weights float64
}

// Bytes that the kernel moves.
func (k *Kernel) Bytes() float64 { return k.Read + k.Write }

// MatMul is the kernel of batch products of m x depth by depth x n, elements of size bytes each; shared if the second factor is the same for all.
func MatMul(batch, m, n, depth, size float64, shared bool) Kernel {
	second := batch
	if shared {
		m, batch, second = m*batch, 1, 1
	}
	return Kernel{
		Family: Product, Batch: batch, M: m, N: n, Depth: depth, Shared: shared,
		FLOPs: 2 * batch * m * n * depth, Read: size * (batch*m*depth + second*depth*n), Write: size * batch * m * n,
	}
}

// Rows is the kernel of a family that works on rows of width elements of size bytes each and reads inputs tensors.
func Rows(f Family, rows, width, inputs, size float64) Kernel {
	return Kernel{Family: f, Batch: 1, M: rows, N: width, FLOPs: 4 * rows * width, Read: inputs * size * rows * width, Write: size * rows * width}
}

// positive keeps what is divided by, and what logarithms are taken of, at 1 or more.
func positive(v float64) float64 {
	if !(v > 1) {
		return 1
	}
	return min(v, math.MaxFloat64/1e9)
}

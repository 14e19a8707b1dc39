// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package arena plays ONNX Runtime's memory arena (its best-fit allocator with coalescing, under the default strategy kNextPowerOfTwo): which bytes it has
// taken from the system after a series of executions, and which of those were ever written. A GPU loses the first, a process is as large as the second.
//
// What a model holds depends on more than the values that are alive together: an extent is as large as a power of two, a value lies in one extent, nothing
// is given back, the first execution of a batch size places values one by one, and the later ones place all of them in one block whose layout the first
// one gave (ONNX Runtime's memory patterns).
package arena

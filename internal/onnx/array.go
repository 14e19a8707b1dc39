// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package onnx

// Array is a tensor with its elements in memory: the input or output of a run.
type Array struct {
	Name string
	Type DataType
	Dims []int64
	// Data is the elements, little-endian.
	Data []byte
}

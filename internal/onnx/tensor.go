// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package onnx

// Encoding says how a tensor's elements lie in their byte range.
type Encoding int

const (
	// NoData says that the file has no elements for the tensor, which is valid only for one without elements.
	NoData Encoding = iota
	// Raw says that the elements follow one after another, little-endian.
	Raw
	// Message says that the range is the tensor's message, whose typed fields hold the elements. Reader and Data decode them.
	Message
)

// Location is where a tensor's elements lie.
type Location struct {
	// File is empty for the model file itself. Otherwise it is a path with slashes relative to the model's directory, which it does
	// not leave.
	File           string
	Offset, Length int64
	Encoding       Encoding
}

// Tensor is a constant: an initializer, or the value of an attribute.
type Tensor struct {
	Name     string
	Type     DataType
	Dims     []int64
	Location Location
}

// Elements is the product of the dimensions. Open refuses tensors whose product, or whose size in bytes, does not fit.
func (t *Tensor) Elements() int64 {
	n := int64(1)
	for _, d := range t.Dims {
		n *= d
	}
	return n
}

// Bytes is the size of all elements as Data gives them. Strings have no size of their own: 0.
func (t *Tensor) Bytes() int64 { return t.Type.Size(t.Elements()) }

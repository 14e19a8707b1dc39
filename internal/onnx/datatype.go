// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package onnx

import "fmt"

// DataType is the type of a tensor's elements, with the numbers of TensorProto.DataType.
type DataType int32

// The element types of ONNX.
const (
	Undefined      DataType = 0
	Float          DataType = 1
	Uint8          DataType = 2
	Int8           DataType = 3
	Uint16         DataType = 4
	Int16          DataType = 5
	Int32          DataType = 6
	Int64          DataType = 7
	String         DataType = 8
	Bool           DataType = 9
	Float16        DataType = 10
	Double         DataType = 11
	Uint32         DataType = 12
	Uint64         DataType = 13
	Complex64      DataType = 14
	Complex128     DataType = 15
	BFloat16       DataType = 16
	Float8E4M3FN   DataType = 17
	Float8E4M3FNUZ DataType = 18
	Float8E5M2     DataType = 19
	Float8E5M2FNUZ DataType = 20
	Uint4          DataType = 21
	Int4           DataType = 22
	Float4E2M1     DataType = 23
)

// dataTypes is indexed by DataType. A String has no fixed size: 0 bits.
var dataTypes = [...]struct {
	name string
	bits int64
}{
	Undefined: {"undefined", 0}, Float: {"float", 32}, Uint8: {"uint8", 8}, Int8: {"int8", 8}, Uint16: {"uint16", 16},
	Int16: {"int16", 16}, Int32: {"int32", 32}, Int64: {"int64", 64}, String: {"string", 0}, Bool: {"bool", 8},
	Float16: {"float16", 16}, Double: {"double", 64}, Uint32: {"uint32", 32}, Uint64: {"uint64", 64},
	Complex64: {"complex64", 64}, Complex128: {"complex128", 128}, BFloat16: {"bfloat16", 16},
	Float8E4M3FN: {"float8e4m3fn", 8}, Float8E4M3FNUZ: {"float8e4m3fnuz", 8},
	Float8E5M2: {"float8e5m2", 8}, Float8E5M2FNUZ: {"float8e5m2fnuz", 8},
	Uint4: {"uint4", 4}, Int4: {"int4", 4}, Float4E2M1: {"float4e2m1", 4},
}

// Known says whether this build knows the type.
func (t DataType) Known() bool { return t > Undefined && int(t) < len(dataTypes) }

// Bits is the size of one element, 0 for strings and types that this build does not know.
func (t DataType) Bits() int64 {
	if !t.Known() {
		return 0
	}
	return dataTypes[t].bits
}

// Size is how many bytes so many elements take: four-bit elements lie two in a byte.
func (t DataType) Size(elements int64) int64 {
	if bits := t.Bits(); bits < 8 {
		return (elements*bits + 7) / 8
	}
	return elements * (t.Bits() / 8)
}

// String is the type's name in lower case, as in "float16".
func (t DataType) String() string {
	if t >= 0 && int(t) < len(dataTypes) {
		return dataTypes[t].name
	}
	return fmt.Sprintf("type %d", int32(t))
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package triton

import (
	"math"
	"math/bits"
	"strings"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// SizeOf is the bytes of one element of a tensor by the name of its data type on the wire: 0 of BYTES, whose elements differ in size, -1 of a
// name that is no data type.
func SizeOf(datatype string) int {
	switch datatype {
	case "BOOL", "UINT8", "INT8":
		return 1
	case "UINT16", "INT16", "FP16", "BF16":
		return 2
	case "UINT32", "INT32", "FP32":
		return 4
	case "UINT64", "INT64", "FP64":
		return 8
	case "BYTES":
		return 0
	}
	return -1
}

// ElementSize is SizeOf by the data type of a configuration; 0 of what is no data type.
func ElementSize(t tritonpb.DataType) int64 { return int64(max(0, SizeOf(DatatypeName(t)))) }

// DatatypeName is the name of a data type on the wire, such as FP32. A string is BYTES there.
func DatatypeName(t tritonpb.DataType) string {
	switch t {
	case tritonpb.DataType_TYPE_STRING:
		return "BYTES"
	case tritonpb.DataType_TYPE_INVALID:
		return "<invalid>"
	}
	return strings.TrimPrefix(t.String(), "TYPE_")
}

// Elements is the number of elements of a shape; ok is false if it overflows, even where a zero hides it.
func Elements(shape []int64) (count int64, ok bool) {
	product, zero := uint64(1), false
	for _, d := range shape {
		if d < 0 {
			return 0, false
		}
		if d == 0 {
			zero = true
			continue
		}
		high, low := bits.Mul64(product, uint64(d))
		if high != 0 || low > math.MaxInt64 {
			return 0, false
		}
		product = low
	}
	if zero {
		return 0, true
	}
	return int64(product), true
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"math"
	"math/bits"
)

// bytesDatatype is the one datatype whose elements differ in size: each is a
// little-endian uint32 length and that many bytes.
const bytesDatatype = "BYTES"

// datatypes are the names that exist, the frequent ones first.
var datatypes = [...]string{"FP32", bytesDatatype, "INT64", "INT32", "UINT8", "FP16", "BOOL", "INT8", "BF16", "FP64", "INT16", "UINT16", "UINT32", "UINT64"}

// datatype is text without an allocation for the names that exist.
func datatype(b []byte) (string, error) {
	for _, name := range datatypes {
		if string(b) == name {
			return name, nil
		}
	}
	return text(b, "datatype")
}

// overflows reports whether the byte size of the shape does not fit an int64,
// which makes Triton 2.51 compute a size that is too small.
func overflows(shape []int64, size int) bool {
	product := uint64(max(size, 1))
	zero, over := false, false
	for _, d := range shape {
		magnitude := uint64(d)
		if d < 0 {
			magnitude = -magnitude
		}
		if magnitude == 0 {
			zero = true
			continue
		}
		hi, lo := bits.Mul64(product, magnitude)
		if hi != 0 || lo > math.MaxInt64 {
			over = true
			lo = math.MaxInt64
		}
		product = lo
	}
	return over && !zero
}

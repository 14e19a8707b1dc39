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

// datatype is text without an allocation for the names that exist.
func datatype(b []byte) (string, error) {
	switch string(b) {
	case "BOOL":
		return "BOOL", nil
	case "UINT8":
		return "UINT8", nil
	case "UINT16":
		return "UINT16", nil
	case "UINT32":
		return "UINT32", nil
	case "UINT64":
		return "UINT64", nil
	case "INT8":
		return "INT8", nil
	case "INT16":
		return "INT16", nil
	case "INT32":
		return "INT32", nil
	case "INT64":
		return "INT64", nil
	case "FP16":
		return "FP16", nil
	case "FP32":
		return "FP32", nil
	case "FP64":
		return "FP64", nil
	case "BF16":
		return "BF16", nil
	case bytesDatatype:
		return bytesDatatype, nil
	}
	return text(b, "datatype")
}

// ElementSize is the size of one element in bytes: 0 for BYTES, -1 for a name
// that is no datatype.
func ElementSize(datatype string) int {
	switch datatype {
	case "BOOL", "UINT8", "INT8":
		return 1
	case "UINT16", "INT16", "FP16", "BF16":
		return 2
	case "UINT32", "INT32", "FP32":
		return 4
	case "UINT64", "INT64", "FP64":
		return 8
	case bytesDatatype:
		return 0
	}
	return -1
}

// elements multiplies dimensions. Ok is false when one is negative or the
// product does not fit.
func elements(shape []int64) (n int64, ok bool) {
	n = 1
	for _, d := range shape {
		if d < 0 {
			return 0, false
		}
		hi, lo := bits.Mul64(uint64(n), uint64(d))
		if hi != 0 || lo > math.MaxInt64 {
			return 0, false
		}
		n = int64(lo)
	}
	return n, true
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

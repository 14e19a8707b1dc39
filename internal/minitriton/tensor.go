// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"encoding/binary"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// tensor is one input or output: data is row-major little-endian, BYTES elements each behind a 4-byte length.
type tensor struct {
	name  string
	dtype pb.DataType
	shape []int64
	data  []byte
	// place: the data lie in a shared memory region of the caller's, which may only be touched while it is pinned. Nil: they do not.
	place *placement
	// placed: the data lie in a shared memory region of the caller's and are not part of the answer.
	placed bool
}

func datatypeByName(name string) pb.DataType {
	if name == "BYTES" {
		return pb.DataType_TYPE_STRING
	}
	if name == "STRING" { // the config's name, not the protocol's
		return pb.DataType_TYPE_INVALID
	}
	return pb.DataType(pb.DataType_value["TYPE_"+name])
}

// elements is the product of a shape, without regard to overflow, as Triton computes it.
func elements(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// eachString calls f with every element of a BYTES tensor until f returns false. It says how many it saw and whether the data were whole.
func eachString(data []byte, f func([]byte) bool) (n int, whole bool) {
	for len(data) > 0 {
		if len(data) < 4 {
			return n, false
		}
		size := uint64(binary.LittleEndian.Uint32(data))
		if uint64(len(data)-4) < size {
			return n, false
		}
		n++
		if !f(data[4 : 4+size]) {
			return n, true
		}
		data = data[4+size:]
	}
	return n, true
}

func appendBytesElement(b, element []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(element))), element...)
}

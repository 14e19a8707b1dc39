// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package triton

import (
	"strings"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// ElementSize is the bytes of one element of a tensor of a data type; 0 where
// they vary (strings) and of what is no data type.
func ElementSize(t tritonpb.DataType) int64 {
	switch t {
	case tritonpb.DataType_TYPE_BOOL, tritonpb.DataType_TYPE_UINT8, tritonpb.DataType_TYPE_INT8:
		return 1
	case tritonpb.DataType_TYPE_UINT16, tritonpb.DataType_TYPE_INT16, tritonpb.DataType_TYPE_FP16, tritonpb.DataType_TYPE_BF16:
		return 2
	case tritonpb.DataType_TYPE_UINT32, tritonpb.DataType_TYPE_INT32, tritonpb.DataType_TYPE_FP32:
		return 4
	case tritonpb.DataType_TYPE_UINT64, tritonpb.DataType_TYPE_INT64, tritonpb.DataType_TYPE_FP64:
		return 8
	}
	return 0
}

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

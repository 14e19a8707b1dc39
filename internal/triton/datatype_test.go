// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package triton_test

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// TestElementSize: a type's name has its bits, but for truth values and strings.
func TestElementSize(t *testing.T) {
	bits := regexp.MustCompile(`\d+$`)
	for value, name := range tritonpb.DataType_name {
		want, _ := strconv.ParseInt(bits.FindString(name), 10, 64)
		if name == "TYPE_BOOL" {
			want = 8
		}
		require.Equal(t, want/8, triton.ElementSize(tritonpb.DataType(value)), name)
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/ingress/guard"
)

func TestRegion(t *testing.T) {
	for _, c := range []struct {
		key          string
		offset, size uint64
		text         string // of the refusal; none if it is allowed
	}{
		{"/input", 0, 64, ""},
		{"input", 4096, 64, ""},
		{"", 0, 0, ""}, // the server refuses it
		{"/triton", math.MaxInt64 - 8, 8, ""},
		{"/triton", math.MaxInt64 - 7, 8, "outside what a region can have"},
		{"/triton", math.MaxUint64, 1, "outside what a region can have"},
		{"/triton", 0, math.MaxUint64, "outside what a region can have"},
		{"/a/b", 0, 64, "not the name of a shared memory object"},
		{"/..", 0, 64, "not the name of a shared memory object"},
		{"/a\x00b", 0, 64, "not the name of a shared memory object"},
		{"triton_python_backend_shm_region_12", 0, 64, "belongs to a backend"},
		{"///triton_python_backend_shm_region_12", 0, 64, "belongs to a backend"},
		{"/conch-0123456789-1-model", 0, 64, "belongs to a backend"},
	} {
		err := guard.Region(c.key, c.offset, c.size)
		if c.text == "" {
			require.NoError(t, err, c.key)
			continue
		}
		require.Equal(t, codes.InvalidArgument, status.Code(err), c.key)
		require.ErrorContains(t, err, c.text)
	}
}

func TestSettings(t *testing.T) {
	require.Equal(t, codes.Unimplemented, status.Code(guard.LogSetting("log_file")))
	require.NoError(t, guard.LogSetting("log_info"))
	require.Equal(t, codes.Unimplemented, status.Code(guard.TraceSetting("trace_file")))
	require.NoError(t, guard.TraceSetting("trace_rate"))
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/estimator/gpu"
)

func TestEveryGPUOfTheDesignIsThereWithASource(t *testing.T) {
	for _, name := range []string{"K80", "1080Ti", "2080Ti", "V100", "T4", "A10", "L4", "A100", "H100", "H200"} {
		s, err := gpu.Find(name)
		require.NoError(t, err)
		require.NotEmpty(t, s.Source, name)
		// Lanes times clock times two is what a sheet calls FP32 peak: a slip of a column shows here.
		require.InEpsilon(t, s.FP32, s.SMs*s.Cores*s.BoostMHz*1e6*2, .05, name)
		require.Greater(t, s.Memory, 1e9)
		require.Greater(t, s.L2, 1e6)
	}
}

func TestNamesOfDriversAreFound(t *testing.T) {
	for alias, want := range map[string]string{
		"NVIDIA A100-PCIE-40GB": "A100", "Tesla T4": "T4", "NVIDIA GeForce RTX 2080 Ti": "2080Ti", "a100-80gb": "A100-80GB", "NVIDIA H100 80GB HBM3": "H100",
	} {
		s, err := gpu.Find(alias)
		require.NoError(t, err)
		require.Equal(t, want, s.Name)
	}
	_, err := gpu.Find("B9000")
	require.ErrorIs(t, err, gpu.ErrUnknown)
	require.ErrorContains(t, err, "known are K80")
}

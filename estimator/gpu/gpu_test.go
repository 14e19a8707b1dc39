// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package gpu_test

import (
	"regexp"
	"strconv"
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
		"Tesla V100-PCIE-32GB": "V100-32GB", "Tesla V100-PCIE-16GB": "V100", "Tesla V100-SXM2-32GB": "V100-SXM2-32GB", "Tesla V100S-PCIE-32GB": "V100S",
		"Tesla P100-PCIE-12GB": "P100-12GB", "Tesla P100-SXM2-16GB": "P100-SXM2", "NVIDIA H100 PCIe": "H100-PCIe", "NVIDIA H100 NVL": "H100-NVL",
		"NVIDIA A100-SXM4-80GB": "A100-SXM4-80GB", "NVIDIA A100 80GB PCIe": "A100-80GB", "NVIDIA H200": "H200", "NVIDIA H200 NVL": "H200-NVL",
		"NVIDIA A10": "A10", "NVIDIA A10G": "A10G",
	} {
		s, err := gpu.Find(alias)
		require.NoError(t, err)
		require.Equal(t, want, s.Name)
	}
	_, err := gpu.Find("B9000")
	require.ErrorIs(t, err, gpu.ErrUnknown)
	require.ErrorContains(t, err, "known are K80")
}

// A card is one row: what a name says of the memory is the row's, and no name finds two rows.
func TestARowHasTheMemoryThatItsNamesSay(t *testing.T) {
	sheets, err := gpu.All()
	require.NoError(t, err)
	size := regexp.MustCompile(`(\d+) ?GB`)
	for i := range sheets {
		for _, name := range append([]string{sheets[i].Name}, sheets[i].Aliases...) {
			if said := size.FindStringSubmatch(name); said != nil {
				gb, err := strconv.ParseFloat(said[1], 64)
				require.NoError(t, err)
				require.InDelta(t, gb*1e9, sheets[i].Memory, 1, name)
			}
			for j := range sheets {
				require.Equal(t, i == j, sheets[j].Is(name), "%s, row %s", name, sheets[j].Name)
			}
		}
	}
}

func TestRowsOfOneChipWithOtherMemoryComputeAlike(t *testing.T) {
	find := func(name string) gpu.Sheet {
		s, err := gpu.Find(name)
		require.NoError(t, err)
		return s
	}
	small, large, sxm, wide := find("V100"), find("V100-32GB"), find("V100-SXM2"), find("V100S")
	require.True(t, small.ComputesAs(&large))
	require.False(t, small.ComputesAs(&sxm), "another clock")
	require.False(t, small.ComputesAs(&wide), "another bandwidth")
}

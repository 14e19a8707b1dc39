// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/calibrate"
)

func built(t *testing.T, name string) *estimator.Subject {
	t.Helper()
	all := append(calibrate.Whole(), calibrate.Micros()...)
	i := slices.IndexFunc(all, func(m calibrate.Model) bool { return m.Name == name })
	require.GreaterOrEqual(t, i, 0, name)
	file, err := all[i].Build()
	require.NoError(t, err)
	s, err := estimator.Read(bytes.NewReader(file), int64(len(file)), name+".onnx")
	require.NoError(t, err)
	return s
}

// What ONNX Runtime 1.23 asks its arena for in the second execution of eight rows, on a processor with AVX-512 ("Extending BFCArena ... num_bytes").
func TestValuesLieWhereONNXRuntimePutsThem(t *testing.T) {
	for name, want := range map[string]int64{
		"residual": 7077888, "depthwise": 8257536, "inception": 12091392, "encoder": 5160960, "sum_8": 131072, "conv_64_32_1_1": 4194304, "erf_128_256": 2097152,
	} {
		got, err := built(t, name).CommonBlock(8)
		require.NoError(t, err)
		require.Equal(t, want, got, name)
	}
}

func TestMemoryGrowsWithWhatWasExecuted(t *testing.T) {
	d, err := estimator.NewDevice("A100", "onnxruntime")
	require.NoError(t, err)
	s := built(t, "encoder")
	last := 0.0
	for _, batches := range [][]int{{8}, {1, 2, 4, 8}} {
		e, err := s.Estimate(estimator.Declared{MaxBatch: 8}, estimator.Grid{Batches: batches, Shares: []int{100}}, d)
		require.NoError(t, err)
		require.GreaterOrEqual(t, e.Memory.Total(), last, "what smaller batches left is not always of use to larger ones")
		require.Positive(t, e.Memory.Arena)
		last = e.Memory.Total()
	}
	eager, err := estimator.NewDevice("A100", "eager")
	require.NoError(t, err)
	e, err := s.Estimate(estimator.Declared{MaxBatch: 8}, estimator.Grid{Batches: []int{8}, Shares: []int{100}}, eager)
	require.NoError(t, err)
	require.Zero(t, e.Memory.Arena, "only ONNX Runtime's arena is known")
}

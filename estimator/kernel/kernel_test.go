// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/estimator/data"
	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/estimator/kernel"
)

// A GPU that was left out is predicted from the others. The tight figures are those of `make bench BENCH=estimator`; here a sixteenth of the samples has
// to come near, so that a broken feature or fit shows.
func TestAnUnmeasuredGPUIsPredictedFromOthers(t *testing.T) {
	all, err := kernel.ReadAll(os.DirFS("../data"))
	require.NoError(t, err)
	var some []kernel.Measurement
	for i := 0; i < len(all); i += 16 {
		some = append(some, all[i])
	}
	errors, err := kernel.LeaveOut(some, func(name string) bool { return name == "A100" || name == "A100-80GB" }, 1)
	require.NoError(t, err)
	require.Less(t, errors.Quantile(.5), .25)
	require.Less(t, errors.Quantile(.9), .60)
}

func TestTheShippedModelKnowsItsMeasurements(t *testing.T) {
	m, err := data.Kernels()
	require.NoError(t, err)
	t4, err := gpu.Find("T4")
	require.NoError(t, err)
	f, err := os.Open("../data/t4/kernels.csv")
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	all, err := kernel.ReadMeasurements(f, &t4)
	require.NoError(t, err)
	within := 0
	for i := range all {
		b := kernel.Roofline(&all[i].Kernel, &t4, 1, 1)
		predicted := b.Seconds * m.Correction(&all[i].Kernel, &t4, &b, nil)
		if r := predicted / all[i].Seconds; r > .75 && r < 1.33 {
			within++
		}
	}
	require.Greater(t, float64(within)/float64(len(all)), .75)
}

func TestALargerShareIsNeverSlower(t *testing.T) {
	v100, err := gpu.Find("V100")
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(1, 4096)
		k := kernel.MatMul(float64(rapid.IntRange(1, 64).Draw(t, "batch")), float64(size.Draw(t, "m")), float64(size.Draw(t, "n")), float64(size.Draw(t, "depth")), 4, rapid.Bool().Draw(t, "shared"))
		if rapid.Bool().Draw(t, "rows") {
			k = kernel.Rows(kernel.Softmax, float64(size.Draw(t, "rows")), float64(size.Draw(t, "width")), 1, 4)
		}
		low := rapid.Float64Range(.05, 1).Draw(t, "low")
		high := rapid.Float64Range(low, 1).Draw(t, "high")
		slow, fast := kernel.Roofline(&k, &v100, low, .5), kernel.Roofline(&k, &v100, high, .5)
		require.GreaterOrEqual(t, slow.Seconds*(1+1e-9), fast.Seconds)
		require.GreaterOrEqual(t, fast.Seconds, k.FLOPs/v100.FP32, "nothing beats the roof")
		require.GreaterOrEqual(t, fast.Seconds, k.Bytes()/v100.Bandwidth)
	})
}

// Threads share out what there is to compute: a depthwise convolution of few positions and many channels, and a reduction of much to little, take about as
// long as their bytes, on a GPU with many multiprocessors as on one with few.
func TestFewResultsPerChannelFillTheGPU(t *testing.T) {
	const channels, positions = 1152, 32 * 7 * 7
	bytes := 4.0 * channels * positions
	for name, k := range map[string]kernel.Kernel{
		"depthwise": {Family: kernel.Direct, Batch: channels, M: positions, N: 1, Depth: 9, Window: 9, FLOPs: 18 * channels * positions, Read: bytes, Write: bytes},
		"pooling":   {Family: kernel.Move, Batch: 1, M: 32 * channels, N: 1, Sources: channels * positions, FLOPs: channels * positions, Read: bytes, Write: 4 * 32 * channels},
	} {
		for _, gpuName := range []string{"A100", "1080Ti", "T4"} {
			sheet, err := gpu.Find(gpuName)
			require.NoError(t, err)
			b := kernel.Roofline(&k, &sheet, 1, .5)
			require.InEpsilon(t, k.Bytes()/sheet.Bandwidth, b.Seconds, .05, "%s on %s", name, gpuName)
		}
	}
}

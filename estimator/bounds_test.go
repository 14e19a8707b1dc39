// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/data"
	"github.com/conch-serving/conch/estimator/published"
)

func TestABoundIsAboveNineOfTen(t *testing.T) {
	var deviations []float64
	for i := range 200 {
		deviations = append(deviations, float64(i)/200)
	}
	require.InDelta(t, .935, estimator.BoundOf(deviations), .011)
	require.InDelta(t, .3, estimator.BoundOf([]float64{.1, .3, .2}), 0, "of few it is the largest")
	require.InDelta(t, .5, estimator.Deviation(15, 10), 1e-9)
	require.InDelta(t, .5, estimator.Deviation(5, 10), 1e-9)
}

func whole(t *testing.T, name string, batch int, d estimator.Device) *estimator.Estimate {
	t.Helper()
	g, err := data.Graph(os.DirFS("data"), name)
	require.NoError(t, err)
	return estimate(t, g, d, estimator.Grid{Batches: []int{batch}, Shares: []int{100}})
}

// A transformer's bound depends on how near its GPU is to what was measured; a model of convolutions has that of the whole models of its GPU and runtime.
func TestBoundsAreByKindAndByHowNearTheDataAre(t *testing.T) {
	bound := func(model, gpuName, runtime string) float64 {
		e := whole(t, model, 8, device(t, gpuName, runtime))
		require.NotEmpty(t, e.Basis)
		require.InEpsilon(t, e.Points[0].LatencyUS*e.Bound*1.96/1.645, e.Points[0].ErrorBoundUS, 1e-9)
		return e.Bound
	}
	own, sheetOnly, warm := bound("other/bert-large", "A100", "eager"), bound("other/bert-large", "A10", "eager"), bound("other/bert-large", "T4", "eager")
	require.Less(t, own, .15, "its kernels were measured")
	require.Less(t, own, sheetOnly)
	require.Less(t, own, warm, "70 W")
	require.Less(t, sheetOnly, .5)
	require.InDelta(t, own, bound("other/bert-large", "NVIDIA A100-PCIE-40GB", "eager"), 0)
	require.GreaterOrEqual(t, bound("other/bert-large", "A100", ""), .5, "no whole transformer was measured in ONNX Runtime")

	shipped, err := estimator.Shipped()
	require.NoError(t, err)
	require.InDelta(t, shipped["V100/eager"].Bound, bound("torchvision/resnet50", "V100", "eager"), 0)
	require.InDelta(t, shipped["V100/eager"].Bound, bound("torchvision/resnet50", "Tesla V100-PCIE-32GB", "eager"), 0, "the same card with more memory")
	require.Greater(t, bound("torchvision/resnet50", "A10", "eager"), shipped["V100/eager"].Bound)
}

// Whole transformers, which no fit has seen: what was measured on a card fits it, and is near its estimate. `make bench BENCH=estimator-whole` has the figures.
func TestWholeTransformersAreNearTheirEstimates(t *testing.T) {
	all, err := published.Transformers(os.DirFS("data"))
	require.NoError(t, err)
	require.Len(t, all, 48)
	byGPU := map[string][]float64{}
	within := 0
	for i := range all {
		m := &all[i]
		e := whole(t, "other/"+m.Model, m.Batch, device(t, m.Sheet.Name, "eager"))
		require.True(t, e.Fits, "%s was measured: %s", m.Model, e.DoesNotFit())
		deviation := estimator.Deviation(m.Seconds, e.Points[0].LatencyUS/1e6)
		byGPU[m.Sheet.Name] = append(byGPU[m.Sheet.Name], deviation)
		if deviation <= e.Bound {
			within++
		}
	}
	require.GreaterOrEqual(t, float64(within)/float64(len(all)), .9)
	for gpuName, deviations := range byGPU {
		if gpuName != "P4" { // which slows down as it warms: 16 rows take 2.3 times as long as 8
			require.Less(t, estimator.Median(deviations), .1, gpuName)
		}
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/data"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/internal/onnx/shape"
	"github.com/conch-serving/conch/plugins/policy/grid"
)

func device(t testing.TB, gpuName, runtime string) estimator.Device {
	t.Helper()
	d, err := estimator.NewDevice(gpuName, runtime)
	require.NoError(t, err)
	return d
}

func estimate(t testing.TB, graph *shape.Graph, d estimator.Device, grid estimator.Grid) *estimator.Estimate {
	t.Helper()
	e, err := estimator.Do(estimator.Request{Model: "model", Graph: graph, Grid: grid, Device: d, Inputs: func(batch int) (map[string][]int64, error) {
		shapes, _, err := estimator.FeedShapes(graph, estimator.Declared{}, batch)
		return shapes, err
	}})
	require.NoError(t, err)
	return e
}

// torchvision documents parameters and multiply-accumulates of its models (its "GFLOPS"): a count of ours from the graph has to agree.
func TestCountsAgreeWithPublishedOnes(t *testing.T) {
	for name, want := range map[string]struct{ millions, gmacs float64 }{
		"alexnet": {61.1, .71}, "resnet50": {25.6, 4.09}, "resnet152": {60.2, 11.51}, "vgg16": {138.4, 15.47}, "densenet121": {8.0, 2.83}, "googlenet": {6.6, 1.50},
		"mobilenet_v2": {3.5, .30}, "mobilenet_v3_large": {5.5, .22}, "mnasnet1_0": {4.4, .31}, "squeezenet1_1": {1.24, .35}, "shufflenet_v2_x1_5": {3.5, .30},
		"resnext50_32x4d": {25.0, 4.23}, "regnet_x_8gf": {39.6, 8.0}, "regnet_y_16gf": {83.6, 15.91}, "convnext_tiny": {28.6, 4.46},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := data.Graph(os.DirFS("data"), "torchvision/"+name)
			require.NoError(t, err)
			e := estimate(t, g, device(t, "V100", "eager"), estimator.Grid{Batches: []int{1}, Shares: []int{100}})
			require.InEpsilon(t, want.millions*1e6, float64(e.Parameters), .03)
			require.InEpsilon(t, 2*want.gmacs*1e9, e.FLOPs, .06)
			require.Empty(t, e.Warnings, "every operator is known")
		})
	}
}

func TestProfilesAreWellBehaved(t *testing.T) {
	for _, name := range []string{"torchvision/resnet50", "torchvision/googlenet", "torchvision/maxvit_t", "keras/EfficientNetB0"} {
		t.Run(name, func(t *testing.T) {
			g, err := data.Graph(os.DirFS("data"), name)
			require.NoError(t, err)
			e := estimate(t, g, device(t, "T4", ""), estimator.DefaultGrid(32))
			at := map[[2]uint32]grid.Point{}
			for _, p := range e.Points {
				at[[2]uint32{p.Batch, p.ThreadPercentage}] = p
				require.Greater(t, p.LatencyUS, 0.0)
				require.Greater(t, p.ErrorBoundUS, 0.0)
				for _, v := range []float64{p.Creq, p.Mreq, p.BandwidthUtilization, p.L2Utilization} {
					require.True(t, v > 0 && v <= 1, "%+v", p)
				}
			}
			for k, p := range at {
				if more, ok := at[[2]uint32{k[0], k[1] + 10}]; ok {
					require.LessOrEqual(t, more.LatencyUS, p.LatencyUS, "a larger share is not slower")
				}
				if more, ok := at[[2]uint32{2 * k[0], k[1]}]; ok {
					require.GreaterOrEqual(t, more.LatencyUS, p.LatencyUS, "a larger batch is not faster")
				}
			}
		})
	}
}

func TestBranchesStartTogether(t *testing.T) {
	for name, some := range map[string]bool{"torchvision/googlenet": true, "torchvision/vgg16": false} {
		g, err := data.Graph(os.DirFS("data"), name)
		require.NoError(t, err)
		e := estimate(t, g, device(t, "V100", ""), estimator.Grid{Batches: []int{1}, Shares: []int{100}})
		require.Equal(t, some, e.Concurrent > 0, name)
	}
}

func TestRuntimesFuseWhatTheyFuse(t *testing.T) {
	g, err := data.Graph(os.DirFS("data"), "torchvision/resnet50")
	require.NoError(t, err)
	kernels := map[string]int{}
	for _, runtime := range []string{"eager", "onnxruntime"} {
		kernels[runtime] = estimate(t, g, device(t, "V100", runtime), estimator.Grid{Batches: []int{1}, Shares: []int{100}}).Kernels
	}
	require.Equal(t, map[string]int{
		"eager":       53 + 53 + 49 + 16 + 1 + 1 + 1 + 1, // convolutions, normalisations, activations, additions, two poolings, one product and its bias
		"onnxruntime": 53 + 1 + 1 + 1,
	}, kernels)
}

// PyTorch launches 69 kernels for a ResNet-18 of one row, whichever way the file was exported: with its batch normalisations, or with these folded into
// weights, as torch.onnx.export does unless it is told otherwise.
func TestEagerCountsWhatPyTorchLaunches(t *testing.T) {
	for _, name := range []string{"torchvision/resnet18", "torchvision/resnet18-training"} {
		g, err := data.Graph(os.DirFS("data"), name)
		require.NoError(t, err)
		one := estimator.Grid{Batches: []int{1}, Shares: []int{100}}
		require.Equal(t, 20+20+17+8+1+1+1+1, estimate(t, g, device(t, "V100", "eager"), one).Kernels, "%s: convolutions, normalisations, activations, additions, poolings, a product and its bias", name)
		require.Equal(t, 20+1+1+1, estimate(t, g, device(t, "V100", "onnxruntime"), one).Kernels, name)
	}
	for name, want := range map[string]int{
		"vgg11":         8 + 8 + 10 + 5 + 1 + 3 + 3, // biases of convolutions are kernels of their own
		"vgg11_bn":      8 + 8 + 10 + 5 + 1 + 3 + 3, // normalisations take their place
		"squeezenet1_1": 26 + 26 + 26 + 3 + 8 + 1,
	} {
		g, err := data.Graph(os.DirFS("data"), "torchvision/"+name)
		require.NoError(t, err)
		require.Equal(t, want, estimate(t, g, device(t, "V100", "eager"), estimator.Grid{Batches: []int{1}, Shares: []int{100}}).Kernels, name)
	}
}

func TestWhatDoesNotFitSaysSo(t *testing.T) {
	g, err := data.Graph(os.DirFS("data"), "torchvision/vgg16")
	require.NoError(t, err)
	small, large := device(t, "P4", ""), estimator.Grid{Batches: []int{1024}, Shares: []int{100}}
	e := estimate(t, g, small, large)
	require.False(t, e.Fits)
	require.Greater(t, e.Memory.Total(), e.MemoryOfGPU)
	require.True(t, estimate(t, g, small, estimator.Grid{Batches: []int{1}, Shares: []int{100}}).Fits)
}

func TestFilesThatAreNoGraphsSayWhatTheyAreEstimatedFrom(t *testing.T) {
	directory := t.TempDir()
	for file, want := range map[string]string{"model.plan": "TensorRT plan", "model.pt": "TorchScript", "model.py": "python model"} {
		path := filepath.Join(directory, file)
		require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte{1}, 1<<20), 0o600))
		s, err := estimator.Open(path)
		require.NoError(t, err)
		e, err := s.Estimate(estimator.Declared{}, estimator.DefaultGrid(4), device(t, "T4", ""))
		require.NoError(t, err)
		require.Len(t, e.Warnings, 1)
		require.Contains(t, e.Warnings[0], want)
		require.GreaterOrEqual(t, e.Bound, 1.0)
	}
}

func TestAWrittenProfileIsReadAsItIs(t *testing.T) {
	g, err := data.Graph(os.DirFS("data"), "torchvision/squeezenet1_1")
	require.NoError(t, err)
	e := estimate(t, g, device(t, "A10", ""), estimator.DefaultGrid(4))
	for _, name := range []string{"profile.json", "profile.csv"} {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, estimator.WriteProfile(path, e.Profile))
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		back, err := grid.Read(bytes.NewReader(text))
		require.NoError(t, err)
		require.Len(t, back, 1)
		require.Equal(t, "A10", back[0].GPUType)
		require.Equal(t, grid.Estimated, back[0].Source)
		require.Len(t, back[0].Points, len(e.Points))
		require.InEpsilon(t, e.Points[0].LatencyUS, back[0].Points[0].LatencyUS, 1e-4)
	}
}

func FuzzEstimate(f *testing.F) {
	for _, name := range []string{"other/lenet", "other/bert"} {
		file, err := os.Open("data/graphs/" + name + ".onnx.gz")
		require.NoError(f, err)
		z, err := gzip.NewReader(file)
		require.NoError(f, err)
		text, err := io.ReadAll(z)
		require.NoError(f, err)
		require.NoError(f, file.Close())
		f.Add(text, int64(7))
	}
	d := device(f, "T4", "")
	f.Fuzz(func(t *testing.T, text []byte, free int64) {
		limits := onnx.DefaultLimits()
		limits.Index = 8 << 20
		m, err := onnx.Read(bytes.NewReader(text), int64(len(text)), filepath.Join(t.TempDir(), "model.onnx"), limits)
		if err != nil {
			return
		}
		g, err := shape.Compile(m)
		if err != nil {
			return
		}
		_, _ = estimator.Do(estimator.Request{Model: "fuzzed", Graph: g, Grid: estimator.DefaultGrid(4), Device: d, Inputs: func(batch int) (map[string][]int64, error) {
			shapes, _, err := estimator.FeedShapes(g, estimator.Declared{Free: free}, batch)
			return shapes, err
		}})
	})
}

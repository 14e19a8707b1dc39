// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimating_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/estimator"
	"github.com/conch-serving/conch/estimator/data"
	"github.com/conch-serving/conch/tritonctl/estimating"
)

// place writes a model directory around squeezenet, with the given config.pbtxt.
func place(t *testing.T, name, config string) string {
	t.Helper()
	directory := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.MkdirAll(filepath.Join(directory, "1"), 0o755))
	require.NoError(t, data.Unpack("../../estimator/data/graphs/torchvision/squeezenet1_1.onnx.gz", filepath.Join(directory, "1", "model.onnx")))
	if config != "" {
		require.NoError(t, os.WriteFile(filepath.Join(directory, "config.pbtxt"), []byte(config), 0o644))
	}
	return directory
}

func TestConfigSaysBatchesAndRuntime(t *testing.T) {
	directory := place(t, "squeeze", `backend: "onnxruntime"
max_batch_size: 12
input [ { name: "input" data_type: TYPE_FP32 dims: [ 3, 224, 224 ] } ]
optimization { execution_accelerators { gpu_execution_accelerator [ { name: "tensorrt" } ] } }`)
	m, err := estimating.Find(directory)
	require.NoError(t, err)
	require.Equal(t, "tensorrt", m.Runtime)
	require.Equal(t, []int{1, 2, 4, 8, 12}, m.Grid().Batches)
	e, err := m.Estimate("T4")
	require.NoError(t, err)
	require.EqualValues(t, 12, e.Points[0].Batch)
	require.True(t, e.Fits)
}

func TestHostileExternalDataIsRefused(t *testing.T) {
	directory := t.TempDir()
	require.NoError(t, os.Symlink("/etc/hostname", filepath.Join(directory, "link")))
	// A tensor whose external data is declared outside of the model's directory.
	path := filepath.Join(directory, "model.onnx")
	require.NoError(t, os.WriteFile(path, hostile("../../etc/passwd"), 0o644))
	m, err := estimating.Find(path)
	require.NoError(t, err)
	d, err := estimator.NewDevice("T4", "")
	require.NoError(t, err)
	_, err = m.On(d, m.Grid())
	require.ErrorContains(t, err, "../../etc/passwd")
}

func TestASweepListsEveryModel(t *testing.T) {
	root := t.TempDir()
	require.NoError(t, os.Rename(place(t, "one", ""), filepath.Join(root, "one")))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "broken"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "broken", "config.pbtxt"), []byte(`backend: "onnxruntime"`), 0o644))
	models, problems, err := estimating.All(root)
	require.NoError(t, err)
	require.Len(t, models, 1)
	require.Len(t, problems, 1)
	require.ErrorContains(t, problems[filepath.Join(root, "broken")], "no version directory has model.onnx")
}

// hostile is an ONNX file with one external tensor: field numbers of the ONNX IR specification.
func hostile(location string) []byte {
	field := func(number byte, content []byte) []byte {
		return append([]byte{number<<3 | 2, byte(len(content))}, content...)
	}
	entry := append(field(1, []byte("location")), field(2, []byte(location))...)
	tensor := append([]byte{1 << 3, 4, 2 << 3, 1}, field(8, []byte("w"))...)
	tensor = append(tensor, field(13, entry)...)
	tensor = append(tensor, 14<<3, 1)
	node := append(append(field(1, []byte("w")), field(2, []byte("y"))...), field(4, []byte("Relu"))...)
	graph := append(append(field(1, node), field(5, tensor)...), field(12, field(1, []byte("y")))...)
	return append(append([]byte{1 << 3, 8}, field(8, []byte{2 << 3, 17})...), field(7, graph)...)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/figure"
)

// fakeGPU has programs on the path that answer like a GPU's: an execution alone takes a tenth of a millisecond per row, and processes side by side do not slow
// each other. mps is whether there is a control daemon.
func fakeGPU(t *testing.T, mps bool) {
	t.Helper()
	bin := t.TempDir()
	program := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(text), 0o700))
	}
	program("nvidia-smi", "#!/bin/sh\necho 'A GPU, 1.2.3, 81559 MiB, Disabled'\n")
	program("python3", `#!/bin/sh
echo '{"ready": true, "torch": "2"}'
while read -r line; do
  rows=$(echo "$line" | sed -n 's/.*"rows":\([0-9]*\).*/\1/p')
  case $line in
    *sms*) echo "{\"sms\": $((132 * ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE:-100} / 100))}" ;;
    *alone*) echo "{\"ms\": 0.$rows, \"n\": 9}" ;;
    *) echo '{"per_second": 100, "n": 9}' ;;
  esac
done
`)
	if mps {
		program("nvidia-cuda-mps-control", `#!/bin/sh
if [ "$1" = -d ]; then mkfifo "$CUDA_MPS_PIPE_DIRECTORY/control"; exit; fi
read -r command
case $command in get_default*) echo 100.0 ;; quit) rm "$CUDA_MPS_PIPE_DIRECTORY/control" ;; esac
`)
	}
	t.Setenv("PATH", bin+":/usr/bin:/bin")
}

func gpuFigures(t *testing.T) (values map[string]float64, r *figure.Report) {
	t.Helper()
	r = &figure.Report{File: "gpu", Versions: map[string]string{}}
	b := &bench{progress: &bytes.Buffer{}}
	require.NoError(t, b.gpu(t.Context(), r))
	require.NoError(t, r.Validate())
	values = map[string]float64{}
	for _, f := range r.Figures {
		values[f.Name] = f.Value
	}
	return values, r
}

// What workers answer comes into the figures as ratios of what was measured alone.
func TestAGPUIsMeasured(t *testing.T) {
	fakeGPU(t, true)
	values, r := gpuFigures(t)
	require.Equal(t, "A GPU, 1.2.3, 81559 MiB, Disabled", r.Versions["gpu"])
	require.InDelta(t, .8, values["gpu.resnet50.alone.b8_ms"], 0)
	require.InDelta(t, .08, values["gpu.encoder.streams4.b8_gain"], 1e-9, "100 a second of .8 ms")
	require.InDelta(t, 4, values["gpu.resnet50.turns4.b8_gain"], 0)
	require.InDelta(t, 8, values["gpu.resnet50.mps8.b1_gain"], 0)
	require.InDelta(t, 26, values["gpu.share20.sms"], 0)
	require.InDelta(t, .8, values["gpu.encoder.share40.b8_ms"], 0)
	require.InDelta(t, 1, values["gpu.beside.resnet50_20.encoder_80.b8_b8.kept1"], 0)
	require.Contains(t, values, "gpu.beside.encoder_50.encoder_50.b32_b8.kept2")
}

// Without MPS there is the rest.
func TestAGPUWithoutMPS(t *testing.T) {
	fakeGPU(t, false)
	values, r := gpuFigures(t)
	require.Contains(t, r.Versions["mps"], "none: ")
	require.Contains(t, values, "gpu.resnet50.turns8.b32_gain")
	for name := range values {
		require.NotContains(t, name, "share")
	}
}

// A machine without a GPU is told what is needed.
func TestNoGPU(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := (&bench{}).gpu(t.Context(), &figure.Report{})
	require.ErrorContains(t, err, "this command needs an NVIDIA GPU")
	require.True(t, strings.Contains(err.Error(), "nvidia-smi"))
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/admin/api"
)

// sickAt is a model that fails every execution in the partition that a file names.
const sickAt = `import os, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        try:
            sick = open(%q).read()
        except FileNotFoundError:
            sick = ""
        if sick == os.environ["CONCH_PARTITION"]:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        time.sleep(.005)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.copy(pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()))]) for r in requests]
`

// TestASickServerGetsNoRequests: one of two real servers fails every execution at once. No caller sees that; operators do. When the server is well, it
// serves again.
func TestASickServerGetsNoRequests(t *testing.T) {
	t.Parallel()
	repository, sick := t.TempDir(), filepath.Join(t.TempDir(), "sick")
	require.NoError(t, os.MkdirAll(filepath.Join(repository, "m", "1"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(repository, "m", "1", "model.py"), []byte(fmt.Sprintf(sickAt, sick)), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(repository, "m", "config.pbtxt"), []byte(`backend: "python" max_batch_size: 8
		input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
		instance_group [ { kind: KIND_CPU } ]`), 0o644))
	c := serve(t, rig.ConchOptions{Repository: repository, GPUs: 2})
	server, a := triton(t, c), admin(t, c)
	gpus, err := a.GPUs(t.Context())
	require.NoError(t, err)
	require.Len(t, gpus, 2)
	victim := gpus[0].Partitions[0].ID

	stop := make(chan struct{})
	var all sync.WaitGroup
	var answered atomic.Int64
	failures := make(chan error, 8)
	for range 8 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := server.ModelInfer(t.Context(), &tritonpb.ModelInferRequest{
					ModelName:        "m",
					Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "IN", Datatype: "FP32", Shape: []int64{1, 4}}},
					RawInputContents: [][]byte{make([]byte, 16)},
				}); err != nil {
					failures <- err
					return
				}
				answered.Add(1)
			}
		})
	}
	more := func(n int64) {
		target := answered.Load() + n
		require.Eventually(t, func() bool { return answered.Load() >= target }, time.Minute, time.Millisecond)
	}
	more(50)
	require.NoError(t, os.WriteFile(sick, []byte(victim), 0o644))
	require.Eventually(t, func() bool { return scrape(t, c).sum("conch_place_ejected") == 1 }, time.Minute, 10*time.Millisecond)
	more(50)
	events, err := a.Events(t.Context(), 0)
	require.NoError(t, err)
	var ejected []string
	for _, e := range events {
		if e.Kind == "place_ejected" {
			ejected = append(ejected, e.Message)
		}
	}
	require.NotEmpty(t, ejected)
	require.Contains(t, ejected[0], victim)
	require.Contains(t, ejected[0], "CUDA error")
	require.Eventually(t, func() bool {
		m, err := a.Model(t.Context(), "m")
		require.NoError(t, err)
		degraded, _ := api.ConditionOf(m.Conditions, api.ConditionDegraded)
		return degraded.Holds && strings.Contains(degraded.Message, "CUDA error")
	}, time.Minute, 10*time.Millisecond)

	require.NoError(t, os.Remove(sick))
	require.Eventually(t, func() bool { return scrape(t, c).sum("conch_place_ejected") == 0 }, time.Minute, 10*time.Millisecond)
	more(50)
	close(stop)
	all.Wait()
	close(failures)
	for err := range failures {
		require.NoError(t, err, "a caller saw the sick server")
	}
	require.Positive(t, scrape(t, c).sum("conch_place_ejections_total"))
}

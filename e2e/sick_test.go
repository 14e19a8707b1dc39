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

// repositoryOf has one model, m, of four floats in and out.
func repositoryOf(t *testing.T, model string) string {
	repository := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(repository, "m", "1"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(repository, "m", "1", "model.py"), []byte(model), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(repository, "m", "config.pbtxt"), []byte(`backend: "python" max_batch_size: 8
		input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
		instance_group [ { kind: KIND_CPU } ]`), 0o644))
	return repository
}

// calling are callers of model m, one after the other request each, until end.
type calling struct {
	stop     chan struct{}
	all      sync.WaitGroup
	answered atomic.Int64
	failures chan error
}

func callM(t *testing.T, c *rig.Conch) *calling {
	const callers = 8
	s := &calling{stop: make(chan struct{}), failures: make(chan error, callers)}
	server := triton(t, c)
	for range callers {
		s.all.Go(func() {
			for {
				select {
				case <-s.stop:
					return
				default:
				}
				if _, err := server.ModelInfer(t.Context(), &tritonpb.ModelInferRequest{
					ModelName:        "m",
					Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "IN", Datatype: "FP32", Shape: []int64{1, 4}}},
					RawInputContents: [][]byte{make([]byte, 16)},
				}); err != nil {
					s.failures <- err
					return
				}
				s.answered.Add(1)
			}
		})
	}
	return s
}

// more waits for so many further answers.
func (s *calling) more(t *testing.T, n int64) {
	target := s.answered.Load() + n
	require.Eventually(t, func() bool { return s.answered.Load() >= target }, time.Minute, time.Millisecond)
}

// end ends the calls, none of which may have failed.
func (s *calling) end(t *testing.T) {
	close(s.stop)
	s.all.Wait()
	close(s.failures)
	for err := range s.failures {
		require.NoError(t, err, "a caller saw the sick server")
	}
}

// TestASickServerGetsNoRequests: one of two real servers fails every execution at once. No caller sees that; operators do. When the server is well, it
// serves again.
func TestASickServerGetsNoRequests(t *testing.T) {
	t.Parallel()
	sick := filepath.Join(t.TempDir(), "sick")
	c := serve(t, rig.ConchOptions{Repository: repositoryOf(t, fmt.Sprintf(sickAt, sick)), GPUs: 2})
	a := admin(t, c)
	gpus, err := a.GPUs(t.Context())
	require.NoError(t, err)
	require.Len(t, gpus, 2)
	victim := gpus[0].Partitions[0].ID

	callers := callM(t, c)
	callers.more(t, 50)
	require.NoError(t, os.WriteFile(sick, []byte(victim), 0o644))
	require.Eventually(t, func() bool { return scrape(t, c).sum("conch_place_ejected") == 1 }, time.Minute, 10*time.Millisecond)
	callers.more(t, 50)
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
	callers.more(t, 50)
	callers.end(t)
	require.Positive(t, scrape(t, c).sum("conch_place_ejections_total"))
}

// hangsAt is a model an execution of which does not end in the partition that a file names.
const hangsAt = `import os, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        try:
            hangs = open(%q).read()
        except FileNotFoundError:
            hangs = ""
        if hangs == os.environ["CONCH_PARTITION"]:
            time.sleep(600)
        time.sleep(.005)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.copy(pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()))]) for r in requests]
`

// TestAServerThatHangsIsStartedAgain: an execution on one of two real servers does not end. Its requests are executed on the other one, and the server
// is started again.
func TestAServerThatHangsIsStartedAgain(t *testing.T) {
	t.Parallel()
	hangs := filepath.Join(t.TempDir(), "hangs")
	c := serve(t, rig.ConchOptions{Repository: repositoryOf(t, fmt.Sprintf(hangsAt, hangs)), GPUs: 2, Settings: map[string]any{"limits": map[string]any{"hang": "2s"}}})
	a := admin(t, c)
	gpus, err := a.GPUs(t.Context())
	require.NoError(t, err)
	victim := gpus[0].Partitions[0].ID
	was := serverOf(t, c, victim)
	callers := callM(t, c)
	require.Eventually(t, func() bool { return scrape(t, c).sum("conch_profile_usable") > 0 }, time.Minute, 10*time.Millisecond)
	callers.more(t, 50)
	require.NoError(t, os.WriteFile(hangs, []byte(victim), 0o644))
	require.Eventually(t, func() bool { return strings.Contains(c.LogTail(), "a partition hangs") }, time.Minute, 10*time.Millisecond)
	require.NoError(t, os.Remove(hangs))
	require.Eventually(t, func() bool { return strings.Contains(c.LogTail(), "partition "+victim+" is up again") }, time.Minute, 10*time.Millisecond)
	require.NotEqual(t, was, serverOf(t, c, victim))
	callers.more(t, 50)
	callers.end(t)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// nowAndThen is a model that answers with its input, after 10 ms or, one time in ten, after half a second, and that fails one time in fifty.
const nowAndThen = `import random, time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(.5 if random.random() < .1 else .01)
        answers = []
        for r in requests:
            if random.random() < .02:
                answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("now and then")))
                continue
            rows = pb_utils.get_input_tensor_by_name(r, "IN").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.copy(rows))]))
        return answers
`

// TestEveryRowIsItsOwners: callers with stamped rows of 256 KB leave at random while a real server executes their requests, now slowly, now quickly, and
// fails some. No answer holds a value of somebody else's. CONCH_ROWS says for how long.
func TestEveryRowIsItsOwners(t *testing.T) {
	t.Parallel()
	const elements, callers = 1 << 16, 12
	repository := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(repository, "slow", "1"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(repository, "slow", "1", "model.py"), []byte(nowAndThen), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(repository, "slow", "config.pbtxt"), []byte(fmt.Sprintf(`backend: "python" max_batch_size: 8
		input [ { name: "IN" data_type: TYPE_FP32 dims: [ %d ] } ] output [ { name: "OUT" data_type: TYPE_FP32 dims: [ %d ] } ]
		instance_group [ { kind: KIND_CPU } ]`, elements, elements)), 0o644))
	for name, memory := range map[string]string{"through shared memory": "64MiB", "through the socket": "0B"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := serve(t, rig.ConchOptions{Repository: repository, GPUs: 2, Settings: map[string]any{"limits": map[string]any{"sharedMemory": memory}}})
			server := triton(t, c)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rounds(t, "CONCH_ROWS", 8))*time.Second)
			defer cancel()
			var owners atomic.Uint32
			var ok, left, foreign atomic.Int64
			var all sync.WaitGroup
			for range callers {
				all.Go(func() {
					for ctx.Err() == nil {
						owner, rows := owners.Add(1), 1+rand.IntN(2)
						data := make([]byte, 4*rows*elements)
						for i := 0; i < len(data); i += 4 {
							binary.LittleEndian.PutUint32(data[i:], owner)
						}
						call, leave := context.WithTimeout(ctx, time.Duration(5+rand.IntN(600))*time.Millisecond)
						r, err := server.ModelInfer(call, &tritonpb.ModelInferRequest{
							ModelName:        "slow",
							Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "IN", Datatype: "FP32", Shape: []int64{int64(rows), elements}}},
							RawInputContents: [][]byte{data},
						})
						leave()
						if err != nil {
							left.Add(1)
							continue
						}
						ok.Add(1)
						if len(r.RawOutputContents) != 1 || string(r.RawOutputContents[0]) != string(data) {
							foreign.Add(1)
						}
					}
				})
			}
			all.Wait()
			t.Logf("%d answers, %d callers left or got an error", ok.Load(), left.Load())
			require.Zero(t, foreign.Load(), "answers that are not their owner's, of %d", ok.Load())
			require.Greater(t, ok.Load(), int64(20))
			require.Equal(t, memory != "0B", scrape(t, c).sum("conch_shared_memory_bytes_total") > 0)
		})
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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

// comparing is a model that answers with its input if it got it twice, and else with nothing of it.
const comparing = `import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for r in requests:
            rows, also = (pb_utils.get_input_tensor_by_name(r, name).as_numpy() for name in ("IN", "ALSO"))
            same = rows.tobytes() == also.tobytes()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.copy(rows) if same else np.zeros_like(rows))]))
        return answers
`

// rowsOf writes a repository of two models of such rows that answer with them, one that compares two inputs, and an ensemble "steps" of the three.
func rowsOf(t *testing.T, elements int) string {
	t.Helper()
	repository := t.TempDir()
	write := func(name, config, code string) {
		require.NoError(t, os.MkdirAll(filepath.Join(repository, name, "1"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(repository, name, "config.pbtxt"), []byte(config+" max_batch_size: 8"), 0o644))
		if code != "" {
			require.NoError(t, os.WriteFile(filepath.Join(repository, name, "1", "model.py"), []byte(code), 0o644))
		}
	}
	tensor := func(name string) string {
		return fmt.Sprintf("[ { name: %q data_type: TYPE_FP32 dims: [ %d ] } ]", name, elements)
	}
	const python = ` backend: "python" instance_group [ { kind: KIND_CPU } ]`
	write("slow", "input "+tensor("IN")+" output "+tensor("OUT")+python, nowAndThen)
	write("also", "input "+tensor("IN")+" output "+tensor("OUT")+python, nowAndThen)
	write("compare", "input "+tensor("IN")+" input "+tensor("ALSO")+" output "+tensor("OUT")+python, comparing)
	write("steps", "input "+tensor("IN")+" output "+tensor("OUT")+` platform: "ensemble" ensemble_scheduling { step [
		{ model_name: "slow" model_version: -1 input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "x" } },
		{ model_name: "also" model_version: -1 input_map { key: "IN" value: "x" } output_map { key: "OUT" value: "y" } },
		{ model_name: "compare" model_version: -1 input_map { key: "IN" value: "x" } input_map { key: "ALSO" value: "y" } output_map { key: "OUT" value: "OUT" } } ] }`, "")
	return repository
}

// rowsByGRPC has a model of rowsOf answer rows.
func rowsByGRPC(ctx context.Context, server tritonpb.GRPCInferenceServiceClient, model string, rows int, data []byte) ([]byte, error) {
	r, err := server.ModelInfer(ctx, &tritonpb.ModelInferRequest{
		ModelName:        model,
		Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "IN", Datatype: "FP32", Shape: []int64{int64(rows), int64(len(data) / 4 / rows)}}},
		RawInputContents: [][]byte{data},
	})
	if err != nil {
		return nil, err
	}
	return bytes.Join(r.RawOutputContents, nil), nil
}

// rowsByHTTP is rowsByGRPC over HTTP, with tensors in binary.
func rowsByHTTP(ctx context.Context, address, model string, rows int, data []byte) ([]byte, error) {
	head := fmt.Sprintf(`{"inputs":[{"name":"IN","datatype":"FP32","shape":[%d,%d],"parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}`, rows, len(data)/4/rows, len(data))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/v2/models/"+model+"/infer", io.MultiReader(strings.NewReader(head), bytes.NewReader(data)))
	if err != nil {
		return nil, err
	}
	r.ContentLength = int64(len(head) + len(data))
	r.Header.Set("Inference-Header-Content-Length", strconv.Itoa(len(head)))
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	all, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d: %s", answer.StatusCode, all)
	}
	n, err := strconv.Atoi(answer.Header.Get("Inference-Header-Content-Length"))
	if err != nil || n < 0 || n > len(all) {
		return nil, fmt.Errorf("an answer with a JSON part of %q of %d bytes", answer.Header.Get("Inference-Header-Content-Length"), len(all))
	}
	return all[n:], nil
}

// TestEveryRowIsItsOwners: callers with stamped rows of 256 KB, half of them over HTTP, leave at random while real servers execute their requests, or the steps of these, now slowly, now
// quickly, and fail some. No answer holds a value of somebody else's. CONCH_ROWS says for how long.
func TestEveryRowIsItsOwners(t *testing.T) {
	t.Parallel()
	const elements, callers = 1 << 16, 12
	repository := rowsOf(t, elements)
	for name, of := range map[string]struct {
		model, memory string
		patience      int  // of callers, in milliseconds
		kill          bool // one of the servers dies
		http          bool // all callers come over HTTP, and not half of them
	}{
		"through shared memory":           {model: "slow", memory: "64MiB", patience: 600},
		"through the socket":              {model: "slow", memory: "0B", patience: 600},
		"over HTTP, through the socket":   {model: "slow", memory: "0B", patience: 600, http: true},
		"of steps, through shared memory": {model: "steps", memory: "64MiB", patience: 3000},
		"of steps, through the socket":    {model: "steps", memory: "0B", patience: 3000},
		"of steps, where a server dies":   {model: "steps", memory: "64MiB", patience: 3000, kill: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := serve(t, rig.ConchOptions{Repository: repository, GPUs: 2, Settings: map[string]any{"limits": map[string]any{"sharedMemory": of.memory}}})
			server := triton(t, c)
			length := time.Duration(rounds(t, "CONCH_ROWS", 8)) * time.Second
			ctx, cancel := context.WithTimeout(t.Context(), length+2*time.Minute)
			defer cancel()
			const least = 20
			var owners atomic.Uint32
			var ok, left, foreign atomic.Int64
			var all sync.WaitGroup
			all.Go(func() {
				time.Sleep(length)
				for ok.Load() <= least && ctx.Err() == nil { // as on a busy machine
					time.Sleep(10 * time.Millisecond)
				}
				cancel()
			})
			if of.kill {
				gpus, err := admin(t, c).GPUs(t.Context())
				require.NoError(t, err)
				reads := serverOf(t, c, gpus[0].Partitions[0].ID)
				all.Go(func() {
					for ok.Load() < least && ctx.Err() == nil {
						time.Sleep(10 * time.Millisecond)
					}
					_ = syscall.Kill(reads, syscall.SIGKILL)
				})
			}
			for caller := range callers {
				infer := func(ctx context.Context, rows int, data []byte) ([]byte, error) {
					return rowsByGRPC(ctx, server, of.model, rows, data)
				}
				if of.http || caller%2 == 0 {
					infer = func(ctx context.Context, rows int, data []byte) ([]byte, error) {
						return rowsByHTTP(ctx, c.HTTP, of.model, rows, data)
					}
				}
				all.Go(func() {
					for ctx.Err() == nil {
						owner, rows := owners.Add(1), 1+rand.IntN(2)
						data := make([]byte, 4*rows*elements)
						for i := 0; i < len(data); i += 4 {
							binary.LittleEndian.PutUint32(data[i:], owner)
						}
						call, leave := context.WithTimeout(ctx, time.Duration(5+rand.IntN(of.patience))*time.Millisecond)
						got, err := infer(call, rows, data)
						leave()
						if err != nil {
							left.Add(1)
							continue
						}
						ok.Add(1)
						if !bytes.Equal(got, data) {
							foreign.Add(1)
						}
					}
				})
			}
			all.Wait()
			t.Logf("%d answers, %d callers left or got an error", ok.Load(), left.Load())
			require.Zero(t, foreign.Load(), "answers that are not their owner's, of %d", ok.Load())
			require.Greater(t, ok.Load(), int64(least))
			shares, seen := of.memory != "0B", scrape(t, c)
			require.Equal(t, shares, seen.sum("conch_shared_memory_bytes_total") > 0)
			if of.model == "steps" {
				require.Equal(t, shares, seen.sum("conch_intermediate_bytes_total", "way=kept") > 0)
				t.Logf("bytes between steps: %.0f kept, %.0f copied, %.0f sent", seen.sum("conch_intermediate_bytes_total", "way=kept"),
					seen.sum("conch_intermediate_bytes_total", "way=copied"), seen.sum("conch_intermediate_bytes_total", "way=sent"))
			}
		})
	}
}

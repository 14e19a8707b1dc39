// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
)

// doubling is a model that answers with each of its rows twice, as a detector gives two boxes for an image; the others answer with their rows.
const doubling = `import numpy, time
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.004)
        answers = []
        for r in requests:
            x = pb.get_input_tensor_by_name(r, "IN").as_numpy()
            answers.append(pb.InferenceResponse([pb.Tensor("OUT", numpy.repeat(x, TIMES, axis=0))]))
        return answers
`

// boxes writes a repository of a detector, a classifier, and an ensemble "street" of the two, whose dims count the boxes.
func boxes(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, config, code string) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name, "1"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(config), 0o644))
		if code != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name, "1", "model.py"), []byte(code), 0o644))
		}
	}
	for name, times := range map[string]string{"detect": "2", "classify": "1"} {
		write(name, fmt.Sprintf(`name: %q backend: "python" max_batch_size: 16
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]`, name), strings.ReplaceAll(doubling, "TIMES", times))
	}
	write("street", `name: "street" platform: "ensemble"
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1, 4 ] } ] output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]
ensemble_scheduling { step [
  { model_name: "detect" model_version: -1 input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "boxes" } },
  { model_name: "classify" model_version: -1 input_map { key: "IN" value: "boxes" } output_map { key: "OUT" value: "Y" } }
] }`, "")
	return dir
}

// TestAnEnsembleIsAPipelineOfTheSnapshot: the steps that a real server executes, with the rows and bytes that it was seen to give, are what policies
// plan for, and plan explain says where the time goes.
func TestAnEnsembleIsAPipelineOfTheSnapshot(t *testing.T) {
	t.Parallel()
	c := serve(t, rig.ConchOptions{Repository: boxes(t), GPUs: 1, Settings: map[string]any{"defaults": map[string]any{"slo": "5s"}}})
	server := triton(t, c)
	ask := func() {
		data := make([]float32, 4)
		r, err := server.ModelInfer(t.Context(), &tritonpb.ModelInferRequest{ModelName: "street", Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{{
			Name: "X", Datatype: "FP32", Shape: []int64{1, 4}, Contents: &tritonpb.InferTensorContents{Fp32Contents: data},
		}}})
		require.NoError(t, err)
		require.Equal(t, []int64{2, 4}, r.GetOutputs()[0].GetShape())
	}
	var s policy.Snapshot
	var pipeline *policy.Pipeline
	for pipeline.GetRate() == 0 { // a busy machine may let the window pass in between; the test's own limit ends it
		for range 10 {
			ask()
		}
		raw, err := admin(t, c).Snapshot(t.Context())
		require.NoError(t, err)
		require.NoError(t, protojson.Unmarshal(raw, &s))
		pipeline = s.Pipeline("street")
		require.NotNil(t, pipeline)
	}
	require.Equal(t, int64(5*time.Second/time.Microsecond), pipeline.GetSloUs())
	require.Len(t, pipeline.GetSteps(), 2)
	detect, classify := pipeline.GetSteps()[0], pipeline.GetSteps()[1]
	require.Equal(t, "detect", detect.GetModel())
	require.InDelta(t, 1, detect.GetRows(), 1e-9)
	require.Equal(t, []uint32{0}, classify.GetAfter())
	require.InDelta(t, 2, classify.GetRows(), 1e-9, "the server gave two boxes for each request")
	require.InDeltaSlice(t, []float64{2 * 4 * 4}, classify.GetTakenBytes(), 1e-9, "in bytes")
	rows := map[string]float64{}
	slos := int64(0)
	for _, m := range s.GetModels() {
		if rows[m.GetName()] = m.GetRowRate(); m.GetName() != "street" {
			slos += m.GetSloUs()
		}
	}
	require.InDelta(t, pipeline.GetRate(), rows["detect"], 1e-6)
	require.InDelta(t, 2*pipeline.GetRate(), rows["classify"], 1e-6)
	require.InDelta(t, pipeline.GetSloUs(), slos, 2, "the models have parts of its SLO")

	var out string
	var code int
	for !strings.Contains(out, "critical path") {
		ask()
		out, code = tritonctl(t, c, "plan", "explain", "street")
		require.Zero(t, code, out)
	}
	require.Regexp(t, `(?m)^    2 +classify +1 +2 +[\d.]+ ms +[\d.]+ ms +[\d.]+ ms +[\d.e-]+% +100% +32$`, out)
	require.Contains(t, out, "critical path: 1 detect, 2 classify: ")
	out, code = tritonctl(t, c, "plan", "explain", "nothing")
	require.NotZero(t, code)
	require.Contains(t, out, `no model is called "nothing"`)
}

// TestTheStepsOfAnEnsembleThatIsLeftToTritonAreBatched: Conch, which batches a model itself, takes the delay out of its dynamic_batching, and not the batching, where an
// ensemble calls it. Clients are shown what its author wrote.
func TestTheStepsOfAnEnsembleThatIsLeftToTritonAreBatched(t *testing.T) {
	t.Parallel()
	dir := boxes(t)
	config := filepath.Join(dir, "detect", "config.pbtxt")
	text, err := os.ReadFile(config)
	require.NoError(t, err)
	const written = 1_500_000 // microseconds
	text = fmt.Appendf(text, "\ndynamic_batching { max_queue_delay_microseconds: %d }\n", written)
	require.NoError(t, os.WriteFile(config, text, 0o644))
	code := filepath.Join(dir, "detect", "1", "model.py")
	require.NoError(t, os.WriteFile(code, []byte(strings.ReplaceAll(strings.ReplaceAll(doubling, "TIMES", "2"), "0.004", "0.3")), 0o644))
	c := serve(t, rig.ConchOptions{Repository: dir, GPUs: 1, Settings: map[string]any{
		"defaults": map[string]any{"slo": "5s"}, "models": map[string]any{"street": map[string]any{"ensemble": "pass"}},
	}})
	server := triton(t, c)
	shown, err := server.ModelConfig(t.Context(), &tritonpb.ModelConfigRequest{Name: "detect"})
	require.NoError(t, err)
	require.EqualValues(t, written, shown.GetConfig().GetDynamicBatching().GetMaxQueueDelayMicroseconds())

	warmed := sharedExecutions(t, server, "detect")
	const callers = 8
	failures := make(chan error, callers)
	for range callers {
		go func() {
			_, err := server.ModelInfer(t.Context(), &tritonpb.ModelInferRequest{ModelName: "street", Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{{
				Name: "X", Datatype: "FP32", Shape: []int64{1, 4}, Contents: &tritonpb.InferTensorContents{Fp32Contents: make([]float32, 4)},
			}}})
			failures <- err
		}()
	}
	for range callers {
		require.NoError(t, <-failures)
	}
	require.Greater(t, sharedExecutions(t, server, "detect"), warmed, "those that waited for the first ran together")
}

// asksClassify is a model that asks another one in its own code (BLS): what classify answers, twice.
const asksClassify = `import time
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.1)
        answers = []
        for r in requests:
            asked = pb.InferenceRequest(model_name="classify", requested_output_names=["OUT"], inputs=[pb.get_input_tensor_by_name(r, "IN")]).exec()
            if asked.has_error():
                raise pb.TritonModelException(asked.error().message())
            answers.append(pb.InferenceResponse([pb.Tensor("OUT", 2 * pb.get_output_tensor_by_name(asked, "OUT").as_numpy())]))
        return answers
`

// TestAStepMayAskAnotherModelItself: a model that calls others in its own code is a step like any other. Its requests share executions, and its calls stay in its server.
func TestAStepMayAskAnotherModelItself(t *testing.T) {
	t.Parallel()
	dir := boxes(t)
	write(t, dir, "ask/config.pbtxt", `name: "ask" backend: "python" max_batch_size: 16
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]`)
	write(t, dir, "ask/1/model.py", asksClassify)
	write(t, dir, "twice/config.pbtxt", `name: "twice" platform: "ensemble" max_batch_size: 16
input [ { name: "X" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "Y" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "ask" model_version: -1 input_map { key: "IN" value: "X" } output_map { key: "OUT" value: "a" } },
  { model_name: "ask" model_version: -1 input_map { key: "IN" value: "a" } output_map { key: "OUT" value: "Y" } }
] }`)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "twice", "1"), 0o755))
	c := serve(t, rig.ConchOptions{Repository: dir, GPUs: 1, Settings: map[string]any{"defaults": map[string]any{"slo": "5s"}}})
	out, code := tritonctl(t, c, "model", "get", "twice")
	require.Zero(t, code, out)
	require.Contains(t, out, "conch executes its 2 steps")
	server := triton(t, c)
	warmed := sharedExecutions(t, server, "ask")
	const callers = 8
	failures := make(chan error, callers)
	for i := range callers {
		go func() {
			v := float32(i)
			r, err := server.ModelInfer(t.Context(), &tritonpb.ModelInferRequest{ModelName: "twice", Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{{
				Name: "X", Datatype: "FP32", Shape: []int64{1, 4}, Contents: &tritonpb.InferTensorContents{Fp32Contents: []float32{v, 0, 1, 2}},
			}}})
			if err == nil {
				var got [4]float32
				_, err = binary.Decode(r.GetRawOutputContents()[0], binary.LittleEndian, &got)
				if want := [4]float32{4 * v, 0, 4, 8}; err == nil && got != want {
					err = fmt.Errorf("have %v, want %v", got, want)
				}
			}
			failures <- err
		}()
	}
	for range callers {
		require.NoError(t, <-failures)
	}
	require.Greater(t, sharedExecutions(t, server, "ask"), warmed, "steps of several requests ran together")
}

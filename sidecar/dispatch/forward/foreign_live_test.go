// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forward_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
)

// moody is a model whose behaviour the first value of its input selects.
const moody = `import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "IN")
            what = int(x.as_numpy().flat[0])
            if what == 1:
                raise RuntimeError("the whole execution fails")
            if what == 2:
                answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("the model's own words")))
            elif what == 3:
                os._exit(1)
            else:
                answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", x.as_numpy())]))
        return answers
`

// moodyServer is a real server with the model, which is not loaded.
func moodyServer(t *testing.T) *rig.Server {
	server := os.Getenv("CONCH_TRITONSERVER")
	if server == "" {
		t.Skip("CONCH_TRITONSERVER is not set; `make test` sets it")
	}
	repository := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(repository, "moody", "1"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(repository, "moody", "1", "model.py"), []byte(moody), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(repository, "moody", "config.pbtxt"), []byte(`name: "moody" backend: "python" max_batch_size: 4
		input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ] output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]
		instance_group [ { kind: KIND_CPU } ]`), 0o644))
	s, err := rig.StartServer(t.Context(), rig.ServerOptions{Server: server, Repository: repository})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// TestErrorsOfGenerateAreTritons: whatever an execution came to has status 400, and a body that is no JSON has 500. Only the texts say which it is.
func TestErrorsOfGenerateAreTritons(t *testing.T) {
	s := moodyServer(t)
	post := func(path, body string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.HTTP+"/v2/"+path, strings.NewReader(body))
		require.NoError(t, err)
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		text = bytes.TrimPrefix(text, []byte("data: "))
		reason, _ := batch.ErrorOfHTTP(text)
		return answer.StatusCode, reason
	}
	defer http.DefaultClient.CloseIdleConnections() // the server waits for them
	code, text := post("models/moody/generate", `{"IN":0}`)
	require.Equal(t, 404, code)
	require.True(t, forward.Unloaded(status.Error(codes.NotFound, text), "moody"), text)
	code, text = post("repository/models/moody/load", "")
	require.Equal(t, 200, code, text)
	for _, path := range []string{"models/moody/generate", "models/moody/generate_stream"} {
		code, text = post(path, `{"IN":0}`)
		require.Equal(t, 200, code, text)
		for body, want := range map[string]int{`{"X":0}`: 400, `{`: 500, `{"IN":[1,2,3,4,5,6,7,8]}`: 400} {
			code, text = post(path, body)
			require.Equal(t, want, code)
			require.True(t, forward.RefusalText(text), text)
		}
		code, text = post(path, `{"IN":2}`)
		require.Equal(t, 400, code)
		require.Equal(t, "the model's own words", text)
		code, text = post(path, `{"IN":1}`)
		require.Equal(t, 400, code)
		require.True(t, forward.FailedExecution(text) && !forward.RefusalText(text), text)
	}
}

// TestForeignErrorsAreTritons: a real server returns the texts that foreign.go
// reads.
func TestForeignErrorsAreTritons(t *testing.T) {
	s := moodyServer(t)
	conn, err := grpc.NewClient(s.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	client := tritonpb.NewGRPCInferenceServiceClient(conn)
	ask := func(what float32, change func(*tritonpb.ModelInferRequest)) error {
		r := &tritonpb.ModelInferRequest{
			ModelName: "moody", Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "IN", Datatype: "FP32", Shape: []int64{1, 1}}},
			RawInputContents: [][]byte{binary.LittleEndian.AppendUint32(nil, math.Float32bits(what))},
		}
		if change != nil {
			change(r)
		}
		_, err := client.ModelInfer(t.Context(), r)
		return err
	}
	text := func(err error) string { return forward.Status(err).Message() }

	err = ask(0, nil)
	require.True(t, forward.Unloaded(err, "moody") && forward.Refused(err), "not loaded yet: %v", err)
	_, err = client.RepositoryModelLoad(t.Context(), &tritonpb.RepositoryModelLoadRequest{ModelName: "moody"})
	require.NoError(t, err)
	require.NoError(t, ask(0, nil))

	for name, change := range map[string]func(*tritonpb.ModelInferRequest){
		"of a version that is not there": func(r *tritonpb.ModelInferRequest) { r.ModelVersion = "7" },
		"of another type":                func(r *tritonpb.ModelInferRequest) { r.Inputs[0].Datatype = "INT32" },
		"of another shape":               func(r *tritonpb.ModelInferRequest) { r.Inputs[0].Shape = []int64{1, 2} },
		"without its input":              func(r *tritonpb.ModelInferRequest) { r.Inputs, r.RawInputContents = nil, nil },
		"with an input too many": func(r *tritonpb.ModelInferRequest) {
			r.Inputs = append(r.Inputs, &tritonpb.ModelInferRequest_InferInputTensor{Name: "X", Datatype: "FP32", Shape: []int64{1, 1}})
			r.RawInputContents = append(r.RawInputContents, make([]byte, 4))
		},
		"for an output that is not there": func(r *tritonpb.ModelInferRequest) {
			r.Outputs = []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "X"}}
		},
		"of too many rows": func(r *tritonpb.ModelInferRequest) {
			r.Inputs[0].Shape, r.RawInputContents[0] = []int64{9, 1}, make([]byte, 36)
		},
	} {
		err := ask(0, change)
		require.Error(t, err, name)
		require.True(t, forward.Refused(err), "a request %s is refused before the model has it: %v", name, err)
		require.False(t, forward.Lost(err) || forward.Unloaded(err, "moody"), "%v", err)
	}
	memory := ask(0, func(r *tritonpb.ModelInferRequest) {
		r.RawInputContents = nil
		r.Inputs[0].Parameters = map[string]*tritonpb.InferParameter{
			"shared_memory_region":    {ParameterChoice: &tritonpb.InferParameter_StringParam{StringParam: "conch-7"}},
			"shared_memory_byte_size": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 4}},
		}
	})
	refuses, unknown := forward.DeniesMemory(memory, "conch-7")
	require.True(t, refuses && unknown, "%v", memory)

	err = ask(2, nil)
	require.False(t, forward.Refused(err) || forward.FailedExecution(text(err)), "an answer of the model: %v", err)
	err = ask(1, nil)
	require.True(t, forward.FailedExecution(text(err)) && !forward.DeadStub(text(err)), "%v", err)

	_ = ask(3, nil) // the first one's error depends on when Triton notices the dead process
	if err = ask(0, nil); forward.Lost(err) {
		t.Logf("the server itself did not live through the death of its stub: %v", err)
		return
	}
	require.True(t, forward.DeadStub(text(err)) && forward.FailedExecution(text(err)), "%v", err)

	_, err = client.RepositoryModelUnload(t.Context(), &tritonpb.RepositoryModelUnloadRequest{ModelName: "moody"})
	require.NoError(t, err)
	err = ask(0, nil)
	require.True(t, forward.Unloaded(err, "moody"), "%v", err)
}

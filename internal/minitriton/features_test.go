// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/minitriton"
	"github.com/conch-serving/conch/internal/triton"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// serve starts a server with models that are loaded, by name.
func serve(t *testing.T, configs map[string]string) (*minitriton.Server, *triton.Client) {
	t.Helper()
	repo := t.TempDir()
	for name, config := range configs {
		write(t, repo, name, config)
	}
	s, c := start(t, minitriton.Options{Repository: repo})
	for name := range configs {
		require.NoError(t, c.Load(t.Context(), name))
	}
	return s, c
}

func floats(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

// row is a request with one row of values.
func row(model string, values ...float32) *pb.ModelInferRequest {
	return &pb.ModelInferRequest{ModelName: model, RawInputContents: [][]byte{floats(values...)},
		Inputs: []*pb.ModelInferRequest_InferInputTensor{{Name: "INPUT0", Datatype: "FP32", Shape: []int64{1, int64(len(values))}}}}
}

func number(n int64) *pb.InferParameter {
	return &pb.InferParameter{ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: n}}
}

func text(s string) *pb.InferParameter {
	return &pb.InferParameter{ParameterChoice: &pb.InferParameter_StringParam{StringParam: s}}
}

func requireRefusal(t *testing.T, err error, code codes.Code, message string) {
	t.Helper()
	s := status.Convert(err)
	require.Equal(t, code.String()+": "+message, s.Code().String()+": "+s.Message())
}

// post is an HTTP request of a server.
func post(t *testing.T, s *minitriton.Server, path, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.Endpoint().HTTP+path, strings.NewReader(body))
	require.NoError(t, err)
	r.Close = true
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode, string(data)
}

func TestClassification(t *testing.T) {
	repo := t.TempDir()
	write(t, repo, "m", strings.Replace(builtin("identity"), `name: "OUTPUT0"`, `name: "OUTPUT0" label_filename: "labels.txt"`, 1))
	require.NoError(t, os.WriteFile(filepath.Join(repo, "m", "labels.txt"), []byte("cat\ndog\n"), 0o644))
	_, c := start(t, minitriton.Options{Repository: repo})
	require.NoError(t, c.Load(t.Context(), "m"))
	for k, want := range map[int64][]string{1: {"9.000000:2"}, 2: {"9.000000:2", "4.000000:1:dog"}, 99: {"9.000000:2", "4.000000:1:dog", "-1.000000:0:cat"}} {
		r := row("m", -1, 4, 9)
		r.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUTPUT0", Parameters: map[string]*pb.InferParameter{"classification": number(k)}}}
		resp, err := c.Stub.ModelInfer(t.Context(), r)
		require.NoError(t, err)
		require.Equal(t, "BYTES", resp.Outputs[0].Datatype)
		require.Equal(t, []int64{1, int64(len(want))}, resp.Outputs[0].Shape)
		var data []byte
		for _, class := range want {
			data = append(binary.LittleEndian.AppendUint32(data, uint32(len(class))), class...)
		}
		require.Equal(t, string(data), string(resp.RawOutputContents[0]), "k %d", k)
	}
}

func TestSharedMemory(t *testing.T) {
	_, c := serve(t, map[string]string{"m": builtin("identity")})
	f, err := os.CreateTemp("/dev/shm", "minitriton_test_")
	if err != nil {
		t.Skipf("no POSIX shared memory: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, os.Remove(f.Name())) })
	require.NoError(t, f.Truncate(4096))
	_, err = f.WriteAt(floats(1, 2.5), 0)
	require.NoError(t, err)
	key := "/" + filepath.Base(f.Name())
	register := func(name string, size uint64) error {
		_, err := c.Stub.SystemSharedMemoryRegister(t.Context(), &pb.SystemSharedMemoryRegisterRequest{Name: name, Key: key, ByteSize: size})
		return err
	}
	requireRefusal(t, register("r", 4097), codes.InvalidArgument, "failed to register shared memory region 'r': invalid args")
	require.NoError(t, register("r", 4096))
	requireRefusal(t, register("r", 4096), codes.AlreadyExists, "shared memory region 'r' already in manager")

	place := func(offset int64) map[string]*pb.InferParameter {
		return map[string]*pb.InferParameter{"shared_memory_region": text("r"), "shared_memory_byte_size": number(8), "shared_memory_offset": number(offset)}
	}
	r := row("m", 0, 0)
	r.RawInputContents, r.Inputs[0].Parameters = nil, place(0)
	r.Outputs = []*pb.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUTPUT0", Parameters: place(64)}}
	resp, err := c.Stub.ModelInfer(t.Context(), r)
	require.NoError(t, err)
	require.Empty(t, resp.RawOutputContents[0], "the answer is in the region")
	have := make([]byte, 8)
	_, err = f.ReadAt(have, 64)
	require.NoError(t, err)
	require.Equal(t, floats(1, 2.5), have)
	require.NoError(t, f.Close())

	r.Inputs[0].Parameters = place(4092)
	_, err = c.Stub.ModelInfer(t.Context(), r)
	require.Equal(t, codes.InvalidArgument, status.Code(err), "beyond its end: %v", err)
	_, err = c.Stub.SystemSharedMemoryUnregister(t.Context(), &pb.SystemSharedMemoryUnregisterRequest{Name: "r"})
	require.NoError(t, err)
	_, err = c.Stub.ModelInfer(t.Context(), r)
	requireRefusal(t, err, codes.NotFound, "Unable to find shared memory region: 'r'")
}

const decoupledConfig = `backend: "python" max_batch_size: 0 model_transaction_policy { decoupled: true }
	input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] } ]
	output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]
	parameters { key: "conch_builtin" value { string_value: "decoupled" } }`

func TestGenerate(t *testing.T) {
	s, _ := serve(t, map[string]string{"m": builtin("identity"), "many": decoupledConfig, "bad": builtin("error")})
	const event = `data: {"IDX":%d,"OUT":%d,"model_name":"many","model_version":"1"}` + "\n\n"
	for _, c := range []struct {
		path, body string
		status     int
		want       string
	}{
		{"/v2/models/m/generate", `{"INPUT0":[1,2.5],"id":"x"}`, 200, `{"OUTPUT0":[1.0,2.5],"id":"x","model_name":"m","model_version":"1"}`},
		{"/v2/models/m/generate", `{"INPUT0":{"a":1}}`, 500, `{"error":"Unable to parse 'data': attempt to access JSON non-number as double"}`},
		{"/v2/models/many/generate", `{"IN":[4],"DELAY":[0]}`, 200, `{"IDX":0,"OUT":4,"model_name":"many","model_version":"1"}`},
		{"/v2/models/many/generate", `{"IN":[4,5],"DELAY":[0,0]}`, 200, `{"error":"generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses"}`},
		{"/v2/models/many/generate_stream", `{"IN":[4,5],"DELAY":[0,0]}`, 200, fmt.Sprintf(event, 0, 4) + fmt.Sprintf(event, 1, 5)},
		{"/v2/models/bad/generate_stream", `{"INPUT0":-1}`, 400, `data: {"error":"negative input"}` + "\n\n"},
	} {
		code, body := post(t, s, c.path, c.body)
		require.Equal(t, c.status, code, "%s %s: %s", c.path, c.body, body)
		require.Equal(t, strings.TrimSpace(c.want), strings.TrimSpace(body), "%s %s", c.path, c.body)
	}
}

func ensembleOf(member string) string {
	return `platform: "ensemble" max_batch_size: 8 input [ { name: "A" data_type: TYPE_FP32 dims: [ -1 ] } ] output [ { name: "B" data_type: TYPE_FP32 dims: [ -1 ] } ]
		ensemble_scheduling { step [ { model_name: "first" model_version: -1 input_map { key: "INPUT0" value: "A" } output_map { key: "OUTPUT0" value: "between" } },
			{ model_name: "` + member + `" model_version: -1 input_map { key: "INPUT0" value: "between" } output_map { key: "OUTPUT0" value: "B" } } ] }`
}

func TestEnsembles(t *testing.T) {
	repo := t.TempDir()
	for name, config := range map[string]string{"first": builtin("identity"), "second": builtin("error"), "all": ensembleOf("second"), "hollow": ensembleOf("nope")} {
		write(t, repo, name, config)
	}
	_, c := start(t, minitriton.Options{Repository: repo})
	require.NoError(t, c.Load(t.Context(), "all"), "its members are loaded with it")
	ask := func(v float32) (*pb.ModelInferResponse, error) {
		r := row("all", v)
		r.Inputs[0].Name = "A"
		return c.Stub.ModelInfer(t.Context(), r)
	}
	resp, err := ask(3)
	require.NoError(t, err)
	require.Equal(t, "B", resp.Outputs[0].Name)
	require.Equal(t, floats(3), resp.RawOutputContents[0])
	_, err = ask(-3)
	requireRefusal(t, err, codes.Internal, "in ensemble 'all', negative input")

	require.NoError(t, c.Unload(t.Context(), "second"))
	_, err = ask(3)
	require.Equal(t, codes.NotFound, status.Code(err), "a member is gone: %v", err)
	require.NoError(t, c.Load(t.Context(), "second"))
	_, err = ask(3)
	require.NoError(t, err, "and has come back")
	require.Error(t, c.Load(t.Context(), "hollow"), "a member that there is not")
}

func TestLoadsWithConfigsAndFiles(t *testing.T) {
	s, c := serve(t, map[string]string{"m": builtin("identity")})
	const config = `{"backend":"python","max_batch_size":%d,"input":[{"name":"INPUT0","data_type":"TYPE_FP32","dims":[-1]}],` +
		`"output":[{"name":"OUTPUT0","data_type":"TYPE_FP32","dims":[-1]}],"parameters":{"conch_builtin":{"string_value":"identity"}}}`
	rows := func() int32 {
		have, err := c.ModelConfig(t.Context(), "m", "")
		require.NoError(t, err)
		return have.MaxBatchSize
	}
	require.NoError(t, c.LoadConfig(t.Context(), "m", fmt.Sprintf(config, 3)))
	require.EqualValues(t, 3, rows())
	require.NoError(t, c.Load(t.Context(), "m"))
	require.EqualValues(t, 3, rows(), "it stays while no file changes")
	require.NoError(t, c.Unload(t.Context(), "m"))
	require.NoError(t, c.Load(t.Context(), "m"))
	require.EqualValues(t, 8, rows())
	require.Equal(t, codes.Internal, status.Code(c.LoadConfig(t.Context(), "m", "")), "no text is no config")

	code, body := post(t, s, "/v2/repository/models/fresh/load", fmt.Sprintf(`{"parameters":{"config":%q,"file:7/model.py":"eA=="}}`, fmt.Sprintf(config, 2)))
	require.Equal(t, 200, code, body)
	resp, err := c.Stub.ModelInfer(t.Context(), row("fresh", 1))
	require.NoError(t, err)
	require.Equal(t, "7", resp.ModelVersion)
	index, err := c.Index(t.Context(), false)
	require.NoError(t, err)
	require.Len(t, index, 1, "it is in no directory of the repository")
}

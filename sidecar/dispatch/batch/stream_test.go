// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

func TestReadStreamAnswer(t *testing.T) {
	final := func(v bool) map[string]*tritonpb.InferParameter {
		return map[string]*tritonpb.InferParameter{"triton_final_response": {ParameterChoice: &tritonpb.InferParameter_BoolParam{BoolParam: v}}}
	}
	for _, c := range []struct {
		name   string
		answer *tritonpb.ModelStreamInferResponse
		want   batch.StreamAnswer
	}{
		{"one of several", &tritonpb.ModelStreamInferResponse{InferResponse: &tritonpb.ModelInferResponse{ModelName: "m", ModelVersion: "1", Id: "a", Parameters: final(false)}},
			batch.StreamAnswer{Model: "m", ID: "a"}},
		{"the last one", &tritonpb.ModelStreamInferResponse{InferResponse: &tritonpb.ModelInferResponse{ModelName: "m", ModelVersion: "1", Id: "a", Parameters: final(true)}},
			batch.StreamAnswer{Model: "m", ID: "a", Last: true}},
		{"the end of a decoupled model's", &tritonpb.ModelStreamInferResponse{InferResponse: &tritonpb.ModelInferResponse{ModelName: "m", Id: "a", Parameters: final(true)}},
			batch.StreamAnswer{Model: "m", ID: "a", Last: true, Empty: true}},
		{"refused by the server", &tritonpb.ModelStreamInferResponse{ErrorMessage: "no", InferResponse: &tritonpb.ModelInferResponse{Id: "a"}},
			batch.StreamAnswer{ID: "a", Failed: true, Error: "no", Last: true}},
		{"a decoupled model's error, and more to come", &tritonpb.ModelStreamInferResponse{ErrorMessage: "no", InferResponse: &tritonpb.ModelInferResponse{Id: "a", Parameters: final(false)}},
			batch.StreamAnswer{ID: "a", Failed: true, Error: "no"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			wire, err := proto.Marshal(c.answer)
			require.NoError(t, err)
			have, err := batch.ReadStreamAnswer(mem.BufferSlice{mem.SliceBuffer(wire)})
			require.NoError(t, err)
			require.Equal(t, c.want, have)
		})
	}
}

func TestAskForFinalResponse(t *testing.T) {
	for _, before := range []*tritonpb.ModelInferRequest{
		{ModelName: "m"},
		{ModelName: "m", Parameters: map[string]*tritonpb.InferParameter{
			"triton_enable_empty_final_response": {ParameterChoice: &tritonpb.InferParameter_BoolParam{}}, "mine": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 7}}}},
	} {
		wire, err := proto.Marshal(before)
		require.NoError(t, err)
		asked := batch.AskForFinalResponse(mem.BufferSlice{mem.SliceBuffer(wire)})
		after := &tritonpb.ModelInferRequest{}
		require.NoError(t, proto.Unmarshal(asked.Materialize(), after))
		require.True(t, after.Parameters["triton_enable_empty_final_response"].GetBoolParam())
		delete(after.Parameters, "triton_enable_empty_final_response")
		delete(before.Parameters, "triton_enable_empty_final_response")
		require.Equal(t, len(before.Parameters), len(after.Parameters))
		require.Equal(t, before.ModelName, after.ModelName)
	}
}

// TestStreamResponse: a stream's message has the fields of the unary answer, and marks it as the last.
func TestStreamResponse(t *testing.T) {
	unary := &tritonpb.ModelInferResponse{
		ModelName: "m", ModelVersion: "1", Id: "a", Parameters: map[string]*tritonpb.InferParameter{"mine": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 7}}},
		Outputs:           []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "OUT", Datatype: "FP32", Shape: []int64{1, 1}}},
		RawOutputContents: [][]byte{{1, 2, 3, 4}},
	}
	wire, err := proto.Marshal(unary)
	require.NoError(t, err)
	received, err := batch.ReadResponse(mem.BufferSlice{mem.SliceBuffer(wire)})
	require.NoError(t, err)
	made := &batch.Response{Model: received.Model, Version: received.Version, ID: received.ID, Parameters: received.Parameters, Outputs: received.Outputs}
	unary.Parameters["triton_final_response"] = &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_BoolParam{BoolParam: true}}
	for _, r := range []*batch.Response{made, received} {
		data := batch.StreamResponse(r)
		var m tritonpb.ModelStreamInferResponse
		require.NoError(t, proto.Unmarshal(data.Materialize(), &m))
		require.Empty(t, m.ErrorMessage)
		require.True(t, proto.Equal(unary, m.InferResponse), "%v", &m)
		a, err := batch.ReadStreamAnswer(data)
		require.NoError(t, err)
		require.Equal(t, batch.StreamAnswer{Model: "m", ID: "a", Last: true}, a)
	}
	received.Free()
}

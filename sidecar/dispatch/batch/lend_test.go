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

// lendConfig has an output of known size, one of unknown size and one of strings.
func lendConfig() *tritonpb.ModelConfig {
	return &tritonpb.ModelConfig{
		Name: "m", MaxBatchSize: 8,
		Input: []*tritonpb.ModelInput{
			{Name: "A", DataType: tritonpb.DataType_TYPE_INT32, Dims: []int64{2}}, {Name: "B", DataType: tritonpb.DataType_TYPE_UINT8, Dims: []int64{-1}},
		},
		Output: []*tritonpb.ModelOutput{
			{Name: "FIXED", DataType: tritonpb.DataType_TYPE_INT32, Dims: []int64{3}},
			{Name: "ANY", DataType: tritonpb.DataType_TYPE_INT32, Dims: []int64{-1}},
			{Name: "TEXT", DataType: tritonpb.DataType_TYPE_STRING, Dims: []int64{1}},
		},
	}
}

func TestSlotsOfOutputs(t *testing.T) {
	rules := batch.NewRules(lendConfig(), []string{"1"})
	for _, c := range []struct {
		name    string
		outputs []batch.RequestedOutput
		want    []batch.Slot
		size    int
	}{
		{"all, named so that the sizes can be", nil, []batch.Slot{{Name: "FIXED", Size: 24}, {Name: "ANY"}, {Name: "TEXT"}}, 24},
		{"only what is asked for", []batch.RequestedOutput{{Name: "ANY"}}, []batch.Slot{{Name: "ANY"}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			slots, size := rules.Slots(&batch.Request{Outputs: c.outputs}, 2)
			require.Equal(t, c.want, slots)
			require.Equal(t, c.size, size)
		})
	}
}

func TestLentTensorsComeBackAsIfTheyHadBeenInTheMessage(t *testing.T) {
	wire, err := proto.Marshal(&tritonpb.ModelInferRequest{
		ModelName: "m", Id: "7",
		Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{
			{Name: "A", Datatype: "INT32", Shape: []int64{1, 2}}, {Name: "B", Datatype: "UINT8", Shape: []int64{1, 3}},
		},
		RawInputContents: [][]byte{{1, 0, 0, 0, 2, 0, 0, 0}, {7, 8, 9}},
	})
	require.NoError(t, err)
	r, err := batch.ReadRequest(mem.BufferSlice{mem.SliceBuffer(wire)})
	require.NoError(t, err)
	defer r.Free()
	rules := batch.NewRules(lendConfig(), []string{"1"})
	slots, size := rules.Slots(r, 1)
	memory := make([]byte, 1000)
	offsets, _ := r.Layout(nil)
	var in []batch.Extent
	for i, at := range offsets {
		data := r.Inputs[i].Data
		in = append(in, batch.Extent{Region: "in", Offset: 100 + at, Size: data.CopyTo(memory[100+at:])})
	}
	out := batch.Extent{Region: "out", Offset: 500, Size: size}

	var sent tritonpb.ModelInferRequest
	require.NoError(t, proto.Unmarshal(r.MarshalLent(in, out, slots).Materialize(), &sent))
	require.Empty(t, sent.RawInputContents)
	require.Equal(t, "7", sent.Id)
	at := func(p map[string]*tritonpb.InferParameter, region string) []byte {
		require.Equal(t, region, p["shared_memory_region"].GetStringParam())
		offset := p["shared_memory_offset"].GetInt64Param()
		return memory[offset : offset+p["shared_memory_byte_size"].GetInt64Param()]
	}
	require.Equal(t, []byte{1, 0, 0, 0, 2, 0, 0, 0}, at(sent.Inputs[0].Parameters, "in"))
	require.Equal(t, []byte{7, 8, 9}, at(sent.Inputs[1].Parameters, "in"))
	require.Len(t, sent.Outputs, 3)
	copy(at(sent.Outputs[0].Parameters, "out"), []byte{4, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0})
	require.Empty(t, sent.Outputs[1].Parameters, "its size is not known")

	sent.Reset()
	require.NoError(t, proto.Unmarshal(r.MarshalLent([]batch.Extent{{}, in[1]}, out, slots).Materialize(), &sent), "one of them has an extent")
	require.Equal(t, [][]byte{{1, 0, 0, 0, 2, 0, 0, 0}}, sent.RawInputContents)
	require.Empty(t, sent.Inputs[0].Parameters)
	require.Equal(t, []byte{7, 8, 9}, at(sent.Inputs[1].Parameters, "in"))
	_, rest := r.Layout([]batch.Extent{in[0], {}})
	require.Equal(t, 3, rest, "what has a place needs none")

	wire, err = proto.Marshal(&tritonpb.ModelInferResponse{
		ModelName: "m", Id: "7",
		Outputs: []*tritonpb.ModelInferResponse_InferOutputTensor{
			{Name: "FIXED", Datatype: "INT32", Shape: []int64{1, 3}}, {Name: "ANY", Datatype: "INT32", Shape: []int64{1, 1}},
		},
		RawOutputContents: [][]byte{{}, {3, 0, 0, 0}},
	})
	require.NoError(t, err)
	resp, err := batch.ReadResponse(mem.BufferSlice{mem.SliceBuffer(wire)})
	require.NoError(t, err)
	defer resp.Free()
	require.NoError(t, resp.Claim(mem.SliceBuffer(memory[out.Offset:][:out.Size]), slots))
	var got tritonpb.ModelInferResponse
	require.NoError(t, proto.Unmarshal(resp.Marshal().Materialize(), &got))
	require.Equal(t, [][]byte{{4, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0}, {3, 0, 0, 0}}, got.RawOutputContents)
	require.Empty(t, got.Outputs[0].Parameters)
	require.Equal(t, "7", got.Id)
}

func TestAnAnswerThatDoesNotFitItsSlotIsRefused(t *testing.T) {
	resp := &batch.Response{Outputs: []batch.Tensor{{Name: "FIXED", Datatype: "INT32", Shape: []int64{1, 4}}}}
	err := resp.Claim(mem.SliceBuffer(make([]byte, 12)), []batch.Slot{{Name: "FIXED", Size: 12}})
	require.ErrorIs(t, err, batch.ErrUnsplittable)
}

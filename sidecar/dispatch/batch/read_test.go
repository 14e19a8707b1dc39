// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// pool counts buffers that are out, so that a test can detect a leak and, by
// grpc's own panics, a double free.
type pool struct{ out int }

func (p *pool) Get(n int) *[]byte {
	p.out++
	b := make([]byte, n, max(n, 4096)) // above the size from which grpc counts references
	return &b
}

func (p *pool) Put(*[]byte) { p.out-- }

// buffers cuts b at the given places into counted buffers.
func (p *pool) buffers(b []byte, cuts ...int) mem.BufferSlice {
	var list mem.BufferSlice
	from := 0
	for _, to := range append(cuts, len(b)) {
		if to < from || to > len(b) {
			continue
		}
		piece := p.Get(to - from)
		copy(*piece, b[from:to])
		list = append(list, mem.NewBuffer(piece, p))
		from = to
	}
	return list
}

func drawParameters(t *rapid.T, label string) map[string]*tritonpb.InferParameter {
	return rapid.MapOfN(rapid.StringMatching(`[a-z_]{0,6}`), rapid.Custom(func(t *rapid.T) *tritonpb.InferParameter {
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			return &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_BoolParam{BoolParam: rapid.Bool().Draw(t, "v")}}
		case 1:
			return &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: rapid.Int64().Draw(t, "v")}}
		case 2:
			return &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_StringParam{StringParam: rapid.String().Draw(t, "v")}}
		case 3:
			return &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_DoubleParam{DoubleParam: rapid.Float64().Draw(t, "v")}}
		case 4:
			return &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_Uint64Param{Uint64Param: rapid.Uint64().Draw(t, "v")}}
		}
		return &tritonpb.InferParameter{}
	}), 0, 3).Draw(t, label)
}

func drawRequest(t *rapid.T) *tritonpb.ModelInferRequest {
	m := &tritonpb.ModelInferRequest{
		ModelName:    rapid.String().Draw(t, "model"),
		ModelVersion: rapid.StringMatching(`[0-9]{0,2}`).Draw(t, "version"),
		Id:           rapid.String().Draw(t, "id"),
		Parameters:   drawParameters(t, "parameters"),
	}
	for range rapid.IntRange(0, 4).Draw(t, "inputs") {
		in := &tritonpb.ModelInferRequest_InferInputTensor{
			Name:       rapid.StringMatching(`[A-Z]{0,3}`).Draw(t, "name"),
			Datatype:   rapid.SampledFrom([]string{"FP32", "BYTES", "INT8", "", "NEW"}).Draw(t, "datatype"),
			Shape:      rapid.SliceOfN(rapid.Int64(), 0, 4).Draw(t, "shape"),
			Parameters: drawParameters(t, "tensor parameters"),
		}
		if rapid.IntRange(0, 4).Draw(t, "typed") == 0 {
			in.Contents = &tritonpb.InferTensorContents{
				IntContents:   rapid.SliceOfN(rapid.Int32(), 0, 3).Draw(t, "ints"),
				BytesContents: rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 3), 0, 2).Draw(t, "bytes"),
				Fp32Contents:  rapid.SliceOfN(rapid.Float32(), 0, 3).Draw(t, "floats"),
			}
		}
		m.Inputs = append(m.Inputs, in)
	}
	for range rapid.IntRange(0, 3).Draw(t, "outputs") {
		m.Outputs = append(m.Outputs, &tritonpb.ModelInferRequest_InferRequestedOutputTensor{
			Name:       rapid.StringMatching(`[A-Z]{0,3}`).Draw(t, "output"),
			Parameters: drawParameters(t, "output parameters"),
		})
	}
	m.RawInputContents = rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 20), 0, 5).Draw(t, "raw")
	return m
}

// TestReadRequestAgainstProtobuf: a message that protobuf wrote is read with
// protobuf's meaning, however the connection cut it, and every buffer is released.
func TestReadRequestAgainstProtobuf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawRequest(t)
		wire, err := proto.Marshal(want)
		require.NoError(t, err)
		p := &pool{}
		got, err := batch.ReadRequest(p.buffers(wire, drawCuts(t, len(wire))...))
		require.NoError(t, err)

		require.Equal(t, want.ModelName, got.Model)
		require.Equal(t, want.ModelVersion, got.Version)
		require.Equal(t, want.Id, got.ID)
		require.Len(t, got.Inputs, len(want.Inputs))
		next := 0
		for i, in := range want.Inputs {
			require.Equal(t, in.Name, got.Inputs[i].Name)
			require.Equal(t, in.Datatype, got.Inputs[i].Datatype)
			require.Equal(t, append([]int64{}, in.Shape...), append([]int64{}, got.Inputs[i].Shape...))
			_, shared := in.Parameters["shared_memory_region"]
			if in.Contents == nil && !shared && next < len(want.RawInputContents) {
				require.Equal(t, append([]byte{}, want.RawInputContents[next]...), append([]byte{}, got.Inputs[i].Data.Materialize()...))
				next++
			} else {
				require.Nil(t, got.Inputs[i].Data)
			}
		}
		for name, v := range want.Parameters {
			have, ok := batch.FindParameter(got.Parameters, name)
			require.True(t, ok)
			var decoded tritonpb.InferParameter
			require.NoError(t, proto.Unmarshal(have.Value, &decoded))
			require.True(t, proto.Equal(v, &decoded))
		}
		whole := got.Marshal()
		require.Equal(t, wire, append([]byte{}, whole.Materialize()...), "a request that nobody touched leaves as it came")
		whole.Free()

		// Written afresh it means the same, but for raw contents that no input has.
		if got.Irregular == "" {
			got.Detach()
			again := got.Marshal()
			var back tritonpb.ModelInferRequest
			require.NoError(t, proto.Unmarshal(again.Materialize(), &back))
			again.Free()
			if next < len(want.RawInputContents) {
				want.RawInputContents = want.RawInputContents[:next]
			}
			require.True(t, proto.Equal(want, &back), "%v\n%v", want, &back)
		}
		got.Free()
		require.Zero(t, p.out, "buffers were not given back")
	})
}

func drawCuts(t *rapid.T, n int) []int {
	cuts := make([]int, 0, 6)
	at := 0
	for range rapid.IntRange(0, 6).Draw(t, "cuts") {
		at += rapid.IntRange(0, max(1, n/4)).Draw(t, "cut")
		cuts = append(cuts, min(at, n))
	}
	return cuts
}

func TestReadResponseAgainstProtobuf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := &tritonpb.ModelInferResponse{
			ModelName: rapid.String().Draw(t, "model"), ModelVersion: "1", Id: rapid.String().Draw(t, "id"),
			Parameters: drawParameters(t, "parameters"),
		}
		n := rapid.IntRange(0, 4).Draw(t, "outputs")
		for range n {
			want.Outputs = append(want.Outputs, &tritonpb.ModelInferResponse_InferOutputTensor{
				Name: rapid.StringMatching(`[A-Z]{0,3}`).Draw(t, "name"), Datatype: "FP32",
				Shape: rapid.SliceOfN(rapid.Int64(), 0, 10).Draw(t, "shape"),
			})
			want.RawOutputContents = append(want.RawOutputContents, rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "raw"))
		}
		wire, err := proto.Marshal(want)
		require.NoError(t, err)
		p := &pool{}
		got, err := batch.ReadResponse(p.buffers(wire, drawCuts(t, len(wire))...))
		require.NoError(t, err)
		got.Wire.Free()
		got.Wire = nil
		out := got.Marshal()
		got.Free()
		var back tritonpb.ModelInferResponse
		require.NoError(t, proto.Unmarshal(out.Materialize(), &back))
		require.True(t, proto.Equal(want, &back), "%v\n%v", want, &back)
		out.Free()
		require.Zero(t, p.out)
	})
}

func TestReadBoundsParts(t *testing.T) {
	cases := map[string][]byte{
		"inputs":       repeat([]byte{0x2a, 0x00}, 5000),
		"raw contents": repeat([]byte{0x3a, 0x00}, 5000),
		"dimensions":   append([]byte{0x2a, 0x84, 0x80, 0x08, 0x1a, 0x80, 0x80, 0x08}, make([]byte, 128<<10)...),
	}
	for name, wire := range cases {
		t.Run(name, func(t *testing.T) {
			p := &pool{}
			_, err := batch.ReadRequest(p.buffers(wire, 100, 1000))
			require.ErrorIs(t, err, batch.ErrTooMany)
			require.Zero(t, p.out)
		})
	}
}

func repeat(b []byte, n int) []byte {
	return bytes.Repeat(b, n)
}

func TestParameterKinds(t *testing.T) {
	list := []batch.Parameter{
		batch.BoolParameter("b", true), batch.Int64Parameter("i", -5), batch.Uint64Parameter("u", 1<<63),
		batch.StringParameter("s", "x"), batch.DoubleParameter("d", 0.5),
	}
	r := &batch.Request{Model: "m", Parameters: list}
	var got tritonpb.ModelInferRequest
	require.NoError(t, proto.Unmarshal(r.Marshal().Materialize(), &got))
	require.True(t, got.Parameters["b"].GetBoolParam())
	require.Equal(t, int64(-5), got.Parameters["i"].GetInt64Param())
	require.Equal(t, uint64(1<<63), got.Parameters["u"].GetUint64Param())
	require.Equal(t, "x", got.Parameters["s"].GetStringParam())
	require.Equal(t, 0.5, got.Parameters["d"].GetDoubleParam())

	b, ok := list[0].Bool()
	require.True(t, b && ok)
	i, ok := list[1].Int64()
	require.True(t, i == -5 && ok)
	u, ok := list[2].Uint64()
	require.True(t, u == 1<<63 && ok)
	s, ok := list[3].Text()
	require.True(t, s == "x" && ok)
	d, ok := list[4].Double()
	require.True(t, d == 0.5 && ok)
	_, ok = list[3].Int64()
	require.False(t, ok, "a string is no int64")
}

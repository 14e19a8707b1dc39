// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// config has one fixed and one variable input, and outputs to match.
func config() *tritonpb.ModelConfig {
	return &tritonpb.ModelConfig{
		Name: "m", MaxBatchSize: 8,
		Input: []*tritonpb.ModelInput{
			{Name: "F", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{2}},
			{Name: "S", DataType: tritonpb.DataType_TYPE_STRING, Dims: []int64{-1}},
			{Name: "O", DataType: tritonpb.DataType_TYPE_INT8, Dims: []int64{1}, Optional: true},
		},
		Output: []*tritonpb.ModelOutput{
			{Name: "G", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{2}},
			{Name: "T", DataType: tritonpb.DataType_TYPE_STRING, Dims: []int64{-1}},
		},
	}
}

func texts(elements ...string) []byte {
	var b []byte
	for _, e := range elements {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(e)))
		b = append(b, e...)
	}
	return b
}

// message is a valid request of config with the given rows.
func message(rows int) *tritonpb.ModelInferRequest {
	words := make([]string, 0, rows)
	for i := range rows {
		words = append(words, fmt.Sprintf("row%d", i))
	}
	return &tritonpb.ModelInferRequest{
		ModelName: "m",
		Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{
			{Name: "F", Datatype: "FP32", Shape: []int64{int64(rows), 2}},
			{Name: "S", Datatype: "BYTES", Shape: []int64{int64(rows), 1}},
		},
		RawInputContents: [][]byte{bytes.Repeat([]byte{1}, rows*8), texts(words...)},
	}
}

func read(t require.TestingT, m proto.Message) *batch.Request {
	wire, err := proto.Marshal(m)
	require.NoError(t, err)
	r, err := batch.ReadRequest(mem.BufferSlice{mem.SliceBuffer(wire)})
	require.NoError(t, err)
	return r
}

func parameter(v any) *tritonpb.InferParameter {
	switch v := v.(type) {
	case int64:
		return &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: v}}
	case string:
		return &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_StringParam{StringParam: v}}
	}
	panic("no such parameter")
}

func TestKeyPassesThroughWhatMustNotBeBatched(t *testing.T) {
	type change func(*tritonpb.ModelInferRequest)
	cases := map[string]change{
		"sequence parameters": func(m *tritonpb.ModelInferRequest) {
			m.Parameters = map[string]*tritonpb.InferParameter{"sequence_id": parameter(int64(1))}
		},
		"input with parameters": func(m *tritonpb.ModelInferRequest) {
			m.Inputs[0].Parameters = map[string]*tritonpb.InferParameter{"x": parameter("y")}
		},
		"requested output with parameters": func(m *tritonpb.ModelInferRequest) {
			m.Outputs = []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "G", Parameters: map[string]*tritonpb.InferParameter{"classification": parameter(int64(1))}}}
		},
		"requested output that the model does not have": func(m *tritonpb.ModelInferRequest) {
			m.Outputs = []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "X"}}
		},
		"version that is not served":         func(m *tritonpb.ModelInferRequest) { m.ModelVersion = "3" },
		"input that the model does not have": func(m *tritonpb.ModelInferRequest) { m.Inputs[0].Name = "X" },
		"input given twice":                  func(m *tritonpb.ModelInferRequest) { m.Inputs[1] = m.Inputs[0] },
		"input that is missing": func(m *tritonpb.ModelInferRequest) {
			m.Inputs, m.RawInputContents = m.Inputs[:1], m.RawInputContents[:1]
		},
		"input S has no data":                   func(m *tritonpb.ModelInferRequest) { m.RawInputContents = m.RawInputContents[:1] },
		"datatype of an input":                  func(m *tritonpb.ModelInferRequest) { m.Inputs[0].Datatype = "FP64" },
		"rank of an input":                      func(m *tritonpb.ModelInferRequest) { m.Inputs[0].Shape = []int64{1} },
		"rows outside 1 to max_batch_size":      func(m *tritonpb.ModelInferRequest) { m.Inputs[0].Shape[0] = 9 },
		"inputs with different numbers of rows": func(m *tritonpb.ModelInferRequest) { m.Inputs[1].Shape[0] = 2 },
		"shape of an input":                     func(m *tritonpb.ModelInferRequest) { m.Inputs[0].Shape[1] = 3 },
		"size of an input's data":               func(m *tritonpb.ModelInferRequest) { m.RawInputContents[0] = m.RawInputContents[0][1:] },
		"input F has contents and shared memory": func(m *tritonpb.ModelInferRequest) {
			m.Inputs[0].Parameters = map[string]*tritonpb.InferParameter{"shared_memory_region": parameter("r")}
			m.Inputs[0].Contents = &tritonpb.InferTensorContents{}
			m.RawInputContents = m.RawInputContents[1:]
		},
		"fields that this version of Conch does not know": func(m *tritonpb.ModelInferRequest) {
			m.ProtoReflect().SetUnknown([]byte{0x98, 0x06, 0x01})
		},
	}
	rules := batch.NewRules(config(), []string{"1", "2"})
	_, rows, ok, reason := rules.Key(read(t, message(3)))
	require.True(t, ok, reason)
	require.Equal(t, 3, rows)
	for want, change := range cases {
		t.Run(want, func(t *testing.T) {
			m := message(1)
			change(m)
			_, _, ok, reason := rules.Key(read(t, m))
			require.False(t, ok)
			require.Equal(t, want, reason)
		})
	}
	t.Run("parameters that Triton does not take", func(t *testing.T) {
		for name, p := range map[string]*tritonpb.InferParameter{
			"timeout": parameter("1"), "priority": parameter(int64(-1)), "triton_enable_empty_final_response": parameter(int64(1)), "triton_mine": parameter("x"),
			"nothing": {}, "unsigned": {ParameterChoice: &tritonpb.InferParameter_Uint64Param{Uint64Param: 1}},
		} {
			m := message(1)
			m.Parameters = map[string]*tritonpb.InferParameter{name: p}
			_, _, ok, reason := rules.Key(read(t, m))
			require.False(t, ok, name)
			require.Equal(t, "parameter that Triton does not take", reason)
		}
	})
	t.Run("bytes cut inside an element", func(t *testing.T) {
		m := message(2)
		m.RawInputContents[1] = m.RawInputContents[1][:len(m.RawInputContents[1])-1]
		_, _, ok, _ := rules.Key(read(t, m))
		require.False(t, ok)
	})
	t.Run("shared memory", func(t *testing.T) {
		m := message(1)
		m.Inputs[0].Parameters = map[string]*tritonpb.InferParameter{"shared_memory_region": parameter("r")}
		m.RawInputContents = m.RawInputContents[1:]
		_, _, ok, _ := rules.Key(read(t, m))
		require.False(t, ok)
	})
}

func TestKeySeparatesAndJoins(t *testing.T) {
	rules := batch.NewRules(config(), []string{"1", "2"})
	key := func(change func(*tritonpb.ModelInferRequest)) uint64 {
		m := message(1)
		change(m)
		k, _, ok, reason := rules.Key(read(t, m))
		require.True(t, ok, reason)
		return k
	}
	plain := key(func(*tritonpb.ModelInferRequest) {})
	require.Equal(t, plain, key(func(m *tritonpb.ModelInferRequest) { m.Id = "other" }))
	require.Equal(t, plain, key(func(m *tritonpb.ModelInferRequest) {
		m.Parameters = map[string]*tritonpb.InferParameter{"timeout": parameter(int64(500))}
	}), "the timeout is ours to keep")
	require.Equal(t, plain, key(func(m *tritonpb.ModelInferRequest) {
		m.Parameters = map[string]*tritonpb.InferParameter{"priority": parameter(int64(1))}
	}), "the priority is ours to keep")
	require.Equal(t, plain, key(func(m *tritonpb.ModelInferRequest) {
		m.Parameters = map[string]*tritonpb.InferParameter{"triton_enable_empty_final_response": {ParameterChoice: &tritonpb.InferParameter_BoolParam{BoolParam: true}}}
	}), "a wish about streams means nothing to a batch")
	require.Equal(t, plain, key(func(m *tritonpb.ModelInferRequest) {
		m.Inputs[0], m.Inputs[1] = m.Inputs[1], m.Inputs[0]
		m.RawInputContents[0], m.RawInputContents[1] = m.RawInputContents[1], m.RawInputContents[0]
	}), "the order of inputs means nothing")
	require.Equal(t, plain, key(func(m *tritonpb.ModelInferRequest) {
		m.Outputs = []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "G"}}
	}), "outputs are united")
	for name, change := range map[string]func(*tritonpb.ModelInferRequest){
		"version": func(m *tritonpb.ModelInferRequest) { m.ModelVersion = "2" },
		"custom parameter": func(m *tritonpb.ModelInferRequest) {
			m.Parameters = map[string]*tritonpb.InferParameter{"temperature": parameter("1")}
		},
		"variable dimension": func(m *tritonpb.ModelInferRequest) {
			m.Inputs[1].Shape[1] = 2
			m.RawInputContents[1] = texts("a", "b")
		},
		"optional input": func(m *tritonpb.ModelInferRequest) {
			m.Inputs = append(m.Inputs, &tritonpb.ModelInferRequest_InferInputTensor{Name: "O", Datatype: "INT8", Shape: []int64{1, 1}})
			m.RawInputContents = append(m.RawInputContents, []byte{1})
		},
	} {
		require.NotEqual(t, plain, key(change), name)
	}
}

func TestBatchable(t *testing.T) {
	cases := map[string]func(*tritonpb.ModelConfig){
		"": func(*tritonpb.ModelConfig) {},
		"sequence batching": func(c *tritonpb.ModelConfig) {
			c.SchedulingChoice = &tritonpb.ModelConfig_SequenceBatching{SequenceBatching: &tritonpb.ModelSequenceBatching{}}
		},
		"ensemble": func(c *tritonpb.ModelConfig) {
			c.SchedulingChoice = &tritonpb.ModelConfig_EnsembleScheduling{EnsembleScheduling: &tritonpb.ModelEnsembling{}}
		},
		"decoupled": func(c *tritonpb.ModelConfig) {
			c.ModelTransactionPolicy = &tritonpb.ModelTransactionPolicy{Decoupled: true}
		},
		"no batch dimension (max_batch_size 0)": func(c *tritonpb.ModelConfig) { c.MaxBatchSize = 0 },
		"batch_input":                           func(c *tritonpb.ModelConfig) { c.BatchInput = []*tritonpb.BatchInput{{}} },
		`ragged input "F"`:                      func(c *tritonpb.ModelConfig) { c.Input[0].AllowRaggedBatch = true },
		`shape tensor "F"`:                      func(c *tritonpb.ModelConfig) { c.Input[0].IsShapeTensor = true },
		"queue policy, priorities or preserve_ordering": func(c *tritonpb.ModelConfig) {
			c.SchedulingChoice = &tritonpb.ModelConfig_DynamicBatching{DynamicBatching: &tritonpb.ModelDynamicBatching{
				DefaultQueuePolicy: &tritonpb.ModelQueuePolicy{MaxQueueSize: 2}}}
		},
		"response cache": func(c *tritonpb.ModelConfig) { c.ResponseCache = &tritonpb.ModelResponseCache{Enable: true} },
	}
	for want, change := range cases {
		c := config()
		change(c)
		ok, reason := batch.Batchable(c)
		require.Equal(t, want == "", ok, want)
		require.Equal(t, want, reason)
	}
}

func TestRefuseWhatKillsTheServer(t *testing.T) {
	rules := batch.NewRules(config(), []string{"1"})
	refused := func(change func(*tritonpb.ModelInferRequest)) error {
		m := message(1)
		change(m)
		return rules.Hazard(read(t, m))
	}
	for name, change := range map[string]func(*tritonpb.ModelInferRequest){
		"product":  func(m *tritonpb.ModelInferRequest) { m.Inputs[0].Shape = []int64{1 << 32, 1 << 32} },
		"elements": func(m *tritonpb.ModelInferRequest) { m.Inputs[0].Shape = []int64{1 << 61, 2} },
		"negative": func(m *tritonpb.ModelInferRequest) { m.Inputs[0].Shape = []int64{-1 << 63, 2} },
		"classification of strings": func(m *tritonpb.ModelInferRequest) {
			m.Outputs = []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "T", Parameters: map[string]*tritonpb.InferParameter{"classification": parameter(int64(1))}}}
		},
	} {
		require.Equal(t, codes.InvalidArgument, status.Code(refused(change)), name)
	}
	for name, change := range map[string]func(*tritonpb.ModelInferRequest){
		"valid":    func(*tritonpb.ModelInferRequest) {},
		"zero":     func(m *tritonpb.ModelInferRequest) { m.Inputs[0].Shape = []int64{1 << 62, 1 << 62, 0} },
		"negative": func(m *tritonpb.ModelInferRequest) { m.Inputs[0].Shape = []int64{-1, 2} },
		"classification of numbers": func(m *tritonpb.ModelInferRequest) {
			m.Outputs = []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "G", Parameters: map[string]*tritonpb.InferParameter{"classification": parameter(int64(1))}}}
		},
	} {
		require.NoError(t, refused(change), name)
	}
}

func TestNormalizeTypedContents(t *testing.T) {
	cases := []struct {
		datatype string
		contents *tritonpb.InferTensorContents
		want     []byte
	}{
		{"BOOL", &tritonpb.InferTensorContents{BoolContents: []bool{true, false}}, []byte{1, 0}},
		{"INT8", &tritonpb.InferTensorContents{IntContents: []int32{-1, 300}}, []byte{0xff, 44}},
		{"INT16", &tritonpb.InferTensorContents{IntContents: []int32{-2, 1 << 16}}, []byte{0xfe, 0xff, 0, 0}},
		{"INT32", &tritonpb.InferTensorContents{IntContents: []int32{-1}}, []byte{0xff, 0xff, 0xff, 0xff}},
		{"INT64", &tritonpb.InferTensorContents{Int64Contents: []int64{-2}}, []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}},
		{"UINT8", &tritonpb.InferTensorContents{UintContents: []uint32{257}}, []byte{1}},
		{"UINT16", &tritonpb.InferTensorContents{UintContents: []uint32{513}}, []byte{1, 2}},
		{"UINT32", &tritonpb.InferTensorContents{UintContents: []uint32{1}}, []byte{1, 0, 0, 0}},
		{"UINT64", &tritonpb.InferTensorContents{Uint64Contents: []uint64{1}}, []byte{1, 0, 0, 0, 0, 0, 0, 0}},
		{"FP32", &tritonpb.InferTensorContents{Fp32Contents: []float32{1}}, []byte{0, 0, 0x80, 0x3f}},
		{"FP64", &tritonpb.InferTensorContents{Fp64Contents: []float64{1}}, []byte{0, 0, 0, 0, 0, 0, 0xf0, 0x3f}},
		{"BYTES", &tritonpb.InferTensorContents{BytesContents: [][]byte{[]byte("ab"), {}}}, texts("ab", "")},
		{"FP16", &tritonpb.InferTensorContents{Fp32Contents: []float32{1}}, nil},
		{"INT64", &tritonpb.InferTensorContents{IntContents: []int32{1}}, nil},
	}
	for _, c := range cases {
		t.Run(c.datatype, func(t *testing.T) {
			r := read(t, &tritonpb.ModelInferRequest{Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "A", Datatype: c.datatype, Contents: c.contents}}})
			err := r.Inputs[0].Normalize()
			if c.want == nil {
				require.ErrorIs(t, err, batch.ErrContents)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, r.Inputs[0].Data.Materialize())
		})
	}
}

// echo answers a batch as a model would that copies F to G and S to T.
func echo(t require.TestingT, wire mem.BufferSlice, p *pool, cuts ...int) *batch.Response {
	var m tritonpb.ModelInferRequest
	require.NoError(t, proto.Unmarshal(wire.Materialize(), &m))
	wire.Free()
	out := &tritonpb.ModelInferResponse{ModelName: m.ModelName, ModelVersion: "1"}
	rename := map[string]string{"F": "G", "S": "T", "O": "P"}
	for i, in := range m.Inputs {
		out.Outputs = append(out.Outputs, &tritonpb.ModelInferResponse_InferOutputTensor{Name: rename[in.Name], Datatype: in.Datatype, Shape: in.Shape})
		out.RawOutputContents = append(out.RawOutputContents, m.RawInputContents[i])
	}
	b, err := proto.Marshal(out)
	require.NoError(t, err)
	resp, err := batch.ReadResponse(p.buffers(b, cuts...))
	require.NoError(t, err)
	return resp
}

// TestAssembleSplit: whatever is joined, each request gets its own rows of the
// outputs that it asked for, and all memory is released.
func TestAssembleSplit(t *testing.T) {
	rules := batch.NewRules(config(), []string{"1"})
	rapid.Check(t, func(t *rapid.T) {
		p := &pool{}
		width := rapid.IntRange(1, 3).Draw(t, "width")
		sent := make([]*tritonpb.ModelInferRequest, 0, 5)
		reqs := make([]*batch.Request, 0, 5)
		var firstKey uint64
		for i := range rapid.IntRange(1, 5).Draw(t, "requests") {
			rows := rapid.IntRange(1, 3).Draw(t, "rows")
			floats := rapid.SliceOfN(rapid.Byte(), rows*8, rows*8).Draw(t, "floats")
			words := rapid.SliceOfN(rapid.StringN(0, 5, 20), rows*width, rows*width).Draw(t, "words")
			m := &tritonpb.ModelInferRequest{
				ModelName: "m", Id: fmt.Sprint("id", i),
				Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{
					{Name: "F", Datatype: "FP32", Shape: []int64{int64(rows), 2}},
					{Name: "S", Datatype: "BYTES", Shape: []int64{int64(rows), int64(width)}},
				},
				RawInputContents: [][]byte{floats, texts(words...)},
			}
			for _, name := range rapid.SampledFrom([][]string{nil, {"G"}, {"T"}, {"T", "G"}}).Draw(t, "outputs") {
				m.Outputs = append(m.Outputs, &tritonpb.ModelInferRequest_InferRequestedOutputTensor{Name: name})
			}
			if rapid.Bool().Draw(t, "swap") {
				m.Inputs[0], m.Inputs[1] = m.Inputs[1], m.Inputs[0]
				m.RawInputContents[0], m.RawInputContents[1] = m.RawInputContents[1], m.RawInputContents[0]
			}
			sent = append(sent, m)
			b, err := proto.Marshal(m)
			require.NoError(t, err)
			r, err := batch.ReadRequest(p.buffers(b, drawCuts(t, len(b))...))
			require.NoError(t, err)
			reqs = append(reqs, r)
			key, n, ok, reason := rules.Key(r)
			require.True(t, ok, reason)
			require.Equal(t, rows, n)
			if i == 0 {
				firstKey = key
			}
			require.Equal(t, firstKey, key)
		}
		joined, err := batch.Assemble(reqs)
		require.NoError(t, err)
		wire := joined.Marshal()
		joined.Free()
		resp := echo(t, wire, p, 50, 90)
		parts, err := batch.Split(resp, reqs)
		require.NoError(t, err)
		resp.Free()
		for _, r := range reqs {
			r.Free()
		}
		for i, part := range parts {
			require.Equal(t, sent[i].Id, part.ID)
			back := part.Marshal()
			part.Free()
			var m tritonpb.ModelInferResponse
			require.NoError(t, proto.Unmarshal(back.Materialize(), &m))
			back.Free()
			got := map[string][]byte{}
			for k, out := range m.Outputs {
				got[out.Name] = append([]byte{}, m.RawOutputContents[k]...)
			}
			want := map[string][]byte{}
			rename := map[string]string{"F": "G", "S": "T"}
			for k, in := range sent[i].Inputs {
				name := rename[in.Name]
				asked := len(sent[i].Outputs) == 0
				for _, o := range sent[i].Outputs {
					asked = asked || o.Name == name
				}
				if asked {
					want[name] = append([]byte{}, sent[i].RawInputContents[k]...)
				}
			}
			require.Equal(t, want, got)
		}
		require.Zero(t, p.out, "buffers were not given back")
	})
}

func TestAssembleRefusesWhatAKeyWouldNotJoin(t *testing.T) {
	other := message(1)
	other.Inputs[1].Shape[1] = 2
	other.RawInputContents[1] = texts("a", "b")
	version := message(1)
	version.ModelVersion = "2"
	for _, m := range []*tritonpb.ModelInferRequest{other, version} {
		_, err := batch.Assemble([]*batch.Request{read(t, message(1)), read(t, m)})
		require.ErrorIs(t, err, batch.ErrIncompatible)
	}
}

func TestSplitRefusesAnswersWithoutRows(t *testing.T) {
	reqs := []*batch.Request{read(t, message(1)), read(t, message(2))}
	for name, out := range map[string]*tritonpb.ModelInferResponse{
		"rows":  {Outputs: []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "G", Datatype: "FP32", Shape: []int64{2, 1}}}, RawOutputContents: [][]byte{make([]byte, 8)}},
		"bytes": {Outputs: []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "G", Datatype: "FP32", Shape: []int64{3, 1}}}, RawOutputContents: [][]byte{make([]byte, 8)}},
		"words": {Outputs: []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "T", Datatype: "BYTES", Shape: []int64{3, 1}}}, RawOutputContents: [][]byte{texts("a", "b")}},
		"rest":  {Outputs: []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "T", Datatype: "BYTES", Shape: []int64{3, 1}}}, RawOutputContents: [][]byte{texts("a", "b", "c", "d")}},
		"none":  {Outputs: []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "G", Datatype: "FP32"}}, RawOutputContents: [][]byte{make([]byte, 4)}},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := proto.Marshal(out)
			require.NoError(t, err)
			p := &pool{}
			resp, err := batch.ReadResponse(p.buffers(b))
			require.NoError(t, err)
			_, err = batch.Split(resp, reqs)
			require.ErrorIs(t, err, batch.ErrUnsplittable)
			resp.Free()
			require.Zero(t, p.out)
		})
	}
}

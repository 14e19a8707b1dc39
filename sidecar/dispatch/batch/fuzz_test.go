// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch_test

import (
	"encoding/binary"
	"errors"
	"runtime/metrics"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// allocated is how many bytes f allocates, by the runtime's statistics, which are
// exact only for large allocations.
func allocated(f func()) uint64 {
	read := func() uint64 {
		sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	before := read()
	f()
	return read() - before
}

// mostMemory is what reading n bytes may allocate: a multiple of them, and what
// the bounds on the number of parts add up to.
func mostMemory(n int) uint64 { return 8<<20 + 16*uint64(n) }

// FuzzReadRequest holds the reader to the protobuf runtime on any bytes: the
// same are accepted, but for the bounds on parts, and they mean the same.
func FuzzReadRequest(f *testing.F) {
	for _, seed := range requestSeeds() {
		f.Add(seed, len(seed)/2)
	}
	f.Fuzz(func(t *testing.T, wire []byte, cut int) {
		var want tritonpb.ModelInferRequest
		wantErr := proto.Unmarshal(wire, &want)
		p := &pool{}
		buffers := p.buffers(wire, cut)
		var got *batch.Request
		var err error
		used := allocated(func() { got, err = batch.ReadRequest(buffers) })
		require.LessOrEqual(t, used, mostMemory(len(wire)))
		if err != nil {
			require.True(t, wantErr != nil || errors.Is(err, batch.ErrTooMany), "refused what protobuf accepts: %v", err)
			require.Zero(t, p.out)
			return
		}
		require.NoError(t, wantErr, "accepted what protobuf refuses")
		require.Equal(t, len(want.ProtoReflect().GetUnknown()) > 0, len(got.Unknown) > 0)
		whole := got.Marshal()
		require.Equal(t, string(wire), string(whole.Materialize()), "a request that nobody touched leaves as it came")
		whole.Free()

		// Written afresh it means the same, but for raw contents that no input has
		// and for fields that the nested messages do not know.
		got.Detach()
		out := got.Marshal()
		got.Free()
		var back tritonpb.ModelInferRequest
		require.NoError(t, proto.Unmarshal(out.Materialize(), &back))
		out.Free()
		require.Zero(t, p.out, "buffers were not given back")
		want.RawInputContents = paired(&want)
		discardUnknown(want.ProtoReflect())
		discardUnknown(back.ProtoReflect())
		require.True(t, proto.Equal(&want, &back), "%v\n%v", &want, &back)
	})
}

func requestSeeds() [][]byte {
	full, _ := proto.Marshal(&tritonpb.ModelInferRequest{
		ModelName: "m", Id: "7", ModelVersion: "1",
		Parameters: map[string]*tritonpb.InferParameter{"timeout": parameter(int64(5))},
		Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{
			{Name: "A", Datatype: "FP32", Shape: []int64{1, 2}, Parameters: map[string]*tritonpb.InferParameter{"x": parameter("y")}},
			{Name: "B", Datatype: "INT8", Shape: []int64{-1}, Contents: &tritonpb.InferTensorContents{
				IntContents: []int32{-1, 300}, BytesContents: [][]byte{{1}}, Fp32Contents: []float32{1}, Fp64Contents: []float64{2}, BoolContents: []bool{true}}},
			{Name: "C", Datatype: "BYTES", Parameters: map[string]*tritonpb.InferParameter{"shared_memory_region": parameter("r")}},
		},
		Outputs:          []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "C", Parameters: map[string]*tritonpb.InferParameter{"classification": parameter(int64(1))}}},
		RawInputContents: [][]byte{{1, 2, 3, 4, 5, 6, 7, 8}, {}, {9}},
	})
	valid, _ := proto.Marshal(message(2))
	return [][]byte{
		full, valid,
		{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, // a length beyond everything
		{0x2a, 0x02, 0x18, 0x80},                                     // a varint cut short
		{0x4b, 0x4b, 0x4c, 0x4c, 0x0a, 0x01, 'm'},                    // unknown groups
		{0x4c},                                     // the end of no group
		{0x08, 0x01, 0x0d, 1, 2, 3, 4},             // known numbers, other wire types
		{0x22, 0x04, 0x12, 0x02, 0x18, 0xff},       // a parameter cut short
		{0x2a, 0x04, 0x2a, 0x00, 0x2a, 0x00},       // contents in two pieces
		{0x8a, 0x80, 0x80, 0x80, 0x10, 0x00},       // a tag in more bytes than it needs
		{0x22, 0x03, 0x0a, 0x01, 0xff, 0x3a, 0x00}, // a name that is no UTF-8
	}
}

// paired returns the raw contents that Triton gives to inputs: one to each that is
// neither in shared memory nor typed, in order.
func paired(m *tritonpb.ModelInferRequest) [][]byte {
	var raw [][]byte
	for _, in := range m.Inputs {
		_, shared := in.Parameters["shared_memory_region"]
		if !shared && in.Contents == nil && len(raw) < len(m.RawInputContents) {
			raw = append(raw, m.RawInputContents[len(raw)])
		}
	}
	return raw
}

// discardUnknown drops fields that this build does not know, at every level. The
// nested ones are lost when a request is written afresh; one that has any is
// never batched.
func discardUnknown(m protoreflect.Message) {
	m.SetUnknown(nil)
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap() && field.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { discardUnknown(v.Message()); return true })
		case field.IsList() && field.Message() != nil:
			for i := range v.List().Len() {
				discardUnknown(v.List().Get(i).Message())
			}
		case !field.IsList() && !field.IsMap() && field.Message() != nil:
			discardUnknown(v.Message())
		}
		return true
	})
}

// FuzzReadResponse: as FuzzReadRequest.
func FuzzReadResponse(f *testing.F) {
	seed, _ := proto.Marshal(&tritonpb.ModelInferResponse{
		ModelName: "m", ModelVersion: "1", Id: "7",
		Parameters: map[string]*tritonpb.InferParameter{"triton_final_response": parameter("x")},
		Outputs: []*tritonpb.ModelInferResponse_InferOutputTensor{
			{Name: "A", Datatype: "FP32", Shape: []int64{1, 2}},
			{Name: "B", Datatype: "BYTES", Shape: []int64{1}, Contents: &tritonpb.InferTensorContents{BytesContents: [][]byte{{1}}}},
		},
		RawOutputContents: [][]byte{{1, 2, 3, 4, 5, 6, 7, 8}},
	})
	f.Add(seed, 9)
	f.Add([]byte{0x32, 0x05, 1}, 1)
	f.Add([]byte{0x4b, 0x4c, 0x32, 0x01, 1}, 1)
	f.Fuzz(func(t *testing.T, wire []byte, cut int) {
		var want tritonpb.ModelInferResponse
		wantErr := proto.Unmarshal(wire, &want)
		p := &pool{}
		buffers := p.buffers(wire, cut)
		var got *batch.Response
		var err error
		used := allocated(func() { got, err = batch.ReadResponse(buffers) })
		require.LessOrEqual(t, used, mostMemory(len(wire)))
		if err != nil {
			require.True(t, wantErr != nil || errors.Is(err, batch.ErrTooMany), "refused what protobuf accepts: %v", err)
			require.Zero(t, p.out)
			return
		}
		require.NoError(t, wantErr, "accepted what protobuf refuses")
		// Written afresh, out of its parts.
		afresh := &batch.Response{Model: got.Model, Version: got.Version, ID: got.ID, Parameters: got.Parameters, Outputs: got.Outputs}
		out := afresh.Marshal()
		got.Free()
		var back tritonpb.ModelInferResponse
		require.NoError(t, proto.Unmarshal(out.Materialize(), &back))
		out.Free()
		require.Zero(t, p.out, "buffers were not given back")
		discardUnknown(want.ProtoReflect())
		discardUnknown(back.ProtoReflect())
		plain := len(want.RawOutputContents) == len(want.Outputs)
		for _, o := range want.Outputs {
			plain = plain && o.Contents == nil
		}
		if !plain { // the outputs then decide which entry is theirs
			want.RawOutputContents, back.RawOutputContents = nil, nil
		}
		require.True(t, proto.Equal(&want, &back), "%v\n%v", &want, &back)
	})
}

// FuzzSplit: no answer, however wrong, makes Split fail otherwise than with an
// error, and its parts are the answer, cut at rows.
func FuzzSplit(f *testing.F) {
	good, _ := proto.Marshal(&tritonpb.ModelInferResponse{
		Outputs:           []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "T", Datatype: "BYTES", Shape: []int64{3, 1}}, {Name: "G", Datatype: "FP32", Shape: []int64{3}}},
		RawOutputContents: [][]byte{texts("a", "", "ccc"), make([]byte, 12)},
	})
	absurd, _ := proto.Marshal(&tritonpb.ModelInferResponse{
		Outputs:           []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "T", Datatype: "BYTES", Shape: []int64{4, 1 << 62}}},
		RawOutputContents: [][]byte{{}},
	})
	f.Add(good, uint8(1), uint8(2))
	f.Add(absurd, uint8(0), uint8(4))
	f.Add([]byte{0x2a, 0x00}, uint8(0), uint8(0))
	f.Fuzz(func(t *testing.T, wire []byte, a, b uint8) {
		p := &pool{}
		resp, err := batch.ReadResponse(p.buffers(wire, len(wire)/2))
		if err != nil {
			return
		}
		reqs := []*batch.Request{
			{Inputs: []batch.Tensor{{Shape: []int64{int64(a)}}}},
			{Inputs: []batch.Tensor{{Shape: []int64{int64(b)}}}, Outputs: []batch.RequestedOutput{{Name: "T"}}},
		}
		var parts []*batch.Response
		used := allocated(func() { parts, err = batch.Split(resp, reqs) })
		require.LessOrEqual(t, used, mostMemory(len(wire)))
		if err == nil {
			next := 0
			for i := range resp.Outputs {
				whole, first := resp.Outputs[i], parts[0].Outputs[i]
				require.Equal(t, append([]int64{int64(a)}, whole.Shape[1:]...), first.Shape)
				requireElements(t, first)
				data := append([]byte{}, first.Data.Materialize()...)
				if whole.Name == "T" {
					second := parts[1].Outputs[next]
					next++
					require.Equal(t, append([]int64{int64(b)}, whole.Shape[1:]...), second.Shape)
					requireElements(t, second)
					require.Equal(t, string(whole.Data.Materialize()), string(append(data, second.Data.Materialize()...)))
				} else {
					require.Equal(t, string(whole.Data.Materialize()[:len(data)]), string(data))
				}
			}
			require.Len(t, parts[0].Outputs, len(resp.Outputs))
			require.Len(t, parts[1].Outputs, next, "an output that nobody asked for")
			for _, part := range parts {
				part.Free()
			}
		}
		resp.Free()
		require.Zero(t, p.out)
	})
}

// requireElements counts the elements of a tensor the simple way.
func requireElements(t *testing.T, tensor batch.Tensor) {
	sizes := map[string]int64{"BOOL": 1, "UINT8": 1, "INT8": 1, "UINT16": 2, "INT16": 2, "FP16": 2, "BF16": 2,
		"UINT32": 4, "INT32": 4, "FP32": 4, "UINT64": 8, "INT64": 8, "FP64": 8}
	n := int64(1)
	for _, d := range tensor.Shape {
		require.GreaterOrEqual(t, d, int64(0))
		n *= d
	}
	data := tensor.Data.Materialize()
	if tensor.Datatype != "BYTES" {
		require.Contains(t, sizes, tensor.Datatype)
		require.EqualValues(t, n*sizes[tensor.Datatype], len(data))
		return
	}
	for ; len(data) > 0; n-- {
		data = data[4+binary.LittleEndian.Uint32(data):]
	}
	require.Zero(t, n, "elements")
}

// FuzzAssemble: of any two messages, those that may share an execution get their
// own rows from it, and only messages that Triton would accept may share one.
func FuzzAssemble(f *testing.F) {
	first, _ := proto.Marshal(message(1))
	second, _ := proto.Marshal(message(2))
	typed := message(1)
	typed.Inputs[0].Contents = &tritonpb.InferTensorContents{Fp32Contents: []float32{1, 2}}
	typed.Inputs[1].Contents = &tritonpb.InferTensorContents{BytesContents: [][]byte{[]byte("x")}}
	typed.RawInputContents = nil
	typed.Outputs = []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "T"}}
	third, _ := proto.Marshal(typed)
	f.Add(first, second)
	f.Add(second, third)
	f.Add(third, third)
	rules := batch.NewRules(config(), []string{"1"})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		p := &pool{}
		reqs := make([]*batch.Request, 0, 2)
		keys := make([]uint64, 0, 2)
		for _, wire := range [][]byte{a, b} {
			r, err := batch.ReadRequest(p.buffers(wire, len(wire)/2))
			if err != nil {
				continue
			}
			if refused := rules.Hazard(r); refused != nil {
				_, _, ok, _ := rules.Key(r)
				require.False(t, ok, "refused and yet batched: %v", refused)
			}
			key, rows, ok, _ := rules.Key(r)
			if !ok {
				r.Free()
				continue
			}
			require.True(t, rows > 0 && rows <= 8)
			for _, in := range r.Inputs {
				require.EqualValues(t, rows, in.Shape[0])
				requireElements(t, in)
			}
			reqs, keys = append(reqs, r), append(keys, key)
		}
		if len(reqs) == 2 && keys[0] == keys[1] {
			roundTrip(t, p, reqs)
		}
		for _, r := range reqs {
			r.Free()
		}
		require.Zero(t, p.out, "buffers were not given back")
	})
}

// roundTrip sends two requests through one execution of a model that copies F to
// G and S to T.
func roundTrip(t *testing.T, p *pool, reqs []*batch.Request) {
	joined, err := batch.Assemble(reqs)
	require.NoError(t, err)
	wire := joined.Marshal()
	joined.Free()
	var m tritonpb.ModelInferRequest
	require.NoError(t, proto.Unmarshal(wire.Materialize(), &m))
	require.Len(t, m.RawInputContents, len(m.Inputs))
	require.Empty(t, m.Id, "an id belongs to one caller")
	resp := echo(t, wire, p, 20, 40)
	parts, err := batch.Split(resp, reqs)
	require.NoError(t, err)
	resp.Free()
	back := map[string]string{"G": "F", "T": "S", "P": "O"}
	for i, part := range parts {
		require.Equal(t, reqs[i].ID, part.ID)
		for _, out := range part.Outputs {
			var in *batch.Tensor
			for k := range reqs[i].Inputs {
				if reqs[i].Inputs[k].Name == back[out.Name] {
					in = &reqs[i].Inputs[k]
				}
			}
			require.NotNil(t, in)
			require.Equal(t, in.Shape, out.Shape)
			require.Equal(t, string(in.Data.Materialize()), string(out.Data.Materialize()))
		}
		part.Free()
	}
}

// TestReadCostsNoMoreThanItsInput: a long message must not be copied again for
// every part of it, nor must a part be compared with every part before it.
func TestReadCostsNoMoreThanItsInput(t *testing.T) {
	const n = 200_000
	tensor := repeat([]byte{0x2a, 0x02, 0x10, 0x01}, n) // contents, in n pieces
	pieces := binary.AppendUvarint([]byte{0x2a}, uint64(len(tensor)))
	pieces = append(pieces, tensor...)
	buffers := mem.BufferSlice{mem.SliceBuffer(pieces)}
	used := allocated(func() {
		r, err := batch.ReadRequest(buffers)
		require.NoError(t, err)
		require.Len(t, r.Inputs[0].Contents, 2*n)
		r.Free()
	})
	require.Less(t, used, mostMemory(len(pieces)))

	same := repeat([]byte{0x22, 0x03, 0x0a, 0x01, 'k'}, n) // one parameter, n times
	_, err := batch.ReadRequest(mem.BufferSlice{mem.SliceBuffer(same)})
	require.ErrorIs(t, err, batch.ErrTooMany)
}

func TestSplitRefusesElementsThatOverflow(t *testing.T) {
	wire, err := proto.Marshal(&tritonpb.ModelInferResponse{
		Outputs:           []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "T", Datatype: "BYTES", Shape: []int64{4, 1 << 62}}},
		RawOutputContents: [][]byte{{}},
	})
	require.NoError(t, err)
	resp, err := batch.ReadResponse(mem.BufferSlice{mem.SliceBuffer(wire)})
	require.NoError(t, err)
	_, err = batch.Split(resp, []*batch.Request{{Inputs: []batch.Tensor{{Shape: []int64{4}}}}, {Inputs: []batch.Tensor{{Shape: []int64{0}}}}})
	require.ErrorIs(t, err, batch.ErrUnsplittable)
	resp.Free()
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"context"
	"encoding/binary"
	"math"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/triton"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

const wantFinal = "triton_enable_empty_final_response"

func (f *grpcFront) ModelInfer(ctx context.Context, in *pb.ModelInferRequest) (*pb.ModelInferResponse, error) {
	m, refusal := f.server.repo.find(in.ModelName, in.ModelVersion)
	if refusal != nil {
		return nil, refusal
	}
	if m.decoupled {
		return nil, refuse(codes.Unimplemented, "ModelInfer RPC doesn't support models with decoupled transaction policy")
	}
	r := &request{ctx: ctx, id: in.Id}
	defer r.release()
	if err := f.read(in, m, r); err != nil {
		return nil, err
	}
	resp, err := f.server.infer(m, in.ModelName, in.ModelVersion, r)
	if err != nil {
		return nil, grpcError(err)
	}
	if resp.err == nil {
		resp.err = m.finish(r, resp)
	}
	if resp.err != nil {
		return nil, resp.err
	}
	return encodeResponse(m, in.Id, resp), nil
}

func encodeResponse(m *model, id string, resp *response) *pb.ModelInferResponse {
	out := &pb.ModelInferResponse{ModelName: m.name, ModelVersion: m.versionString(), Id: id,
		Outputs:           make([]*pb.ModelInferResponse_InferOutputTensor, len(resp.outputs)),
		RawOutputContents: make([][]byte, len(resp.outputs))}
	for i, t := range resp.outputs {
		out.Outputs[i] = &pb.ModelInferResponse_InferOutputTensor{Name: t.name, Datatype: triton.DatatypeName(t.dtype), Shape: t.shape}
		out.RawOutputContents[i] = t.data
	}
	for _, p := range resp.parameters {
		if out.Parameters == nil {
			out.Parameters = map[string]*pb.InferParameter{}
		}
		out.Parameters[p.name] = p.proto()
	}
	return out
}

func (p responseParameter) proto() *pb.InferParameter {
	switch v := p.value.(type) {
	case bool:
		return &pb.InferParameter{ParameterChoice: &pb.InferParameter_BoolParam{BoolParam: v}}
	case int64:
		return &pb.InferParameter{ParameterChoice: &pb.InferParameter_Int64Param{Int64Param: v}}
	default:
		return &pb.InferParameter{ParameterChoice: &pb.InferParameter_StringParam{StringParam: v.(string)}}
	}
}

// read takes a gRPC request apart, in the order in which Triton's front does.
func (f *grpcFront) read(in *pb.ModelInferRequest, m *model, r *request) *Error {
	for k, v := range in.Parameters {
		if err := readParameter(r, k, v); err != nil {
			return err
		}
	}
	for _, o := range in.Outputs {
		want, err := f.readOutput(o)
		if err != nil {
			return err
		}
		r.hold(want.place)
		if same := r.requested(want.name); same == nil {
			r.outputs = append(r.outputs, want)
		} else if want.classes > 0 || want.place != nil { // listed twice: a form counts before none
			*same = want
		}
	}
	r.inputs = make([]tensor, len(in.Inputs))
	given := in.RawInputContents // of the inputs that are not in shared memory
	for i, t := range in.Inputs {
		to := &r.inputs[i]
		*to = tensor{name: t.Name, dtype: datatypeByName(t.Datatype), shape: t.Shape}
		place, err := f.place(t.Parameters, t.Name)
		if err != nil {
			return err
		}
		r.hold(place)
		switch {
		case place != nil && t.Contents != nil:
			return invalid("unexpected 'contents' field for input tensor '%s' for model '%s' as it is in shared memory", t.Name, in.ModelName)
		case place != nil:
			m.load(to, place)
		case len(in.RawInputContents) > 0 && t.Contents != nil:
			return invalid("contents field must not be specified when using raw_input_contents for '%s' for model '%s'", t.Name, in.ModelName)
		case len(given) > 0:
			to.data, given = given[0], given[1:]
		case t.Contents != nil && len(in.RawInputContents) == 0:
			if to.data, err = typedContents(t, in.ModelName); err != nil {
				return err
			}
		default:
			return invalid("unable to find data for input tensor '%s' for model '%s' in request.", t.Name, in.ModelName)
		}
	}
	return nil
}

// readOutput reads what a request says about one of its outputs.
func (f *grpcFront) readOutput(o *pb.ModelInferRequest_InferRequestedOutputTensor) (requestedOutput, *Error) {
	want := requestedOutput{name: o.Name}
	if p, ok := o.Parameters["classification"]; ok {
		v, ok := p.ParameterChoice.(*pb.InferParameter_Int64Param)
		if !ok {
			return want, invalid("invalid value type for 'classification' parameter, expected int64_param")
		}
		if v.Int64Param <= 0 {
			return want, invalid("invalid value for 'classification' parameter, expected >= 0")
		}
		want.classes = uint32(v.Int64Param)
	}
	if o.Parameters["shared_memory_region"] != nil && want.classes > 0 {
		return want, invalid("output can't set both 'shared_memory_region' and 'classification'")
	}
	var err *Error
	want.place, err = f.place(o.Parameters, o.Name)
	return want, err
}

// place reads where in shared memory a tensor is; nil for one that is not.
func (f *grpcFront) place(parameters map[string]*pb.InferParameter, tensor string) (*placement, *Error) {
	wrong := func(name, expected string) *Error {
		return invalid("invalid value type for '%s' parameter for tensor '%s', expected %s.", name, tensor, expected)
	}
	region, ok := parameters["shared_memory_region"]
	if !ok {
		return nil, nil
	}
	name, ok := region.ParameterChoice.(*pb.InferParameter_StringParam)
	if !ok {
		return nil, wrong("shared_memory_region", "string_param")
	}
	number := func(name string) (uint64, *Error) {
		p, ok := parameters[name]
		if !ok {
			return 0, nil
		}
		v, ok := p.ParameterChoice.(*pb.InferParameter_Int64Param)
		if !ok {
			return 0, wrong(name, "int64_param")
		}
		return uint64(v.Int64Param), nil
	}
	offset, err := number("shared_memory_offset")
	if err != nil {
		return nil, err
	}
	if parameters["shared_memory_byte_size"] == nil {
		return nil, invalid("'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor '%s'", tensor)
	}
	size, err := number("shared_memory_byte_size")
	if err != nil {
		return nil, err
	}
	return f.server.regions.place(name.StringParam, offset, size)
}

func readParameter(r *request, key string, p *pb.InferParameter) *Error {
	wrong := func(expected string) *Error {
		return invalid("invalid value type for '%s' parameter, expected %s.", key, expected)
	}
	switch key {
	case "sequence_id":
		switch v := p.ParameterChoice.(type) {
		case *pb.InferParameter_Int64Param:
			r.sequence.setNumber(uint64(v.Int64Param))
		case *pb.InferParameter_StringParam:
			return r.sequence.setText(v.StringParam)
		default:
			return wrong("int64_param or string_param")
		}
	case "sequence_start", "sequence_end":
		v, ok := p.ParameterChoice.(*pb.InferParameter_BoolParam)
		if !ok {
			return wrong("bool_param")
		}
		if key == "sequence_start" {
			r.sequence.start = v.BoolParam
		} else {
			r.sequence.end = v.BoolParam
		}
	case "priority":
		switch v := p.ParameterChoice.(type) {
		case *pb.InferParameter_Int64Param:
			if v.Int64Param < 0 {
				return invalid("invalid value for 'priority', expected value >= 0.")
			}
			r.priority = uint64(v.Int64Param)
		case *pb.InferParameter_Uint64Param:
			r.priority = v.Uint64Param
		default:
			return wrong("int64_param or uint64_param")
		}
	case "timeout":
		v, ok := p.ParameterChoice.(*pb.InferParameter_Int64Param)
		if !ok {
			return wrong("int64_param")
		}
		r.timeout = microseconds(uint64(v.Int64Param))
	case wantFinal:
		if _, ok := p.ParameterChoice.(*pb.InferParameter_BoolParam); !ok {
			return wrong("bool_param")
		}
	default:
		if strings.HasPrefix(key, "triton_") {
			return invalid("parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with 'triton_' are allowed: %s", wantFinal)
		}
		switch p.ParameterChoice.(type) {
		case nil, *pb.InferParameter_Uint64Param:
			return wrong("int64_param, bool_param, or string_param")
		}
	}
	return nil
}

// setNumber makes a sequence id of a number; zero is none.
func (s *sequence) setNumber(n uint64) {
	s.id, s.text = "", false
	if n != 0 {
		s.id = strconv.FormatUint(n, 10)
	}
}

// setText makes a sequence id of a text.
func (s *sequence) setText(id string) *Error {
	const longest = 128
	if len(id) > longest {
		return refuse(codes.Unimplemented, "string correlation ID cannot be longer than %d characters", longest)
	}
	s.id, s.text = id, true
	return nil
}

// typedContents turns a tensor's typed elements into raw bytes. Elements of the wrong type are refused.
func typedContents(t *pb.ModelInferRequest_InferInputTensor, model string) (data []byte, err *Error) {
	c := t.Contents
	le := binary.LittleEndian
	take := func(n int, called string, types []string, put func(i, size int)) {
		if n == 0 || err != nil {
			return
		}
		for _, ty := range types {
			if ty == t.Datatype {
				size := int(triton.ElementSize(datatypeByName(ty)))
				data = make([]byte, 0, n*size)
				for i := range n {
					put(i, size)
				}
				return
			}
		}
		err = invalid("unexpected explicit tensor data for input tensor '%s' for model '%s' of type '%s', expected datatype '%s'", t.Name, model, called, t.Datatype)
	}
	sized := func(v uint64, size int) {
		var b [8]byte
		le.PutUint64(b[:], v)
		data = append(data, b[:size]...)
	}
	take(len(c.BoolContents), "BOOL", []string{"BOOL"}, func(i, _ int) {
		b := byte(0)
		if c.BoolContents[i] {
			b = 1
		}
		data = append(data, b)
	})
	take(len(c.IntContents), "INT32", []string{"INT8", "INT16", "INT32"}, func(i, size int) { sized(uint64(c.IntContents[i]), size) })
	take(len(c.Int64Contents), "INT64", []string{"INT64"}, func(i, size int) { sized(uint64(c.Int64Contents[i]), size) })
	take(len(c.UintContents), "UINT32", []string{"UINT8", "UINT16", "UINT32"}, func(i, size int) { sized(uint64(c.UintContents[i]), size) })
	take(len(c.Uint64Contents), "UINT64", []string{"UINT64"}, func(i, size int) { sized(c.Uint64Contents[i], size) })
	take(len(c.Fp32Contents), "FP32", []string{"FP32"}, func(i, _ int) { data = le.AppendUint32(data, math.Float32bits(c.Fp32Contents[i])) })
	take(len(c.Fp64Contents), "FP64", []string{"FP64"}, func(i, _ int) { data = le.AppendUint64(data, math.Float64bits(c.Fp64Contents[i])) })
	take(len(c.BytesContents), "BYTES", []string{"BYTES"}, func(i, _ int) { data = appendBytesElement(data, c.BytesContents[i]) })
	return data, err
}

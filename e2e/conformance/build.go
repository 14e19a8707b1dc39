// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/binary"
	"math"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// option changes a request under construction.
type option func(*pb.ModelInferRequest)

// request builds an inference request.
func request(model string, options ...option) *pb.ModelInferRequest {
	r := &pb.ModelInferRequest{ModelName: model}
	for _, o := range options {
		o(r)
	}
	return r
}

// identity is a request of one row of two values to the identity model; options come on top.
func identity(options ...option) *pb.ModelInferRequest {
	return request("identity", append([]option{input("INPUT0", "FP32", shape(1, 2), fp32(1, 2.5))}, options...)...)
}

func shape(dims ...int64) []int64 { return dims }

// input adds an input with raw contents.
func input(name, datatype string, dims []int64, raw []byte) option {
	return func(r *pb.ModelInferRequest) {
		declare(name, datatype, dims)(r)
		r.RawInputContents = append(r.RawInputContents, raw)
	}
}

// declare adds an input without contents.
func declare(name, datatype string, dims []int64) option {
	return func(r *pb.ModelInferRequest) {
		r.Inputs = append(r.Inputs, &pb.ModelInferRequest_InferInputTensor{Name: name, Datatype: datatype, Shape: dims})
	}
}

// typed adds an input with typed contents.
func typed(name, datatype string, dims []int64, c *pb.InferTensorContents) option {
	return func(r *pb.ModelInferRequest) {
		r.Inputs = append(r.Inputs, &pb.ModelInferRequest_InferInputTensor{Name: name, Datatype: datatype, Shape: dims, Contents: c})
	}
}

func raw(data ...[]byte) option {
	return func(r *pb.ModelInferRequest) { r.RawInputContents = append(r.RawInputContents, data...) }
}

func outputs(names ...string) option {
	return func(r *pb.ModelInferRequest) {
		for _, n := range names {
			r.Outputs = append(r.Outputs, &pb.ModelInferRequest_InferRequestedOutputTensor{Name: n})
		}
	}
}

func id(s string) option { return func(r *pb.ModelInferRequest) { r.Id = s } }

func version(v string) option { return func(r *pb.ModelInferRequest) { r.ModelVersion = v } }

// parameter sets a request parameter to a bool, int, float64, string, or, for nil, to nothing.
func parameter(name string, v any) option {
	return func(r *pb.ModelInferRequest) {
		if r.Parameters == nil {
			r.Parameters = map[string]*pb.InferParameter{}
		}
		r.Parameters[name] = inferParameter(v)
	}
}

func inferParameter(v any) *pb.InferParameter {
	p := &pb.InferParameter{}
	switch v := v.(type) {
	case bool:
		p.ParameterChoice = &pb.InferParameter_BoolParam{BoolParam: v}
	case int:
		p.ParameterChoice = &pb.InferParameter_Int64Param{Int64Param: int64(v)}
	case float64:
		p.ParameterChoice = &pb.InferParameter_DoubleParam{DoubleParam: v}
	case string:
		p.ParameterChoice = &pb.InferParameter_StringParam{StringParam: v}
	}
	return p
}

// addSub is a request of the add_sub model: 0..15 and ones.
func addSub(options ...option) *pb.ModelInferRequest {
	a, b := make([]int32, 16), make([]int32, 16)
	for i := range a {
		a[i], b[i] = int32(i), 1
	}
	return request("add_sub", append([]option{input("INPUT0", "INT32", shape(1, 16), i32(a...)), input("INPUT1", "INT32", shape(1, 16), i32(b...))}, options...)...)
}

func fp32(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func i32(values ...int32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

func bytesElements(values ...string) []byte {
	var b []byte
	for _, v := range values {
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(v))), v...)
	}
	return b
}

// seq16 is n consecutive values from the first.
func seq16(from int32) []byte {
	v := make([]int32, 16)
	for i := range v {
		v[i] = from + int32(i)
	}
	return i32(v...)
}

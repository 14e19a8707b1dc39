// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Call is one gRPC call that has to be refused.
type Call struct {
	Name   string
	Source string
	// Method is the full name, Wire the encoded request.
	Method string
	Wire   []byte
	// Code is how it is refused, and Text is part of the message.
	Code codes.Code
	Text string
}

// Calls are the gRPC calls.
func Calls() []Call {
	return slices.Concat(malformed(), tooMany(), absurd(), sequences(), sharedMemory(), settings())
}

const (
	measured = "measured"
	reader   = "no message" // nothing to forward
	bound    = "CVE-2026-24146 and its like: allocations by count"
)

func input(name, datatype string, shape ...int64) *tritonpb.ModelInferRequest_InferInputTensor {
	return &tritonpb.ModelInferRequest_InferInputTensor{Name: name, Datatype: datatype, Shape: shape}
}

func number(v int64) *tritonpb.InferParameter {
	return &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: v}}
}

func text(v string) *tritonpb.InferParameter {
	return &tritonpb.InferParameter{ParameterChoice: &tritonpb.InferParameter_StringParam{StringParam: v}}
}

// valid is a request of model identity that nothing is wrong with.
func valid() *tritonpb.ModelInferRequest {
	return &tritonpb.ModelInferRequest{
		ModelName:        "identity",
		Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{input("INPUT0", "FP32", 1, 2)},
		RawInputContents: [][]byte{make([]byte, 8)},
	}
}

func encode(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err) // a message of this package
	}
	return b
}

func infer(name, source string, code codes.Code, message string, change func(*tritonpb.ModelInferRequest)) Call {
	m := valid()
	change(m)
	return Call{name, source, tritonpb.GRPCInferenceService_ModelInfer_FullMethodName, encode(m), code, message}
}

func malformed() []Call {
	good := encode(valid())
	group := func(n int) []byte {
		open := bytes.Repeat(protowire.AppendTag(nil, 99, protowire.StartGroupType), n)
		return append(append(slices.Clone(good), open...), bytes.Repeat(protowire.AppendTag(nil, 99, protowire.EndGroupType), n)...)
	}
	badName := append([]byte{0x0a, 2, 0xff, 0xfe}, good...)
	var calls []Call
	for _, c := range []struct {
		name string
		wire []byte
	}{
		{"cut in the middle", good[:len(good)-3]},
		{"cut in a length", good[:1]},
		{"a length beyond everything", []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}},
		{"raw contents of 2 GiB in ten bytes", append(slices.Clone(good), 0x3a, 0xff, 0xff, 0xff, 0xff, 0x07)},
		{"a varint of eleven bytes", append(slices.Clone(good), 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01)},
		{"field number zero", append(slices.Clone(good), 0x00, 0x00)},
		{"a wire type that does not exist", append(slices.Clone(good), 0x0f)},
		{"the end of no group", append(slices.Clone(good), 0x4c)},
		{"a group that does not end", append(slices.Clone(good), 0x4b)},
		{"groups nested 20,000 deep", group(20_000)},
		{"a name that is no UTF-8", badName},
		{"a shape cut short", []byte{0x2a, 0x03, 0x1a, 0x01, 0x80}},
		{"typed contents cut short", []byte{0x2a, 0x05, 0x2a, 0x03, 0x32, 0x01, 0x00}},
	} {
		calls = append(calls, Call{c.name, reader, tritonpb.GRPCInferenceService_ModelInfer_FullMethodName, c.wire, codes.Internal, "Unable to parse request"})
	}
	return calls
}

func tooMany() []Call {
	const n = 5000
	return []Call{
		infer("5,000 inputs", bound, codes.InvalidArgument, "more than 4096 inputs", func(m *tritonpb.ModelInferRequest) {
			m.Inputs = slices.Repeat(m.Inputs, n)
		}),
		infer("5,000 raw contents", bound, codes.InvalidArgument, "more than 4096 raw contents", func(m *tritonpb.ModelInferRequest) {
			m.RawInputContents = slices.Repeat(m.RawInputContents, n)
		}),
		infer("5,000 requested outputs", bound, codes.InvalidArgument, "more than 4096 requested outputs", func(m *tritonpb.ModelInferRequest) {
			m.Outputs = slices.Repeat([]*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUTPUT0"}}, n)
		}),
		infer("a shape of 100,000 dimensions", bound, codes.InvalidArgument, "more than 65536 dimensions", func(m *tritonpb.ModelInferRequest) {
			m.Inputs[0].Shape = slices.Repeat([]int64{1}, 100_000)
		}),
	}
}

func absurd() []Call {
	empty := func(model, name, datatype string, shape ...int64) func(*tritonpb.ModelInferRequest) {
		return func(m *tritonpb.ModelInferRequest) {
			m.ModelName = model
			m.Inputs[0] = input(name, datatype, shape...)
			m.RawInputContents = [][]byte{{}}
		}
	}
	const size = "its byte size exceeds the maximum"
	return []Call{
		infer("a byte size that overflows to zero", measured, codes.InvalidArgument, size, empty("identity", "INPUT0", "FP32", 1, 1<<62)),
		infer("the same without a batch dimension", measured, codes.InvalidArgument, size, empty("unbatched", "INPUT0", "INT32", 1<<61, 2)),
		infer("a number of elements that overflows to zero", measured, codes.InvalidArgument, size, empty("unbatched", "INPUT0", "INT32", 1<<32, 1<<32)),
		infer("the same for BYTES", measured, codes.InvalidArgument, size, empty("string", "INPUT0", "BYTES", 1<<32, 1<<32)),
		infer("a negative dimension that overflows", measured, codes.InvalidArgument, size, empty("unbatched", "INPUT0", "INT32", math.MinInt64, 2)),
		infer("classification of strings", measured+": SIGFPE", codes.InvalidArgument, "classification is not supported", func(m *tritonpb.ModelInferRequest) {
			m.ModelName = "string"
			m.Inputs[0] = input("INPUT0", "BYTES", 1, 1)
			m.RawInputContents = [][]byte{{1, 0, 0, 0, 'a'}}
			m.Outputs = classified()
		}),
	}
}

func sequences() []Call {
	of := func(length int) Call {
		return infer(fmt.Sprintf("a text of %d for the id of a sequence, where a number is wanted", length), measured+": SIGABRT or SIGSEGV, at once or later",
			codes.Unimplemented, textID, func(m *tritonpb.ModelInferRequest) {
				m.ModelName = "sequence"
				m.Inputs[0] = input("INPUT", "INT32", 1, 1)
				m.RawInputContents = [][]byte{make([]byte, 4)}
				m.Parameters = map[string]*tritonpb.InferParameter{"sequence_id": text(strings.Repeat("x", length)),
					"sequence_start": {ParameterChoice: &tritonpb.InferParameter_BoolParam{BoolParam: true}}}
			})
	}
	return []Call{of(21), of(60), of(128)}
}

const textID = "string correlation ID cannot be longer than 20 characters for model 'sequence', whose control input 'CORRID' is of data-type TYPE_UINT64"

func classified() []*tritonpb.ModelInferRequest_InferRequestedOutputTensor {
	return []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUTPUT0", Parameters: map[string]*tritonpb.InferParameter{"classification": number(1)}}}
}

func sharedMemory() []Call {
	const source = "server pull requests 8170, 8334 and 8335: offset plus size overflows behind the check of the bounds"
	region := func(offset, size int64) map[string]*tritonpb.InferParameter {
		return map[string]*tritonpb.InferParameter{"shared_memory_region": text("r"), "shared_memory_offset": number(offset), "shared_memory_byte_size": number(size)}
	}
	in := func(offset, size int64) func(*tritonpb.ModelInferRequest) {
		return func(m *tritonpb.ModelInferRequest) {
			m.Inputs[0].Parameters = region(offset, size)
			m.RawInputContents = nil
		}
	}
	register := func(name, key string, offset, size uint64, message string) Call {
		const own = "CVE-2025-23319, -23320, -23334: a backend's own shared memory registered by a client"
		s := source
		if offset == 0 {
			s = own
		}
		return Call{name, s, tritonpb.GRPCInferenceService_SystemSharedMemoryRegister_FullMethodName,
			encode(&tritonpb.SystemSharedMemoryRegisterRequest{Name: "r", Key: key, Offset: offset, ByteSize: size}), codes.InvalidArgument, message}
	}
	const outside = "outside what a region can have"
	return []Call{
		infer("an input at an offset that overflows", source, codes.InvalidArgument, outside, in(math.MaxInt64-3, 8)),
		infer("an input at a negative offset", source, codes.InvalidArgument, outside, in(-8, 8)),
		infer("an input of negative size", source, codes.InvalidArgument, outside, in(0, -8)),
		infer("an output at an offset that overflows", source, codes.InvalidArgument, outside, func(m *tritonpb.ModelInferRequest) {
			m.Outputs = []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUTPUT0", Parameters: region(math.MaxInt64, math.MaxInt64)}}
		}),
		register("a region at an offset that overflows", "/r", math.MaxUint64-3, 8, outside),
		register("the python backend's own memory", "/triton_python_backend_shm_region_1", 0, 8, "belongs to a backend"),
		register("the python backend's own memory, spelt otherwise", "//triton_python_backend_shm_region_1", 0, 8, "belongs to a backend"),
		register("a region outside /dev/shm", "/../../etc/passwd", 0, 8, "not the name of a shared memory object"),
	}
}

func settings() []Call {
	const source = "CVE-2023-31036 and its like: a file of the server's that a client names"
	return []Call{
		{"a log file", source, tritonpb.GRPCInferenceService_LogSettings_FullMethodName, encode(&tritonpb.LogSettingsRequest{
			Settings: map[string]*tritonpb.LogSettingsRequest_SettingValue{"log_file": {ParameterChoice: &tritonpb.LogSettingsRequest_SettingValue_StringParam{StringParam: "/tmp/x"}}},
		}), codes.Unimplemented, "log file location"},
		{"a trace file", source, tritonpb.GRPCInferenceService_TraceSetting_FullMethodName, encode(&tritonpb.TraceSettingRequest{
			Settings: map[string]*tritonpb.TraceSettingRequest_SettingValue{"trace_file": {Value: []string{"/tmp/x"}}},
		}), codes.Unimplemented, "trace file location"},
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

const (
	noID      = "[request id: <id_unknown>] "
	shapeHint = "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input shape. " +
		"If you want to specify the full shape including the batch dim in your input dims config, try setting max_batch_size to zero. " +
		"See the model configuration docs for more info on max_batch_size."
)

// refusedCases are requests that are not answered, with Triton's words.
func refusedCases() []Case {
	two := func(a, b []int64) *pb.ModelInferRequest {
		return request("add_sub", input("INPUT0", "INT32", a, make([]byte, 4*a[0]*a[1])), input("INPUT1", "INT32", b, make([]byte, 4*b[0]*b[1])))
	}
	in := func(dims []int64, data []byte) *pb.ModelInferRequest {
		return request("identity", input("INPUT0", "FP32", dims, data))
	}
	var cases []Case
	for _, c := range []struct {
		name    string
		request *pb.ModelInferRequest
		message string
	}{
		{"wrong datatype", request("identity", input("INPUT0", "INT32", shape(1, 2), i32(1, 2))), noID + "inference input 'INPUT0' data-type is 'INT32', but model 'identity' expects 'FP32'"},
		{"no such datatype", request("identity", input("INPUT0", "FOO", shape(1, 2), i32(1, 2))), noID + "inference input 'INPUT0' data-type is '<invalid>', but model 'identity' expects 'FP32'"},
		{"the id is named", request("identity", input("INPUT0", "INT32", shape(1, 2), i32(1, 2)), id("q7")), "[request id: q7] inference input 'INPUT0' data-type is 'INT32', but model 'identity' expects 'FP32'"},
		{"no such input", request("identity", input("X", "FP32", shape(1, 2), fp32(1, 2)), id("q7")), "unexpected inference input 'X' for model 'identity'"},
		{"no input", request("identity"), noID + "expected 1 inputs but got 0 inputs for model 'identity'. Got input(s) [], but missing required input(s) ['INPUT0']. Please provide all required input(s)."},
		{"an input too many", identity(input("INPUT1", "FP32", shape(1, 2), fp32(1, 2))), noID + "expected 1 inputs but got 2 inputs for model 'identity'. Got input(s) ['INPUT1','INPUT0'], but missing required input(s) ]. Please provide all required input(s)."},
		{"an input too few", request("add_sub", input("INPUT0", "INT32", shape(1, 16), seq16(0))), noID + "expected 2 inputs but got 1 inputs for model 'add_sub'. Got input(s) ['INPUT0'], but missing required input(s) ['INPUT1']. Please provide all required input(s)."},
		{"an input twice", identity(input("INPUT0", "FP32", shape(1, 2), fp32(1, 2))), noID + "input 'INPUT0' already exists in request"},
		{"too few dimensions", in(shape(2), fp32(1, 2)), noID + "unexpected shape for input 'INPUT0' for model 'identity'. Expected [-1,-1], got [2]. " + shapeHint},
		{"too many dimensions", in(shape(1, 1, 2), fp32(1, 2)), noID + "unexpected shape for input 'INPUT0' for model 'identity'. Expected [-1,-1], got [1,1,2]. " + shapeHint},
		{"no dimensions", in(shape(), fp32(1)), noID + "input 'INPUT0' has no shape but model requires batch dimension for 'identity'"},
		{"wrong fixed dimension", two(shape(1, 15), shape(1, 16)), noID + "unexpected shape for input 'INPUT0' for model 'add_sub'. Expected [-1,16], got [1,15]. " + shapeHint},
		{"wrong shape without batch dimension", request("unbatched", input("INPUT0", "INT32", shape(3, 3), make([]byte, 36))), noID + "unexpected shape for input 'INPUT0' for model 'unbatched'. Expected [-1,2], got [3,3]. "},
		{"negative dimension", in(shape(1, -2), fp32(1, 2)), noID + "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected -8, got 8"},
		{"negative batch", in(shape(-1, 2), fp32(1, 2)), noID + "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 34359738360, got 8"},
		{"zero rows", in(shape(0, 2), nil), noID + "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 8, got 0"},
		{"too many rows", in(shape(9, 1), make([]byte, 36)), noID + "inference request batch-size must be <= 8 for 'identity'"},
		{"rows that differ", two(shape(1, 16), shape(2, 16)), noID + "input 'INPUT0' batch size does not match other inputs for 'add_sub'"},
		{"too few bytes", in(shape(1, 2), fp32(1)), noID + "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 8, got 4"},
		{"too many bytes", in(shape(1, 2), fp32(1, 2, 3)), noID + "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 8, got 12"},
		{"no data", request("identity", declare("INPUT0", "FP32", shape(1, 2))), "unable to find data for input tensor 'INPUT0' for model 'identity' in request."},
		{"data for one input of two", request("add_sub", input("INPUT0", "INT32", shape(1, 16), seq16(0)), declare("INPUT1", "INT32", shape(1, 16))), "unable to find data for input tensor 'INPUT1' for model 'add_sub' in request."},
		{"no such output", identity(outputs("NOPE"), id("q7")), "unexpected inference output 'NOPE' for model 'identity'"},
		{"negative priority", identity(parameter("priority", -3)), "invalid value for 'priority', expected value >= 0."},
		{"priority as text", identity(parameter("priority", "x")), "invalid value type for 'priority' parameter, expected int64_param or uint64_param."},
		{"timeout as text", identity(parameter("timeout", "x")), "invalid value type for 'timeout' parameter, expected int64_param."},
		{"sequence id as flag", identity(parameter("sequence_id", true)), "invalid value type for 'sequence_id' parameter, expected int64_param or string_param."},
		{"sequence start as number", identity(parameter("sequence_start", 1)), "invalid value type for 'sequence_start' parameter, expected bool_param."},
		{"reserved parameter", identity(parameter("triton_foo", "x")), "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting with 'triton_' are allowed: triton_enable_empty_final_response"},
		{"empty parameter", identity(parameter("k", nil)), "invalid value type for 'k' parameter, expected int64_param, bool_param, or string_param."},
	} {
		cases = append(cases, Case{"refused/" + c.name, func(e *Env) {
			_, err := e.Client.Stub.ModelInfer(e.ctx(), c.request)
			e.refused(err, codes.InvalidArgument, c.message)
		}})
	}
	return append(cases,
		Case{"refused/decoupled model", func(e *Env) {
			_, err := e.Client.Stub.ModelInfer(e.ctx(), request("decoupled", input("IN", "INT32", shape(1), i32(1)), input("DELAY", "UINT32", shape(1), i32(0))))
			e.refused(err, codes.Unimplemented, "ModelInfer RPC doesn't support models with decoupled transaction policy")
		}},
		Case{"refused/by the model for one request", func(e *Env) {
			_, err := e.Client.Stub.ModelInfer(e.ctx(), request("error", input("INPUT0", "FP32", shape(1, 1), fp32(-1)), id("q7")))
			e.refused(err, codes.Internal, "negative input")
			e.infer(request("error", input("INPUT0", "FP32", shape(1, 1), fp32(1))))
		}},
		Case{"refused/by the model as a whole", func(e *Env) {
			_, err := e.Client.Stub.ModelInfer(e.ctx(), request("error", input("INPUT0", "FP32", shape(1, 1), fp32(-1000))))
			s := status.Convert(err)
			require.Equal(e, codes.Internal, s.Code())
			// A real server adds the python traceback.
			require.True(e, strings.HasPrefix(s.Message(), "Failed to process the request(s) for model 'error_0_0', message: RuntimeError: the whole execution fails"), s.Message())
		}},
	)
}

// typedCases use typed contents instead of raw ones.
func typedCases() []Case {
	type contents = pb.InferTensorContents
	row := func(datatype string, c *contents, options ...option) *pb.ModelInferRequest {
		return request("identity", append([]option{typed("INPUT0", datatype, shape(1, 2), c)}, options...)...)
	}
	var cases []Case
	for _, c := range []struct {
		name    string
		request *pb.ModelInferRequest
		message string
	}{
		{"of the wrong type", row("FP32", &contents{IntContents: []int32{1, 2}}), "unexpected explicit tensor data for input tensor 'INPUT0' for model 'identity' of type 'INT32', expected datatype 'FP32'"},
		{"of two types", row("FP32", &contents{IntContents: []int32{1, 2}, Fp32Contents: []float32{1, 2}}), "unexpected explicit tensor data for input tensor 'INPUT0' for model 'identity' of type 'INT32', expected datatype 'FP32'"},
		{"too few", row("FP32", &contents{Fp32Contents: []float32{1}}), noID + "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 8, got 4"},
		{"too many", row("FP32", &contents{Fp32Contents: []float32{1, 2, 3}}), noID + "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 8, got 12"},
		{"beside raw contents", row("FP32", &contents{Fp32Contents: []float32{1, 2}}, raw(fp32(1, 2))), "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'identity'"},
		{"none", row("FP32", &contents{}), noID + "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 8, got 0"},
		{"FP16 has no list of its own", row("FP16", &contents{Fp32Contents: []float32{1, 2}}), "unexpected explicit tensor data for input tensor 'INPUT0' for model 'identity' of type 'FP32', expected datatype 'FP16'"},
		{"too few strings", request("string", typed("INPUT0", "BYTES", shape(1, 2), &contents{BytesContents: [][]byte{[]byte("a")}})), noID + "expected 2 string elements for inference input 'INPUT0' for model 'string', got 1"},
	} {
		cases = append(cases, Case{"typed/" + c.name, func(e *Env) {
			_, err := e.Client.Stub.ModelInfer(e.ctx(), c.request)
			e.refused(err, codes.InvalidArgument, c.message)
		}})
	}
	return append(cases,
		answered("typed contents", row("FP32", &contents{Fp32Contents: []float32{1, 2.5}}), map[string]tensor{"OUTPUT0": {"FP32", shape(1, 2), fp32(1, 2.5)}}),
		answered("FP16 raw", request("half", input("INPUT0", "FP16", shape(1, 2), []byte{0, 0x3c, 0, 0xc0})), map[string]tensor{"OUTPUT0": {"FP16", shape(1, 2), []byte{0, 0x3c, 0, 0xc0}}}),
		answered("typed strings", request("string", typed("INPUT0", "BYTES", shape(1, 2), &contents{BytesContents: [][]byte{[]byte("ab"), nil}})),
			map[string]tensor{"OUTPUT0": {"BYTES", shape(1, 2), bytesElements("AB", "")}}),
		Case{"typed/every type, small integers wrap", everyType},
	)
}

// everyType sends every type that has typed contents, typed and raw.
func everyType(e *Env) {
	values := map[string]struct {
		c   *pb.InferTensorContents
		raw []byte
	}{
		"BOOL":   {&pb.InferTensorContents{BoolContents: []bool{true, false}}, []byte{1, 0}},
		"UINT8":  {&pb.InferTensorContents{UintContents: []uint32{255, 256}}, []byte{255, 0}},
		"UINT16": {&pb.InferTensorContents{UintContents: []uint32{1, 65535}}, []byte{1, 0, 255, 255}},
		"UINT32": {&pb.InferTensorContents{UintContents: []uint32{1, 1 << 31}}, []byte{1, 0, 0, 0, 0, 0, 0, 128}},
		"UINT64": {&pb.InferTensorContents{Uint64Contents: []uint64{1, 1 << 63}}, []byte{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 128}},
		"INT8":   {&pb.InferTensorContents{IntContents: []int32{-128, 128}}, []byte{128, 128}},
		"INT16":  {&pb.InferTensorContents{IntContents: []int32{-1, 2}}, []byte{255, 255, 2, 0}},
		"INT32":  {&pb.InferTensorContents{IntContents: []int32{-1, 2}}, i32(-1, 2)},
		"INT64":  {&pb.InferTensorContents{Int64Contents: []int64{-1, 2}}, []byte{255, 255, 255, 255, 255, 255, 255, 255, 2, 0, 0, 0, 0, 0, 0, 0}},
		"FP32":   {&pb.InferTensorContents{Fp32Contents: []float32{1, -2}}, fp32(1, -2)},
		"FP64":   {&pb.InferTensorContents{Fp64Contents: []float64{1, -2}}, []byte{0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0xc0}},
		"STRING": {&pb.InferTensorContents{BytesContents: [][]byte{[]byte("ab"), nil}}, bytesElements("ab", "")},
	}
	explicit, bytewise, want := request("types"), request("types"), map[string]tensor{}
	for name, v := range values {
		datatype := name
		if name == "STRING" {
			datatype = "BYTES"
		}
		typed("INPUT_"+name, datatype, shape(1, 2), v.c)(explicit)
		input("INPUT_"+name, datatype, shape(1, 2), v.raw)(bytewise)
		want["OUTPUT_"+name] = tensor{datatype, shape(1, 2), v.raw}
	}
	e.wantOutputs(e.infer(explicit), want)
	e.wantOutputs(e.infer(bytewise), want)
}

// stringCases are BYTES tensors.
func stringCases() []Case {
	r := func(data []byte, dims ...int64) *pb.ModelInferRequest {
		return request("string", input("INPUT0", "BYTES", dims, data))
	}
	fixed := []Case{
		answered("strings", r(bytesElements("ab", "", "\xffz\x00é"), 1, 3), map[string]tensor{"OUTPUT0": {"BYTES", shape(1, 3), bytesElements("AB", "", "\xffZ\x00é")}}),
		answered("strings of several rows", r(bytesElements("a", "bb", "ccc", ""), 2, 2), map[string]tensor{"OUTPUT0": {"BYTES", shape(2, 2), bytesElements("A", "BB", "CCC", "")}}),
		answered("no strings", r(nil, 1, 0), map[string]tensor{"OUTPUT0": {"BYTES", shape(1, 0), []byte{}}}),
	}
	cases := make([]Case, 0, 64)
	for _, c := range []struct {
		name    string
		data    []byte
		message string
	}{
		{"too few", bytesElements("ab"), noID + "expected 2 string elements for inference input 'INPUT0' for model 'string', got 1"},
		{"none", nil, noID + "expected 2 string elements for inference input 'INPUT0' for model 'string', got 0"},
		{"too many", bytesElements("a", "b", "c", "d"), noID + "unexpected number of string elements 3 for inference input 'INPUT0' for model 'string', expecting 2"},
		{"cut in an element", bytesElements("ab", "cd")[:11], "incomplete string data for inference input 'INPUT0', expecting string of length 2 but only 1 bytes available"},
		{"cut in a length", append(bytesElements("ab"), 1, 0), noID + "incomplete string length indicator for inference input 'INPUT0' for model 'string', expecting 4 bytes but only 2 bytes available. Please make sure the string length indicator is in one buffer."},
		{"absurd length", append(bytesElements("a"), 255, 255, 255, 255), "incomplete string data for inference input 'INPUT0', expecting string of length 4294967295 but only 0 bytes available"},
		{"absurd length and too few", []byte{255, 255, 255, 255}, noID + "expected 2 string elements for inference input 'INPUT0' for model 'string', got 1"},
	} {
		cases = append(cases, Case{"strings/" + c.name, func(e *Env) {
			_, err := e.Client.Stub.ModelInfer(e.ctx(), r(c.data, 1, 2))
			e.refused(err, codes.InvalidArgument, c.message)
		}})
	}
	return slices.Concat(fixed, cases)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// labelled is a request of the labelled model: rows of four values, the first three of which have a label.
func labelled(values ...float32) *pb.ModelInferRequest {
	return request("labelled", input("INPUT0", "FP32", shape(int64(len(values)/4), 4), fp32(values...)))
}

// classes asks for the highest values of an output; a value of another type than int is sent as it is.
func classes(output string, k any) option {
	return func(r *pb.ModelInferRequest) {
		r.Outputs = append(r.Outputs, &pb.ModelInferRequest_InferRequestedOutputTensor{Name: output,
			Parameters: map[string]*pb.InferParameter{"classification": inferParameter(k)}})
	}
}

func with(r *pb.ModelInferRequest, options ...option) *pb.ModelInferRequest {
	for _, o := range options {
		o(r)
	}
	return r
}

// classificationCases ask for the best classes in place of an output's values. Never of BYTES, on which
// 2.51 crashes, and of nothing over gRPC only: over HTTP it crashes on that too.
func classificationCases() []Case {
	top := func(dims []int64, names ...string) map[string]tensor {
		return map[string]tensor{"OUTPUT0": {"BYTES", dims, bytesElements(names...)}}
	}
	plain := map[string]tensor{"OUTPUT0": {"FP32", shape(1, 4), fp32(1, 2, 3, 4)}}
	var cases []Case
	for _, c := range []struct {
		name    string
		request *pb.ModelInferRequest
		want    map[string]tensor
	}{
		{"of two", with(labelled(.1, .9, .3, .2), classes("OUTPUT0", 2)), top(shape(1, 2), "0.900000:1:dog", "0.300000:2:bird")},
		{"of rows, equal values in order", with(labelled(.1, .9, .3, .2, 5, 5, 5, 5), classes("OUTPUT0", 4)), top(shape(2, 4),
			"0.900000:1:dog", "0.300000:2:bird", "0.200000:3", "0.100000:0:cat", "5.000000:0:cat", "5.000000:1:dog", "5.000000:2:bird", "5.000000:3")},
		{"of more than there are", with(labelled(1, 2, 3, 4), classes("OUTPUT0", 9)), top(shape(1, 4), "4.000000:3", "3.000000:2:bird", "2.000000:1:dog", "1.000000:0:cat")},
		{"of large, small and negative values", with(labelled(1e30, 1e-7, -2, 123456.789), classes("OUTPUT0", 4)), top(shape(1, 4),
			"1000000015047466219876688855040.000000:0:cat", "123456.789062:3", "0.000000:1:dog", "-2.000000:2:bird")},
		{"without labels", request("identity", input("INPUT0", "FP32", shape(2, 2), fp32(1, 2, 4, 3)), classes("OUTPUT0", 1)), top(shape(2, 1), "2.000000:1", "4.000000:0")},
		{"without batch dimension", request("unbatched", input("INPUT0", "INT32", shape(2, 2), i32(1, 7, 3, 4)), classes("OUTPUT0", 3)), top(shape(3), "7:1", "4:3", "3:2")},
		{"of one output of two", addSub(classes("OUTPUT0", 3), outputs("OUTPUT1")), map[string]tensor{
			"OUTPUT0": {"BYTES", shape(1, 3), bytesElements("16:15", "15:14", "14:13")}, "OUTPUT1": {"INT32", shape(1, 16), seq16(-1)}}},
		{"of both outputs", addSub(classes("OUTPUT0", 1), classes("OUTPUT1", 2)), map[string]tensor{
			"OUTPUT0": {"BYTES", shape(1, 1), bytesElements("16:15")}, "OUTPUT1": {"BYTES", shape(1, 2), bytesElements("14:15", "13:14")}}},
		{"before the plain output", with(labelled(1, 2, 3, 4), classes("OUTPUT0", 1), outputs("OUTPUT0")), top(shape(1, 1), "4.000000:3")},
		{"behind the plain output", with(labelled(1, 2, 3, 4), outputs("OUTPUT0"), classes("OUTPUT0", 1)), top(shape(1, 1), "4.000000:3")},
		{"of nothing", request("identity", input("INPUT0", "FP32", shape(2, 0), nil), classes("OUTPUT0", 2)), map[string]tensor{"OUTPUT0": {"BYTES", shape(2, 0), []byte{}}}},
		{"of nothing without batch dimension", request("unbatched", input("INPUT0", "INT32", shape(0, 2), nil), classes("OUTPUT0", 1)), map[string]tensor{"OUTPUT0": {"BYTES", shape(0), []byte{}}}},
		{"as a parameter of the request says nothing", with(labelled(1, 2, 3, 4), parameter("classification", 1)), plain},
	} {
		cases = append(cases, Case{"classification/" + c.name, func(e *Env) { e.wantOutputs(e.infer(c.request), c.want) }})
	}
	for _, c := range []struct {
		name    string
		request *pb.ModelInferRequest
		message string
	}{
		{"of none", with(labelled(1, 2, 3, 4), classes("OUTPUT0", 0)), "invalid value for 'classification' parameter, expected >= 0"},
		{"of a negative number", with(labelled(1, 2, 3, 4), classes("OUTPUT0", -1)), "invalid value for 'classification' parameter, expected >= 0"},
		{"as text", with(labelled(1, 2, 3, 4), classes("OUTPUT0", "2")), "invalid value type for 'classification' parameter, expected int64_param"},
		{"as flag", with(labelled(1, 2, 3, 4), classes("OUTPUT0", true)), "invalid value type for 'classification' parameter, expected int64_param"},
		{"of FP16", request("half", input("INPUT0", "FP16", shape(1, 2), []byte{0, 0x3c, 0, 0xc0}), classes("OUTPUT0", 1)), "class result not available for output due to unsupported type 'FP16'"},
		{"of no such output", with(labelled(1, 2, 3, 4), classes("NOPE", 1)), "unexpected inference output 'NOPE' for model 'labelled'"},
	} {
		cases = append(cases, Case{"classification/" + c.name, func(e *Env) {
			_, err := e.Client.Stub.ModelInfer(e.ctx(), c.request)
			e.refused(err, codes.InvalidArgument, c.message)
		}})
	}
	return append(append(cases, classifiedTypes()...), classificationHTTPCases()...)
}

// classifiedTypes asks for the best of two values of every type that has classes.
func classifiedTypes() []Case {
	var cases []Case
	for _, name := range []string{"UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64", "BOOL"} {
		cases = append(cases, Case{"classification/of " + name, func(e *Env) {
			r := everyInput()
			classes("OUTPUT_"+name, 1)(r)
			if name == "BOOL" {
				_, err := e.Client.Stub.ModelInfer(e.ctx(), r)
				e.refused(err, codes.InvalidArgument, "class result not available for output due to unsupported type 'BOOL'")
				return
			}
			best := "2:1"
			if strings.HasPrefix(name, "FP") {
				best = "2.000000:1"
			}
			e.wantOutputs(e.infer(r), map[string]tensor{"OUTPUT_" + name: {"BYTES", shape(1, 1), bytesElements(best)}})
		}})
	}
	return cases
}

// everyInput is a request of the types model: 1 and 2 of every type.
func everyInput() *pb.ModelInferRequest {
	r := request("types")
	for _, in := range []struct {
		name string
		data []byte
	}{
		{"BOOL", []byte{0, 1}}, {"UINT8", []byte{1, 2}}, {"UINT16", []byte{1, 0, 2, 0}}, {"UINT32", i32(1, 2)}, {"UINT64", i32(1, 0, 2, 0)},
		{"INT8", []byte{1, 2}}, {"INT16", []byte{1, 0, 2, 0}}, {"INT32", i32(1, 2)}, {"INT64", i32(1, 0, 2, 0)},
		{"FP32", fp32(1, 2)}, {"FP64", []byte{0, 0, 0, 0, 0, 0, 0xf0, 0x3f, 0, 0, 0, 0, 0, 0, 0, 0x40}},
	} {
		input("INPUT_"+in.name, in.name, shape(1, 2), in.data)(r)
	}
	input("INPUT_STRING", "BYTES", shape(1, 2), bytesElements("1", "2"))(r)
	return r
}

// everyJSON is everyInput over HTTP with one requested output.
func everyJSON(output string) string {
	var inputs []string
	for _, name := range []string{"UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64"} {
		inputs = append(inputs, `{"name":"INPUT_`+name+`","datatype":"`+name+`","shape":[1,2],"data":[1,2]}`)
	}
	inputs = append(inputs, `{"name":"INPUT_BOOL","datatype":"BOOL","shape":[1,2],"data":[false,true]}`,
		`{"name":"INPUT_STRING","datatype":"BYTES","shape":[1,2],"data":["1","2"]}`)
	return `{"inputs":[` + strings.Join(inputs, ",") + `],"outputs":[` + output + `]}`
}

func classificationHTTPCases() []Case {
	const start = `{"model_name":"labelled","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"BYTES","shape":[1,2],`
	ask := func(parameters string) string {
		return `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}],"outputs":[{"name":"OUTPUT0","parameters":{` + parameters + `}}]}`
	}
	const notUnsigned = "Unable to set 'classification': attempt to access JSON non-unsigned-integer as unsigned-integer"
	var cases []Case
	for _, c := range []struct {
		name, parameters string
		status           int
		contentType      string
		want             string
	}{
		{"over HTTP", `"classification":2`, 200, jsonType, start + `"data":["4.000000:3","3.000000:2:bird"]}]}`},
		{"over HTTP, of a negative number", `"classification":-1`, 500, jsonType, errorJSON(notUnsigned)},
		{"over HTTP, as text", `"classification":"2"`, 500, jsonType, errorJSON(notUnsigned)},
		{"over HTTP, of a fraction", `"classification":1.5`, 500, jsonType, errorJSON(notUnsigned)},
		{"over HTTP, of none", `"classification":0`, 200, jsonType, `{"model_name":"labelled","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[1,4],"data":[1.0,2.0,3.0,4.0]}]}`},
	} {
		cases = append(cases, Case{"classification/" + c.name, func(e *Env) {
			e.wantHTTP(e.call("POST", inferPath("labelled"), ask(c.parameters)), c.status, c.contentType, c.want)
		}})
	}
	return append(cases,
		Case{"classification/over HTTP, in binary", func(e *Env) {
			r := e.call("POST", inferPath("labelled"), ask(`"classification":2,"binary_data":true`))
			data := string(bytesElements("4.000000:3", "3.000000:2:bird"))
			require.Equal(e, 200, r.status, r.body)
			require.Equal(e, octets, r.header.Get("Content-Type"))
			head, found := strings.CutSuffix(r.body, data)
			require.True(e, found, "%q", r.body)
			require.JSONEq(e, start+fmt.Sprintf(`"parameters":{"binary_data_size":%d}}]}`, len(data)), head)
			require.Equal(e, strconv.Itoa(len(head)), r.header.Get(headerLength))
		}},
		Case{"classification/over HTTP, of BOOL", func(e *Env) {
			e.wantHTTP(e.call("POST", inferPath("types"), everyJSON(`{"name":"OUTPUT_BOOL","parameters":{"classification":1}}`)), 400, textPlain,
				errorJSON("class result not available for output due to unsupported type 'BOOL'"))
		}},
	)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"strings"

	"github.com/stretchr/testify/require"
)

const (
	textPlain = "text/plain"
	jsonType  = "application/json"
	octets    = "application/octet-stream"
	notFound  = `{"error":"Not Found"}`
)

// httpCases are the HTTP paths that infer nothing.
func httpCases() []Case {
	cases := make([]Case, 0, 64)
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		contentType, want        string
	}{
		{"live", "GET", "/v2/health/live", "", 200, textPlain, ""},
		{"ready", "GET", "/v2/health/ready", "", 200, textPlain, ""},
		{"model ready", "GET", "/v2/models/identity/ready", "", 200, textPlain, ""},
		{"version ready", "GET", "/v2/models/identity/versions/1/ready", "", 200, textPlain, ""},
		{"unknown model ready", "GET", "/v2/models/nope/ready", "", 400, textPlain, `{"error":"Model version not ready"}`},
		{"unknown version ready", "GET", "/v2/models/identity/versions/9/ready", "", 400, textPlain, `{"error":"Model version not ready"}`},
		{"metadata", "GET", "/v2/models/identity", "", 200, jsonType, `{"name":"identity","versions":["1"],"platform":"python","inputs":[{"name":"INPUT0","datatype":"FP32","shape":[-1,-1]}],"outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[-1,-1]}]}`},
		{"metadata of a version, query ignored", "GET", "/v2/models/string/versions/1?x=1", "", 200, jsonType, `{"name":"string","versions":["1"],"platform":"python","inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[-1,-1]}],"outputs":[{"name":"OUTPUT0","datatype":"BYTES","shape":[-1,-1]}]}`},
		{"metadata of an unknown model", "GET", "/v2/models/nope", "", 404, jsonType, errorJSON(noSuchModel)},
		{"metadata of an unknown version", "GET", "/v2/models/identity/versions/9", "", 404, jsonType, errorJSON("Request for unknown model: 'identity' version 9 is not found")},
		{"no percent-decoding", "GET", "/v2/models/ident%69ty", "", 404, jsonType, errorJSON("Request for unknown model: 'ident%69ty' is not found")},
		{"config of an unknown model", "GET", "/v2/models/nope/config", "", 404, jsonType, errorJSON(noSuchModel)},
		{"statistics of an unknown model", "GET", "/v2/models/nope/stats", "", 400, jsonType, `{"error":"requested model 'nope' is not available"}`},
		{"trailing slash", "GET", "/v2/models/identity/", "", 404, textPlain, notFound},
		{"trailing slash of health", "GET", "/v2/health/live/", "", 404, textPlain, notFound},
		{"no such path", "GET", "/v1", "", 404, textPlain, notFound},
		{"no such action", "GET", "/v2/models/identity/nope", "", 404, textPlain, notFound},
		{"version that is no number", "GET", "/v2/models/identity/versions/x", "", 404, textPlain, notFound},
		{"empty model name", "GET", "/v2/models//ready", "", 404, textPlain, notFound},
		{"wrong method", "POST", "/v2", "", 405, jsonType, `{"error":"Method Not Allowed"}`},
		{"HEAD", "HEAD", "/v2", "", 405, jsonType, ""},
		{"wrong method of health", "POST", "/v2/health/live", "", 405, textPlain, `{"error":"Method Not Allowed"}`},
		{"wrong method of infer", "GET", "/v2/models/identity/infer", "", 405, textPlain, `{"error":"Method Not Allowed"}`},
		{"wrong method of load", "GET", "/v2/repository/models/identity/load", "", 405, jsonType, `{"error":"Method Not Allowed"}`},
		{"trace settings", "GET", "/v2/trace/setting", "", 200, jsonType, `{"trace_level":["OFF"],"trace_rate":"1000","trace_count":"-1","log_frequency":"0","trace_file":"","trace_mode":"triton"}`},
		{"log settings", "GET", "/v2/logging", "", 200, jsonType, `{"log_file":"","log_info":true,"log_warning":true,"log_error":true,"log_verbose_level":0,"log_format":"default"}`},
	} {
		cases = append(cases, Case{"http/" + c.name, func(e *Env) {
			e.wantHTTP(e.call(c.method, c.path, c.body), c.status, c.contentType, c.want)
		}})
	}
	return append(cases,
		Case{"http/server metadata", func(e *Env) {
			r := e.call("GET", "/v2", "")
			require.Equal(e, 200, r.status)
			var m struct {
				Name, Version string
				Extensions    []string
			}
			require.NoError(e, json.Unmarshal([]byte(r.body), &m))
			require.Equal(e, "triton", m.Name)
			require.Contains(e, m.Extensions, "binary_tensor_data")
		}},
		Case{"http/config", func(e *Env) {
			r := e.call("GET", "/v2/models/identity/config", "")
			e.wantHTTP(r, 200, jsonType, `{"name":"identity","platform":"","backend":"python","runtime":"","version_policy":{"latest":{"num_versions":1}},"max_batch_size":8,`+
				`"input":[{"name":"INPUT0","data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[-1],"is_shape_tensor":false,"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],`+
				`"output":[{"name":"OUTPUT0","data_type":"TYPE_FP32","dims":[-1],"label_filename":"","is_shape_tensor":false,"is_non_linear_format_io":false}],`+
				`"batch_input":[],"batch_output":[],"optimization":{"priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},"output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,"eager_batching":false},`+
				`"instance_group":[{"name":"identity_0","kind":"KIND_CPU","count":1,"gpus":[],"secondary_devices":[],"profile":[],"passive":false,"host_policy":""}],`+
				`"default_model_filename":"model.py","cc_model_filenames":{},"metric_tags":{},"parameters":{"conch_builtin":{"string_value":"identity"}},"model_warmup":[]}`)
		}},
		Case{"http/config of a batching model", func(e *Env) {
			var c struct {
				Dynamic json.RawMessage `json:"dynamic_batching"`
			}
			require.NoError(e, json.Unmarshal([]byte(e.call("GET", "/v2/models/batched/config", "").body), &c))
			require.JSONEq(e, `{"preferred_batch_size":[8],"max_queue_delay_microseconds":0,"preserve_ordering":false,"priority_levels":0,"default_priority_level":0,"priority_queue_policy":{}}`, string(c.Dynamic))
		}},
	)
}

// inferPath is where a model infers over HTTP.
func inferPath(model string) string { return "/v2/models/" + model + "/infer" }

const (
	oneInput  = `{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[1,2.5]}`
	echoStart = `{"model_name":"identity","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[1,2],`
	echoJSON  = echoStart + `"data":[1.0,2.5]}]}`
	echoBin   = echoStart + `"parameters":{"binary_data_size":8}}]}`
)

// body is a request of the identity model with one input, and more members behind it.
func body(input, more string) string { return `{"inputs":[` + input + `]` + more + `}` }

// in is an input of the identity model with a shape and data.
func in(shape, data string) string {
	return `{"name":"INPUT0","datatype":"FP32","shape":` + shape + `,"data":` + data + `}`
}

func echo(shape, data string) string {
	return strings.Replace(echoStart, "[1,2]", shape, 1) + `"data":` + data + `}]}`
}

// jsonCases are JSON requests that are answered.
func jsonCases() []Case {
	cases := make([]Case, 0, 64)
	for _, c := range []struct{ name, path, body, want string }{
		{"flat", "", body(oneInput, ""), echoJSON},
		{"nested", "", body(in("[1,2]", "[[1,2.5]]"), ""), echoJSON},
		{"nested at will", "", body(in("[1,2]", "[[1],[[2.5]]]"), ""), echoJSON},
		{"rows", "", body(in("[2,2]", "[[1,2],[3,4]]"), ""), echo("[2,2]", "[1.0,2.0,3.0,4.0]")},
		{"nothing in a dimension", "", body(in("[1,0]", "[]"), ""), echo("[1,0]", "[]")},
		{"by version", "/v2/models/identity/versions/1/infer", body(oneInput, ""), echoJSON},
		{"unknown member", "", body(oneInput, `,"foo":1`), echoJSON},
		{"id", "", body(oneInput, `,"id":"a\"b"`), `{"id":"a\"b",` + echoJSON[1:]},
		{"empty id", "", body(oneInput, `,"id":""`), echoJSON},
		{"parameters", "", body(oneInput, `,"parameters":{"text":"x","number":1,"flag":true,"real":1.5,"priority":3,"timeout":1000000,"sequence_id":"x"}`), echoJSON},
		{"requested output", "", body(oneInput, `,"outputs":[{"name":"OUTPUT0"}]`), echoJSON},
		{"no requested outputs", "", body(oneInput, `,"outputs":[]`), echoJSON},
		{"integers in place of floats", "", body(in("[1,2]", "[16777217,3]"), ""), echo("[1,2]", "[16777216.0,3.0]")},
		{"shortest digits of the double", "", body(in("[1,2]", "[0.1,1e-7]"), ""), echo("[1,2]", "[0.10000000149011612,1.0000000116860974e-7]")},
		{"large numbers", "", body(in("[1,2]", "[1e30,123456789]"), ""), echo("[1,2]", "[1.0000000150474662e30,123456792.0]")},
		{"negative zero", "", body(in("[1,2]", "[-0.0,3]"), ""), echo("[1,2]", "[-0.0,3.0]")},
		{"NaN and Infinity", "", body(in("[1,2]", "[NaN,Infinity]"), ""), echo("[1,2]", "[NaN,Infinity]")},
		{"beyond float", "", body(in("[1,2]", "[1e39,-1e39]"), ""), echo("[1,2]", "[Infinity,-Infinity]")},
		{"strings", inferPath("string"), `{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1,2],"data":["ab",["é\"\n\u0001"]]}]}`,
			`{"model_name":"string","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"BYTES","shape":[1,2],"data":["AB","é\"\n\u0001"]}]}`},
		{"no batch dimension and nothing in it", inferPath("unbatched"), `{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[0,2],"data":[]}]}`,
			`{"model_name":"unbatched","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[0,2],"data":[]}]}`},
		{"integers wrap", inferPath("unbatched"), `{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,2],"data":[2147483648,-1]}]}`,
			`{"model_name":"unbatched","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[1,2],"data":[-2147483648,-1]}]}`},
	} {
		cases = append(cases, Case{"json/" + c.name, func(e *Env) {
			path := c.path
			if path == "" {
				path = inferPath("identity")
			}
			r := e.call("POST", path, c.body)
			e.wantHTTP(r, 200, jsonType, c.want)
			require.Empty(e, r.header.Get(headerLength))
		}})
	}
	return cases
}

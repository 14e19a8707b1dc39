// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"strings"

	"github.com/stretchr/testify/require"
)

const eventStream = "text/event-stream; charset=utf-8"

// generatePath is where a model generates.
func generatePath(model string) string { return "/v2/models/" + model + "/generate" }

// generateCases use the generate extension: flat JSON in and out, its members in order of their names.
func generateCases() []Case {
	const (
		misfit   = "The schema can not convert input 'INPUT0' to tensor with proper shape"
		wrong    = "parameter 'foo' has invalid type. It should be either 'int', 'bool', or 'string'."
		notOne   = "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses"
		noObject = "failed to parse the request JSON buffer: Missing a name for object member. at 1"
		encoding = "Unsupported content-encoding, only 'identity' is supported."
	)
	text := func(out, more string) string {
		return `{"OUTPUT0":` + out + more + `,"model_name":"string","model_version":"1"}`
	}
	floats := func(out string) string {
		return `{"OUTPUT0":` + out + `,"model_name":"identity","model_version":"1"}`
	}
	cases := make([]Case, 0, 64)
	for _, c := range []struct {
		name, model, body string
		status            int
		want              string
	}{
		{"text", "string", `{"INPUT0":"ab"}`, 200, text(`"AB"`, "")},
		{"an array", "string", `{"INPUT0":["ab","cd"]}`, 200, text(`["AB","CD"]`, "")},
		{"an array in an array", "string", `{"INPUT0":[["ab"]]}`, 200, text(`"AB"`, "")},
		{"an id", "string", `{"INPUT0":"ab","id":"7"}`, 200, text(`"AB"`, `,"id":"7"`)},
		{"parameters", "string", `{"INPUT0":"ab","parameters":{"x":1},"foo":"bar","real":1.5,"flag":true}`, 200, text(`"AB"`, "")},
		{"no input", "string", `{}`, 400, errorJSON(noID + "expected 1 inputs but got 0 inputs for model 'string'. Got input(s) [], but missing required input(s) ['INPUT0']. Please provide all required input(s).")},
		{"a number for text", "string", `{"INPUT0":5}`, 500, errorJSON("Unable to parse JSON bytes array: attempt to access JSON non-string as string")},
		{"an object for text", "string", `{"INPUT0":{"a":1}}`, 500, errorJSON("Unable to parse JSON bytes array: attempt to access JSON non-string as string")},
		{"malformed", "string", `{x`, 500, errorJSON(noObject)},
		{"empty", "string", ``, 500, errorJSON("failed to parse the request JSON buffer: The document is empty. at 0")},
		{"an array for the request", "string", `[]`, 500, errorJSON("attempt to get members for non-object")},
		{"an unknown model", "nope", `{}`, 404, errorJSON(noSuchModel)},
		{"an id that is a number", "identity", `{"INPUT0":1,"id":7}`, 500, errorJSON("Unable to parse 'id': attempt to access JSON non-string as string")},
		{"parameters that are no object", "identity", `{"INPUT0":1,"parameters":3}`, 500, errorJSON("Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object")},
		{"an input among the parameters", "identity", `{"parameters":{"INPUT0":1}}`, 200, floats("1.0")},
		{"a number", "identity", `{"INPUT0":1.5}`, 200, floats("1.5")},
		{"numbers", "identity", `{"INPUT0":[1.5,2]}`, 200, floats("[1.5,2.0]")},
		{"no numbers", "identity", `{"INPUT0":[]}`, 200, floats("[]")},
		{"text for a number", "identity", `{"INPUT0":"a"}`, 500, errorJSON("Unable to parse 'data': attempt to access JSON non-number as double")},
		{"null for a number", "identity", `{"INPUT0":null}`, 500, errorJSON("Unable to parse 'data': attempt to access JSON non-number as double")},
		{"a flag for a number", "identity", `{"INPUT0":true}`, 500, errorJSON("Unable to parse 'data': attempt to access JSON non-number as double")},
		{"an object as parameter", "identity", `{"INPUT0":1,"foo":{"a":1}}`, 400, errorJSON(wrong)},
		{"an array as parameter", "identity", `{"INPUT0":1,"foo":[1]}`, 400, errorJSON(wrong)},
		{"null as parameter", "identity", `{"INPUT0":1,"foo":null}`, 400, errorJSON(wrong)},
		{"parameters that mean something elsewhere", "identity", `{"INPUT0":1,"triton_foo":1,"priority":"x","timeout":"x"}`, 200, floats("1.0")},
		{"too few for a shape", "labelled", `{"INPUT0":[1,2,3]}`, 400, errorJSON(misfit)},
		{"one for a shape of four", "labelled", `{"INPUT0":1}`, 400, errorJSON(misfit)},
		{"as many as a shape has", "labelled", `{"INPUT0":[1,2,3,4]}`, 200, `{"OUTPUT0":[1.0,2.0,3.0,4.0],"model_name":"labelled","model_version":"1"}`},
		{"twice as many are two rows", "labelled", `{"INPUT0":[1,2,3,4,5,6,7,8]}`, 200, `{"OUTPUT0":[1.0,2.0,3.0,4.0,5.0,6.0,7.0,8.0],"model_name":"labelled","model_version":"1"}`},
		{"nested arrays are not counted through", "labelled", `{"INPUT0":[[1,2],[3,4]]}`, 400, errorJSON(misfit)},
		{"none for a shape", "labelled", `{"INPUT0":[]}`, 400, errorJSON(noID + "input byte size mismatch for input 'INPUT0' for model 'labelled'. Expected 16, got 0")},
		{"without batch dimension", "unbatched", `{"INPUT0":[1,2,3,4]}`, 200, `{"OUTPUT0":[1,2,3,4],"model_name":"unbatched","model_version":"1"}`},
		{"too few without batch dimension", "unbatched", `{"INPUT0":[1,2,3]}`, 400, errorJSON(misfit)},
		{"FP16", "half", `{"INPUT0":[1,2]}`, 400, errorJSON("receiving FP16 data via JSON is not supported. Please use the binary data format for input INPUT0")},
		{"two inputs and outputs", "add_sub", `{"INPUT0":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15],"INPUT1":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}`, 200,
			`{"OUTPUT0":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16],"OUTPUT1":[-1,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14],"model_name":"add_sub","model_version":"1"}`},
		{"sequence parameters say nothing", "sequence", `{"INPUT":5,"sequence_id":71,"sequence_start":true}`, 400, errorJSON("inference request to model 'sequence' must specify a non-zero or non-empty correlation ID")},
		{"a model's error", "error", `{"INPUT0":-1}`, 400, errorJSON("negative input")},
		{"one answer of a decoupled model", "decoupled", `{"IN":[4],"DELAY":[0]}`, 200, `{"IDX":0,"OUT":4,"model_name":"decoupled","model_version":"1"}`},
		{"two answers", "decoupled", `{"IN":[4,5],"DELAY":[0,0]}`, 200, errorJSON(notOne)},
		{"no answer", "decoupled", `{"IN":[],"DELAY":[]}`, 200, errorJSON(notOne)},
	} {
		cases = append(cases, Case{"generate/" + c.name, func(e *Env) {
			e.wantExactly(e.call("POST", generatePath(c.model), c.body), c.status, jsonType, c.want)
		}})
	}
	event := func(s string) string { return "data: " + s + "\n\n" }
	for _, c := range []struct {
		name, model, body string
		status            int
		contentType, want string
	}{
		{"one answer", "string", `{"INPUT0":"ab","id":"7"}`, 200, eventStream, event(text(`"AB"`, `,"id":"7"`))},
		{"two answers", "decoupled", `{"IN":[4,5],"DELAY":[0,10]}`, 200, eventStream,
			event(`{"IDX":0,"OUT":4,"model_name":"decoupled","model_version":"1"}`) + event(`{"IDX":1,"OUT":5,"model_name":"decoupled","model_version":"1"}`)},
		{"no answer", "decoupled", `{"IN":[],"DELAY":[]}`, 200, eventStream, ""},
		{"a model's error", "error", `{"INPUT0":-1}`, 400, eventStream, event(errorJSON("negative input"))},
		{"malformed", "string", `{x`, 500, jsonType, errorJSON(noObject)},
		{"an unknown model", "nope", `{}`, 404, jsonType, errorJSON(noSuchModel)},
		{"text for a number", "decoupled", `{"IN":"x","DELAY":[]}`, 500, jsonType, errorJSON("Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer")},
	} {
		cases = append(cases, Case{"generate/stream: " + c.name, func(e *Env) {
			e.wantExactly(e.call("POST", generatePath(c.model)+"_stream", c.body), c.status, c.contentType, c.want)
		}})
	}
	return append(cases,
		Case{"generate/by version", func(e *Env) {
			e.wantExactly(e.call("POST", "/v2/models/versions_specific/versions/1/generate", `{"INPUT0":1}`), 200, jsonType, `{"OUTPUT0":101,"model_name":"versions_specific","model_version":"1"}`)
			e.wantExactly(e.call("POST", "/v2/models/identity/versions/9/generate", `{"INPUT0":1}`), 404, jsonType, errorJSON("Request for unknown model: 'identity' version 9 is not found"))
		}},
		Case{"generate/wrong method", func(e *Env) {
			for _, path := range []string{generatePath("string"), generatePath("string") + "_stream"} {
				e.wantExactly(e.call("GET", path, ""), 405, jsonType, `{"error":"Method Not Allowed"}`)
			}
		}},
		Case{"generate/compressed", func(e *Env) {
			e.wantExactly(e.call("POST", generatePath("string"), compress("gzip", `{"INPUT0":"ab"}`), "Content-Encoding", "gzip"), 400, jsonType, errorJSON(encoding))
			r := e.call("POST", generatePath("string"), `{"INPUT0":"ab"}`, "Accept-Encoding", "gzip")
			require.Empty(e, r.header.Get("Content-Encoding"))
			e.wantExactly(r, 200, jsonType, text(`"AB"`, ""))
		}},
	)
}

// wantExactly is wantHTTP for a body whose bytes count, too.
func (e *Env) wantExactly(r reply, status int, contentType, body string) {
	e.Helper()
	require.Equal(e, status, r.status, "status; body %q", r.body)
	require.Equal(e, contentType, r.header.Get("Content-Type"), "Content-Type; body %q", r.body)
	require.Equal(e, strings.TrimSpace(body), strings.TrimSpace(r.body))
}

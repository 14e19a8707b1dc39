// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

// jsonRefusedCases are JSON requests that are refused.
func jsonRefusedCases() []Case {
	const (
		unparsed   = "failed to parse the request JSON buffer: "
		trueShape  = "Unable to parse 'data': Shape does not match true shape of 'data' field"
		oneOf      = "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. "
		reserved   = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
		wrongType  = "parameter 'foo' has invalid type. It should be either 'int', 'bool', or 'string'."
		noUnsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer"
		noDouble   = "Unable to parse 'data': attempt to access JSON non-number as double"
	)
	cases := make([]Case, 0, 64)
	for _, c := range []struct {
		name, path, body string
		status           int
		message          string
	}{
		{"no JSON", "", "{x", 500, unparsed + "Missing a name for object member. at 1"},
		{"cut off", "", `{"a":1`, 500, unparsed + "Missing a comma or '}' after an object member. at 6"},
		{"no value", "", `{"a":}`, 500, unparsed + "Invalid value. at 5"},
		{"bad escape", "", `{"a":"\q"}`, 500, unparsed + "Invalid escape character in string. at 6"},
		{"more behind it", "", `{"inputs":[]}x`, 500, unparsed + "The document root must not be followed by other values. at 13"},
		{"blank", "", "   ", 500, unparsed + "The document is empty. at 3"},
		{"an array", "", "[]", 500, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"},
		{"no inputs", "", "{}", 500, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"},
		{"inputs no array", "", `{"inputs":{}}`, 500, "Unable to parse 'inputs': attempt to access JSON non-array as array"},
		{"empty inputs", "", `{"inputs":[]}`, 400, noID + "expected 1 inputs but got 0 inputs for model 'identity'. Got input(s) [], but missing required input(s) ['INPUT0']. Please provide all required input(s)."},
		{"id no text", "", body(oneInput, `,"id":3`), 500, "Unable to parse 'id': attempt to access JSON non-string as string"},
		{"input without name", "", `{"inputs":[{"datatype":"FP32","shape":[1,2],"data":[1,2]}]}`, 500, "Unable to parse 'name': attempt to access non-existing object member 'name'"},
		{"input without datatype", "", `{"inputs":[{"name":"INPUT0","shape":[1,2],"data":[1,2]}]}`, 500, "Unable to parse 'datatype': attempt to access non-existing object member 'datatype'"},
		{"input without shape", "", `{"inputs":[{"name":"INPUT0","datatype":"FP32","data":[1,2]}]}`, 500, "Unable to parse 'shape': attempt to access non-existing object member 'shape'"},
		{"negative dimension", "", body(in("[1,-2]", "[1,2]"), ""), 500, "Unable to parse 'shape': " + noUnsigned},
		{"fractional dimension", "", body(in("[1.5,2]", "[1,2]"), ""), 500, "Unable to parse 'shape': " + noUnsigned},
		{"no such datatype", "", `{"inputs":[{"name":"INPUT0","datatype":"FOO","shape":[1,2],"data":[1,2]}]}`, 400, "invalid datatype for input INPUT0"},
		{"no such input", "", `{"inputs":[{"name":"X","datatype":"FP32","shape":[1,2],"data":[1,2]}]}`, 400, "unexpected inference input 'X' for model 'identity'"},
		{"an input twice", "", body(oneInput+","+oneInput, ""), 400, noID + "input 'INPUT0' already exists in request"},
		{"no data", "", `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2]}]}`, 400, oneOf + "But no field is set"},
		{"data and binary size", "", `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[1,2],"parameters":{"binary_data_size":8}}]}`, 400, oneOf + "But set 'data' 'binary_data_size'"},
		{"too few data", "", body(in("[1,2]", "[1]"), ""), 500, trueShape},
		{"too many data", "", body(in("[1,2]", "[1,2,3]"), ""), 500, trueShape},
		{"data no array", "", body(in("[1,2]", "1"), ""), 500, "Unable to parse 'data': attempt to access JSON non-array as array"},
		{"text in place of a number", "", body(in("[1,2]", `["a","b"]`), ""), 500, noDouble},
		{"flag in place of a number", "", body(in("[1,2]", "[true,false]"), ""), 500, noDouble},
		{"null in place of a number", "", body(in("[1,2]", "[null,1]"), ""), 500, noDouble},
		{"fraction in place of an integer", inferPath("unbatched"), `{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,2],"data":[1.0,2]}]}`, 500, "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"},
		{"number in place of text", inferPath("string"), `{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1,2],"data":[1,2]}]}`, 500, "Unable to parse JSON bytes array: attempt to access JSON non-string as string"},
		{"too few strings", inferPath("string"), `{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1,2],"data":["a"]}]}`, 400, noID + "expected 2 string elements for inference input 'INPUT0' for model 'string', got 1"},
		{"FP16", inferPath("half"), `{"inputs":[{"name":"INPUT0","datatype":"FP16","shape":[1,2],"data":[1,2]}]}`, 400, "receiving FP16 data via JSON is not supported. Please use the binary data format for input INPUT0"},
		{"zero rows", "", body(in("[0,2]", "[]"), ""), 400, noID + "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 8, got 0"},
		{"too many rows", "", body(in("[9,1]", "[1,2,3,4,5,6,7,8,9]"), ""), 400, noID + "inference request batch-size must be <= 8 for 'identity'"},
		{"no such output", "", body(oneInput, `,"outputs":[{"name":"X"}]`), 400, "unexpected inference output 'X' for model 'identity'"},
		{"output without name", "", body(oneInput, `,"outputs":[{}]`), 500, "Unable to parse 'name': attempt to access non-existing object member 'name'"},
		{"binary_data no flag", "", body(oneInput, `,"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":"x"}}]`), 500, "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean"},
		{"reserved parameter", "", body(oneInput, `,"parameters":{"triton_enable_empty_final_response":true}`), 400, reserved},
		{"parameter an object", "", body(oneInput, `,"parameters":{"foo":{}}`), 400, wrongType},
		{"parameter null", "", body(oneInput, `,"parameters":{"foo":null}`), 400, wrongType},
		{"negative priority", "", body(oneInput, `,"parameters":{"priority":-3}`), 500, "Unable to parse 'priority': " + noUnsigned},
		{"timeout as text", "", body(oneInput, `,"parameters":{"timeout":"x"}`), 500, "Unable to parse 'timeout': " + noUnsigned},
		{"sequence start as number", "", body(oneInput, `,"parameters":{"sequence_start":1}`), 500, "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean"},
	} {
		cases = append(cases, Case{"json refused/" + c.name, func(e *Env) {
			path := c.path
			if path == "" {
				path = inferPath("identity")
			}
			e.wantHTTP(e.call("POST", path, c.body), c.status, jsonType, errorJSON(c.message))
		}})
	}
	for _, c := range []struct {
		name, path, body string
		status           int
		message          string
	}{
		{"unknown model", inferPath("nope"), body(oneInput, ""), 404, noSuchModel},
		{"unknown version", "/v2/models/identity/versions/9/infer", "{}", 404, "Request for unknown model: 'identity' version 9 is not found"},
		{"decoupled model", inferPath("decoupled"), "{}", 501, "HTTP end point doesn't support models with decoupled transaction policy"},
		{"by the model", inferPath("error"), body(in("[1,2]", "[-1,2]"), ""), 500, "negative input"},
	} {
		cases = append(cases, Case{"json refused/" + c.name, func(e *Env) {
			e.wantHTTP(e.call("POST", c.path, c.body), c.status, textPlain, errorJSON(c.message))
		}})
	}
	return cases
}

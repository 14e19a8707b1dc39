// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"io"
	"strconv"

	"github.com/stretchr/testify/require"
)

const headerLength = "Inference-Header-Content-Length"

// binaryInput is an input of the identity model whose data are the next size bytes behind the JSON.
func binaryInput(size string) string {
	return `{"name":"INPUT0","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":` + size + `}}`
}

// wantBinary compares an answer of JSON and binary data behind it.
func (e *Env) wantBinary(r reply, wantJSON string, data []byte) {
	e.Helper()
	require.Equal(e, 200, r.status, r.body)
	require.Equal(e, octets, r.header.Get("Content-Type"))
	n, err := strconv.Atoi(r.header.Get(headerLength))
	require.NoError(e, err)
	require.LessOrEqual(e, n, len(r.body))
	require.JSONEq(e, wantJSON, r.body[:n])
	require.Equal(e, data, []byte(r.body[n:]))
}

// binaryCases use the binary tensor extension.
func binaryCases() []Case {
	data := string(fp32(1, 2.5))
	send := func(e *Env, head, tail string) reply {
		return e.call("POST", inferPath("identity"), head+tail, headerLength, strconv.Itoa(len(head)))
	}
	const wantBinary = `,"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]`
	cases := []Case{
		{"binary/in, JSON out", func(e *Env) { e.wantHTTP(send(e, body(binaryInput("8"), ""), data), 200, jsonType, echoJSON) }},
		{"binary/in and out", func(e *Env) { e.wantBinary(send(e, body(binaryInput("8"), wantBinary), data), echoBin, fp32(1, 2.5)) }},
		{"binary/JSON in, out", func(e *Env) {
			e.wantBinary(e.call("POST", inferPath("identity"), body(oneInput, wantBinary)), echoBin, fp32(1, 2.5))
		}},
		{"binary/all outputs by parameter", func(e *Env) {
			e.wantBinary(e.call("POST", inferPath("identity"), body(oneInput, `,"parameters":{"binary_data_output":true}`)), echoBin, fp32(1, 2.5))
		}},
		{"binary/a list of outputs overrides the parameter", func(e *Env) {
			e.wantHTTP(e.call("POST", inferPath("identity"), body(oneInput, `,"parameters":{"binary_data_output":true},"outputs":[{"name":"OUTPUT0"}]`)), 200, jsonType, echoJSON)
		}},
		{"binary/id", func(e *Env) {
			e.wantBinary(send(e, body(binaryInput("8"), wantBinary+`,"id":"z"`), data), `{"id":"z",`+echoBin[1:], fp32(1, 2.5))
		}},
		{"binary/some in, some out", func(e *Env) {
			head := `{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,16],"parameters":{"binary_data_size":64}},` +
				`{"name":"INPUT1","datatype":"INT32","shape":[1,16],"data":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}],` +
				`"outputs":[{"name":"OUTPUT1"},{"name":"OUTPUT0","parameters":{"binary_data":true}}]}`
			r := e.call("POST", inferPath("add_sub"), head+string(seq16(0)), headerLength, strconv.Itoa(len(head)))
			e.wantBinary(r, `{"model_name":"add_sub","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[1,16],"parameters":{"binary_data_size":64}},`+
				`{"name":"OUTPUT1","datatype":"INT32","shape":[1,16],"data":[-1,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14]}]}`, seq16(1))
		}},
		{"binary/strings", func(e *Env) {
			elements := string(bytesElements("ab", "c"))
			head := `{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1,2],"parameters":{"binary_data_size":` + strconv.Itoa(len(elements)) + `}}]}`
			r := e.call("POST", inferPath("string"), head+elements, headerLength, strconv.Itoa(len(head)))
			e.wantHTTP(r, 200, jsonType, `{"model_name":"string","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"BYTES","shape":[1,2],"data":["AB","C"]}]}`)
		}},
		{"binary/FP16", func(e *Env) {
			head := `{"inputs":[{"name":"INPUT0","datatype":"FP16","shape":[1,2],"parameters":{"binary_data_size":4}}],"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}`
			half := "\x00\x3c\x00\xc0"
			r := e.call("POST", inferPath("half"), head+half, headerLength, strconv.Itoa(len(head)))
			e.wantBinary(r, `{"model_name":"half","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"FP16","shape":[1,2],"parameters":{"binary_data_size":4}}]}`, []byte(half))
		}},
		{"binary/FP16 out as JSON", func(e *Env) {
			head := `{"inputs":[{"name":"INPUT0","datatype":"FP16","shape":[1,2],"parameters":{"binary_data_size":4}}]}`
			r := e.call("POST", inferPath("half"), head+"\x00\x3c\x00\xc0", headerLength, strconv.Itoa(len(head)))
			e.wantHTTP(r, 400, textPlain, errorJSON("sending FP16 data via JSON is not supported. Please use the binary data format for output"))
		}},
		{"binary/raw request", func(e *Env) {
			e.wantBinary(e.call("POST", inferPath("identity"), data, headerLength, "0"), echoBin, fp32(1, 2.5))
		}},
		{"binary/raw request by a length that is no number", func(e *Env) {
			e.wantBinary(e.call("POST", inferPath("identity"), data, headerLength, "x"), echoBin, fp32(1, 2.5))
		}},
		{"binary/empty raw request", func(e *Env) {
			want := `{"model_name":"identity","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[1,0],"parameters":{"binary_data_size":0}}]}`
			e.wantHTTP(e.call("POST", inferPath("identity"), "", headerLength, "0"), 200, jsonType, want)
			e.wantHTTP(e.call("POST", inferPath("identity"), ""), 200, jsonType, want)
		}},
	}
	head := body(binaryInput("8"), "")
	whole := strconv.Itoa(len(head) + 8)
	for _, c := range []struct {
		name, body, length string
		status             int
		contentType        string
		message            string
	}{
		{"raw of uneven size", data + "1", "0", 400, jsonType, noID + "input byte size mismatch for input 'raw_input' for model 'identity'. Expected 8, got 9"},
		{"no length", head + data, "", 400, jsonType, "unexpected size for input 'INPUT0', expecting 8 additional bytes for model 'identity'"},
		{"too little data", head + data[:4], strconv.Itoa(len(head)), 400, jsonType, "unexpected size for input 'INPUT0', expecting 4 additional bytes for model 'identity'"},
		{"too much data", head + data + "zz", strconv.Itoa(len(head)), 400, jsonType, "unexpected additional input data for model 'identity'"},
		{"size against the shape", body(binaryInput("4"), "") + data[:4], strconv.Itoa(len(head)), 400, jsonType, noID + "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 8, got 4"},
		{"size as text", body(binaryInput(`"8"`), "") + data, strconv.Itoa(len(head) + 2), 500, jsonType, "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer"},
		{"negative size", body(binaryInput("-8"), "") + data, strconv.Itoa(len(head) + 1), 500, jsonType, "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer"},
		{"length one short", head + data, strconv.Itoa(len(head) - 1), 500, jsonType, "failed to parse the request JSON buffer: Missing a comma or '}' after an object member. at " + strconv.Itoa(len(head)-1)},
		{"length beyond the body", head + data, "9999", 400, textPlain, "inference header size should be in range (0, " + whole + "), got: 9999"},
		{"negative length", head + data, "-1", 400, textPlain, "inference header size should be in range (0, " + whole + "), got: -1"},
	} {
		cases = append(cases, Case{"binary refused/" + c.name, func(e *Env) {
			var headers []string
			if c.length != "" {
				headers = []string{headerLength, c.length}
			}
			e.wantHTTP(e.call("POST", inferPath("identity"), c.body, headers...), c.status, c.contentType, errorJSON(c.message))
		}})
	}
	return append(cases, Case{"binary refused/raw for two inputs", func(e *Env) {
		e.wantHTTP(e.call("POST", inferPath("add_sub"), data, headerLength, "0"), 400, jsonType,
			errorJSON(noID+"Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'add_sub' model configuration"))
	}})
}

// encodingCases compress requests and answers.
func encodingCases() []Case {
	plain := body(oneInput, "")
	var cases []Case
	for _, encoding := range []string{"gzip", "deflate"} {
		cases = append(cases,
			Case{"encoding/" + encoding + " request", func(e *Env) {
				e.wantHTTP(e.call("POST", inferPath("identity"), compress(encoding, plain), "Content-Encoding", encoding), 200, jsonType, echoJSON)
			}},
			Case{"encoding/" + encoding + " answer", func(e *Env) {
				r := e.call("POST", inferPath("identity"), plain, "Accept-Encoding", encoding)
				require.Equal(e, encoding, r.header.Get("Content-Encoding"))
				var src io.Reader
				var err error
				if encoding == "gzip" {
					src, err = gzip.NewReader(bytes.NewReader([]byte(r.body)))
				} else {
					src, err = zlib.NewReader(bytes.NewReader([]byte(r.body)))
				}
				require.NoError(e, err)
				out, err := io.ReadAll(src)
				require.NoError(e, err)
				require.JSONEq(e, echoJSON, string(out))
			}})
	}
	return append(cases,
		Case{"encoding/gzip labelled deflate", func(e *Env) {
			e.wantHTTP(e.call("POST", inferPath("identity"), compress("gzip", plain), "Content-Encoding", "deflate"), 200, jsonType, echoJSON)
		}},
		Case{"encoding/gzip with binary data", func(e *Env) {
			head := body(binaryInput("8"), "")
			r := e.call("POST", inferPath("identity"), compress("gzip", head+string(fp32(1, 2.5))), "Content-Encoding", "gzip", headerLength, strconv.Itoa(len(head)))
			e.wantHTTP(r, 200, jsonType, echoJSON)
		}},
		Case{"encoding/cut and broken", func(e *Env) {
			zipped, deflated := compress("gzip", plain), compress("deflate", plain)
			for _, body := range []string{zipped[:len(zipped)-4], zipped[:len(zipped)-8], zipped[:len(zipped)-8] + "\x00\x00\x00\x00" + zipped[len(zipped)-4:], deflated[:len(deflated)-2]} {
				e.wantHTTP(e.call("POST", inferPath("identity"), body, "Content-Encoding", "gzip"), 200, jsonType, echoJSON)
			}
			for _, body := range []string{zipped[:len(zipped)/2], deflated[:len(deflated)/2]} {
				r := e.call("POST", inferPath("identity"), body, "Content-Encoding", "gzip")
				require.Equal(e, 500, r.status)
				require.Contains(e, r.body, "failed to parse the request JSON buffer: ")
			}
		}},
		Case{"encoding/byte order mark", func(e *Env) {
			const mark = "\xef\xbb\xbf"
			e.wantHTTP(e.call("POST", inferPath("identity"), mark+plain), 200, jsonType, echoJSON)
			e.wantHTTP(e.call("POST", inferPath("identity"), mark+mark+plain), 500, jsonType, errorJSON("failed to parse the request JSON buffer: Invalid value. at 3"))
			e.wantHTTP(e.call("POST", inferPath("identity"), mark), 500, jsonType, errorJSON("failed to parse the request JSON buffer: The document is empty. at 3"))
		}},
		Case{"encoding/unknown", func(e *Env) {
			r := e.call("POST", inferPath("identity"), plain, "Content-Encoding", "br")
			e.wantHTTP(r, 501, textPlain, errorJSON("Unsupported compression type"))
			require.Equal(e, "gzip, deflate", r.header.Get("Accept-Encoding"))
		}},
		Case{"encoding/errors stay plain", func(e *Env) {
			r := e.call("POST", inferPath("identity"), `{"inputs":[{"name":"X","datatype":"FP32","shape":[1,2],"data":[1,2]}]}`, "Accept-Encoding", "gzip")
			e.wantHTTP(r, 400, jsonType, errorJSON("unexpected inference input 'X' for model 'identity'"))
			require.Empty(e, r.header.Get("Content-Encoding"))
		}},
	)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"fmt"
	"strconv"
	"strings"
)

// HTTPRequest is one HTTP request that has to be refused.
type HTTPRequest struct {
	Name   string
	Source string
	// Wire is all of it, from the request line to the end of the body.
	Wire []byte
	// Status is how it is refused, and Text is part of the body.
	Status int
	Text   string
}

// Post makes a POST request. Header lines end in CRLF.
func Post(path, header, body string) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: triton\r\nContent-Length: %d\r\n%s\r\n%s", path, len(body), header, body)
}

// Chunked makes a POST request whose body comes in chunks of one byte, which a
// server that looks at all chunks at once may not survive (CVE-2025-23310 and
// -23311: three megabytes of them). Through Conch the body arrives in one piece.
func Chunked(path, body string) []byte {
	var b strings.Builder
	b.WriteString("POST " + path + " HTTP/1.1\r\nHost: triton\r\nTransfer-Encoding: chunked\r\n\r\n")
	for _, c := range []byte(body) {
		b.WriteString("1\r\n" + string([]byte{c}) + "\r\n")
	}
	b.WriteString("0\r\n\r\n")
	return []byte(b.String())
}

const (
	inferIdentity = "/v2/models/identity/infer"
	inferString   = "/v2/models/string/infer"
)

// HTTPRequests are the requests over HTTP.
func HTTPRequests() []HTTPRequest {
	tensor := func(shape, rest string) string {
		return `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":` + shape + `,` + rest + `}]}`
	}
	binary := tensor("[1,1]", `"parameters":{"binary_data_size":4}`)
	endless := tensor("[1,1]", `"parameters":{"binary_data_size":18446744073709551615}`)
	lengths := func() (all []HTTPRequest) {
		for _, length := range []string{"-1", "99999999999999999999", "18446744073709551615", strconv.Itoa(len(binary) + 5), "9223372036854775807"} {
			all = append(all, HTTPRequest{"a header length of " + length, "CVE-2025-33201 and its like: sizes that a request states", Post(inferIdentity,
				"Inference-Header-Content-Length: "+length+"\r\n", binary+"1234"), 400, "inference header size should be in range"})
		}
		return all
	}
	const shapeError = "Shape does not match true shape of 'data' field"
	const outside = "outside what a region can have"
	const fileSource = "CVE-2023-31036 and its like: a file of the server's that a client names"
	const shmSource = "server pull requests 8170, 8334 and 8335; CVE-2025-23319, -23320, -23334"
	valid := `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[1,2]}]`
	deep := "nesting is deeper than"
	return append(lengths(), []HTTPRequest{
		{"an absurd shape with one element", measured + ": SIGABRT", Post(inferIdentity, "", tensor("[1,1000000000000000]", `"data":[1]`)), 500, shapeError},
		{"a shape that overflows", measured, Post(inferIdentity, "", tensor("[4294967296,4294967296]", `"data":[1]`)), 500, shapeError},
		{"a dimension beyond int64", measured, Post(inferIdentity, "", tensor("[18446744073709551615]", `"data":[1]`)), 500, shapeError},
		{"an empty binary tensor whose size overflows", measured, Post(inferIdentity, "", tensor("[1,4611686018427387904]", `"parameters":{"binary_data_size":0}`)), 400, "Expected more than"},
		{"a binary size beyond everything", measured, Post(inferIdentity, "Inference-Header-Content-Length: "+strconv.Itoa(len(endless))+"\r\n",
			endless+"1234"), 400, "unexpected size for input"},
		{"JSON a million arrays deep", measured + ": SIGSEGV", Post(inferIdentity, "", strings.Repeat("[", 1<<20)), 400, deep},
		{"JSON a million objects deep", measured + ": SIGSEGV", Post(inferIdentity, "", strings.Repeat(`{"a":`, 1<<20)), 400, deep},
		{"the same to generate", measured + ": SIGSEGV", Post("/v2/models/identity/generate", "", strings.Repeat(`{"a":`, 1<<20)), 400, deep},
		{"the same to the log settings", measured + ": SIGSEGV", Post("/v2/logging", "", strings.Repeat(`{"a":`, 1<<20)), 400, deep},
		{"the same to the index", measured + ": SIGSEGV", Post("/v2/repository/index", "", strings.Repeat(`{"a":`, 1<<20)), 400, deep},
		{"the same to a path of a newer server", measured + ": SIGSEGV", Post("/v2/new/path", "", strings.Repeat(`{"a":`, 1<<20)), 400, deep},
		{"classification of strings", measured + ": SIGFPE", Post(inferString, "",
			`{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1,1],"data":["a"]}],"outputs":[{"name":"OUTPUT0","parameters":{"classification":1}}]}`),
			400, "classification is not supported"},
		{"a text of 60 for the id of a sequence, where a number is wanted", measured + ": SIGABRT or SIGSEGV", Post("/v2/models/sequence/infer", "",
			`{"parameters":{"sequence_id":"`+strings.Repeat("x", 60)+`","sequence_start":true},"inputs":[{"name":"INPUT","datatype":"INT32","shape":[1,1],"data":[1]}]}`), 501, textID},
		{"5,000 inputs", bound, Post(inferIdentity, "", `{"inputs":[`+strings.Repeat(`{"name":"I","datatype":"FP32","shape":[0],"data":[]},`, 5000)+
			`{"name":"I","datatype":"FP32","shape":[0],"data":[]}]}`), 400, "more than 4096 inputs"},
		{"5,000 requested outputs", bound, Post(inferIdentity, "", valid+`,"outputs":[`+names(5000)+`]}`), 400, "more than 4096 requested outputs"},
		{"5,000 parameters", bound, Post(inferIdentity, "", `{"parameters":{`+numbered(5000)+`},`+valid[1:]+`}`), 400, "more than 4096 parameters"},
		{"an input at an offset that overflows", shmSource, Post(inferIdentity, "",
			tensor("[1,2]", `"parameters":{"shared_memory_region":"r","shared_memory_offset":9223372036854775800,"shared_memory_byte_size":8}`)), 400, outside},
		{"an input at an offset beyond int64", shmSource, Post(inferIdentity, "",
			tensor("[1,2]", `"parameters":{"shared_memory_region":"r","shared_memory_offset":18446744073709551615,"shared_memory_byte_size":8}`)), 400, outside},
		{"an output of absurd size", shmSource, Post(inferIdentity, "", valid+
			`,"outputs":[{"name":"OUTPUT0","parameters":{"shared_memory_region":"r","shared_memory_byte_size":18446744073709551615}}]}`), 400, outside},
		{"a region at an offset that overflows", shmSource, Post("/v2/systemsharedmemory/region/r/register", "",
			`{"key":"/r","offset":18446744073709551612,"byte_size":8}`), 400, outside},
		{"the python backend's own memory", shmSource, Post("/v2/systemsharedmemory/region/r/register", "",
			`{"key":"/triton_python_backend_shm_region_1","offset":0,"byte_size":8}`), 400, "belongs to a backend"},
		{"a region outside /dev/shm", shmSource, Post("/v2/systemsharedmemory/region/r/register", "",
			`{"key":"/../../etc/passwd","offset":0,"byte_size":8}`), 400, "not the name of a shared memory object"},
		{"a log file", fileSource, Post("/v2/logging", "", `{"log_file":"/tmp/x"}`), 501, "log file location"},
		{"a trace file", fileSource, Post("/v2/trace/setting", "", `{"trace_file":["/tmp/x"]}`), 501, "trace file location"},
		{"a trace file of one model", fileSource, Post("/v2/models/identity/trace/setting", "", `{"trace_file":["/tmp/x"]}`), 501, "trace file location"},
	}...)
}

func names(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"name":"O%d"},`, i)
	}
	return strings.TrimSuffix(b.String(), ",")
}

func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"p%d":1,`, i)
	}
	return strings.TrimSuffix(b.String(), ",")
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	nethttp "net/http"
	"net/http/httptest"
	"runtime/metrics"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// post gives one request to a front without a network.
func post(h nethttp.Handler, path string, headerLength int, body []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequest(nethttp.MethodPost, path, bytes.NewReader(body))
	if headerLength >= 0 {
		r.Header.Set("Inference-Header-Content-Length", strconv.Itoa(headerLength))
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// accepted is an Inferer that keeps the requests that it gets.
type accepted struct {
	requests int
	inputs   []batch.Tensor
	data     [][]byte
	binary   bool // the front does not compare the size of binary tensors with their shapes: the server does
}

// Begin implements front.Inferer.
func (a *accepted) Begin(ctx context.Context, t *wire.Turn, r *batch.Request, then func(*wire.Turn, *batch.Response, error)) {
	inferFunc(a.infer).Begin(ctx, t, r, then)
}

func (a *accepted) infer(_ context.Context, r *batch.Request) (*batch.Response, error) {
	a.requests++
	a.inputs, a.data = r.Inputs, nil
	for _, in := range r.Inputs {
		a.data = append(a.data, in.Data.Materialize())
	}
	return &batch.Response{Model: r.Model, Version: "1", ID: r.ID}, nil
}

func newFront(i front.Inferer) *front.Handler {
	return front.New(front.Options{Inferer: i, Catalog: catalog{}, Picker: nowhere{}, Endpoints: nowhere{}, Aggregator: aggregator{}})
}

// allocated is how many bytes f allocates, by the runtime's statistics, which are
// exact only for large allocations.
func allocated(f func()) uint64 {
	read := func() uint64 {
		sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	before := read()
	f()
	return read() - before
}

// mostMemory is what n bytes of a request may make the front allocate, answer included.
func mostMemory(n int) uint64 { return 8<<20 + 64*uint64(n) }

// elementSizes are the datatypes whose elements are all of one size.
func elementSizes() map[string]int {
	return map[string]int{"BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4,
		"INT64": 8, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8}
}

// FuzzJSONRequest: whatever the body, the answer is JSON, and the tensors that are accepted are those that encoding/json
// reads from the same text.
func FuzzJSONRequest(f *testing.F) {
	for _, seed := range []string{
		`{"inputs":[{"name":"INPUT0","shape":[1,2],"datatype":"FP32","data":[1,2.5e3]}]}`,
		`{"id":"é\u00e9","parameters":{"timeout":1,"a":-1.5},"inputs":[],"outputs":[{"name":"O","parameters":{"classification":1}}]}`,
		`{"inputs":[{"name":"I","shape":[2],"datatype":"BYTES","data":["a\n",["\ud83d\ude00"]]}]}`,
		`{"inputs":[{"name":"I","shape":[99999999999,99999999999],"datatype":"INT8","data":[NaN,-Infinity]}]}`,
		`{"inputs":[{"name":"I","shape":[1,3],"datatype":"UINT16","data":[[65535],[0,70000]]},{"name":"J","shape":[2],"datatype":"BOOL","data":[true,false]}]}`,
		`{"inputs":[{"name":"I","shape":[2],"datatype":"INT64","data":[-9223372036854775808,0]},{"name":"J","shape":[1],"datatype":"FP64","data":[1e308]}]}`,
		`{"inputs":[{"parameters":{"binary_data_size":18446744073709551615}}]}`, `[[[[`, `{"`, `"\u`, `-`, ``,
	} {
		f.Add([]byte(seed))
	}
	a := &accepted{}
	h := newFront(a)
	defer h.Close()
	f.Fuzz(func(t *testing.T, body []byte) {
		a.requests = 0
		var w *httptest.ResponseRecorder
		used := allocated(func() { w = post(h, "/v2/models/nb_fp32/infer", len(body), body) })
		require.LessOrEqual(t, used, mostMemory(len(body)))
		requireAnswer(t, w, a)
		if w.Code != 200 || len(body) == 0 || bytes.ContainsAny(body, "NI\x00") || !utf8.Valid(body) || bytes.Contains(body, []byte(`\`)) {
			return // refused, or of a kind that encoding/json reads otherwise
		}
		if hasDuplicates(body) {
			return // the first counts here, the last there
		}
		var root map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(body, &root), "accepted what is no JSON")
		var want []map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(root["inputs"], &want))
		require.Len(t, a.inputs, len(want))
		for i, in := range want {
			var name, datatype string
			require.NoError(t, json.Unmarshal(in["name"], &name))
			require.NoError(t, json.Unmarshal(in["datatype"], &datatype))
			require.Equal(t, name, a.inputs[i].Name)
			require.Equal(t, datatype, a.inputs[i].Datatype)
			var shape []json.Number
			require.NoError(t, json.Unmarshal(in["shape"], &shape))
			require.Len(t, a.inputs[i].Shape, len(shape))
			count := int64(1)
			for k, d := range shape {
				require.Equal(t, strings.TrimPrefix(d.String(), "-"), strconv.FormatInt(a.inputs[i].Shape[k], 10))
				count *= a.inputs[i].Shape[k]
			}
			if data, ok := in["data"]; ok && count > 0 {
				require.Equal(t, string(flatten(t, a.inputs[i].Datatype, data)), string(a.data[i]), "input %d", i)
			}
		}
	})
}

// hasDuplicates reports whether any object has two members of one name.
func hasDuplicates(text []byte) bool {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var objects []map[string]bool
	isKey := []bool{}
	for {
		token, err := decoder.Token()
		if err != nil {
			return false
		}
		top := len(objects) - 1
		if name, ok := token.(string); ok && top >= 0 && objects[top] != nil && isKey[top] {
			if objects[top][name] {
				return true
			}
			objects[top][name] = true
			isKey[top] = false
			continue
		}
		if token == json.Delim('}') || token == json.Delim(']') {
			objects, isKey = objects[:top], isKey[:top]
			continue
		}
		if top >= 0 {
			isKey[top] = true // after a value comes a name
		}
		switch token {
		case json.Delim('{'):
			objects, isKey = append(objects, map[string]bool{}), append(isKey, true)
		case json.Delim('['):
			objects, isKey = append(objects, nil), append(isKey, false)
		}
	}
}

// flatten is the reference: the elements of nested arrays as raw bytes, by way of encoding/json and strconv.
func flatten(t *testing.T, datatype string, data json.RawMessage) []byte {
	var list []json.RawMessage
	if json.Unmarshal(data, &list) == nil {
		var out []byte
		for _, element := range list {
			out = append(out, flatten(t, datatype, element)...)
		}
		return out
	}
	text := string(data)
	if text == "-0" {
		text = "0" // an integer, as it is to Triton
	}
	le := binary.LittleEndian
	switch datatype {
	case "BYTES":
		var s string
		require.NoError(t, json.Unmarshal(data, &s))
		return append(le.AppendUint32(nil, uint32(len(s))), s...)
	case "BOOL":
		var b bool
		require.NoError(t, json.Unmarshal(data, &b))
		return []byte{map[bool]byte{true: 1}[b]}
	case "FP32":
		v, err := strconv.ParseFloat(text, 64)
		require.NoError(t, err)
		return le.AppendUint32(nil, math.Float32bits(float32(v)))
	case "FP64":
		v, err := strconv.ParseFloat(text, 64)
		require.NoError(t, err)
		return le.AppendUint64(nil, math.Float64bits(v))
	}
	u, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		i, err := strconv.ParseInt(text, 10, 64)
		require.NoError(t, err)
		u = uint64(i)
	}
	return le.AppendUint64(nil, u)[:elementSizes()[datatype]]
}

// requireAnswer holds for every answer of an infer route: JSON, with an error or after exactly one request, whose
// tensors are as long as their shapes say.
func requireAnswer(t *testing.T, w *httptest.ResponseRecorder, a *accepted) {
	if w.Code != 200 {
		require.True(t, json.Valid(bytes.ToValidUTF8(w.Body.Bytes(), []byte("?"))), w.Body.String())
		require.Contains(t, w.Body.String(), `{"error":`)
		require.Zero(t, a.requests)
		return
	}
	require.Equal(t, 1, a.requests)
	for i, in := range a.inputs {
		product := uint64(1)
		for _, d := range in.Shape {
			require.GreaterOrEqual(t, d, int64(0))
			if d > 0 {
				require.Less(t, product, uint64(math.MaxInt64)/uint64(d)+1, "a size that overflows: %v", in.Shape)
				product *= uint64(d)
			}
		}
		n, fixed := elementSizes()[in.Datatype]
		if _, shared := batch.FindParameter(in.Parameters, batch.ParameterSharedMemoryRegion); !fixed || shared || a.binary {
			continue
		}
		for _, d := range in.Shape {
			n *= int(d)
		}
		require.Len(t, a.data[i], n)
	}
}

// FuzzBinarySplit: binary tensors are exactly the bytes behind the JSON, in order, or the request is refused.
func FuzzBinarySplit(f *testing.F) {
	f.Add(uint64(4), uint64(8), 0, []byte("123412345678"))
	f.Add(uint64(0), uint64(0), 0, []byte{})
	f.Add(uint64(math.MaxUint64), uint64(1), 3, []byte("x"))
	f.Add(uint64(3), uint64(1), -2, []byte("1234"))
	a := &accepted{binary: true}
	h := newFront(a)
	defer h.Close()
	f.Fuzz(func(t *testing.T, first, second uint64, shift int, data []byte) {
		a.requests = 0
		head := fmt.Sprintf(`{"inputs":[{"name":"A","shape":[%[1]d],"datatype":"UINT8","parameters":{"binary_data_size":%[1]d}},`+
			`{"name":"B","shape":[%[2]d],"datatype":"UINT8","parameters":{"binary_data_size":%[2]d}}]}`, first, second)
		length, whole, tail := len(head), true, data
		switch {
		case shift < 0 && -shift < length:
			length, whole = length+shift, false
		case shift > 0 && shift < 1000:
			length += shift
			// White space after it still is JSON, and to RapidJSON a NUL ends the text.
			if whole = shift <= len(data); whole {
				behind := strings.TrimLeft(string(data[:shift]), " \t\r\n")
				whole, tail = behind == "" || behind[0] == 0, data[shift:]
			}
		}
		w := post(h, "/v2/models/nb_fp32/infer", length, append([]byte(head), data...))
		fits := whole && first <= uint64(len(tail)) && second == uint64(len(tail))-first
		require.Equal(t, fits, a.requests == 1, w.Body.String())
		if fits {
			require.Equal(t, 200, w.Code)
			require.Equal(t, string(tail[:first]), string(a.data[0]))
			require.Equal(t, string(tail[first:]), string(a.data[1]))
		}
	})
}

// FuzzHTTPRequest gives the front whole requests as they come off a connection, request line and headers included.
func FuzzHTTPRequest(f *testing.F) {
	body := `{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","parameters":{"binary_data_size":4}}]}`
	post := func(path, headers, body string) []byte {
		return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n%s", path, len(body), headers, body)
	}
	const infer = "/v2/models/id_fp32/infer"
	for _, length := range []string{strconv.Itoa(len(body)), "-1", "+98", "99999999999999999999", "0", "", "0x10", "98 98"} {
		f.Add(post(infer, "Inference-Header-Content-Length: "+length+"\r\n", body+"1234"))
	}
	f.Add(post(infer, "", `{"inputs":[{"name":"INPUT0","shape":[1,1],"datatype":"FP32","data":[1]}]}`))
	f.Add(post(infer, "Content-Encoding: gzip\r\n", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\xaa\xae\x05\x04\x00\x00\xff\xff\x43\xbf\xa6\xa3\x02\x00\x00\x00"))
	f.Add(post(infer, "Content-Encoding: deflate\r\nAccept-Encoding: gzip;q=0.1, deflate;q=nan\r\n", "\x78\x9c\xab\xae\x05\x00\x01\x75\x00\xf9"))
	f.Add([]byte("POST " + infer + " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"))
	f.Add([]byte("GET /v2/models/id_fp32/versions/99999999999999999999/config HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte("GET http://h/v2/health/live?x HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add(post("/v2/repository/index", "", `{"ready":true}`))
	f.Add(post("/v2/repository/models/m/load", "", `{"parameters":{"config":"{}"}}`))
	f.Add(post("/v2/systemsharedmemory/region/r/register", "", `{"key":"/k","offset":18446744073709551615,"byte_size":1}`))
	f.Add(post("/v2/models/id_fp32/generate", "", strings.Repeat("[", 100)))
	a := &accepted{}
	const limit = 64 << 10
	h := front.New(front.Options{Inferer: a, Catalog: catalog{}, Picker: nowhere{}, Endpoints: nowhere{}, Aggregator: indexed{}, MaxBodyBytes: limit})
	defer h.Close()
	f.Fuzz(func(t *testing.T, wire []byte) {
		r, err := nethttp.ReadRequest(bufio.NewReader(bytes.NewReader(wire)))
		if err != nil {
			return // net/http answers it
		}
		a.requests = 0
		a.binary = bytes.Contains(wire, []byte("binary_data_size")) || len(r.Header["Inference-Header-Content-Length"]) > 0 || len(r.Header["Content-Encoding"]) > 0
		w := httptest.NewRecorder()
		used := allocated(func() { h.ServeHTTP(w, r) })
		require.LessOrEqual(t, used, mostMemory(limit+len(wire)))
		require.LessOrEqual(t, w.Body.Len(), 64*(limit+len(wire)))
		switch {
		case w.Code >= 400 && w.Body.Len() > 0:
			require.True(t, json.Valid(bytes.ToValidUTF8(w.Body.Bytes(), []byte("?"))), w.Body.String())
			require.Zero(t, a.requests)
		case a.requests > 0:
			requireAnswer(t, w, a)
		default:
			require.Contains(t, []int{200, 400}, w.Code)
		}
	})
}

// indexed is an aggregator that has an empty index and unloads anything.
type indexed struct{ aggregator }

func (indexed) RepositoryIndex(context.Context, *tritonpb.RepositoryIndexRequest) (*tritonpb.RepositoryIndexResponse, error) {
	return &tritonpb.RepositoryIndexResponse{}, nil
}

func (indexed) RepositoryModelUnload(context.Context, *tritonpb.RepositoryModelUnloadRequest) (*tritonpb.RepositoryModelUnloadResponse, error) {
	return &tritonpb.RepositoryModelUnloadResponse{}, nil
}

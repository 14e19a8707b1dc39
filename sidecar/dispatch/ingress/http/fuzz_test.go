// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	nethttp "net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
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

// accepted is an inferer that keeps what it gets.
type accepted struct {
	requests int
	inputs   []batch.Tensor
	data     [][]byte
}

func (a *accepted) Infer(_ context.Context, r *batch.Request) (*batch.Response, error) {
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

// FuzzJSONRequest: whatever the body, the answer is JSON, and a tensor that gets through is as long as its shape says.
func FuzzJSONRequest(f *testing.F) {
	for _, seed := range []string{
		`{"inputs":[{"name":"INPUT0","shape":[1,2],"datatype":"FP32","data":[1,2.5e3]}]}`,
		`{"id":"é\u00e9","parameters":{"timeout":1,"a":-1.5},"inputs":[],"outputs":[{"name":"O","parameters":{"classification":1}}]}`,
		`{"inputs":[{"name":"I","shape":[2],"datatype":"BYTES","data":["a\n",["\ud83d\ude00"]]}]}`,
		`{"inputs":[{"name":"I","shape":[99999999999,99999999999],"datatype":"INT8","data":[NaN,-Infinity]}]}`,
		`{"inputs":[{"parameters":{"binary_data_size":18446744073709551615}}]}`, `[[[[`, `{"`, `"\u`, `-`, ``,
	} {
		f.Add([]byte(seed))
	}
	a := &accepted{}
	h := newFront(a)
	defer h.Close()
	f.Fuzz(func(t *testing.T, body []byte) {
		a.requests = 0
		w := post(h, "/v2/models/nb_fp32/infer", len(body), body)
		require.True(t, json.Valid(bytes.ToValidUTF8(w.Body.Bytes(), []byte("?"))), w.Body.String())
		if w.Code != 200 {
			require.Contains(t, w.Body.String(), `{"error":`)
			require.Zero(t, a.requests)
			return
		}
		sizes := map[string]int{"BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4,
			"INT64": 8, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8}
		for i, in := range a.inputs {
			if len(body) == 0 || in.Datatype == "BYTES" || len(in.Parameters) > 0 || bytes.Contains(body, []byte("binary_data_size")) {
				continue
			}
			n := sizes[in.Datatype]
			for _, d := range in.Shape {
				n *= int(d)
			}
			require.Len(t, a.data[i], n)
		}
	})
}

// FuzzBinarySplit: binary tensors are exactly the bytes behind the JSON, in order, or the request is refused.
func FuzzBinarySplit(f *testing.F) {
	f.Add(uint64(4), uint64(8), 0, []byte("123412345678"))
	f.Add(uint64(0), uint64(0), 0, []byte{})
	f.Add(uint64(math.MaxUint64), uint64(1), 3, []byte("x"))
	f.Add(uint64(3), uint64(1), -2, []byte("1234"))
	a := &accepted{}
	h := newFront(a)
	defer h.Close()
	f.Fuzz(func(t *testing.T, first, second uint64, shift int, data []byte) {
		a.requests = 0
		head := fmt.Sprintf(`{"inputs":[{"name":"A","shape":[%[1]d],"datatype":"UINT8","parameters":{"binary_data_size":%[1]d}},`+
			`{"name":"B","shape":[%[2]d],"datatype":"UINT8","parameters":{"binary_data_size":%[2]d}}]}`, first, second)
		length := len(head)
		if shift > 0 && shift < 1000 || shift < 0 && -shift < length {
			length += shift
		}
		w := post(h, "/v2/models/nb_fp32/infer", length, append([]byte(head), data...))
		fits := length == len(head) && first <= uint64(len(data)) && second == uint64(len(data))-first
		require.Equal(t, fits, a.requests == 1, w.Body.String())
		if fits {
			require.Equal(t, 200, w.Code)
			require.Equal(t, string(data[:first]), string(a.data[0]))
			require.Equal(t, string(data[first:]), string(a.data[1]))
		}
	})
}

// What goes in as JSON must come out as the same raw bytes as what goes in as binary, and come back the same both ways.
func TestJSONAndBinaryAgree(t *testing.T) {
	var raw []byte
	h := newFront(inferFunc(func(_ context.Context, r *batch.Request) (*batch.Response, error) {
		raw = r.Inputs[0].Data.Materialize()
		return compute(t, r), nil
	}))
	defer h.Close()
	rapid.Check(t, func(t *rapid.T) {
		le := binary.LittleEndian
		var texts []string
		var want []byte
		number := func(bits int) {
			v := rapid.Int64Range(-1<<(bits-1), 1<<(bits-1)-1).Draw(t, "int")
			texts = append(texts, strconv.FormatInt(v, 10))
			want = append(want, le.AppendUint64(nil, uint64(v))[:bits/8]...)
		}
		datatype := rapid.SampledFrom([]string{"INT8", "INT16", "INT32", "INT64", "UINT64", "FP32", "FP64", "BOOL", "BYTES"}).Draw(t, "datatype")
		n := rapid.IntRange(0, 20).Draw(t, "n")
		for range n {
			switch datatype {
			case "INT8":
				number(8)
			case "INT16":
				number(16)
			case "INT32":
				number(32)
			case "INT64":
				number(64)
			case "UINT64":
				v := rapid.Uint64().Draw(t, "uint")
				texts, want = append(texts, strconv.FormatUint(v, 10)), le.AppendUint64(want, v)
			case "FP32":
				v := rapid.Float32().Draw(t, "float")
				texts, want = append(texts, strconv.FormatFloat(float64(v), 'g', -1, 32)), le.AppendUint32(want, math.Float32bits(v))
			case "FP64":
				v := rapid.Float64().Draw(t, "double")
				texts, want = append(texts, strconv.FormatFloat(v, 'e', -1, 64)), le.AppendUint64(want, math.Float64bits(v))
			case "BOOL":
				v := rapid.Bool().Draw(t, "bool")
				texts = append(texts, strconv.FormatBool(v))
				want = append(want, map[bool]byte{true: 1}[v])
			case "BYTES":
				v := rapid.String().Draw(t, "string")
				text, _ := json.Marshal(v)
				texts = append(texts, string(text))
				want = append(le.AppendUint32(want, uint32(len(v))), v...)
			}
		}
		for i, text := range texts { // -0 is the integer zero, as it is to Triton
			if (datatype == "FP32" || datatype == "FP64") && text == "-0" {
				texts[i] = "-0.0"
			}
		}
		model := map[string]string{"BYTES": "id_string"}[datatype]
		if model == "" {
			model = "id_" + strings.ToLower(datatype)
		}
		path := "/v2/models/" + model + "/infer"
		asJSON := post(h, path, -1, fmt.Appendf(nil, `{"inputs":[{"data":[%s],"datatype":%q,"shape":[1,%d],"name":"INPUT0"}]}`,
			strings.Join(texts, " , "), datatype, n))
		if asJSON.Code != 200 {
			t.Fatal(asJSON.Body.String())
		}
		if string(raw) != string(want) {
			t.Fatalf("JSON %v became %x, not %x", texts, raw, want)
		}
		head := fmt.Appendf(nil, `{"inputs":[{"name":"INPUT0","shape":[1,%d],"datatype":%q,"parameters":{"binary_data_size":%d}}]}`, n, datatype, len(want))
		asBinary := post(h, path, len(head), append(head, want...))
		if asBinary.Body.String() != asJSON.Body.String() {
			t.Fatalf("%s and %s", asBinary.Body, asJSON.Body)
		}
		var answer struct {
			Outputs []struct{ Data json.RawMessage }
		}
		if err := json.Unmarshal(asJSON.Body.Bytes(), &answer); err != nil {
			t.Fatal(err)
		}
		again := post(h, path, -1, fmt.Appendf(nil, `{"inputs":[{"name":"INPUT0","shape":[1,%d],"datatype":%q,"data":%s}]}`, n, datatype, answer.Outputs[0].Data))
		if string(raw) != string(want) || again.Body.String() != asJSON.Body.String() {
			t.Fatalf("%s did not come back as it went", answer.Outputs[0].Data)
		}
	})
}

// BenchmarkInfer is a request through the front without network and server.
func BenchmarkInfer(b *testing.B) {
	h := newFront(inferFunc(func(_ context.Context, r *batch.Request) (*batch.Response, error) {
		in := r.Inputs[0]
		in.Data.Ref()
		return &batch.Response{Model: r.Model, Version: "1", Outputs: []batch.Tensor{{Name: "OUTPUT0", Datatype: in.Datatype, Shape: in.Shape, Data: in.Data}}}, nil
	}))
	defer h.Close()
	for _, size := range []int{1 << 10, 600 << 10} {
		values := make([]byte, 0, size)
		texts := make([]string, size/4)
		for i := range size / 4 {
			v := float32(math.Sin(float64(i)))
			values = binary.LittleEndian.AppendUint32(values, math.Float32bits(v))
			texts[i] = strconv.FormatFloat(float64(v), 'g', -1, 32)
		}
		head := fmt.Appendf(nil, `{"inputs":[{"name":"INPUT0","shape":[1,%d],"datatype":"FP32","parameters":{"binary_data_size":%d}}],"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}`, size/4, size)
		run := func(name string, length int, body []byte) {
			b.Run(fmt.Sprintf("%s/%dKB", name, size>>10), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for b.Loop() {
					r := httptest.NewRequest(nethttp.MethodPost, "/v2/models/id_fp32/infer", bytes.NewReader(body))
					r.Header.Set("Inference-Header-Content-Length", strconv.Itoa(length))
					w := &sink{header: make(nethttp.Header)}
					h.ServeHTTP(w, r)
					if w.code != 200 {
						b.Fatal(w.code)
					}
				}
			})
		}
		run("binary", len(head), append(head, values...))
		text := fmt.Appendf(nil, `{"inputs":[{"name":"INPUT0","shape":[1,%d],"datatype":"FP32","data":[%s]}]}`, size/4, strings.Join(texts, ","))
		run("json", len(text), text)
	}
}

type sink struct {
	header nethttp.Header
	code   int
}

func (s *sink) Header() nethttp.Header      { return s.header }
func (s *sink) WriteHeader(code int)        { s.code = code }
func (s *sink) Write(b []byte) (int, error) { return io.Discard.Write(b) }

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

	"pgregory.net/rapid"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// A tensor that is sent as JSON must become the same raw bytes as one that is sent as binary, and the answers must be
// the same both ways.
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

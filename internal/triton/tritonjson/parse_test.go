// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package tritonjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/conch-serving/conch/internal/triton/tritonjson"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

func parse(t *testing.T, text string) tritonjson.Value {
	t.Helper()
	doc, err := tritonjson.Parse([]byte(text))
	require.NoError(t, err)
	return doc.Root()
}

func TestFind(t *testing.T) {
	long := strings.Repeat("1,", 1000) + "1"
	root := parse(t, ` { "a" : {"b":[`+long+`]} , "\u0063" : "x\"]}" , "a" : 5 , "e":{},"f":[] , "last":true } `)
	require.Equal(t, tritonjson.Object, root.Kind())
	a, ok := root.Find("a")
	require.True(t, ok)
	require.Equal(t, tritonjson.Object, a.Kind(), "the first of two")
	b, _ := a.Find("b")
	n := 0
	for range b.Elements() {
		n++
	}
	require.Equal(t, 1001, n)
	require.Equal(t, "["+long+"]", string(b.Raw()))
	c, ok := root.Find("c")
	require.True(t, ok)
	text, err := c.AsString()
	require.NoError(t, err)
	require.Equal(t, `x"]}`, text)
	last, _ := root.Find("last")
	yes, err := last.AsBool()
	require.NoError(t, err)
	require.True(t, yes)
	_, ok = root.Find("nothing")
	require.False(t, ok)
	_, ok = c.Find("x")
	require.False(t, ok, "a string has no members")
	for range root.Elements() {
		t.Fatal("an object has no elements")
	}
	var absent tritonjson.Value
	require.Equal(t, tritonjson.Absent, absent.Kind())
	_, ok = absent.Find("x")
	require.False(t, ok)
	require.Error(t, absent.CheckArray())
}

func TestKindsAndConversions(t *testing.T) {
	for text, kind := range map[string]tritonjson.Kind{
		"null": tritonjson.Null, "true": tritonjson.Bool, "5": tritonjson.Integer, "-5": tritonjson.Integer, "5.0": tritonjson.Double,
		"5e0": tritonjson.Double, "NaN": tritonjson.Double, "-Inf": tritonjson.Double, "Infinity": tritonjson.Double,
		"18446744073709551615": tritonjson.Integer, "18446744073709551616": tritonjson.Double,
		"-9223372036854775808": tritonjson.Integer, "-9223372036854775809": tritonjson.Double,
		`""`: tritonjson.String, "[]": tritonjson.Array, "{}": tritonjson.Object,
	} {
		require.Equal(t, kind, parse(t, text).Kind(), text)
	}
	for text, want := range map[string]float64{
		"0": 0, "1": 1, "-1.5e3": -1500, "0.1": 0.1, "1e22": 1e22, "1e23": 1e23, "123456789012345678901234567890": 123456789012345678901234567890.,
		"1E-5": 1e-5, "-Infinity": math.Inf(-1), "Inf": math.Inf(1), "1e-400": 0, "0.000000000000000000000000000000123": 1.23e-31,
		"9007199254740993": 9007199254740992, "18446744073709551615": 18446744073709551615.,
	} {
		got, err := parse(t, text).AsDouble()
		require.NoError(t, err)
		require.Equal(t, want, got, text)
	}
	f, err := parse(t, "-0").AsDouble()
	require.NoError(t, err)
	require.False(t, math.Signbit(f))
	f, err = parse(t, "-0.0").AsDouble()
	require.NoError(t, err)
	require.True(t, math.Signbit(f))
	_, err = parse(t, `"5"`).AsDouble()
	require.EqualError(t, err, "attempt to access JSON non-number as double")
	_, err = parse(t, "-1").AsUint()
	require.EqualError(t, err, "attempt to access JSON non-unsigned-integer as unsigned-integer")
	_, err = parse(t, "9223372036854775808").AsInt()
	require.EqualError(t, err, "attempt to access JSON non-signed-integer as signed-integer")
}

func TestDepth(t *testing.T) {
	nested := func(n int) []byte { return []byte(strings.Repeat("[", n) + strings.Repeat("]", n)) }
	_, err := tritonjson.Parse(nested(tritonjson.MaxDepth))
	require.NoError(t, err)
	_, err = tritonjson.Parse(nested(tritonjson.MaxDepth + 1))
	var depth *tritonjson.DepthError
	require.ErrorAs(t, err, &depth)
}

// FuzzParse compares with encoding/json, which accepts the same texts but for what Triton's parser allows and forbids.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{`{"a":[1,2.5e-3,"x\u00e9\n",null,true]}`, ` [ ] `, `"\ud83d\ude00"`, `-0.0`, `{"a":{"b":[[]]}}`, "1e999", "[1,]", `{"a" 1}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		doc, err := tritonjson.Parse(text)
		var depth *tritonjson.DepthError
		if errors.As(err, &depth) || bytes.ContainsAny(text, "NI\x00") || !utf8.Valid(text) || bytes.Contains(bytes.ToLower(text), []byte(`\ud`)) {
			return
		}
		var value any
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.UseNumber()
		want := json.Valid(text)
		if want && bytes.ContainsAny(text, "0123456789") && json.Unmarshal(text, &value) != nil {
			want = false // a number that no double holds
		}
		require.Equal(t, want, err == nil, "%q: %v", text, err)
		if err != nil {
			return
		}
		require.Equal(t, string(bytes.TrimSpace(text)), string(doc.Root().Raw()))
		walk(t, doc.Root())
	})
}

// walk reads every value and compares the texts of parts with the results of encoding/json.
func walk(t *testing.T, v tritonjson.Value) {
	var want any
	require.NoError(t, json.Unmarshal(v.Raw(), &want))
	switch v.Kind() {
	case tritonjson.Array:
		n := 0
		for e := range v.Elements() {
			walk(t, e)
			n++
		}
		require.Len(t, want, n)
	case tritonjson.Object:
		for name, m := range v.Members() {
			require.Contains(t, want, name)
			walk(t, m)
		}
	case tritonjson.String:
		s, err := v.AsString()
		require.NoError(t, err)
		require.Equal(t, want, s)
	case tritonjson.Integer, tritonjson.Double:
		f, err := v.AsDouble()
		require.NoError(t, err)
		require.InDelta(t, want, f, 0)
	}
}

func TestTensorTexts(t *testing.T) {
	for _, c := range []struct{ datatype, text, want string }{
		{"BOOL", "[true,[false]]", "true,false"}, {"UINT8", "[255,256]", "255,0"}, {"INT8", "[128]", "-128"}, {"UINT16", "[65535]", "65535"},
		{"INT16", "[-1]", "-1"}, {"UINT32", "[4294967295]", "4294967295"}, {"INT32", "[-2147483648]", "-2147483648"},
		{"UINT64", "[18446744073709551615]", "18446744073709551615"}, {"INT64", "[-9223372036854775808]", "-9223372036854775808"},
		{"FP32", "[0.1,NaN]", "0.10000000149011612,NaN"}, {"FP64", "[0.1]", "0.1"},
		{"BYTES", `["a\u0001\u001F\"\\\/",""]`, `"a\u0001\u001F\"\\/",""`},
	} {
		count := int64(strings.Count(c.want, ",") + 1)
		raw, err := tritonjson.ReadTensor(parse(t, c.text), c.datatype, count)
		require.NoError(t, err)
		text, err := tritonjson.AppendTensor(nil, c.datatype, raw, count)
		require.NoError(t, err)
		require.Equal(t, c.want, string(text))
		if c.datatype != "BYTES" {
			_, err = tritonjson.ReadTensor(parse(t, c.text), c.datatype, count+1)
			require.ErrorIs(t, err, tritonjson.ErrShape)
			_, err = tritonjson.ReadTensor(parse(t, c.text), c.datatype, count-1)
			require.ErrorIs(t, err, tritonjson.ErrShape)
		}
		_, err = tritonjson.AppendTensor(nil, c.datatype, raw[:len(raw)-1], count)
		require.ErrorIs(t, err, tritonjson.ErrTensorSize)
	}
	_, err := tritonjson.AppendTensor(nil, "FP16", []byte("ab"), 1)
	require.Error(t, err)
	_, err = tritonjson.AppendTensor(nil, "FP99", nil, 0)
	require.Error(t, err)
	for datatype, count := range map[string]int64{"FP32": 1 << 62, "FP64": 1 << 61, "INT16": -1 << 63} { // their sizes overflow to zero
		_, err = tritonjson.AppendTensor(nil, datatype, nil, count)
		require.ErrorIs(t, err, tritonjson.ErrTensorSize)
	}
}

func TestMessages(t *testing.T) {
	index := &tritonpb.RepositoryIndexResponse{Models: []*tritonpb.RepositoryIndexResponse_ModelIndex{
		{Name: "a"}, {Name: "b", Version: "1", State: "READY"}, {Name: "c", Version: "2", State: "UNAVAILABLE", Reason: "unloaded"}}}
	require.Equal(t, `[{"name":"a"},{"name":"b","version":"1","state":"READY"},{"name":"c","version":"2","state":"UNAVAILABLE","reason":"unloaded"}]`,
		string(tritonjson.RepositoryIndex(index)))
	d := func(n uint64) *tritonpb.StatisticDuration { return &tritonpb.StatisticDuration{Count: n, Ns: n * 10} }
	zero := `{"count":0,"ns":0}`
	require.Equal(t, fmt.Sprintf(`{"model_stats":[{"name":"m","version":"1","last_inference":5,"inference_count":6,"execution_count":7,`+
		`"inference_stats":{"success":{"count":1,"ns":10},"fail":%[1]s,"queue":%[1]s,"compute_input":%[1]s,"compute_infer":%[1]s,"compute_output":%[1]s,"cache_hit":%[1]s,"cache_miss":%[1]s},`+
		`"response_stats":{"0":{"compute_infer":%[1]s,"compute_output":%[1]s,"success":{"count":2,"ns":20},"fail":%[1]s,"empty_response":%[1]s,"cancel":%[1]s}},`+
		`"batch_stats":[{"batch_size":8,"compute_input":%[1]s,"compute_infer":{"count":3,"ns":30},"compute_output":%[1]s}],"memory_usage":[{"type":"GPU","id":1,"byte_size":9}]}]}`, zero),
		string(tritonjson.Message(&tritonpb.ModelStatisticsResponse{ModelStats: []*tritonpb.ModelStatistics{{Name: "m", Version: "1",
			LastInference: 5, InferenceCount: 6, ExecutionCount: 7, InferenceStats: &tritonpb.InferStatistics{Success: d(1)},
			ResponseStats: map[string]*tritonpb.InferResponseStatistics{"0": {Success: d(2)}},
			BatchStats:    []*tritonpb.InferBatchStatistics{{BatchSize: 8, ComputeInfer: d(3)}},
			MemoryUsage:   []*tritonpb.MemoryUsage{{Type: "GPU", Id: 1, ByteSize: 9}}}}})))
}

// TestModelConfig: a real server was asked for the same configuration over gRPC (.txtpb) and over HTTP (.json).
func TestModelConfig(t *testing.T) {
	for _, name := range []string{"simple", "seq", "dec"} {
		message, err := os.ReadFile("testdata/config-" + name + ".txtpb")
		require.NoError(t, err)
		config := &tritonpb.ModelConfig{}
		require.NoError(t, prototext.Unmarshal(message, config))
		want, err := os.ReadFile("testdata/config-" + name + ".json")
		require.NoError(t, err)
		require.Equal(t, string(want), string(tritonjson.Message(config)))
	}
}

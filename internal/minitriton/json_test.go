// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/clock"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

func TestParseJSONFaults(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "The document is empty. at 0",
		"   ":                     "The document is empty. at 3",
		"\x00{}":                  "The document is empty. at 0",
		"{x":                      "Missing a name for object member. at 1",
		`{"a" 1}`:                 "Missing a colon after a name of object member. at 5",
		`{"a":}`:                  "Invalid value. at 5",
		`{"a":1`:                  "Missing a comma or '}' after an object member. at 6",
		`[1,2`:                    "Missing a comma or ']' after an array element. at 4",
		`{"a":1,}`:                "Missing a name for object member. at 7",
		`"abc`:                    "Missing a closing quotation mark in string. at 0",
		`"\q"`:                    "Invalid escape character in string. at 1",
		`"\u12"`:                  `Incorrect hex digit after \u escape in string. at 1`,
		`"\ud800x"`:               "The surrogate pair in string is invalid. at 1",
		"{} x":                    "The document root must not be followed by other values. at 3",
		"1.":                      "Miss fraction part in number. at 2",
		"1e+":                     "Miss exponent in number. at 3",
		"1e999":                   "Number too big to be stored in double. at 0",
		"-":                       "Invalid value. at 1",
		"tru":                     "Invalid value. at 3",
		strings.Repeat("[", 2000): "Terminate parsing due to nesting. at 1001",
	} {
		_, err := parseJSON([]byte(text))
		require.EqualError(t, err, "failed to parse the request JSON buffer: "+want, "%.20q", text)
	}
}

func TestParseJSONKinds(t *testing.T) {
	v, err := parseJSON([]byte("{\"s\":\"a\\u00e9\\ud83d\\ude00\\n\",\"i\":-5,\"u\":18446744073709551615,\"d\":1.5,\"n\":NaN,\"inf\":[Infinity,-Inf],\"b\":true,\"z\":null}\x00junk"))
	require.NoError(t, err)
	s, err := v.get("s").asString()
	require.NoError(t, err)
	require.Equal(t, "aé😀\n", s)
	i, err := v.get("i").asInt()
	require.NoError(t, err)
	require.Equal(t, int64(-5), i)
	_, err = v.get("i").asUint()
	require.EqualError(t, err, "attempt to access JSON non-unsigned-integer as unsigned-integer")
	u, err := v.get("u").asUint()
	require.NoError(t, err)
	require.Equal(t, uint64(math.MaxUint64), u)
	_, err = v.get("u").asInt()
	require.Error(t, err)
	n, err := v.get("n").asDouble()
	require.NoError(t, err)
	require.True(t, math.IsNaN(n))
	low, err := v.get("inf").items[1].asDouble()
	require.NoError(t, err)
	require.True(t, math.IsInf(low, -1))
	require.False(t, v.get("missing").present)
	_, err = v.member("missing")
	require.EqualError(t, err, "attempt to access non-existing object member 'missing'")
}

func TestAppendDouble(t *testing.T) {
	for f, want := range map[float64]string{
		1: "1.0", 2.5: "2.5", -3: "-3.0", 0.1: "0.1", 123456792: "123456792.0", 1e20: "100000000000000000000.0", 1e21: "1e21", 1.5e22: "1.5e22",
		1e-5: "0.00001", 0.000001: "0.000001", 1e-7: "1e-7", float64(float32(1e-7)): "1.0000000116860974e-7", float64(float32(1e30)): "1.0000000150474662e30",
		math.Inf(1): "Infinity", math.Inf(-1): "-Infinity", math.MaxFloat64: "1.7976931348623157e308",
	} {
		require.Equal(t, want, string(appendDouble(nil, f)))
	}
	require.Equal(t, "-0.0", string(appendDouble(nil, math.Copysign(0, -1))))
	require.Equal(t, "NaN", string(appendDouble(nil, math.NaN())))
}

// FuzzParseJSON holds the reader to encoding/json wherever that can read, and the writers to the reader.
func FuzzParseJSON(f *testing.F) {
	for _, s := range []string{`{"inputs":[{"name":"x","shape":[1,2],"data":[[1,2.5e3]]}]}`, `[NaN,-Infinity]`, `"\ud83d\ude00"`, "1e999", "[[[", "{}\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := parseJSON(data)
		var std any
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.UseNumber()
		stdErr := dec.Decode(&std)
		if stdErr == nil && json.Valid(data) && err != nil && utf8.Valid(data) &&
			!strings.Contains(err.Error(), "nesting") && !strings.Contains(err.Error(), "too big") && !strings.Contains(err.Error(), "surrogate") {
			t.Fatalf("encoding/json reads %q, parseJSON says %v", data, err)
		}
		if err == nil && json.Valid(data) && utf8.Valid(data) {
			same(t, v, std)
		}
	})
}

// same compares a value with what encoding/json made of the same text.
func same(t *testing.T, v jsonValue, std any) {
	t.Helper()
	switch s := std.(type) {
	case nil:
		require.Equal(t, jsonNull, v.kind)
	case bool:
		b, err := v.asBool()
		require.NoError(t, err)
		require.Equal(t, s, b)
	case string:
		require.Equal(t, jsonString, v.kind)
		if !strings.ContainsRune(s, utf8.RuneError) { // encoding/json mends what RapidJSON lets through
			require.Equal(t, s, v.str)
		}
	case json.Number:
		want, err := strconv.ParseFloat(s.String(), 64)
		require.NoError(t, err)
		got, err := v.asDouble()
		require.NoError(t, err)
		require.InDelta(t, want, got, 0)
	case []any:
		require.Len(t, v.items, len(s))
		for i := range s {
			same(t, v.items[i], s[i])
		}
	case map[string]any:
		require.GreaterOrEqual(t, len(v.names), len(s), "a name may stand twice")
	}
}

func FuzzAppendString(f *testing.F) {
	f.Add("a\"\\\n\x01é\xff")
	f.Fuzz(func(t *testing.T, s string) {
		v, err := parseJSON(appendString(nil, s))
		require.NoError(t, err)
		require.Equal(t, s, v.str)
	})
}

func FuzzAppendDouble(f *testing.F) {
	f.Add(1.5)
	f.Fuzz(func(t *testing.T, x float64) {
		v, err := parseJSON(appendDouble(nil, x))
		require.NoError(t, err)
		got, err := v.asDouble()
		require.NoError(t, err)
		if math.IsNaN(x) {
			require.True(t, math.IsNaN(got))
			return
		}
		require.Equal(t, math.Float64bits(x), math.Float64bits(got))
	})
}

// FuzzReadJSON reads any body with any header as an inference and must never fail but with a refusal; what it accepts fits the model.
func FuzzReadJSON(f *testing.F) {
	config, err := parseConfig("m", []byte(`name: "m" backend: "python" max_batch_size: 4
		input [ { name: "A" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "S" data_type: TYPE_STRING dims: [ 2 ] } ]
		output [ { name: "O" data_type: TYPE_FP32 dims: [ -1 ] } ]`))
	require.NoError(f, err)
	m := newModel(config, 1, identity{}, clock.Timers())
	f.Cleanup(m.stop)
	h := &httpFront{server: &Server{}}
	f.Add([]byte(`{"inputs":[{"name":"A","datatype":"FP32","shape":[1,2],"data":[1,2]},{"name":"S","datatype":"BYTES","shape":[1,2],"data":["a","b"]}]}`), "")
	f.Add([]byte(`{"inputs":[{"name":"A","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}}]}12345678`), "93")
	f.Add([]byte(`{"inputs":[{"name":"A","datatype":"FP32","shape":[4611686018427387904,4],"data":[1]}]}`), "")
	f.Fuzz(func(t *testing.T, data []byte, length string) {
		header, tensors, raw, err := splitBody(data, length)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(header)+len(tensors), len(data))
		r := &request{ctx: t.Context()}
		if raw {
			r.raw, r.inputs = true, []tensor{{data: tensors}}
		} else if h.readJSON(header, tensors, m, r, &outputForm{}) != nil {
			return
		}
		if m.prepare(r) != nil {
			return
		}
		require.LessOrEqual(t, r.rows, 4)
		for _, in := range r.inputs {
			if in.dtype == pb.DataType_TYPE_FP32 {
				require.Equal(t, elements(in.shape)*4, int64(len(in.data)), "%v", in.shape)
				continue
			}
			n, whole := eachString(in.data, func([]byte) bool { return true })
			require.True(t, whole)
			require.Equal(t, elements(in.shape), int64(n))
		}
	})
}

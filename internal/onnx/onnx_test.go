// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package onnx_test

import (
	"encoding/binary"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/conch-serving/conch/internal/onnx"
)

// memory is a source of tensors whose elements a test gave.
type memory map[string][]byte

func (m memory) Reader(t *onnx.Tensor) (io.Reader, error) {
	return strings.NewReader(string(m[t.Name])), nil
}
func (m memory) Strings(t *onnx.Tensor) ([][]byte, error) { return [][]byte{m[t.Name]}, nil }

func floats(values ...float32) []byte {
	var out []byte
	for _, v := range values {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}

func tensorOf(name string, kind onnx.DataType, dims ...int64) *onnx.Tensor {
	return &onnx.Tensor{Name: name, Type: kind, Dims: dims}
}

func value(name string, dims ...onnx.Dim) *onnx.Value {
	return &onnx.Value{Name: name, Type: onnx.Type{Kind: onnx.TensorKind, Elem: onnx.Float, HasShape: true, Dims: dims}}
}

// everything is a model with one of each thing that an index holds.
func everything() (*onnx.Model, memory) {
	batch := onnx.Dim{Size: -1, Name: "N"}
	g := &onnx.Graph{Name: "g", Inputs: []*onnx.Value{value("x", batch, onnx.Dim{Size: 3})}, Outputs: []*onnx.Value{value("y", onnx.Dim{Size: -1})}}
	g.AddInitializer(tensorOf("w", onnx.Float, 3, 2))
	g.AddInitializer(tensorOf("large", onnx.Uint8, 5000))
	g.AddInitializer(tensorOf("s", onnx.String, 1))
	branch := &onnx.Graph{
		Name: "then", Outputs: []*onnx.Value{value("t")},
		Nodes: []*onnx.Node{{Op: "Relu", Inputs: []string{"m"}, Outputs: []string{"t"}}},
	}
	inner := onnx.Type{Kind: onnx.TensorKind, Elem: onnx.Int64}
	g.Nodes = []*onnx.Node{
		{Name: "first", Op: "MatMul", Inputs: []string{"x", "w"}, Outputs: []string{"m"}},
		{Op: "If", Inputs: []string{"c", ""}, Outputs: []string{"y"}, Attributes: []*onnx.Attribute{
			{Name: "then_branch", Kind: onnx.KindGraph, Graph: branch},
			{Name: "branches", Kind: onnx.KindGraphs, Graphs: []*onnx.Graph{branch}},
			{Name: "i", Kind: onnx.KindInt, Int: -7}, {Name: "zero", Kind: onnx.KindInt},
			{Name: "f", Kind: onnx.KindFloat, Float: 1.5},
			{Name: "s", Kind: onnx.KindString, String: []byte{0xff, 'x'}},
			{Name: "is", Kind: onnx.KindInts, Ints: []int64{-1, 1 << 40}},
			{Name: "fs", Kind: onnx.KindFloats, Floats: []float32{.5, -2}},
			{Name: "ss", Kind: onnx.KindStrings, Strings: [][]byte{[]byte("a"), []byte("b")}},
			{Name: "t", Kind: onnx.KindTensor, Tensor: tensorOf("constant", onnx.Float, 2)},
			{Name: "ts", Kind: onnx.KindTensors, Tensors: []*onnx.Tensor{tensorOf("constant", onnx.Float, 2)}},
			{Name: "tp", Kind: onnx.KindType, Types: []*onnx.Type{{Kind: onnx.SequenceKind, Inner: &inner}}},
			{Name: "tps", Kind: onnx.KindTypes, Types: []*onnx.Type{{Kind: onnx.MapKind, Elem: onnx.String, Inner: &inner}, {Kind: onnx.OptionalKind, Inner: &inner}}},
			{Name: "r", Kind: onnx.KindInt, RefName: "outer"},
		}},
		{Name: "last", Op: "Mine", Domain: "custom", Overload: "o", Inputs: []string{"y"}, Outputs: []string{"c"}},
	}
	m := &onnx.Model{
		IR: 10, Producer: "conch", ProducerVersion: "1", Domain: "d", Version: 3, Opsets: map[string]int64{"": 17, "custom": 1}, Graph: g,
		Metadata: map[string]string{"k": "v"},
		Functions: []*onnx.Function{{
			Name: "Mine", Domain: "custom", Overload: "o", Inputs: []string{"a"}, Outputs: []string{"b"}, AttributeNames: []string{"n"},
			Attributes: []*onnx.Attribute{{Name: "d", Kind: onnx.KindInt, Int: 1}},
			Nodes:      []*onnx.Node{{Op: "Neg", Inputs: []string{"a"}, Outputs: []string{"b"}}}, Opsets: map[string]int64{"": 17},
		}},
	}
	return m, memory{
		"w": floats(1, 2, 3, 4, 5, 6), "large": []byte(strings.Repeat("0123456789", 500)), "s": []byte("text"), "constant": floats(8, 9),
	}
}

// asWritten compares indices, but not where elements lie.
var asWritten = cmp.Options{
	cmpopts.IgnoreUnexported(onnx.Model{}, onnx.Graph{}), cmpopts.IgnoreFields(onnx.Tensor{}, "Location"),
	cmpopts.IgnoreFields(onnx.Model{}, "Path"), cmpopts.EquateEmpty(),
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	want, data := everything()
	dir := t.TempDir()
	path := filepath.Join(dir, "model.onnx")
	require.NoError(t, onnx.Write(path, want, data))
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{path, path + ".data"}, files, "nothing temporary stays")

	got, err := onnx.Open(path)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(want, got, asWritten))
	require.Equal(t, "model.onnx.data", got.Graph.Initializer("large").Location.File)
	for _, x := range got.Graph.Initializers[:2] {
		have, err := got.Data(x)
		require.NoError(t, err)
		require.Equal(t, data[x.Name], have, x.Name)
	}
	text, err := got.Strings(got.Graph.Initializer("s"))
	require.NoError(t, err)
	require.Equal(t, [][]byte{[]byte("text")}, text)
	_, err = got.Data(got.Graph.Initializer("s"))
	require.ErrorContains(t, err, "strings")
	constant, err := got.Float32s(got.Graph.Nodes[1].Attribute("t").Tensor)
	require.NoError(t, err)
	require.Equal(t, []float32{8, 9}, constant)
	require.NoError(t, got.Close())
	_, err = got.Data(got.Graph.Initializer("w"))
	require.ErrorContains(t, err, "closed")

	// A model without large tensors needs no second file, and takes that of its predecessor away.
	want.Graph.Initializers = want.Graph.Initializers[:1]
	require.NoError(t, onnx.Write(path, want, data))
	require.NoFileExists(t, path+".data")
}

func TestExternalDataIsAligned(t *testing.T) {
	g := &onnx.Graph{Name: "g"}
	data := memory{}
	for _, name := range []string{"a", "b", "c"} {
		g.AddInitializer(tensorOf(name, onnx.Uint8, 5000))
		data[name] = []byte(strings.Repeat(name, 5000))
	}
	path := filepath.Join(t.TempDir(), "m.onnx")
	require.NoError(t, onnx.Write(path, &onnx.Model{Graph: g}, data))
	m, err := onnx.Open(path)
	require.NoError(t, err)
	defer m.Close() //nolint:errcheck // only read from
	for i, x := range m.Graph.Initializers {
		require.EqualValues(t, 2*i*onnx.Alignment, x.Location.Offset)
		have, err := m.Data(x)
		require.NoError(t, err)
		require.Equal(t, data[x.Name], have)
	}
}

func TestASourceThatGivesTooFewBytesIsAnError(t *testing.T) {
	for _, size := range []int64{8, 5000} {
		g := &onnx.Graph{Name: "g"}
		g.AddInitializer(tensorOf("w", onnx.Uint8, size))
		path := filepath.Join(t.TempDir(), "m.onnx")
		require.ErrorContains(t, onnx.Write(path, &onnx.Model{Graph: g}, memory{"w": []byte("few")}), `"w"`)
		left, err := os.ReadDir(filepath.Dir(path))
		require.NoError(t, err)
		require.Empty(t, left, "nothing half written stays")
	}
}

// The same elements in every field that may hold them.
func TestTypedFields(t *testing.T) {
	varints := func(number protowire.Number, packed bool, values ...uint64) []byte {
		var out, all []byte
		for _, v := range values {
			all = protowire.AppendVarint(all, v)
			out = protowire.AppendVarint(protowire.AppendTag(out, number, protowire.VarintType), v)
		}
		if packed {
			return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), all)
		}
		return out
	}
	minusTwo := uint64(math.MaxUint64 - 1)
	one := protowire.AppendFixed32(nil, math.Float32bits(1))
	double := protowire.AppendFixed64(nil, math.Float64bits(1))
	pack := func(number protowire.Number, b []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), b)
	}
	for _, c := range []struct {
		name     string
		kind     onnx.DataType
		elements int64
		field    []byte
		want     []byte
	}{
		{"float, packed", onnx.Float, 2, pack(4, append(append([]byte{}, one...), one...)), floats(1, 1)},
		{"float, single", onnx.Float, 1, append(protowire.AppendTag(nil, 4, protowire.Fixed32Type), one...), floats(1)},
		{"float, packed twice", onnx.Float, 2, append(pack(4, one), pack(4, one)...), floats(1, 1)},
		{"double, packed", onnx.Double, 1, pack(10, double), double},
		{"double, single", onnx.Double, 1, append(protowire.AppendTag(nil, 10, protowire.Fixed64Type), double...), double},
		{"int64, packed", onnx.Int64, 2, varints(7, true, 1, minusTwo), binary.LittleEndian.AppendUint64([]byte{1, 0, 0, 0, 0, 0, 0, 0}, minusTwo)},
		{"int64, single", onnx.Int64, 1, varints(7, false, minusTwo), binary.LittleEndian.AppendUint64(nil, minusTwo)},
		{"int32", onnx.Int32, 1, varints(5, true, minusTwo), []byte{0xfe, 0xff, 0xff, 0xff}},
		{"int8", onnx.Int8, 2, varints(5, true, minusTwo, 3), []byte{0xfe, 3}},
		{"bool", onnx.Bool, 2, varints(5, true, 1, 0), []byte{1, 0}},
		{"float16", onnx.Float16, 1, varints(5, true, 0x3c00), []byte{0, 0x3c}},
		{"int4, two in one", onnx.Int4, 3, varints(5, true, 0x21, 0x3), []byte{0x21, 3}},
		{"uint64", onnx.Uint64, 1, varints(11, true, minusTwo), binary.LittleEndian.AppendUint64(nil, minusTwo)},
		{"uint32", onnx.Uint32, 1, varints(11, true, 9), []byte{9, 0, 0, 0}},
		{"raw", onnx.Float, 1, pack(9, one), one},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := readBytes(modelOf(tensorMessage("w", c.kind, []int64{c.elements}, c.field)))
			require.NoError(t, err)
			got, err := m.Data(m.Graph.Initializers[0])
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func readBytes(b []byte) (*onnx.Model, error) {
	return onnx.Read(strings.NewReader(string(b)), int64(len(b)), "m.onnx", onnx.DefaultLimits())
}

func tensorMessage(name string, kind onnx.DataType, dims []int64, rest ...[]byte) []byte {
	var out []byte
	for _, d := range dims {
		out = protowire.AppendVarint(protowire.AppendTag(out, 1, protowire.VarintType), uint64(d)) //nolint:gosec // two's complement
	}
	out = protowire.AppendVarint(protowire.AppendTag(out, 2, protowire.VarintType), uint64(kind)) //nolint:gosec // small
	for _, r := range rest {
		out = append(out, r...)
	}
	return protowire.AppendString(protowire.AppendTag(out, 8, protowire.BytesType), name)
}

// modelOf is a model whose graph has these initializers.
func modelOf(initializers ...[]byte) []byte {
	var graph []byte
	for _, t := range initializers {
		graph = protowire.AppendBytes(protowire.AppendTag(graph, 5, protowire.BytesType), t)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, 7, protowire.BytesType), graph)
}

// The onnx package reads what Write wrote, and Open reads what the onnx package wrote.
func TestStubsReadAsONNX(t *testing.T) {
	python := os.Getenv("CONCH_PYTHON")
	if python == "" {
		t.Skip("CONCH_PYTHON is not set: make test sets it")
	}
	want, data := everything()
	dir := t.TempDir()
	ours, theirs := filepath.Join(dir, "ours.onnx"), filepath.Join(dir, "theirs.onnx")
	require.NoError(t, onnx.Write(ours, want, data))
	out, err := exec.CommandContext(t.Context(), python, "testdata/again.py", ours, theirs).CombinedOutput()
	require.NoError(t, err, string(out))
	got, err := onnx.Open(theirs)
	require.NoError(t, err)
	defer got.Close() //nolint:errcheck // only read from
	require.Empty(t, cmp.Diff(want, got, asWritten))
	have, err := got.Data(got.Graph.Initializer("large"))
	require.NoError(t, err)
	require.Equal(t, data["large"], have)
}

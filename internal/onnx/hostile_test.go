// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package onnx_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/conch-serving/conch/internal/modeldir"
	"github.com/conch-serving/conch/internal/onnx"
)

func externally(name string, entries ...string) []byte {
	out := tensorMessage(name, onnx.Float, []int64{2})
	for i := 0; i < len(entries); i += 2 {
		var e []byte
		e = protowire.AppendString(protowire.AppendTag(e, 1, protowire.BytesType), entries[i])
		e = protowire.AppendString(protowire.AppendTag(e, 2, protowire.BytesType), entries[i+1])
		out = protowire.AppendBytes(protowire.AppendTag(out, 13, protowire.BytesType), e)
	}
	return protowire.AppendVarint(protowire.AppendTag(out, 14, protowire.VarintType), 1)
}

func nested(levels int) []byte {
	graph := []byte{}
	for range levels {
		attribute := protowire.AppendBytes(protowire.AppendTag(nil, 6, protowire.BytesType), graph)
		node := protowire.AppendBytes(protowire.AppendTag(nil, 5, protowire.BytesType), attribute)
		graph = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), node)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, 7, protowire.BytesType), graph)
}

func TestHostileModelsAreRefused(t *testing.T) {
	huge := int64(1) << 62
	for _, c := range []struct {
		name    string
		message []byte
		says    string
	}{
		{"nothing", nil, "no graph"},
		{"text", []byte("this is not a model"), "m.onnx: byte"},
		{"two graphs", append(modelOf(), modelOf()...), "two graphs"},
		{"a length beyond the file", protowire.AppendVarint(protowire.AppendTag(nil, 7, protowire.BytesType), 1<<40), "bytes in a message with"},
		{"a negative dimension", modelOf(tensorMessage("w", onnx.Float, []int64{-1})), "dimension of -1"},
		{"a product that overflows", modelOf(tensorMessage("w", onnx.Float, []int64{huge, huge, huge})), "more than can be"},
		{"an unknown type", modelOf(tensorMessage("w", 99, []int64{1})), "unknown element type"},
		{"less data than dimensions", modelOf(tensorMessage("w", onnx.Float, []int64{1 << 40}, []byte{9<<3 | 2, 1, 0})), "has 1 bytes of data"},
		{"a name twice", modelOf(tensorMessage("w", onnx.Float, []int64{0}), tensorMessage("w", onnx.Float, []int64{0})), "two initializers"},
		{"a name that is not text", modelOf(tensorMessage("\xff", onnx.Float, []int64{0})), "UTF-8"},
		{"data above", modelOf(externally("w", "location", "../secret")), "outside of the model's directory"},
		{"data above, Windows", modelOf(externally("w", "location", `a\..\..\secret`)), "outside of the model's directory"},
		{"data at a root", modelOf(externally("w", "location", "/etc/passwd")), "outside of the model's directory"},
		{"data nowhere", modelOf(externally("w")), "outside of the model's directory"},
		{"data in the directory itself", modelOf(externally("w", "location", ".")), "in a directory"},
		{"data at a negative place", modelOf(externally("w", "location", "d", "offset", "-4")), "offset"},
		{"data of another length", modelOf(externally("w", "location", "d", "length", "4")), "has 4 bytes of data"},
		{"graphs in graphs", nested(100), "too deeply nested"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := readBytes(c.message)
			require.ErrorContains(t, err, c.says)
		})
	}
	_, err := readBytes(nested(10))
	require.NoError(t, err)
}

func TestAnIndexHasABound(t *testing.T) {
	var graph []byte
	for range 10000 {
		graph = protowire.AppendBytes(protowire.AppendTag(graph, 1, protowire.BytesType), nil)
	}
	b := protowire.AppendBytes(protowire.AppendTag(nil, 7, protowire.BytesType), graph)
	_, err := onnx.Read(bytes.NewReader(b), int64(len(b)), "m", onnx.Limits{Index: 1 << 20, Depth: 4})
	require.ErrorIs(t, err, onnx.ErrTooLarge)
	_, err = readBytes(b)
	require.NoError(t, err)
}

func TestEveryTruncationIsAnError(t *testing.T) {
	m, data := everything()
	whole, err := onnx.Marshal(m, data)
	require.NoError(t, err)
	for n := range len(whole) {
		_, err := onnx.Read(bytes.NewReader(whole[:n]), int64(len(whole)), "m", onnx.DefaultLimits())
		require.Error(t, err, "%d of %d bytes", n, len(whole))
	}
}

func TestExternalDataStaysInTheDirectory(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	require.NoError(t, os.WriteFile(secret, []byte("12345678"), 0o600))
	models := filepath.Join(dir, "models")
	require.NoError(t, os.Mkdir(models, 0o700))
	path := filepath.Join(models, "m.onnx")
	require.NoError(t, os.WriteFile(path, modelOf(externally("w", "location", "sub/../data", "offset", "4")), 0o600))
	data := func() ([]byte, error) {
		m, err := onnx.Open(path)
		require.NoError(t, err)
		defer m.Close() //nolint:errcheck // only read from
		return m.Data(m.Graph.Initializers[0])
	}
	_, err := data()
	require.ErrorIs(t, err, os.ErrNotExist, "an index does not need the weights, their reader does")
	require.NoError(t, os.Symlink(secret, filepath.Join(models, "data")))
	_, err = data()
	require.ErrorIs(t, err, modeldir.ErrOutside)
	require.NoError(t, os.Remove(filepath.Join(models, "data")))
	require.NoError(t, os.Mkdir(filepath.Join(models, "data"), 0o700))
	_, err = data()
	require.ErrorContains(t, err, "not a regular file")
	require.NoError(t, os.Remove(filepath.Join(models, "data")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(models, "data"), 0o600))
	_, err = data()
	require.ErrorIs(t, err, modeldir.ErrNotRegular, "and nothing waits for a writer")
	require.NoError(t, os.Remove(filepath.Join(models, "data")))
	require.NoError(t, os.WriteFile(filepath.Join(models, "data"), []byte("0123456789"), 0o600))
	_, err = data()
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.EqualError(t, err, path+`: tensor "w" (external data in data): 2 bytes are missing of the 8 that its type and dimensions want: unexpected EOF`)
	require.NoError(t, os.WriteFile(filepath.Join(models, "data"), []byte("0123456789ab"), 0o600))
	got, err := data()
	require.NoError(t, err)
	require.Equal(t, "456789ab", string(got))

	_, err = onnx.Open(models)
	require.ErrorContains(t, err, "not a regular file")
}

func TestDataHasALimit(t *testing.T) {
	b := modelOf(tensorMessage("w", onnx.Uint8, []int64{100}, []byte{9<<3 | 2, 100}, make([]byte, 100)))
	m, err := onnx.Read(bytes.NewReader(b), int64(len(b)), "m", onnx.Limits{Index: 1 << 20, Depth: 4, Data: 99})
	require.NoError(t, err)
	_, err = m.Data(m.Graph.Initializers[0])
	require.True(t, errors.Is(err, onnx.ErrTooLarge))
}

func TestOrder(t *testing.T) {
	node := func(outputs, inputs string, attributes ...*onnx.Attribute) *onnx.Node {
		return &onnx.Node{Op: "Op", Name: outputs, Outputs: strings.Fields(outputs), Inputs: strings.Fields(inputs), Attributes: attributes}
	}
	inside := &onnx.Attribute{Name: "body", Kind: onnx.KindGraph, Graph: &onnx.Graph{Nodes: []*onnx.Node{node("i", "b")}, Outputs: []*onnx.Value{value("i")}}}
	for _, c := range []struct {
		name  string
		nodes []*onnx.Node
		want  string
		err   string
	}{
		{name: "as written", nodes: []*onnx.Node{node("a", "x"), node("b", "a x")}, want: "a b"},
		{name: "sorted", nodes: []*onnx.Node{node("b", "a x"), node("a", "x")}, want: "a b"},
		{name: "through a subgraph", nodes: []*onnx.Node{node("a", "x", inside), node("b", "x")}, want: "b a"},
		{name: "a cycle", nodes: []*onnx.Node{node("a", "b"), node("b", "a"), node("c", "x")}, err: "cycle: 2 of 3"},
		{name: "itself", nodes: []*onnx.Node{node("a", "a")}, err: "cycle"},
		{name: "undefined", nodes: []*onnx.Node{node("a", "z")}, err: `uses "z"`},
		{name: "twice", nodes: []*onnx.Node{node("a", "x"), node("a", "x")}, err: "twice"},
		{name: "an input again", nodes: []*onnx.Node{node("x", "")}, err: "twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := &onnx.Graph{Inputs: []*onnx.Value{value("x")}, Nodes: c.nodes}
			order, err := g.Order(nil)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			var names []string
			for _, n := range order {
				names = append(names, n.Name)
			}
			require.Equal(t, c.want, strings.Join(names, " "))
		})
	}
}

func FuzzRead(f *testing.F) {
	m, data := everything()
	whole, err := onnx.Marshal(m, data)
	require.NoError(f, err)
	f.Add(whole)
	f.Add(modelOf(externally("w", "location", "data", "offset", "4")))
	f.Add(nested(5))
	path := filepath.Join(f.TempDir(), "m.onnx")
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := onnx.Read(bytes.NewReader(b), int64(len(b)), path, onnx.Limits{Index: 1 << 20, Depth: 8, Data: 1 << 16})
		if err != nil {
			return
		}
		_, _ = m.Graph.Order(nil)
		for _, x := range m.Graph.Initializers {
			if got, err := m.Data(x); err == nil {
				require.EqualValues(t, x.Bytes(), len(got))
			}
		}
		// What is read can be written, unless it says why not, and is the same then.
		again, err := onnx.Marshal(m, m)
		if err != nil {
			return
		}
		n, err := readBytes(again)
		require.NoError(t, err)
		require.Len(t, n.Graph.Nodes, len(m.Graph.Nodes))
		require.Len(t, n.Graph.Initializers, len(m.Graph.Initializers))
	})
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package onnx_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/conch-serving/conch/internal/onnx"
)

// large writes a model of the size of a BERT-base, weights inside the message: 12 layers of 124 nodes, 200 tensors, 436 MB. The weights
// are a hole in the file, which reads as zeros and takes no room.
func large(tb testing.TB) string {
	tb.Helper()
	const layers, nodesPerLayer, tensors, total = 12, 124, 200, 436 << 20
	var nodes []byte
	for i := range layers * nodesPerLayer {
		var n []byte
		for _, s := range []struct {
			field protowire.Number
			text  string
		}{
			{1, fmt.Sprintf("/encoder/layer.%d/output_%d", i/nodesPerLayer, i)}, {1, fmt.Sprintf("weight_%d", i%tensors)},
			{2, fmt.Sprintf("/encoder/layer.%d/output_%d", i/nodesPerLayer, i+1)}, {3, fmt.Sprintf("/encoder/layer.%d/node_%d", i/nodesPerLayer, i)},
			{4, "MatMul"}, {5, "\x0a\x04axis\x18\x01\xa0\x01\x02"},
		} {
			n = protowire.AppendString(protowire.AppendTag(n, s.field, protowire.BytesType), s.text)
		}
		nodes = protowire.AppendBytes(protowire.AppendTag(nodes, 1, protowire.BytesType), n)
	}
	each := int64(total/tensors) &^ 3
	var heads [][]byte
	length := int64(len(nodes))
	for i := range tensors {
		t := tensorMessage(fmt.Sprintf("weight_%d", i), onnx.Float, []int64{each / 4})
		t = protowire.AppendVarint(protowire.AppendTag(t, 9, protowire.BytesType), uint64(each))
		head := protowire.AppendVarint(protowire.AppendTag(nil, 5, protowire.BytesType), uint64(int64(len(t))+each))
		heads = append(heads, append(head, t...))
		length += int64(len(head)+len(t)) + each
	}
	path := filepath.Join(tb.TempDir(), "large.onnx")
	f, err := os.Create(path)
	require.NoError(tb, err)
	at := int64(0)
	write := func(b []byte) {
		_, err := f.WriteAt(b, at)
		require.NoError(tb, err)
		at += int64(len(b))
	}
	write(protowire.AppendVarint(protowire.AppendTag(nil, 7, protowire.BytesType), uint64(length)))
	write(nodes)
	for _, h := range heads {
		write(h)
		at += each
	}
	require.NoError(tb, f.Truncate(at))
	require.NoError(tb, f.Close())
	return path
}

// The weights are not read: the index of 436 MB takes less than 20 MB. How long it takes, BenchmarkOpen says.
func TestAnIndexHoldsNoWeights(t *testing.T) {
	path := large(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	m, err := onnx.Open(path)
	require.NoError(t, err)
	defer m.Close() //nolint:errcheck // only read from
	runtime.ReadMemStats(&after)
	require.Len(t, m.Graph.Nodes, 12*124)
	require.Len(t, m.Graph.Initializers, 200)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(20<<20), "bytes allocated altogether")
	data, err := m.Data(m.Graph.Initializers[199])
	require.NoError(t, err)
	require.EqualValues(t, m.Graph.Initializers[199].Bytes(), len(data))
}

func BenchmarkOpen(b *testing.B) {
	path := large(b)
	b.ReportAllocs()
	for b.Loop() {
		m, err := onnx.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		if err := m.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

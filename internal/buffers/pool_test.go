// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package buffers_test

import (
	"math/bits"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/internal/buffers"
)

// TestBuffersFit: whatever is put in, a buffer has the length that was asked for
// and, up to 64 MiB, a capacity below twice of it or of two kilobytes. gRPC puts every such buffer back.
func TestBuffersFit(t *testing.T) {
	var p buffers.Pool
	rapid.Check(t, func(t *rapid.T) {
		foreign := make([]byte, rapid.IntRange(0, 5000).Draw(t, "foreign"))
		p.Put(&foreign)
		n := 1<<rapid.IntRange(0, 22).Draw(t, "exponent") + rapid.IntRange(-1, 1).Draw(t, "off")
		b := p.Get(n)
		require.Len(t, *b, n)
		require.LessOrEqual(t, cap(*b), max(2048, 1<<bits.Len(uint(n))))
		require.False(t, mem.IsBelowBufferPoolingThreshold(cap(*b)), "gRPC would not put it back")
		short := (*b)[:n/2] // what gRPC gives back may be a prefix
		p.Put(&short)
	})
}

func TestLargeBuffersAreNotPooled(t *testing.T) {
	var p buffers.Pool
	b := p.Get(64<<20 + 1)
	require.Len(t, *b, 64<<20+1)
	p.Put(b)
	require.Len(t, *p.Get(64 << 20), 64<<20)
}

// The pool against gRPC's, for a body of 600 KB.
func BenchmarkGet(b *testing.B) {
	for name, pool := range map[string]mem.BufferPool{"conch": new(buffers.Pool), "grpc": mem.DefaultBufferPool()} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				pool.Put(pool.Get(600 << 10))
			}
		})
	}
}

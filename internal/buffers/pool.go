// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package buffers pools byte slices for gRPC's mem package without clearing
// them: gRPC's own pool clears a whole size class, 1 MiB for a body of 600 KB,
// each time one is taken. A caller that takes a buffer fills what it passes on.
package buffers

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Capacities are powers of two. The smallest is the first above gRPC's threshold: a buffer with a capacity of a kilobyte is never put back
// (mem.NewBuffer).
const (
	smallest = 11 // 2 KiB
	largest  = 26 // 64 MiB; what is larger is left to the collector
)

// Pool is a pool of buffers. Its zero value is usable, by any number of
// goroutines.
type Pool struct {
	classes [largest - smallest + 1]sync.Pool // of *[]byte with the capacity 1<<(smallest+i)
}

var _ mem.BufferPool = (*Pool)(nil)

// Get implements mem.BufferPool. The buffer holds whatever was in it.
func (p *Pool) Get(length int) *[]byte {
	class := 0
	if length > 1<<smallest {
		class = bits.Len(uint(length-1)) - smallest
	}
	if class >= len(p.classes) {
		b := make([]byte, length)
		return &b
	}
	if b, ok := p.classes[class].Get().(*[]byte); ok {
		*b = (*b)[:length]
		return b
	}
	b := make([]byte, length, 1<<(smallest+class))
	return &b
}

// Put implements mem.BufferPool. A buffer that is not of this pool is dropped.
func (p *Pool) Put(b *[]byte) {
	size := cap(*b)
	if class := bits.Len(uint(size)) - 1 - smallest; class >= 0 && class < len(p.classes) && size == 1<<(smallest+class) {
		p.classes[class].Put(b)
	}
}

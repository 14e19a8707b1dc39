// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"slices"
	"sync"

	"google.golang.org/grpc/mem"
)

// slab is one region: memory, and which spans of it are free.
type slab struct {
	region string
	memory []byte

	mu        sync.Mutex
	free      []span // sorted, never adjacent
	lent      int    // blocks
	condemned bool   // unmap when nothing is lent
}

type span struct{ from, to int }

// take finds room for n bytes, first fit: few blocks are lent at a time.
func (s *slab) take(n int) (offset int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n = roundUp(n)
	for i, f := range s.free {
		if f.to-f.from < n {
			continue
		}
		if f.to-f.from == n {
			s.free = slices.Delete(s.free, i, i+1)
		} else {
			s.free[i].from += n
		}
		s.lent++
		return f.from, true
	}
	return 0, false
}

func (s *slab) give(offset, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent--
	if s.condemned {
		s.unmapIfIdle()
		return
	}
	back := span{offset, offset + roundUp(n)}
	i, _ := slices.BinarySearchFunc(s.free, back, func(a, b span) int { return a.from - b.from })
	if i < len(s.free) && s.free[i].from == back.to {
		back.to = s.free[i].to
		s.free = slices.Delete(s.free, i, i+1)
	}
	if i > 0 && s.free[i-1].to == back.from {
		s.free[i-1].to = back.to
		return
	}
	s.free = slices.Insert(s.free, i, back)
}

// condemn unmaps the slab as soon as nothing of it is lent.
func (s *slab) condemn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.condemned = true
	s.unmapIfIdle()
}

func (s *slab) unmapIfIdle() {
	if s.lent == 0 && s.memory != nil {
		unmap(s.memory)
		s.memory = nil
	}
}

func roundUp(n int) int { return (n + alignment - 1) &^ (alignment - 1) }

// Block is memory that the server has mapped too.
type Block struct {
	// Data is the memory. It must not be used after Free.
	Data []byte

	pool   *Pool
	slab   *slab
	offset int
}

// Region is the name of the block's region.
func (b *Block) Region() string { return b.slab.region }

// Offset is where in its region the block begins.
func (b *Block) Offset() int { return b.offset }

// Free gives the block back. Call it once, and not after Buffer.
func (b *Block) Free() { b.slab.give(b.offset, len(b.Data)) }

// Buffer hands the block over as a buffer: the block is free when the buffer is.
func (b *Block) Buffer() mem.Buffer {
	if mem.IsBelowBufferPoolingThreshold(cap(b.Data)) {
		// gRPC does not count references to so little.
		small := mem.SliceBuffer(append([]byte(nil), b.Data...))
		b.Free()
		return small
	}
	return mem.NewBuffer(&b.Data, owner{b})
}

// owner gives a block back in place of gRPC's buffer pools.
type owner struct{ block *Block }

// Get implements mem.BufferPool; nothing is ever got from an owner.
func (owner) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put implements mem.BufferPool.
func (o owner) Put(*[]byte) { o.block.Free() }

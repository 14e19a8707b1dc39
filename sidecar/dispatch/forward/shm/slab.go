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
	forsaken  int    // blocks that the server may write at any time until its end
	condemned bool   // let go when nothing is lent
	// idle is called once nothing is lent of a slab that was condemned, with whether the server can unmap it. No lock is held.
	idle func(unused bool)
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
	s.lent--
	if s.condemned {
		s.letGoIfIdle()
		return
	}
	defer s.mu.Unlock()
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

// forsake takes a block out of use for ever.
func (s *slab) forsake() {
	s.mu.Lock()
	s.lent--
	s.forsaken++
	s.letGoIfIdle()
}

// condemn lets the slab go as soon as nothing of it is lent: idle is called then.
func (s *slab) condemn(idle func(unused bool)) {
	s.mu.Lock()
	s.condemned, s.idle = true, idle
	s.letGoIfIdle()
}

// letGoIfIdle unmaps a condemned slab of which nothing is lent, and calls idle. It releases mu.
func (s *slab) letGoIfIdle() {
	if !s.condemned || s.lent > 0 || s.memory == nil {
		s.mu.Unlock()
		return
	}
	memory, idle, unused := s.memory, s.idle, s.forsaken == 0
	s.memory = nil
	s.mu.Unlock()
	unmap(memory) // ours: the server has its own
	if idle != nil {
		idle(unused)
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

// Free gives the block back. Call it once, and not after Buffer or Forsake.
func (b *Block) Free() { b.slab.give(b.offset, len(b.Data)) }

// Forsake gives the block up: the server may still write it, because its last word about the execution that the block was lent for has not come. It is
// not lent again, and counts against the pool's limit until the server's end.
func (b *Block) Forsake() { b.slab.forsake() }

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

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// slab is one region: memory, and which spans of it are free.
type slab struct {
	pool   *Pool // that lends it
	region string
	memory []byte

	mu        sync.Mutex
	free      []span // sorted, never adjacent
	lent      int    // blocks
	forsaken  int    // blocks that the server may write at any time until its end
	condemned bool   // let go when nothing is lent
	// with are the pools whose servers have mapped it, its own first, and offered those to whose servers it was offered, and in which epoch of theirs.
	// With is not read before nothing is lent.
	with    []*Pool
	offered map[*Pool]int64
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

// hold keeps a slab from being let go until release.
func (s *slab) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent++
}

func (s *slab) release() {
	s.mu.Lock()
	s.lent--
	s.letGoIfIdle()
}

// offers notes that the slab is offered to the server of another pool.
func (s *slab) offers(to *Pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offered == nil {
		s.offered = make(map[*Pool]int64)
	}
	s.offered[to] = to.epoch.Load()
}

// lacks reports whether a slab was not offered to the server of another pool since that last forgot its regions, and whether it comes back whole when it is let
// go: none of it is forsaken.
func (s *slab) lacks(reader *Pool) (lacks, whole bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	epoch, was := s.offered[reader]
	return !was || epoch != reader.epoch.Load(), s.forsaken == 0
}

// mapped notes that the server of another pool has mapped the slab.
func (s *slab) mapped(by *Pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.with = append(s.with, by)
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

	slab   *slab
	offset int
	// doubtful: a server that the block was lent to once more, to be read, has not said its last word.
	doubtful atomic.Bool
}

// Region is the name of the block's region.
func (b *Block) Region() string { return b.slab.region }

// Offset is where in its region the block begins.
func (b *Block) Offset() int { return b.offset }

// Extent is where the block lies.
func (b *Block) Extent() batch.Extent {
	return batch.Extent{Region: b.Region(), Offset: b.offset, Size: len(b.Data)}
}

// Write copies data to a part of the block.
func (b *Block) Write(at int, data mem.BufferSlice) { data.CopyTo(b.Data[at : at+data.Len()]) }

// Free gives the block back to its pool. Call it once, and not after Buffer or Forsake. A block that a server may still write is forsaken instead.
func (b *Block) Free() {
	if b.doubtful.Load() {
		b.slab.forsake()
		return
	}
	b.slab.give(b.offset, len(b.Data))
}

// Forsake gives the block up: the server may still write it, because its last answer to the execution that the block was lent for has not come. The block is
// not lent again, and counts against the pool's limit until the server's end.
func (b *Block) Forsake() { b.slab.forsake() }

// Buffer hands the block over as a buffer: the block is free when the buffer is. Requests to servers may name where the buffer and parts of it lie (Borrow).
func (b *Block) Buffer() mem.Buffer {
	if mem.IsBelowBufferPoolingThreshold(cap(b.Data)) {
		// gRPC does not count references to so little.
		small := mem.SliceBuffer(append([]byte(nil), b.Data...))
		b.Free()
		return small
	}
	return &part{mem.NewBuffer(&b.Data, giver{b}), b}
}

// giver gives a block back in place of gRPC's buffer pools.
type giver struct{ block *Block }

// Get implements mem.BufferPool; nothing is ever got from it.
func (giver) Get(n int) *[]byte { b := make([]byte, n); return &b }

// Put implements mem.BufferPool.
func (g giver) Put(*[]byte) { g.block.Free() }

// part is a buffer of a block or of a part of one.
type part struct {
	mem.Buffer
	block *Block
}

// Slice implements mem.Buffer.
func (p *part) Slice(start, end int) mem.Buffer {
	if start == end {
		return p.Buffer.Slice(start, end)
	}
	return &part{p.Buffer.Slice(start, end), p.block}
}

// at is where in its region a part begins. Its capacity reaches to the end of the block.
func (p *part) at() int { return p.block.offset + cap(p.block.Data) - cap(p.ReadOnlyData()) }

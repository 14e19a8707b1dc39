// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package arena

import (
	"cmp"
	"slices"
)

// The constants of ONNX Runtime's arena, which its CPU and CUDA providers share unless a session changes them.
const (
	// alignment is what sizes are rounded up to.
	alignment = 256
	// firstExtent is the first extent; each further one is twice as large as the one before, none larger than mostExtent unless one block is.
	firstExtent = 1 << 20
	mostExtent  = 1 << 30
	// mostUnused is how much of a chunk may stay unused before it is divided even if the rest is less than the block.
	mostUnused = 128 << 20
	// mostBytes keeps sums of absurd sizes in an int64.
	mostBytes = 1 << 45
)

// Arena is one arena. The zero value is empty.
type Arena struct {
	extents []extent
	next    int64
	held    int64
}

// extent is one piece of memory from the system: chunks in the order of their addresses, and the ranges that were written.
type extent struct {
	chunks  []chunk
	written []span
}

type chunk struct {
	at, size int64
	free     bool
}

type span struct{ from, to int64 }

// Block is memory that the arena has given out.
type Block struct {
	extent int
	at     int64
}

// Alloc gives a block of so many bytes, which its owner writes from end to end.
func (a *Arena) Alloc(bytes int64) Block {
	bytes = min(max(bytes, 1), mostBytes)
	size := (bytes + alignment - 1) / alignment * alignment
	e, c := a.find(size)
	if e < 0 {
		a.extend(size)
		e, c = len(a.extents)-1, 0
	}
	x := &a.extents[e]
	chosen := &x.chunks[c]
	if chosen.size >= 2*size || chosen.size-size >= mostUnused {
		rest := chunk{at: chosen.at + size, size: chosen.size - size, free: true}
		chosen.size = size
		x.chunks = slices.Insert(x.chunks, c+1, rest)
		chosen = &x.chunks[c]
	}
	chosen.free = false
	x.write(chosen.at, chosen.at+bytes)
	return Block{e, chosen.at}
}

// find is the smallest free chunk that is large enough, the first of equals; -1 if there is none.
func (a *Arena) find(size int64) (e, c int) {
	e, c = -1, -1
	least := int64(0)
	for i := range a.extents {
		for j := range a.extents[i].chunks {
			if candidate := &a.extents[i].chunks[j]; candidate.free && candidate.size >= size && (e < 0 || candidate.size < least) {
				e, c, least = i, j, candidate.size
			}
		}
	}
	return e, c
}

// extend takes an extent from the system that size fits in.
func (a *Arena) extend(size int64) {
	a.next = max(a.next, firstExtent)
	grown := false
	for a.next < size && a.next < mostExtent {
		a.next *= 2
		grown = true
	}
	take := max(min(a.next, mostExtent), size)
	if !grown {
		a.next = min(2*a.next, mostExtent)
	}
	a.extents = append(a.extents, extent{chunks: []chunk{{size: take, free: true}}})
	a.held += take
}

// Free takes a block back, and joins it with its free neighbours.
func (a *Arena) Free(b Block) {
	x := &a.extents[b.extent]
	c, found := slices.BinarySearchFunc(x.chunks, b.at, func(c chunk, at int64) int { return cmp.Compare(c.at, at) })
	if !found || x.chunks[c].free {
		panic("arena: a block is given back that is not out")
	}
	x.chunks[c].free = true
	if c+1 < len(x.chunks) && x.chunks[c+1].free {
		x.chunks[c].size += x.chunks[c+1].size
		x.chunks = slices.Delete(x.chunks, c+1, c+2)
	}
	if c > 0 && x.chunks[c-1].free {
		x.chunks[c-1].size += x.chunks[c].size
		x.chunks = slices.Delete(x.chunks, c, c+1)
	}
}

// Held is what the arena has taken from the system, in bytes.
func (a *Arena) Held() int64 { return a.held }

// Written is what of it was ever written, in bytes: what counts of a process, whose untouched pages are nowhere.
func (a *Arena) Written() int64 {
	sum := int64(0)
	for i := range a.extents {
		for _, s := range a.extents[i].written {
			sum += s.to - s.from
		}
	}
	return sum
}

// write joins a range with those that it meets.
func (x *extent) write(from, to int64) {
	i, _ := slices.BinarySearchFunc(x.written, from, func(s span, at int64) int { return cmp.Compare(s.to, at) })
	j := i
	for j < len(x.written) && x.written[j].from <= to {
		from, to = min(from, x.written[j].from), max(to, x.written[j].to)
		j++
	}
	x.written = slices.Replace(x.written, i, j, span{from, to})
}

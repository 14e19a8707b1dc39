// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shm

import (
	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// Borrowed is what a server has left in shared memory, lent once more, to a server that reads it. It holds references to its blocks: none of them is free
// before End.
type Borrowed struct {
	data   mem.BufferSlice
	slab   *slab
	offset int
}

// Borrow lends data to the pool's server where it lies. It returns false if data is not one piece of one region that the server has mapped, or does
// not begin where a tensor may. If it is a region of another pool, that one's regions are registered with this pool's server from then on. Call End.
func (p *Pool) Borrow(data mem.BufferSlice) (*Borrowed, bool) {
	s, offset, ok := locate(data)
	if !ok || offset%alignment != 0 {
		return nil, false
	}
	p.mu.Lock()
	known, closed := p.known[s], p.closed
	p.mu.Unlock()
	if !known {
		if lender := s.pool; lender != p && !closed {
			lender.share(p)
		}
		return nil, false
	}
	data.Ref()
	return &Borrowed{data: append(mem.BufferSlice(nil), data...), slab: s, offset: offset}, true
}

// Extent is where the data lies.
func (b *Borrowed) Extent() batch.Extent {
	return batch.Extent{Region: b.slab.region, Offset: b.offset, Size: b.data.Len()}
}

// End ends the loan. Without the server's last word about the execution that reads the data, its blocks are not lent again, as if they were forsaken: what is
// written there next would change under an execution.
func (b *Borrowed) End(lastWord bool) {
	if !lastWord {
		for _, d := range b.data {
			if p, is := d.(*part); is {
				p.block.doubtful.Store(true)
			}
		}
	}
	b.data.Free()
	b.data = nil
}

// Locate returns where data lies if that is one piece of one region, whichever servers have mapped it.
func Locate(data mem.BufferSlice) (region string, offset int, ok bool) {
	s, offset, ok := locate(data)
	if !ok {
		return "", 0, false
	}
	return s.region, offset, true
}

func locate(data mem.BufferSlice) (s *slab, offset int, ok bool) {
	end := 0
	for _, d := range data {
		n := d.Len()
		if n == 0 {
			continue
		}
		p, is := d.(*part)
		if !is {
			return nil, 0, false
		}
		at := p.at()
		if s == nil {
			s, offset, end = p.block.slab, at, at
		}
		if p.block.slab != s || at != end {
			return nil, 0, false
		}
		end += n
	}
	return s, offset, s != nil
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/forward/shm"
)

// lendFrom is the size of a batch's inputs, and of its outputs, from which they
// go through shared memory where there is some: below it the socket is cheaper
// (docs/performance.md).
const lendFrom = 64 << 10

// loan is the memory that a batch shares with its partition's server. A nil loan
// is none: the tensors go through the socket.
type loan struct {
	in    *shm.Block
	out   *shm.Block // nil: the outputs come through the socket
	slots []batch.Slot
}

// lend takes shared memory for a batch whose inputs are large enough. It returns
// nil if there is none.
func (d *Dispatcher) lend(b *attempt, joined *batch.Request) *loan {
	pool := b.process.Memory()
	if pool == nil || b.passed || b.calls[0].sole || b.model.unlendable.Load() {
		return nil
	}
	size := joined.DataSize()
	if size < lendFrom {
		return nil
	}
	in, ok := pool.Take(size)
	if !ok {
		return nil
	}
	l := &loan{in: in}
	if slots, size := b.rules.Slots(joined, b.rows); size >= lendFrom {
		if out, ok := pool.Take(size); ok {
			l.out, l.slots = out, slots
		}
	}
	return l
}

func (l *loan) marshal(r *batch.Request) mem.BufferSlice {
	if l == nil {
		return r.Marshal()
	}
	in := batch.Lent{Region: l.in.Region(), Offset: l.in.Offset(), Data: l.in.Data}
	if l.out == nil {
		return r.MarshalLent(in, batch.Lent{}, nil)
	}
	return r.MarshalLent(in, batch.Lent{Region: l.out.Region(), Offset: l.out.Offset(), Data: l.out.Data}, l.slots)
}

// size is how many bytes of tensors are lent.
func (l *loan) size() int {
	switch {
	case l == nil || l.in == nil:
		return 0
	case l.out == nil:
		return len(l.in.Data)
	}
	return len(l.in.Data) + len(l.out.Data)
}

// denied reports whether the server refused the loan. If so, it ends the loan,
// and the batch is to be sent again, through the socket.
func (l *loan) denied(d *Dispatcher, b *attempt, err error) bool {
	if l == nil || l.in == nil { // it was denied before
		return false
	}
	refuses, unknown := forward.DeniesMemory(err, l.in.Region())
	if !refuses {
		return false
	}
	if unknown {
		// The server does not know the region: a client had all regions
		// unregistered, or the server was started again.
		b.process.Memory().Discard()
	} else if !b.model.unlendable.Swap(true) {
		d.o.Logger.Warn("the model's tensors go through the socket until its next route table", "model", b.model.name, "error", err)
	}
	l.end(true)
	return true
}

// claim gives the answer the outputs that the server wrote to shared memory.
func (l *loan) claim(resp *batch.Response) error {
	if l == nil || l.out == nil {
		return nil
	}
	memory := l.out.Buffer()
	l.out = nil
	defer memory.Free()
	return resp.Claim(memory, l.slots)
}

// end ends the loan. The memory is free if the server has said its last word about the execution. Else the server may still read and write it, and it is
// not lent again.
func (l *loan) end(lastWord bool) {
	if l == nil {
		return
	}
	for _, b := range []*shm.Block{l.in, l.out} {
		switch {
		case b == nil:
		case lastWord:
			b.Free()
		default:
			b.Forsake()
		}
	}
	l.in, l.out = nil, nil
}

// mayLend reports whether an attempt may share memory with its server.
func (a *attempt) mayLend() bool {
	if a.unleased != nil || a.process.Memory() == nil || a.model.unlendable.Load() {
		return false
	}
	size := 0
	for _, c := range a.calls {
		size += c.req.DataSize()
	}
	return size >= lendFrom
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"slices"

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
	in    *shm.Block      // that inputs were copied to; nil: none was
	kept  []*shm.Borrowed // inputs that lie where an execution before has left them
	input []batch.Extent  // of each input; nil: the inputs go through the socket
	out   *shm.Block      // nil: the outputs come through the socket
	slots []batch.Slot
	// size is how many bytes of tensors are lent, and keeps how many of them are inputs that were not copied.
	size, keeps int
	over        bool
}

// lend takes shared memory for a batch whose inputs are large enough. Of a batch with a step of an ensemble, outputs that are large enough are enough, so that
// the next step may find them there. It returns nil if there is none.
func (d *Dispatcher) lend(a *attempt, joined *batch.Request) *loan {
	m := a.memory()
	if m == nil {
		return nil
	}
	l := &loan{}
	if (joined.DataSize() < lendFrom || !l.lendInputs(m, joined)) && !a.hasStep() {
		return nil
	}
	if slots, size := a.rules.Slots(joined, a.rows); size >= lendFrom {
		if out, ok := m.Take(size); ok {
			l.out, l.slots = out, slots
			l.size += size
		}
	}
	if l.input == nil && l.out == nil {
		return nil
	}
	return l
}

// lendInputs lends the inputs of a batch: where they lie if they lie in memory of the server, and else in a block that they are copied to, once.
func (l *loan) lendInputs(m *shm.Pool, joined *batch.Request) bool {
	extents := make([]batch.Extent, len(joined.Inputs))
	for i := range joined.Inputs {
		if b, ok := m.Borrow(joined.Inputs[i].Data); ok {
			extents[i] = b.Extent()
			l.kept, l.keeps = append(l.kept, b), l.keeps+extents[i].Size
		}
	}
	if offsets, size := joined.Layout(extents); size > 0 {
		in, ok := m.Take(size)
		if !ok {
			l.end(true)
			*l = loan{}
			return false
		}
		l.in, l.size = in, size
		at := in.Extent()
		for i := range joined.Inputs {
			if extents[i].Region != "" {
				continue
			}
			data := joined.Inputs[i].Data
			in.Write(offsets[i], data)
			extents[i] = batch.Extent{Region: at.Region, Offset: at.Offset + offsets[i], Size: data.Len()}
		}
	}
	l.input, l.size = extents, l.size+l.keeps
	return true
}

func (l *loan) marshal(r *batch.Request) mem.BufferSlice {
	switch {
	case l == nil:
		return r.Marshal()
	case l.out == nil:
		return r.MarshalLent(l.input, batch.Extent{}, nil)
	}
	return r.MarshalLent(l.input, l.out.Extent(), l.slots)
}

// lent is how many bytes of tensors are lent.
func (l *loan) lent() int {
	if l == nil {
		return 0
	}
	return l.size
}

// between is by which way the attempt's tensors of steps before have come.
func (a *attempt) between() (b Between) {
	made := 0
	for _, c := range a.calls {
		made += c.made
	}
	if made == 0 {
		return b
	}
	if a.loan == nil || a.loan.input == nil {
		return Between{Sent: made}
	}
	b.Kept = min(made, a.loan.keeps)
	b.Copied = made - b.Kept
	return b
}

// denied reports whether the server denied the loan. If so, it ends the loan,
// and the batch is to be sent again, through the socket.
func (l *loan) denied(d *Dispatcher, a *attempt, err error) bool {
	if l == nil || l.over { // it was denied before
		return false
	}
	denies, unknown := forward.DeniesMemory(err, l.regions()...)
	if !denies {
		return false
	}
	if unknown {
		// The server does not know the region: a client had all regions
		// unregistered, or the server was started again.
		a.partition.Memory().Ended()
	} else if !a.model.unlendable.Swap(true) {
		d.o.Logger.Warn("the model's tensors go through the socket until its next route table", "model", a.model.name, "error", err)
	}
	l.end(true)
	return true
}

// regions are those that the batch's request names.
func (l *loan) regions() (all []string) {
	for _, p := range l.input {
		all = append(all, p.Region)
	}
	if l.out != nil {
		all = append(all, l.out.Extent().Region)
	}
	return all
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
	for _, b := range l.kept {
		b.End(lastWord)
	}
	*l = loan{over: true}
}

// memory is what an attempt may share with its server; nil: nothing.
func (a *attempt) memory() *shm.Pool {
	if a.unleased != nil || a.passed || a.calls[0].lone || a.model.unlendable.Load() {
		return nil
	}
	return a.partition.Memory()
}

// copies reports whether tensors may have to be copied for an attempt.
func (a *attempt) copies() bool {
	if a.memory() == nil {
		return false
	}
	size := 0
	for _, c := range a.calls {
		size += c.req.DataSize()
	}
	return size >= lendFrom
}

// hasStep reports whether a call of an attempt is a step of an ensemble.
func (a *attempt) hasStep() bool {
	return slices.ContainsFunc(a.calls, func(c *call) bool { return c.within != nil })
}

// line puts calls all of whose rows lie in one region in the order in which they lie there. A batch of all the rows that an execution before had is one
// piece then, in whichever order they came.
func (a *attempt) line() {
	if len(a.calls) < 2 || a.memory() == nil || !a.hasStep() {
		return
	}
	type placed struct {
		*call
		region string
		offset int
	}
	all := make([]placed, len(a.calls))
	for i, c := range a.calls {
		if len(c.req.Inputs) == 0 {
			return
		}
		region, offset, ok := shm.Locate(c.req.Inputs[0].Data)
		if !ok || i > 0 && region != all[0].region {
			return
		}
		all[i] = placed{c, region, offset}
	}
	slices.SortStableFunc(all, func(x, y placed) int { return cmp.Compare(x.offset, y.offset) })
	for i := range all {
		a.calls[i] = all[i].call
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/internal/triton"
)

// maxRowBytes is the largest row of an output whose extent is planned.
const maxRowBytes = 1 << 30

// LentPrefix begins the names of the regions that Conch shares with a server. The
// rest of a name cannot be guessed, and clients do not receive it.
const LentPrefix = "conch-lent-"

// LentRegion reports whether a region is Conch's own and not a client's.
func LentRegion(name string) bool { return strings.HasPrefix(name, LentPrefix) }

// slotAlignment of tensors in lent memory: that of vector instructions.
const slotAlignment = 64

// Extent is a part of memory that a server has mapped, by the name under which it is registered there (Triton's shared memory extensions). The zero Extent is
// none.
type Extent struct {
	Region       string
	Offset, Size int
}

// none reports whether there is no extent.
func (p Extent) none() bool { return p.Region == "" }

// Slot is where an output belongs in lent memory.
type Slot struct {
	Name string
	// Offset in the outputs' Extent, and room in bytes. Room is 0 for an output whose size
	// is not known in advance; it comes in the message.
	Offset, Size int
}

// DataSize is how many bytes of lent memory the inputs need.
func (r *Request) DataSize() int {
	n := 0
	for i := range r.Inputs {
		n = alignSlot(n) + r.Inputs[i].Data.Len()
	}
	return n
}

// Layout plans the inputs in one piece of lent memory, without those that have an extent already (nil: none has), and returns where in it each begins and
// how many bytes they need.
func (r *Request) Layout(extents []Extent) (offsets []int, size int) {
	offsets = make([]int, len(r.Inputs))
	for i := range r.Inputs {
		if extents != nil && !extents[i].none() {
			continue
		}
		offsets[i] = alignSlot(size)
		size = offsets[i] + r.Inputs[i].Data.Len()
	}
	return offsets, size
}

// Slots plans the outputs of a request that may be batched (see Key), every one
// of the model's if it names none, and returns how many bytes of lent memory they
// need: 0 if the size of none is known in advance.
func (u *Rules) Slots(r *Request, rows int) (slots []Slot, size int) {
	for _, out := range u.produced {
		if !wants(r, out.name) {
			continue
		}
		p := Slot{Name: out.name}
		if out.rowBytes > 0 && rows <= maxRowBytes/out.rowBytes {
			p.Offset, p.Size = alignSlot(size), out.rowBytes*rows
			size = p.Offset + p.Size
		}
		slots = append(slots, p)
	}
	return slots, size
}

func alignSlot(n int) int { return (n + slotAlignment - 1) &^ (slotAlignment - 1) }

// MarshalLent returns the encoded message that names the extents of the inputs, and asks for the outputs at their slots in out. An input without an
// extent (nil: none has one) goes in the message. All inputs must have data.
func (r *Request) MarshalLent(inputs []Extent, out Extent, slots []Slot) mem.BufferSlice {
	lent := Request{Model: r.Model, Version: r.Version, ID: r.ID, Parameters: r.Parameters, Unknown: r.Unknown, Inputs: slices.Clone(r.Inputs)}
	for i := range lent.Inputs {
		t := &lent.Inputs[i]
		t.Contents, t.hasContents = nil, false
		if inputs != nil && !inputs[i].none() {
			t.Data, t.Parameters = nil, append(slices.Clip(t.Parameters), inputs[i].parameters()...)
		}
	}
	for _, s := range slots {
		o := RequestedOutput{Name: s.Name}
		if s.Size > 0 {
			o.Parameters = Extent{out.Region, out.Offset + s.Offset, s.Size}.parameters()
		}
		lent.Outputs = append(lent.Outputs, o)
	}
	if len(slots) == 0 {
		lent.Outputs = r.Outputs
	}
	return lent.Marshal()
}

func (p Extent) parameters() []Parameter {
	return []Parameter{
		StringParameter(ParameterSharedMemoryRegion, p.Region),
		Int64Parameter(ParameterSharedMemorySize, int64(p.Size)),
		Int64Parameter(ParameterSharedMemoryOffset, int64(p.Offset)),
	}
}

// Claim sets the data of the outputs that the server wrote to their slots, as
// references to the lent memory. The answer is then like one whose outputs came in
// the message. Triton 2.51 does not say in its answer where it wrote an output: one
// without data counts as written to its slot.
func (r *Response) Claim(memory mem.Buffer, slots []Slot) error {
	for i := range r.Outputs {
		t := &r.Outputs[i]
		k := slices.IndexFunc(slots, func(p Slot) bool { return p.Name == t.Name })
		if k < 0 || slots[k].Size == 0 || t.typed() || t.Data.Len() > 0 {
			continue // it came in the message
		}
		n, ok := triton.Elements(t.Shape)
		size := triton.SizeOf(t.Datatype)
		if !ok || size <= 0 || n > int64(slots[k].Size/size) {
			return fmt.Errorf("%w: output %q of datatype %s and shape %v does not fit its %d bytes", ErrUnsplittable, t.Name, t.Datatype, t.Shape, slots[k].Size)
		}
		t.Data.Free()
		from := slots[k].Offset
		t.Data = mem.BufferSlice{memory.Slice(from, from+int(n)*size)}
		t.Parameters = slices.DeleteFunc(slices.Clone(t.Parameters), func(p Parameter) bool {
			return p.Name == ParameterSharedMemoryRegion || p.Name == ParameterSharedMemorySize || p.Name == ParameterSharedMemoryOffset
		})
	}
	for i := range r.Outputs {
		r.Outputs[i].Contents = slices.Clone(r.Outputs[i].Contents) // it shares memory with Wire
	}
	r.Wire.Free()
	r.Wire = nil
	return nil
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/mem"
)

// maxRowBytes is the largest row of an output whose place is planned.
const maxRowBytes = 1 << 30

// LentPrefix begins the names of the regions that Conch shares with a server. The
// rest of a name cannot be guessed, and clients do not receive it.
const LentPrefix = "conch-lent-"

// LentRegion reports whether a region is Conch's own and not a client's.
func LentRegion(name string) bool { return strings.HasPrefix(name, LentPrefix) }

// slotAlignment of tensors in lent memory: that of vector instructions.
const slotAlignment = 64

// Lent is memory that the server has mapped: Data is at Offset of a region that is
// registered with it (Triton's system shared memory extension).
type Lent struct {
	Region string
	Offset int
	Data   []byte
}

// Slot is where an output belongs in lent memory.
type Slot struct {
	Name string
	// Offset in Lent.Data, and room in bytes. Room is 0 for an output whose size
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

// MarshalLent copies the inputs' data into lent memory of DataSize bytes and
// returns the encoded message that refers to it and asks for the outputs at
// their slots in out. All inputs must have data. This is the one time that
// tensor bytes are copied.
func (r *Request) MarshalLent(in, out Lent, slots []Slot) mem.BufferSlice {
	lent := Request{Model: r.Model, Version: r.Version, ID: r.ID, Parameters: r.Parameters, Unknown: r.Unknown, Inputs: slices.Clone(r.Inputs)}
	at := 0
	for i := range lent.Inputs {
		t := &lent.Inputs[i]
		at = alignSlot(at)
		n := t.Data.CopyTo(in.Data[at : at+t.Data.Len()])
		t.Data, t.Contents, t.hasContents = nil, nil, false
		t.Parameters = append(slices.Clip(t.Parameters), in.parameters(at, n)...)
		at += n
	}
	for _, p := range slots {
		o := RequestedOutput{Name: p.Name}
		if p.Size > 0 {
			o.Parameters = out.parameters(p.Offset, p.Size)
		}
		lent.Outputs = append(lent.Outputs, o)
	}
	if len(slots) == 0 {
		lent.Outputs = r.Outputs
	}
	return lent.Marshal()
}

func (l Lent) parameters(offset, size int) []Parameter {
	return []Parameter{
		StringParameter(ParameterSharedMemoryRegion, l.Region),
		Int64Parameter(ParameterSharedMemorySize, int64(size)),
		Int64Parameter(ParameterSharedMemoryOffset, int64(l.Offset+offset)),
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
		n, ok := elements(t.Shape)
		size := elementSize(t.Datatype)
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

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Marshal returns the encoded message as a scatter-gather list with references
// of its own: Wire where there is one, else a fresh header and references to the
// tensors' data. Tensors with typed Contents are written typed.
func (r *Request) Marshal() mem.BufferSlice {
	if r.Wire != nil {
		r.Wire.Ref()
		return append(mem.BufferSlice(nil), r.Wire...)
	}
	w := newWriter(r.Model, r.Version, r.ID, r.Parameters, requestInputs, r.Inputs, len(r.Unknown))
	for i := range r.Outputs {
		o := &r.Outputs[i]
		w.tag(requestOutputs)
		w.length(sizeString(outputName, o.Name) + sizeParameters(outputParameters, o.Parameters))
		w.string(outputName, o.Name)
		w.parameters(outputParameters, o.Parameters)
	}
	w.head = append(w.head, r.Unknown...)
	for i := range r.Inputs {
		w.data(requestRaw, &r.Inputs[i])
	}
	return w.finish()
}

// Marshal returns the encoded message as a scatter-gather list with references
// of its own; like Request.Marshal.
func (r *Response) Marshal() mem.BufferSlice {
	if r.Wire != nil {
		r.Wire.Ref()
		return append(mem.BufferSlice(nil), r.Wire...)
	}
	w := newWriter(r.Model, r.Version, r.ID, r.Parameters, responseOutputs, r.Outputs, len(r.Unknown))
	w.head = append(w.head, r.Unknown...)
	for i := range r.Outputs {
		w.data(responseRaw, &r.Outputs[i])
	}
	return w.finish()
}

// writer collects encoded bytes and, between them, references.
type writer struct {
	head []byte // all encoded bytes; cut into pieces where data goes between
	from int    // where the piece that is being written starts
	list mem.BufferSlice
}

// newWriter writes what requests and responses begin with. Extra bytes are to follow.
func newWriter(model, version, id string, parameters []Parameter, field protowire.Number, tensors []Tensor, extra int) writer {
	size, buffers := 128+extra, 1
	for i := range tensors {
		size += 96 + len(tensors[i].Contents)
		buffers += 1 + len(tensors[i].Data)
	}
	w := writer{head: make([]byte, 0, size), list: make(mem.BufferSlice, 0, buffers)}
	w.string(fieldModel, model)
	w.string(fieldVersion, version)
	w.string(fieldID, id)
	w.parameters(fieldParameters, parameters)
	for i := range tensors {
		w.tensor(field, &tensors[i])
	}
	return w
}

func (w *writer) tag(field protowire.Number) {
	w.head = protowire.AppendTag(w.head, field, protowire.BytesType)
}

func (w *writer) length(n int) { w.head = protowire.AppendVarint(w.head, uint64(n)) }

func (w *writer) string(field protowire.Number, s string) {
	if s != "" {
		w.tag(field)
		w.head = protowire.AppendString(w.head, s)
	}
}

func (w *writer) bytes(field protowire.Number, b []byte) {
	w.tag(field)
	w.head = protowire.AppendBytes(w.head, b)
}

func (w *writer) parameters(field protowire.Number, list []Parameter) {
	for _, p := range list {
		w.tag(field)
		w.length(sizeParameter(p))
		w.string(entryKey, p.Name)
		w.bytes(entryValue, p.Value)
	}
}

func (w *writer) tensor(field protowire.Number, t *Tensor) {
	shape := 0
	for _, d := range t.Shape {
		shape += protowire.SizeVarint(uint64(d))
	}
	size := sizeString(tensorName, t.Name) + sizeString(tensorDatatype, t.Datatype) + sizeParameters(tensorParameters, t.Parameters)
	if shape > 0 {
		size += protowire.SizeTag(tensorShape) + protowire.SizeBytes(shape)
	}
	if t.typed() {
		size += protowire.SizeTag(tensorContents) + protowire.SizeBytes(len(t.Contents))
	}
	w.tag(field)
	w.length(size)
	w.string(tensorName, t.Name)
	w.string(tensorDatatype, t.Datatype)
	if shape > 0 {
		w.tag(tensorShape)
		w.length(shape)
		for _, d := range t.Shape {
			w.head = protowire.AppendVarint(w.head, uint64(d))
		}
	}
	w.parameters(tensorParameters, t.Parameters)
	if t.typed() {
		w.bytes(tensorContents, t.Contents)
	}
}

// data writes the raw contents of a tensor that has some: the field's head is
// encoded, the bytes are referred to.
func (w *writer) data(field protowire.Number, t *Tensor) {
	if t.typed() || t.Data == nil {
		return
	}
	w.tag(field)
	w.length(t.Data.Len())
	w.cut()
	t.Data.Ref()
	w.list = append(w.list, t.Data...)
}

// cut ends the piece that is being written.
func (w *writer) cut() {
	if len(w.head) > w.from {
		w.list = append(w.list, mem.SliceBuffer(w.head[w.from:len(w.head):len(w.head)]))
		w.from = len(w.head)
	}
}

func (w *writer) finish() mem.BufferSlice {
	w.cut()
	return w.list
}

func (t *Tensor) typed() bool { return t.hasContents || t.Contents != nil }

func sizeString(field protowire.Number, s string) int {
	if s == "" {
		return 0
	}
	return protowire.SizeTag(field) + protowire.SizeBytes(len(s))
}

func sizeParameter(p Parameter) int {
	return sizeString(entryKey, p.Name) + protowire.SizeTag(entryValue) + protowire.SizeBytes(len(p.Value))
}

func sizeParameters(field protowire.Number, list []Parameter) int {
	n := 0
	for _, p := range list {
		n += protowire.SizeTag(field) + protowire.SizeBytes(sizeParameter(p))
	}
	return n
}

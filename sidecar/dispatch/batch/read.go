// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// Errors of ReadRequest and ReadResponse, wrapped with the place.
var (
	// ErrMalformed: the bytes are not the message they should be.
	ErrMalformed = errors.New("malformed message")
	// ErrTooMany: more tensors, parameters or dimensions than a message may have
	// here. They cost many times their size on the wire, so they are bounded.
	ErrTooMany = errors.New("too many parts in one message")
)

// Bounds on the parts of a request; the HTTP front keeps to them too.
const (
	MaxTensors    = 4096 // inputs, requested outputs and raw contents, each
	MaxParameters = 4096 // tensors' and outputs' included
)

const (
	maxTensors    = MaxTensors
	maxParameters = MaxParameters
	maxDimensions = 65536 // per message
)

// Field numbers of ModelInferRequest and ModelInferResponse.
const (
	fieldModel       = 1
	fieldVersion     = 2
	fieldID          = 3
	fieldParameters  = 4
	requestInputs    = 5
	requestOutputs   = 6
	requestRaw       = 7
	responseOutputs  = 5
	responseRaw      = 6
	tensorName       = 1
	tensorDatatype   = 2
	tensorShape      = 3
	tensorParameters = 4
	tensorContents   = 5
	outputName       = 1
	outputParameters = 2
	entryKey         = 1
	entryValue       = 2
)

// reader reads one message.
type reader struct {
	cursor
	tensors     int // raw contents seen
	parameters  int
	dimensions  int
	foreign     bool            // a nested message has fields that are not known here
	arena       mem.BufferSlice // backs the tensors' lists of references
	raws        []mem.BufferSlice
	smallRaws   [4]mem.BufferSlice
	smallShapes []int64
}

// A request and room for the usual number of parts, in one allocation.
type requestRoom struct {
	Request
	inputs  [2]Tensor
	outputs [2]RequestedOutput
	buffers [6]mem.Buffer
	dims    [8]int64
}

type responseRoom struct {
	Response
	outputs [2]Tensor
	buffers [6]mem.Buffer
	dims    [8]int64
}

// ReadRequest reads an encoded ModelInferRequest. It accepts exactly what the
// protobuf runtime accepts, within the limits on the number of tensors,
// parameters and dimensions. It takes over the caller's references to wire,
// error or not.
func ReadRequest(wire mem.BufferSlice) (*Request, error) {
	room := &requestRoom{}
	m := &room.Request
	m.Wire = wire
	m.Inputs, m.Outputs = room.inputs[:0], room.outputs[:0]
	d := reader{cursor: newCursor(wire), arena: room.buffers[:0], smallShapes: room.dims[:0]}
	d.raws = d.smallRaws[:0]
	if err := d.request(m); err != nil {
		d.release()
		m.Free()
		return nil, fmt.Errorf("read ModelInferRequest: %w", err)
	}
	m.foreign = d.foreign
	m.Irregular = d.pairInputs(m)
	return m, nil
}

// ReadResponse reads an encoded ModelInferResponse; like ReadRequest.
func ReadResponse(wire mem.BufferSlice) (*Response, error) {
	room := &responseRoom{}
	m := &room.Response
	m.Wire = wire
	m.Outputs = room.outputs[:0]
	d := reader{cursor: newCursor(wire), arena: room.buffers[:0], smallShapes: room.dims[:0]}
	d.raws = d.smallRaws[:0]
	m.Cleared = d.left == 0
	if err := d.response(m); err != nil {
		d.release()
		m.Free()
		return nil, fmt.Errorf("read ModelInferResponse: %w", err)
	}
	d.pairOutputs(m)
	return m, nil
}

func (d *reader) release() {
	for _, raw := range d.raws {
		raw.Free()
	}
}

func (d *reader) request(m *Request) error {
	return d.fields(&m.Unknown, func(num protowire.Number) (bool, error) {
		switch num {
		case requestInputs:
			return true, d.nestedTensor(&m.Inputs, "inputs")
		case requestOutputs:
			if len(m.Outputs) == maxTensors {
				return true, fmt.Errorf("%w: more than %d requested outputs", ErrTooMany, maxTensors)
			}
			m.Outputs = append(m.Outputs, RequestedOutput{})
			return true, d.nestedOutput(&m.Outputs[len(m.Outputs)-1])
		case requestRaw:
			return true, d.raw()
		}
		return d.head(num, &m.Model, &m.Version, &m.ID, &m.Parameters)
	})
}

func (d *reader) response(m *Response) error {
	return d.fields(&m.Unknown, func(num protowire.Number) (bool, error) {
		switch num {
		case responseOutputs:
			return true, d.nestedTensor(&m.Outputs, "outputs")
		case responseRaw:
			return true, d.raw()
		}
		return d.head(num, &m.Model, &m.Version, &m.ID, &m.Parameters)
	})
}

// head reads the fields that requests and responses have alike.
func (d *reader) head(num protowire.Number, model, version, id *string, parameters *[]Parameter) (bool, error) {
	switch num {
	case fieldModel:
		return true, d.text(model, "model_name")
	case fieldVersion:
		return true, d.text(version, "model_version")
	case fieldID:
		return true, d.text(id, "id")
	case fieldParameters:
		return true, d.nestedParameter(parameters)
	}
	return false, nil
}

// fields walks the top level of a message. Known consumes the value of a
// length-delimited field that it handles and reports whether it did; every other
// field is kept in unknown.
func (d *reader) fields(unknown *[]byte, known func(protowire.Number) (bool, error)) error {
	for d.left > 0 {
		tag, ok := d.varint()
		num, kind := protowire.DecodeTag(tag)
		if !ok || num < protowire.MinValidNumber || num > protowire.MaxValidNumber {
			return fmt.Errorf("%w: field tag", ErrMalformed)
		}
		if kind == protowire.BytesType {
			if done, err := known(num); done || err != nil {
				if err != nil {
					return err
				}
				continue
			}
		}
		value, err := d.unknownValue(num, kind)
		if err != nil {
			return err
		}
		*unknown = append(protowire.AppendTag(*unknown, num, kind), value...)
	}
	return nil
}

func (d *reader) unknownValue(num protowire.Number, kind protowire.Type) ([]byte, error) {
	malformed := fmt.Errorf("%w: field %d", ErrMalformed, num)
	switch kind {
	case protowire.VarintType:
		v, ok := d.varint()
		if !ok {
			return nil, malformed
		}
		return protowire.AppendVarint(nil, v), nil
	case protowire.Fixed32Type, protowire.Fixed64Type:
		n := 4
		if kind == protowire.Fixed64Type {
			n = 8
		}
		if d.left < n {
			return nil, malformed
		}
		return d.bytes(n), nil
	case protowire.BytesType:
		n, ok := d.length()
		if !ok {
			return nil, malformed
		}
		return append(protowire.AppendVarint(nil, uint64(n)), d.bytes(n)...), nil
	case protowire.StartGroupType:
		if len(d.cur) < d.left {
			// Only the end marker of a group shows where it ends. The rest is put
			// in one piece, which happens once for a message.
			rest := mem.SliceBuffer(d.bytes(d.left))
			d.cursor = newCursor(mem.BufferSlice{rest})
		}
		n := protowire.ConsumeFieldValue(num, kind, d.cur)
		if n < 0 {
			return nil, malformed
		}
		return d.bytes(n), nil
	}
	return nil, malformed
}

func (d *reader) text(into *string, field string) error {
	b, err := d.nested(field)
	if err == nil {
		*into, err = text(b, field)
	}
	return err
}

func (d *reader) nested(field string) ([]byte, error) {
	n, ok := d.length()
	if !ok {
		return nil, fmt.Errorf("%w: length of %s", ErrMalformed, field)
	}
	return d.bytes(n), nil
}

func (d *reader) raw() error {
	n, ok := d.length()
	if !ok {
		return fmt.Errorf("%w: length of raw contents", ErrMalformed)
	}
	if d.tensors++; d.tensors > maxTensors {
		return fmt.Errorf("%w: more than %d raw contents", ErrTooMany, maxTensors)
	}
	start := len(d.arena)
	d.arena = d.view(d.arena, n)
	end := len(d.arena)
	d.raws = append(d.raws, d.arena[start:end:end])
	return nil
}

func (d *reader) nestedParameter(into *[]Parameter) error {
	b, err := d.nested("parameters")
	if err != nil {
		return err
	}
	return d.parameter(b, into)
}

func (d *reader) nestedTensor(into *[]Tensor, field string) error {
	if len(*into) == maxTensors {
		return fmt.Errorf("%w: more than %d %s", ErrTooMany, maxTensors, field)
	}
	*into = append(*into, Tensor{})
	b, err := d.nested(field)
	if err != nil {
		return err
	}
	return d.tensor(b, &(*into)[len(*into)-1], field)
}

func (d *reader) nestedOutput(o *RequestedOutput) error {
	b, err := d.nested("outputs")
	if err != nil {
		return err
	}
	return eachField(b, "outputs", func(num protowire.Number, kind protowire.Type, value []byte) (err error) {
		switch {
		case num == outputName && kind == protowire.BytesType:
			o.Name, err = text(value, "output name")
		case num == outputParameters && kind == protowire.BytesType:
			err = d.parameter(value, &o.Parameters)
		default:
			d.foreign = true
		}
		return err
	})
}

func (d *reader) tensor(b []byte, t *Tensor, field string) error {
	// A loop of its own in place of eachField: this is the hot path.
	firstDim := len(d.smallShapes)
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 || num > protowire.MaxValidNumber {
			return fmt.Errorf("%w: field tag in %s", ErrMalformed, field)
		}
		b = b[n:]
		n = protowire.ConsumeFieldValue(num, kind, b)
		if n < 0 {
			return fmt.Errorf("%w: field %d in %s", ErrMalformed, num, field)
		}
		value := b[:n]
		b = b[n:]
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		var err error
		switch {
		case num == tensorName && kind == protowire.BytesType:
			t.Name, err = text(value, "tensor name")
		case num == tensorDatatype && kind == protowire.BytesType:
			t.Datatype, err = datatype(value)
		case num == tensorShape && kind == protowire.BytesType:
			for len(value) > 0 && err == nil {
				v, n := protowire.ConsumeVarint(value)
				if n < 0 {
					return fmt.Errorf("%w: shape in %s", ErrMalformed, field)
				}
				value = value[n:]
				err = d.dimension(int64(v))
			}
		case num == tensorShape && kind == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(value)
			err = d.dimension(int64(v))
		case num == tensorParameters && kind == protowire.BytesType:
			err = d.parameter(value, &t.Parameters)
		case num == tensorContents && kind == protowire.BytesType:
			if err = validContents(value); err != nil {
				break
			}
			// Encoded messages merge by concatenation. The first is a view without
			// room, so that the second moves both to memory of their own.
			if t.hasContents {
				t.Contents = append(t.Contents, value...)
			} else {
				t.Contents, t.hasContents = value[:len(value):len(value)], true
			}
		default:
			d.foreign = true
		}
		if err != nil {
			return err
		}
	}
	t.Shape = d.smallShapes[firstDim:len(d.smallShapes):len(d.smallShapes)]
	return nil
}

func (d *reader) dimension(v int64) error {
	if d.dimensions++; d.dimensions > maxDimensions {
		return fmt.Errorf("%w: more than %d dimensions", ErrTooMany, maxDimensions)
	}
	d.smallShapes = append(d.smallShapes, v)
	return nil
}

// parameter reads one entry of a map of parameters. Of equal keys the last
// counts.
func (d *reader) parameter(b []byte, into *[]Parameter) error {
	var p Parameter
	err := eachField(b, "parameters", func(num protowire.Number, kind protowire.Type, value []byte) (err error) {
		switch {
		case num == entryKey && kind == protowire.BytesType:
			p.Name, err = text(value, "parameter name")
		case num == entryValue && kind == protowire.BytesType:
			if err = validParameter(value); err == nil {
				p.Value = append(p.Value, value...)
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	// Entries count and not names: each is compared with all before it.
	if d.parameters++; d.parameters > maxParameters {
		return fmt.Errorf("%w: more than %d parameters", ErrTooMany, maxParameters)
	}
	for i := range *into {
		if (*into)[i].Name == p.Name {
			(*into)[i] = p
			return nil
		}
	}
	*into = append(*into, p)
	return nil
}

func validParameter(b []byte) error {
	return eachField(b, "parameter value", func(num protowire.Number, kind protowire.Type, value []byte) error {
		if num == choiceString && kind == protowire.BytesType && !utf8.Valid(value) {
			return fmt.Errorf("%w: string_param is not UTF-8", ErrMalformed)
		}
		return nil
	})
}

// eachField walks a message that lies in one piece. The value of a
// length-delimited field comes without its length.
func eachField(b []byte, where string, f func(protowire.Number, protowire.Type, []byte) error) error {
	for len(b) > 0 {
		num, kind, n := protowire.ConsumeTag(b)
		if n < 0 || num > protowire.MaxValidNumber {
			return fmt.Errorf("%w: field tag in %s", ErrMalformed, where)
		}
		b = b[n:]
		n = protowire.ConsumeFieldValue(num, kind, b)
		if n < 0 {
			return fmt.Errorf("%w: field %d in %s", ErrMalformed, num, where)
		}
		value := b[:n]
		b = b[n:]
		if kind == protowire.BytesType {
			value, _ = protowire.ConsumeBytes(value)
		}
		if err := f(num, kind, value); err != nil {
			return err
		}
	}
	return nil
}

func text(b []byte, field string) (string, error) {
	if !utf8.Valid(b) {
		return "", fmt.Errorf("%w: %s is not UTF-8", ErrMalformed, field)
	}
	return string(b), nil
}

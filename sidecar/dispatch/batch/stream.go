// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// StreamAnswer is the part of a ModelStreamInferResponse that a proxy needs.
type StreamAnswer struct {
	// Failed: the message carries an error.
	Failed bool
	// Error is its text.
	Error string
	// Model that answered; empty in an error.
	Model string
	// ID of the request, in errors too.
	ID string
	// Last: the request has no further answers. Then triton_final_response is
	// true, or it is an error without that parameter, which is how Triton refuses
	// a request.
	Last bool
	// Empty: the message has nothing else. It has no outputs and no error, and no
	// version, which Triton gives to every answer of a model.
	Empty bool
}

// AskForFinalResponse adds to an encoded ModelInferRequest the parameter
// triton_enable_empty_final_response, so that the last answer of a decoupled model
// can be recognised. Parameters are a map: of two entries the later one counts.
func AskForFinalResponse(wire mem.BufferSlice) mem.BufferSlice {
	w := writer{}
	w.parameters(fieldParameters, []Parameter{BoolParameter(ParameterEmptyFinalResponse, true)})
	return append(wire, mem.SliceBuffer(w.head))
}

// AmendStreamAnswer adds the fields of a response to an encoded
// ModelStreamInferResponse. Of two encodings of one message a reader takes the
// later one's fields, and the parameters of both.
func AmendStreamAnswer(wire mem.BufferSlice, r *Response) mem.BufferSlice {
	more := r.Marshal()
	w := writer{}
	w.tag(streamResponse)
	w.length(more.Len())
	return append(append(wire, mem.SliceBuffer(w.head)), more...)
}

// StreamResponse encodes the ModelStreamInferResponse that carries the only answer
// to a request, with references of its own. Triton marks such an answer as the
// last.
func StreamResponse(r *Response) mem.BufferSlice {
	wire := r.Marshal()
	mark := writer{}
	mark.parameters(fieldParameters, []Parameter{BoolParameter(ParameterFinalResponse, true)})
	w := writer{head: make([]byte, 0, 2*len(mark.head))}
	w.tag(streamResponse)
	w.length(len(mark.head) + wire.Len())
	w.head = append(w.head, mark.head...)
	list := make(mem.BufferSlice, 0, 1+len(wire))
	return append(append(list, mem.SliceBuffer(w.head)), wire...)
}

// Field numbers of ModelStreamInferResponse.
const (
	streamError    = 1
	streamResponse = 2
)

// ReadStreamAnswer reads the beginning of a ModelStreamInferResponse without
// taking references. It reads only the fields that it needs.
func ReadStreamAnswer(wire mem.BufferSlice) (StreamAnswer, error) {
	var a StreamAnswer
	var final, marked, answered bool
	c := newCursor(wire)
	err := c.walk(0, func(num protowire.Number, n int) (bool, error) {
		switch num {
		case streamError:
			a.Error = string(c.bytes(n))
			a.Failed = a.Failed || n > 0
			return true, nil
		case streamResponse:
			return true, c.walk(c.left-n, func(num protowire.Number, n int) (_ bool, err error) {
				switch num {
				case fieldModel:
					a.Model, err = text(c.bytes(n), "model_name")
					return true, err
				case fieldID:
					a.ID, err = text(c.bytes(n), "id")
					return true, err
				case fieldParameters:
					d := reader{}
					var list []Parameter
					if err := d.parameter(c.bytes(n), &list); err != nil {
						return true, err
					}
					if list[0].Name == ParameterFinalResponse {
						final, marked = list[0].Bool()
					}
					return true, nil
				case fieldVersion, responseOutputs:
					answered = answered || n > 0
				}
				return false, nil
			})
		}
		return false, nil
	})
	if err != nil {
		return StreamAnswer{}, fmt.Errorf("read ModelStreamInferResponse: %w", err)
	}
	a.Last = final || (a.Failed && !marked)
	a.Empty = !answered && !a.Failed
	return a, nil
}

// walk visits the length-delimited fields until as many bytes are left. F
// reports whether it has consumed the n bytes of the value.
func (c *cursor) walk(until int, f func(num protowire.Number, n int) (consumed bool, err error)) error {
	for c.left > until {
		tag, ok := c.varint()
		num, kind := protowire.DecodeTag(tag)
		if !ok || num < protowire.MinValidNumber {
			return fmt.Errorf("%w: field tag", ErrMalformed)
		}
		n := 0
		switch kind {
		case protowire.VarintType:
			_, ok = c.varint()
		case protowire.Fixed32Type:
			n = 4
		case protowire.Fixed64Type:
			n = 8
		case protowire.BytesType:
			if n, ok = c.length(); ok && c.left-n >= until {
				consumed, err := f(num, n)
				if err != nil {
					return err
				}
				if consumed {
					n = 0
				}
			}
		default:
			return fmt.Errorf("%w: groups", ErrMalformed)
		}
		if !ok || c.left-n < until {
			return fmt.Errorf("%w: field %d", ErrMalformed, num)
		}
		c.skip(n)
	}
	return nil
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// Request is a ModelInferRequest whose tensor bytes are references.
//
// The gRPC front makes one with ReadRequest; the HTTP front fills one in, leaves
// Wire empty, and owns the buffers it puts into Tensor.Data until Free.
type Request struct {
	Model   string
	Version string // empty: the version that Triton's policy picks
	ID      string

	Parameters []Parameter
	Inputs     []Tensor
	Outputs    []RequestedOutput // empty: every output of the model

	// Wire is the whole message as it was received, empty when the request did not
	// come from gRPC. A request that is sent alone is sent as these bytes, so that
	// no field that this build does not know is lost. Clear it with Detach after
	// changing a field.
	Wire mem.BufferSlice

	// HTTP is the request as it came over HTTP, nil if it did not or was changed since. A request that is sent alone to a server's HTTP port is sent so.
	HTTP *HTTP

	// Unknown holds the encoding of top-level fields that this build does not
	// know. A request that has any is never batched.
	Unknown []byte

	// Irregular is why inputs and data could not be paired, for example that an
	// input has none. Such a request is sent to Triton unchanged, which refuses it
	// with its own text.
	Irregular string

	foreign bool         // a nested message has fields that are not known here
	extra   atomic.Int32 // references beyond the first
}

// Tensor is an input of a request or an output of a response.
type Tensor struct {
	Name       string
	Datatype   string // "FP32", "BYTES", ... as Triton spells it
	Shape      []int64
	Parameters []Parameter

	// Data is the raw little-endian content. Nil when the tensor lives in shared
	// memory or came as typed contents that were not normalised.
	Data mem.BufferSlice

	// Contents is the encoded InferTensorContents of a caller that used typed
	// contents in place of raw ones. It may share memory with Request.Wire.
	Contents []byte

	hasContents bool // Contents was present, though perhaps empty
}

// RequestedOutput is one output that the caller asks for.
type RequestedOutput struct {
	Name       string
	Parameters []Parameter
}

// Response is a ModelInferResponse whose tensor bytes are references.
type Response struct {
	Model      string
	Version    string
	ID         string
	Parameters []Parameter
	Outputs    []Tensor

	// Wire is the whole message as it was received; empty in a response that
	// Split made.
	Wire mem.BufferSlice

	// HTTP is the answer as a server's HTTP port gave it, which nothing else here says then; nil: it came over gRPC.
	HTTP *HTTP

	// Unknown holds the encoding of top-level fields that this build does not
	// know. Split hands them to every caller.
	Unknown []byte

	// Cleared: the message was empty. Triton names the model in every answer and
	// clears one that is an error. The error is then its status, unless the model
	// marks the end of its answers apart from it (2.51: the mark's status replaces
	// it, which is OK).
	Cleared bool
}

// ErrCleared is the error for an empty message that came in place of an error.
var ErrCleared = status.Error(codes.Internal, "the model answered with an error whose text the server lost: the model should send it together with the final flag, and not the one after the other")

// Err is ErrCleared for an answer that was cleared, and nil for any other, none included.
func (r *Response) Err() error {
	if r != nil && r.Cleared {
		return ErrCleared
	}
	return nil
}

// Timeout returns Triton's `timeout` parameter: how long the request may wait,
// in microseconds on the wire. Zero, negative and absent values mean no limit.
func (r *Request) Timeout() (time.Duration, bool) {
	p, ok := FindParameter(r.Parameters, ParameterTimeout)
	if !ok {
		return 0, false
	}
	us, ok := p.Int64()
	if !ok || us <= 0 || us > int64(1<<63-1)/int64(time.Microsecond) {
		return 0, false
	}
	return time.Duration(us) * time.Microsecond, true
}

// Ref adds a reference: Free must be called once more.
func (r *Request) Ref() { r.extra.Add(1) }

// Free gives one reference back; the last one releases all buffers.
func (r *Request) Free() {
	if r.extra.Add(-1) >= 0 {
		return
	}
	freeTensors(r.Inputs)
	r.Wire.Free()
	r.Wire = nil
	r.HTTP = r.HTTP.free()
}

// Detach gives back the received message, so that Marshal encodes the fields
// as they are now. Tensor data stays.
func (r *Request) Detach() {
	for i := range r.Inputs {
		if r.Inputs[i].Contents != nil {
			r.Inputs[i].Contents = append([]byte(nil), r.Inputs[i].Contents...)
		}
	}
	r.Wire.Free()
	r.Wire = nil
	r.HTTP = r.HTTP.free()
}

// Detach gives back the received message, so that Marshal encodes the fields as
// they are now. Tensor data stays.
func (r *Response) Detach() {
	for i := range r.Outputs {
		if r.Outputs[i].Contents != nil {
			r.Outputs[i].Contents = append([]byte(nil), r.Outputs[i].Contents...)
		}
	}
	r.Wire.Free()
	r.Wire = nil
}

// Free releases all buffers.
func (r *Response) Free() {
	freeTensors(r.Outputs)
	r.Wire.Free()
	r.Wire = nil
	r.HTTP = r.HTTP.free()
}

// Output returns the output of that name, or nil.
func (r *Response) Output(name string) *Tensor {
	for i := range r.Outputs {
		if r.Outputs[i].Name == name {
			return &r.Outputs[i]
		}
	}
	return nil
}

// SharedMemory reports whether the tensor's data is in a shared-memory region
// and not in the message.
func (t *Tensor) SharedMemory() bool {
	_, ok := FindParameter(t.Parameters, ParameterSharedMemoryRegion)
	return ok
}

// rows is the first dimension; zero: there is none.
func (t *Tensor) rows() int64 {
	if len(t.Shape) == 0 {
		return 0
	}
	return t.Shape[0]
}

func freeTensors(tensors []Tensor) {
	for i := range tensors {
		tensors[i].Data.Free()
		tensors[i].Data = nil
		tensors[i].Contents = nil
	}
}

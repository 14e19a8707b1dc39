// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"errors"

	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

var errNotWritten = errors.New("batch: being written")

// ReadRequest reads an encoded ModelInferRequest. It accepts exactly what the
// protobuf runtime accepts, within the limits on the number of tensors,
// parameters and dimensions, and takes over the caller's references to wire,
// error or not.
func ReadRequest(wire mem.BufferSlice) (*Request, error) { return nil, errNotWritten }

// ReadResponse reads an encoded ModelInferResponse; like ReadRequest.
func ReadResponse(wire mem.BufferSlice) (*Response, error) { return nil, errNotWritten }

// Marshal returns the encoded message as a scatter-gather list with references
// of its own.
func (r *Request) Marshal() mem.BufferSlice { return nil }

// Marshal returns the encoded message as a scatter-gather list with references
// of its own.
func (r *Response) Marshal() mem.BufferSlice { return nil }

// Assemble joins requests that have the same key into one, in order.
func Assemble(reqs []*Request) (*Request, error) { return nil, errNotWritten }

// Split gives each request of a batch its part of the answer, in order.
func Split(resp *Response, reqs []*Request) ([]*Response, error) { return nil, errNotWritten }

// Batchable says whether requests of a model with this configuration may share
// executions, and if not, why ("sequence batching", "decoupled", ...).
func Batchable(config *tritonpb.ModelConfig) (ok bool, reason string) { return false, "" }

// Rules decide which requests of one model may share a batch.
type Rules struct{}

// NewRules compiles the rules of one model. Versions are those that it serves;
// a request for any other is not batched.
func NewRules(config *tritonpb.ModelConfig, versions []string) *Rules { return &Rules{} }

// Key says whether the request may be batched and with whom: requests with equal
// keys may. When ok is false the request is to be forwarded alone, and reason says
// why; it is not an error, and Triton answers it in its own words.
func (*Rules) Key(r *Request) (key uint64, rows int, ok bool, reason string) { return 0, 0, false, "" }

// Refuse returns a gRPC status error for the few requests that are known to
// kill a Triton server, nil for all others.
func (*Rules) Refuse(r *Request) error { return nil }

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// decodeRaw takes the whole body as the data of the model's one input, and returns all outputs in binary.
func (in *inference) decodeRaw(body mem.Buffer) error {
	in.binary = true
	if n := len(in.config.GetInput()); n != 1 {
		return status.Errorf(codes.InvalidArgument,
			"[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got %d inputs in '%s' model configuration", n, in.model)
	}
	input := in.config.Input[0]
	t := batch.Tensor{Name: input.Name, Datatype: triton.DatatypeName(input.DataType)}
	if in.config.MaxBatchSize > 0 {
		t.Shape = append(t.Shape, 1)
	}
	t.Shape = append(t.Shape, input.Dims...)
	if t.Datatype == "BYTES" {
		if count, ok := triton.Elements(t.Shape); !ok || count != 1 {
			return status.Errorf(codes.InvalidArgument,
				"[request id: <id_unknown>] For BYTE datatype raw input '%s', the model must have input shape [1]", t.Name)
		}
		n := body.Len()
		size := mem.SliceBuffer{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}
		t.Data = mem.BufferSlice{size, body.Slice(0, n)}
	} else {
		if err := in.deduceShape(&t, int64(body.Len())); err != nil {
			return err
		}
		t.Data = mem.BufferSlice{body.Slice(0, body.Len())}
	}
	in.request.Inputs = []batch.Tensor{t}
	return nil
}

// deduceShape computes the one variable dimension from the size of the data.
func (in *inference) deduceShape(t *batch.Tensor, size int64) error {
	fixed, variable := max(int64(triton.SizeOf(t.Datatype)), 1), -1
	for i, d := range t.Shape {
		if d >= 0 {
			fixed *= d
			continue
		}
		if variable >= 0 {
			return status.Errorf(codes.InvalidArgument,
				"[request id: <id_unknown>] The shape of the raw input '%s' can not be deduced because there are more than one variable-sized dimension", t.Name)
		}
		variable = i
	}
	if variable < 0 {
		return nil // Triton compares the sizes
	}
	if fixed == 0 || size%fixed != 0 {
		expected := size
		if fixed != 0 {
			expected = size / fixed * fixed
		}
		return status.Errorf(codes.InvalidArgument,
			"[request id: <id_unknown>] input byte size mismatch for input 'raw_input' for model '%s'. Expected %d, got %d", in.model, expected, size)
	}
	t.Shape[variable] = size / fixed
	return nil
}

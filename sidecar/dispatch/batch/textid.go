// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// textIDRule is the longest text that a sequence may have for its id.
//
// Triton (2.51) writes a text, after four bytes with its length, into the tensor
// of the control CONTROL_SEQUENCE_CORRID, whatever the type of that. A text that
// is longer than the tensor overwrites the memory behind it, and the server
// crashes, at once or some requests later.
type textIDRule struct {
	most    int // bytes; 0: the model has no such control
	control string
	kind    tritonpb.DataType
}

const (
	// longestTextID is Triton's own limit, which it enforces.
	longestTextID = 128
	// textIDHead is the length before a text.
	textIDHead = 4
	// textIDTensor is what a tensor of TYPE_STRING has for both.
	textIDTensor = 128
	// numberIDTensor is the size for a number: the tensor has eight bytes or less,
	// but no block of the C library's heap is smaller than this. A text that fits
	// in it does no harm, and sequences with such ids do work.
	numberIDTensor = 24
)

func newTextIDRule(configs []*tritonpb.ModelConfig) (rule textIDRule) {
	for _, config := range configs {
		for _, input := range config.GetSequenceBatching().GetControlInput() {
			for _, control := range input.GetControl() {
				if control.GetKind() != tritonpb.ModelSequenceBatching_Control_CONTROL_SEQUENCE_CORRID {
					continue
				}
				most := numberIDTensor - textIDHead
				if control.GetDataType() == tritonpb.DataType_TYPE_STRING {
					most = textIDTensor - textIDHead
				}
				if rule.most == 0 || most < rule.most {
					rule = textIDRule{most, input.GetName(), control.GetDataType()}
				}
			}
		}
	}
	return rule
}

// hazard returns a gRPC status error for an id that does not fit, but not for one
// that Triton refuses by itself.
func (u *textIDRule) hazard(r *Request) error {
	if u.most == 0 {
		return nil
	}
	p, _ := FindParameter(r.Parameters, ParameterSequenceID)
	if id, ok := p.Text(); !ok || len(id) <= u.most || len(id) > longestTextID {
		return nil
	}
	return status.Errorf(codes.Unimplemented, "string correlation ID cannot be longer than %d characters for model '%s', whose control input '%s' is of data-type %v", u.most, r.Model, u.control, u.kind)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// rawInputContents and rawOutputContents are field numbers of ModelInferRequest and ModelInferResponse.
const (
	rawInputContents  = 7
	rawOutputContents = 6
)

// Tensor is the input of an emulated model: one row of FP32 elements named INPUT, whose answer is OUTPUT = Scale*INPUT + Shift.
type Tensor struct {
	Elements     int
	Scale, Shift float32
	// Input and Output default to INPUT and OUTPUT.
	Input, Output string
}

// Emulated is the tensor of an emulated model: OUTPUT = 2*INPUT + 1.
func Emulated(elements int) Tensor { return Tensor{Elements: elements, Scale: 2, Shift: 1} }

func (t Tensor) names() (input, output string) {
	input, output = t.Input, t.Output
	if input == "" {
		input = "INPUT"
	}
	if output == "" {
		output = "OUTPUT"
	}
	return input, output
}

// varying is how many elements differ from request to request. The rest of a large tensor is the same bytes in every request, so that
// making and checking it costs no arithmetic.
const varying = 16

// element is the value of element i of request sequence, small enough that FP32 holds Scale*x + Shift exactly.
func element(sequence uint64, i int) float32 {
	if i >= varying {
		sequence = 0
	}
	return float32(sequence%4096) + float32(i%1024)/4
}

// payload makes and checks the tensors of requests.
type payload struct {
	tensor     Tensor
	rest, want []byte // the elements after the varying ones: of the input, and of the right output
}

func newPayload(t Tensor) payload {
	p := payload{tensor: t}
	for i := varying; i < t.Elements; i++ {
		x := element(0, i)
		p.rest = appendFloat(p.rest, x)
		p.want = appendFloat(p.want, t.Scale*x+t.Shift)
	}
	return p
}

// appendHead appends the varying elements of a request.
func (p payload) appendHead(b []byte, sequence uint64) []byte {
	for i := range min(varying, p.tensor.Elements) {
		b = appendFloat(b, element(sequence, i))
	}
	return b
}

// check compares the raw output of a request with what it must be.
func (p payload) check(raw []byte, sequence uint64) error {
	if len(raw) != 4*p.tensor.Elements {
		return fmt.Errorf("%w: output of %d bytes instead of %d", ErrWrong, len(raw), 4*p.tensor.Elements)
	}
	head := len(raw) - len(p.want)
	for i := range head / 4 {
		got := math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		if want := p.tensor.Scale*element(sequence, i) + p.tensor.Shift; got != want {
			return fmt.Errorf("%w: element %d is %g instead of %g", ErrWrong, i, got, want)
		}
	}
	if !bytes.Equal(raw[head:], p.want) {
		return fmt.Errorf("%w: an element after the first %d differs", ErrWrong, varying)
	}
	return nil
}

func appendFloat(b []byte, x float32) []byte {
	return binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
}

// template is everything of a gRPC request but the tensor's bytes, which it ends just before.
func (t Tensor) template(model string) ([]byte, error) {
	input, _ := t.names()
	b, err := proto.Marshal(&tritonpb.ModelInferRequest{
		ModelName: model,
		Inputs:    []*tritonpb.ModelInferRequest_InferInputTensor{{Name: input, Datatype: "FP32", Shape: []int64{1, int64(t.Elements)}}},
	})
	if err != nil {
		return nil, fmt.Errorf("load: request for model %q: %w", model, err)
	}
	b = protowire.AppendTag(b, rawInputContents, protowire.BytesType)
	return protowire.AppendVarint(b, uint64(4*t.Elements)), nil
}

// rawOutput finds the one output tensor of a gRPC answer.
func rawOutput(answer []byte) ([]byte, error) {
	var out []byte
	for len(answer) > 0 {
		field, kind, n := protowire.ConsumeTag(answer)
		if n < 0 {
			return nil, fmt.Errorf("%w: no ModelInferResponse: %w", ErrWrong, protowire.ParseError(n))
		}
		if answer = answer[n:]; field == rawOutputContents && kind == protowire.BytesType {
			v, n := protowire.ConsumeBytes(answer)
			if n < 0 {
				return nil, fmt.Errorf("%w: no ModelInferResponse: %w", ErrWrong, protowire.ParseError(n))
			}
			out, answer = v, answer[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(field, kind, answer); n < 0 {
			return nil, fmt.Errorf("%w: no ModelInferResponse: %w", ErrWrong, protowire.ParseError(n))
		}
		answer = answer[n:]
	}
	return out, nil
}

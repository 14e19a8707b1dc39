// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"encoding/binary"
	"strconv"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// The built-in models of this file answer with what the server made of their config: which version runs, how an input is reshaped, what a
// sequence batcher adds.

type versioned struct{ offset int32 }

func (v *versioned) execute(p *payload, responses []response) error {
	for i, r := range p.requests {
		in := r.inputs[0]
		out := make([]byte, 0, len(in.data))
		for k := 0; k+4 <= len(in.data); k += 4 {
			out = binary.LittleEndian.AppendUint32(out, binary.LittleEndian.Uint32(in.data[k:])+uint32(v.offset))
		}
		responses[i].outputs = []tensor{{name: "OUTPUT0", dtype: in.dtype, shape: in.shape, data: out}}
	}
	return nil
}

type rank struct {
	dimensions uint32
	shape      []int64 // of one row's output, as clients see it
}

func newRank(c *pb.ModelConfig) *rank {
	r := &rank{}
	if len(c.Input) != 1 || len(c.Output) != 1 {
		return r // refused by the caller
	}
	dims := c.Input[0].Dims
	if reshape := c.Input[0].Reshape; reshape != nil {
		dims = reshape.Shape
	}
	r.dimensions, r.shape = uint32(len(dims)), c.Output[0].Dims
	if c.MaxBatchSize > 0 {
		r.dimensions++
	}
	return r
}

func (k *rank) execute(p *payload, responses []response) error {
	for i, r := range p.requests {
		var out []byte
		for range r.rows {
			out = binary.LittleEndian.AppendUint32(out, k.dimensions)
		}
		responses[i].outputs = []tensor{{name: "OUTPUT0", dtype: pb.DataType_TYPE_INT32, shape: append([]int64{int64(r.rows)}, k.shape...), data: out}}
	}
	return nil
}

// controls knows what each control is worth while it is false and while it is true.
type controls struct{ start, end, ready [2]int64 }

func newControls(c *pb.ModelConfig) *controls {
	out := &controls{}
	for _, in := range c.GetSequenceBatching().GetControlInput() {
		for _, control := range in.Control {
			switch control.Kind {
			case pb.ModelSequenceBatching_Control_CONTROL_SEQUENCE_START:
				out.start = controlValues(control)
			case pb.ModelSequenceBatching_Control_CONTROL_SEQUENCE_END:
				out.end = controlValues(control)
			case pb.ModelSequenceBatching_Control_CONTROL_SEQUENCE_READY:
				out.ready = controlValues(control)
			}
		}
	}
	return out
}

func controlValues(c *pb.ModelSequenceBatching_Control) [2]int64 {
	switch {
	case len(c.Int32FalseTrue) == 2:
		return [2]int64{int64(c.Int32FalseTrue[0]), int64(c.Int32FalseTrue[1])}
	case len(c.Fp32FalseTrue) == 2:
		return [2]int64{int64(c.Fp32FalseTrue[0]), int64(c.Fp32FalseTrue[1])}
	default:
		return [2]int64{0, 1}
	}
}

func (c *controls) execute(p *payload, responses []response) error {
	for i, r := range p.requests {
		out := binary.LittleEndian.AppendUint64(nil, uint64(int32(binary.LittleEndian.Uint32(r.inputs[0].data))))
		for _, v := range []int64{pick(c.start, r.sequence.start), pick(c.end, r.sequence.end), c.ready[1], correlation(r.sequence.id)} {
			out = binary.LittleEndian.AppendUint64(out, uint64(v))
		}
		responses[i].outputs = []tensor{{name: "OUTPUT", dtype: pb.DataType_TYPE_INT64, shape: []int64{1, 5}, data: out}}
	}
	return nil
}

func pick(values [2]int64, which bool) int64 {
	if which {
		return values[1]
	}
	return values[0]
}

// correlation is a sequence id as a number. Triton 2.51 gives a model that wants a number the first bytes of a text: its length and the
// characters behind it.
func correlation(id string) int64 {
	if n, err := strconv.ParseUint(id, 10, 64); err == nil {
		return int64(n)
	}
	return int64(binary.LittleEndian.Uint64(append(appendBytesElement(nil, []byte(id)), 0, 0, 0, 0, 0, 0, 0, 0)))
}

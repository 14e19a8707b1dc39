// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/runtime/protoiface"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// codec is gRPC's proto codec without copies of tensors: a request's bytes fields are slices of the message as it came, and a
// response's raw outputs are sent from where they are.
type codec struct{}

func (codec) Name() string { return "proto" }

// rawOutputContents is the field number of ModelInferResponse.raw_output_contents.
const rawOutputContents = 6

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	r, ok := v.(*pb.ModelInferResponse)
	if !ok {
		m, ok := v.(proto.Message)
		if !ok {
			return nil, fmt.Errorf("minitriton: cannot encode %T", v)
		}
		b, err := proto.Marshal(m)
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	raw := r.RawOutputContents
	r.RawOutputContents = nil
	b, err := proto.Marshal(r)
	r.RawOutputContents = raw
	if err != nil {
		return nil, err
	}
	out := make(mem.BufferSlice, 0, 2*len(raw)+1)
	for _, data := range raw {
		b = protowire.AppendTag(b, rawOutputContents, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(len(data)))
		if len(data) < 1024 { // cheaper copied than sent as a piece of its own
			b = append(b, data...)
			continue
		}
		out = append(out, mem.SliceBuffer(b), mem.SliceBuffer(data))
		b = nil
	}
	return append(out, mem.SliceBuffer(b)), nil
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(*streamRequest); ok {
		r.garbled = c.Unmarshal(data, &r.ModelInferRequest) != nil
		return nil
	}
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("minitriton: cannot decode into %T", v)
	}
	// The buffer is never given back to its pool: tensors point into it for as long as they live.
	buf := data.MaterializeToBuffer(mem.NopBufferPool{}).ReadOnlyData()
	methods := m.ProtoReflect().ProtoMethods()
	if _, infer := v.(*pb.ModelInferRequest); !infer || methods == nil || methods.Unmarshal == nil {
		return proto.Unmarshal(buf, m)
	}
	_, err := methods.Unmarshal(protoiface.UnmarshalInput{
		Message: m.ProtoReflect(), Buf: buf, Flags: protoiface.UnmarshalAliasBuffer, Depth: protowire.DefaultRecursionLimit,
	})
	return err
}

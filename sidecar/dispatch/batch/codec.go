// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	// Registers the "proto" codec that messages other than Frame go through.
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Frame is one gRPC message as it crosses the wire.
type Frame struct {
	// Data is the encoded message. A frame that was received owns its buffers:
	// free them. Those of a frame that is sent belong to grpc-go afterwards.
	Data mem.BufferSlice
}

// Codec is a gRPC codec that passes a *Frame on as references to the received
// buffers and leaves every other message to the protobuf codec. Its name is
// "proto", because that is the encoding on the wire.
type Codec struct{}

var _ encoding.CodecV2 = Codec{}

// Name implements encoding.CodecV2.
func (Codec) Name() string { return protocodec.Name }

// Marshal implements encoding.CodecV2. A frame's buffers pass to the caller.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*Frame); ok {
		data := f.Data
		f.Data = nil
		return data, nil
	}
	next := encoding.GetCodecV2(protocodec.Name)
	if next == nil {
		return nil, fmt.Errorf("batch: no protobuf codec is registered to marshal %T", v)
	}
	return next.Marshal(v)
}

// Unmarshal implements encoding.CodecV2. A frame takes references of its own.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*Frame); ok {
		data.Ref()
		f.Data = append(mem.BufferSlice(nil), data...)
		return nil
	}
	next := encoding.GetCodecV2(protocodec.Name)
	if next == nil {
		return fmt.Errorf("batch: no protobuf codec is registered to unmarshal %T", v)
	}
	return next.Unmarshal(data, v)
}

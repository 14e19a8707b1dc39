// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package handon

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// Infer hands on an encoded ModelInferRequest that this replica has accepted, and may not execute any more. It takes over a reference to the request; the answer is to be freed.
// Errors are gRPC status errors. A request that another replica has handed on makes no second hop: that one is told to send it to the owner itself. So is every client of a replica that
// cannot hand on, whose Front is nil.
func (f *Front) Infer(ctx context.Context, request mem.BufferSlice) (mem.BufferSlice, error) {
	defer request.Free()
	in, _ := metadata.FromIncomingContext(ctx)
	if f == nil || len(in.Get(markHandedOn)) > 0 {
		return nil, status.Error(codes.Unavailable, batch.Exiting)
	}
	c := &call{Front: f, method: tritonpb.GRPCInferenceService_ModelInfer_FullMethodName, wait: wait{until: time.Now().Add(f.o.Patience)}}
	c.ctx = metadata.NewOutgoingContext(ctx, f.marked(in))
	c.wait.ctx = c.ctx
	answer, _, err := c.hand(request)
	if err != nil {
		return nil, err
	}
	return answer.Data, nil
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// method is a method of the generated client.
type method[Q, A any] func(tritonpb.GRPCInferenceServiceClient, context.Context, Q, ...grpc.CallOption) (A, error)

// ask calls one partition, within the timeout.
func ask[Q, A any](ctx context.Context, a *Aggregate, p Partition, m method[Q, A], request Q) (A, error) {
	ctx, cancel := context.WithTimeout(ctx, a.o.Timeout)
	defer cancel()
	return m(tritonpb.NewGRPCInferenceServiceClient(p.Conn), ctx, request)
}

// askAll calls partitions at once; the answers are in their order.
func askAll[Q, A any](ctx context.Context, a *Aggregate, partitions []Partition, m method[Q, A], request Q) ([]A, []error) {
	answers, failures := make([]A, len(partitions)), make([]error, len(partitions))
	var wg sync.WaitGroup
	for i, p := range partitions {
		wg.Go(func() { answers[i], failures[i] = ask(ctx, a, p, m, request) })
	}
	wg.Wait()
	return answers, failures
}

// give gives an order to a server, by the method of Triton's service that takes its message. A region counts as
// registered whatever the answer: the server may have had it already.
func (a *Aggregate) give(ctx context.Context, conn grpc.ClientConnInterface, order proto.Message) error {
	ctx, cancel := context.WithTimeout(ctx, a.o.Timeout)
	defer cancel()
	if r, ok := order.(*tritonpb.SystemSharedMemoryRegisterRequest); ok {
		defer a.o.Regions.Registered(r.GetName(), r.GetKey(), r.GetOffset(), r.GetByteSize())
	}
	methods := tritonpb.File_grpc_service_proto.Services().ByName("GRPCInferenceService").Methods()
	for i := range methods.Len() {
		if m := methods.Get(i); m.Input() == order.ProtoReflect().Descriptor() {
			return conn.Invoke(ctx, fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name()), order, dynamicpb.NewMessage(m.Output()))
		}
	}
	return fmt.Errorf("%s is no order", order.ProtoReflect().Descriptor().FullName())
}

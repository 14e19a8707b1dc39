// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"maps"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// everywhere gives an order to all partitions that are up. The answer is the first partition's, the error the first
// there is. What all have accepted is remembered for partitions that start later.
func everywhere[Q proto.Message, A any](ctx context.Context, a *Aggregate, partitions []Partition, m method[Q, A], request Q) (A, error) {
	var none A
	if len(partitions) == 0 {
		return none, status.Error(codes.Unavailable, "no Triton server is up")
	}
	answers, failures := askAll(ctx, a, partitions, m, request)
	for _, err := range failures {
		if err != nil {
			return none, err
		}
	}
	a.memory.remember(request)
	return answers[0], nil
}

// first asks partitions in turn until one answers; a refusal is an answer.
func first[Q, A any](ctx context.Context, a *Aggregate, m method[Q, A], request Q) (A, error) {
	var answer A
	err := status.Error(codes.Unavailable, "no Triton server is up")
	for _, p := range a.up() {
		if answer, err = ask(ctx, a, p, m, request); status.Code(err) != codes.Unavailable {
			break
		}
	}
	return answer, err
}

// TraceSetting changes the trace settings of all partitions, or reads the first one's. Those of one model concern only
// the partitions that have it.
func (a *Aggregate) TraceSetting(ctx context.Context, r *tritonpb.TraceSettingRequest) (*tritonpb.TraceSettingResponse, error) {
	partitions := a.up()
	if name := r.GetModelName(); name != "" {
		if partitions = a.with(name); len(partitions) == 0 {
			return nil, status.Errorf(codes.InvalidArgument, "Request for unknown model : %s", name)
		}
	}
	return everywhere(ctx, a, partitions, tritonpb.GRPCInferenceServiceClient.TraceSetting, r)
}

// LogSettings changes the log settings of all partitions, or reads the first one's.
func (a *Aggregate) LogSettings(ctx context.Context, r *tritonpb.LogSettingsRequest) (*tritonpb.LogSettingsResponse, error) {
	return everywhere(ctx, a, a.up(), tritonpb.GRPCInferenceServiceClient.LogSettings, r)
}

// SystemSharedMemoryStatus is the first partition's; all have the same regions of clients. What Conch shares with a
// server is not theirs to see.
func (a *Aggregate) SystemSharedMemoryStatus(ctx context.Context, r *tritonpb.SystemSharedMemoryStatusRequest) (*tritonpb.SystemSharedMemoryStatusResponse, error) {
	if batch.LentRegion(r.GetName()) {
		// Asked for like any name that nobody registered.
		r = &tritonpb.SystemSharedMemoryStatusRequest{Name: r.GetName() + " "}
	}
	status, err := first(ctx, a, tritonpb.GRPCInferenceServiceClient.SystemSharedMemoryStatus, r)
	maps.DeleteFunc(status.GetRegions(), func(name string, _ *tritonpb.SystemSharedMemoryStatusResponse_RegionStatus) bool { return batch.LentRegion(name) })
	return status, err
}

// SystemSharedMemoryRegister registers a region with every partition.
func (a *Aggregate) SystemSharedMemoryRegister(ctx context.Context, r *tritonpb.SystemSharedMemoryRegisterRequest) (*tritonpb.SystemSharedMemoryRegisterResponse, error) {
	return everywhere(ctx, a, a.up(), tritonpb.GRPCInferenceServiceClient.SystemSharedMemoryRegister, r)
}

// SystemSharedMemoryUnregister removes a region from every partition.
func (a *Aggregate) SystemSharedMemoryUnregister(ctx context.Context, r *tritonpb.SystemSharedMemoryUnregisterRequest) (*tritonpb.SystemSharedMemoryUnregisterResponse, error) {
	return everywhere(ctx, a, a.up(), tritonpb.GRPCInferenceServiceClient.SystemSharedMemoryUnregister, r)
}

// CudaSharedMemoryStatus is the first partition's; all have the same regions.
func (a *Aggregate) CudaSharedMemoryStatus(ctx context.Context, r *tritonpb.CudaSharedMemoryStatusRequest) (*tritonpb.CudaSharedMemoryStatusResponse, error) {
	return first(ctx, a, tritonpb.GRPCInferenceServiceClient.CudaSharedMemoryStatus, r)
}

// CudaSharedMemoryRegister registers a region with every partition.
func (a *Aggregate) CudaSharedMemoryRegister(ctx context.Context, r *tritonpb.CudaSharedMemoryRegisterRequest) (*tritonpb.CudaSharedMemoryRegisterResponse, error) {
	return everywhere(ctx, a, a.up(), tritonpb.GRPCInferenceServiceClient.CudaSharedMemoryRegister, r)
}

// CudaSharedMemoryUnregister removes a region from every partition.
func (a *Aggregate) CudaSharedMemoryUnregister(ctx context.Context, r *tritonpb.CudaSharedMemoryUnregisterRequest) (*tritonpb.CudaSharedMemoryUnregisterResponse, error) {
	return everywhere(ctx, a, a.up(), tritonpb.GRPCInferenceServiceClient.CudaSharedMemoryUnregister, r)
}

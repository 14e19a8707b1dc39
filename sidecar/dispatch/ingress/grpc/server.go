// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc

import (
	"context"

	"google.golang.org/grpc"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// Inferer is the request path.
type Inferer interface {
	// Infer answers one request and takes over one reference to it.
	Infer(ctx context.Context, r *batch.Request) (*batch.Response, error)
	// InferStream serves one ModelStreamInfer call.
	InferStream(downstream grpc.ServerStream) error
	// Stream passes a call of any other method through.
	Stream(method string, downstream grpc.ServerStream) error
}

// Aggregator answers for all partitions as if they were one server. The method
// set is Triton's service without inference, so that what one partition
// cannot know alone (the index, statistics, shared-memory registration, which
// every partition must see) has one place.
type Aggregator interface {
	ServerLive(context.Context, *tritonpb.ServerLiveRequest) (*tritonpb.ServerLiveResponse, error)
	ServerReady(context.Context, *tritonpb.ServerReadyRequest) (*tritonpb.ServerReadyResponse, error)
	ModelReady(context.Context, *tritonpb.ModelReadyRequest) (*tritonpb.ModelReadyResponse, error)
	ServerMetadata(context.Context, *tritonpb.ServerMetadataRequest) (*tritonpb.ServerMetadataResponse, error)
	ModelMetadata(context.Context, *tritonpb.ModelMetadataRequest) (*tritonpb.ModelMetadataResponse, error)
	ModelConfig(context.Context, *tritonpb.ModelConfigRequest) (*tritonpb.ModelConfigResponse, error)
	ModelStatistics(context.Context, *tritonpb.ModelStatisticsRequest) (*tritonpb.ModelStatisticsResponse, error)
	RepositoryIndex(context.Context, *tritonpb.RepositoryIndexRequest) (*tritonpb.RepositoryIndexResponse, error)
	RepositoryModelLoad(context.Context, *tritonpb.RepositoryModelLoadRequest) (*tritonpb.RepositoryModelLoadResponse, error)
	RepositoryModelUnload(context.Context, *tritonpb.RepositoryModelUnloadRequest) (*tritonpb.RepositoryModelUnloadResponse, error)
	SystemSharedMemoryStatus(context.Context, *tritonpb.SystemSharedMemoryStatusRequest) (*tritonpb.SystemSharedMemoryStatusResponse, error)
	SystemSharedMemoryRegister(context.Context, *tritonpb.SystemSharedMemoryRegisterRequest) (*tritonpb.SystemSharedMemoryRegisterResponse, error)
	SystemSharedMemoryUnregister(context.Context, *tritonpb.SystemSharedMemoryUnregisterRequest) (*tritonpb.SystemSharedMemoryUnregisterResponse, error)
	CudaSharedMemoryStatus(context.Context, *tritonpb.CudaSharedMemoryStatusRequest) (*tritonpb.CudaSharedMemoryStatusResponse, error)
	CudaSharedMemoryRegister(context.Context, *tritonpb.CudaSharedMemoryRegisterRequest) (*tritonpb.CudaSharedMemoryRegisterResponse, error)
	CudaSharedMemoryUnregister(context.Context, *tritonpb.CudaSharedMemoryUnregisterRequest) (*tritonpb.CudaSharedMemoryUnregisterResponse, error)
	TraceSetting(context.Context, *tritonpb.TraceSettingRequest) (*tritonpb.TraceSettingResponse, error)
	LogSettings(context.Context, *tritonpb.LogSettingsRequest) (*tritonpb.LogSettingsResponse, error)
}

// Options of New.
type Options struct {
	Inferer    Inferer
	Aggregator Aggregator
	// ServerOptions are added to the front's own, for example credentials.
	ServerOptions []grpc.ServerOption
}

// New makes the gRPC server: serve it with Serve(listener), end it with
// GracefulStop.
func New(o Options) *grpc.Server { return grpc.NewServer(o.ServerOptions...) }

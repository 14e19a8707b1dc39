// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
)

// The models that the recorded server had: id_T is the identity on T[-1], nb_fp32 on FP32[-1,-1] without batches,
// simple adds and subtracts INT32[16] in versions 1 and 2, err fails, dec is decoupled.
type catalog struct{}

func modelConfig(name string) *tritonpb.ModelConfig {
	io := func(t tritonpb.DataType, n int, dims ...int64) (in []*tritonpb.ModelInput, out []*tritonpb.ModelOutput) {
		for i := range n {
			in = append(in, &tritonpb.ModelInput{Name: "INPUT" + string(rune('0'+i)), DataType: t, Dims: dims})
			out = append(out, &tritonpb.ModelOutput{Name: "OUTPUT" + string(rune('0'+i)), DataType: t, Dims: dims})
		}
		return in, out
	}
	c := &tritonpb.ModelConfig{Name: name, MaxBatchSize: 8, Backend: "python"}
	switch typeName, isIdentity := strings.CutPrefix(name, "id_"); {
	case isIdentity:
		c.Input, c.Output = io(tritonpb.DataType(tritonpb.DataType_value["TYPE_"+strings.ToUpper(typeName)]), 1, -1)
	case name == "nb_fp32":
		c.MaxBatchSize = 0
		c.Input, c.Output = io(tritonpb.DataType_TYPE_FP32, 1, -1, -1)
	case name == "simple":
		c.Input, c.Output = io(tritonpb.DataType_TYPE_INT32, 2, 16)
	case name == "err" || name == "slow":
		c.Input, c.Output = io(tritonpb.DataType_TYPE_FP32, 1, -1)
	case name == "dec":
		c.MaxBatchSize = 0
		c.Input, c.Output = io(tritonpb.DataType_TYPE_FP32, 1, -1)
		c.ModelTransactionPolicy = &tritonpb.ModelTransactionPolicy{Decoupled: true}
	default:
		return nil
	}
	return c
}

func versions(name string) []string {
	if name == "simple" {
		return []string{"1", "2"}
	}
	return []string{"1"}
}

func (catalog) Model(name, version string) (*tritonpb.ModelConfig, error) {
	if len(version) > 19 {
		return nil, status.Errorf(codes.InvalidArgument, "failed to get model version from specified version string '%s' (details: stol), version should be an integral value > 0", version)
	}
	c := modelConfig(name)
	if c == nil {
		return nil, status.Errorf(codes.NotFound, "Request for unknown model: '%s' is not found", name)
	}
	if version != "" && !slices.Contains(versions(name), version) {
		return nil, status.Errorf(codes.NotFound, "Request for unknown model: '%s' version %s is not found", name, version)
	}
	return c, nil
}

// compute does what the models do.
func compute(t *testing.T, r *batch.Request) *batch.Response {
	t.Helper()
	version := r.Version
	if version == "" {
		version = versions(r.Model)[len(versions(r.Model))-1]
	}
	response := &batch.Response{Model: r.Model, Version: version, ID: r.ID}
	var outputs []batch.Tensor
	if r.Model == "simple" {
		a, b := r.Inputs[0].Data.Materialize(), r.Inputs[1].Data.Materialize()
		sum, difference := make([]byte, len(a)), make([]byte, len(a))
		for i := 0; i < len(a); i += 4 {
			x, y := binary.LittleEndian.Uint32(a[i:]), binary.LittleEndian.Uint32(b[i:])
			binary.LittleEndian.PutUint32(sum[i:], x+y)
			binary.LittleEndian.PutUint32(difference[i:], x-y)
		}
		outputs = []batch.Tensor{
			{Name: "OUTPUT0", Datatype: "INT32", Shape: r.Inputs[0].Shape, Data: mem.BufferSlice{mem.SliceBuffer(sum)}},
			{Name: "OUTPUT1", Datatype: "INT32", Shape: r.Inputs[0].Shape, Data: mem.BufferSlice{mem.SliceBuffer(difference)}}}
	} else {
		require.Len(t, r.Inputs, 1)
		in := r.Inputs[0]
		in.Data.Ref()
		outputs = []batch.Tensor{{Name: "OUTPUT0", Datatype: in.Datatype, Shape: in.Shape, Data: in.Data}}
	}
	for _, o := range outputs {
		wanted := slices.ContainsFunc(r.Outputs, func(w batch.RequestedOutput) bool { return w.Name == o.Name })
		if len(r.Outputs) == 0 || wanted {
			response.Outputs = append(response.Outputs, o)
		}
	}
	return response
}

// nowhere is a picker without partitions.
type nowhere struct{}

func (nowhere) Pick(context.Context, string) (front.Server, func(error), error) {
	return front.Server{}, nil, status.Error(codes.Unavailable, "no partition")
}
func (nowhere) HTTPEndpoints() []string { return nil }

// aggregator answers from the models alone.
type aggregator struct{ front.Aggregator }

func (aggregator) ServerLive(context.Context, *tritonpb.ServerLiveRequest) (*tritonpb.ServerLiveResponse, error) {
	return &tritonpb.ServerLiveResponse{Live: true}, nil
}

func (aggregator) ServerReady(context.Context, *tritonpb.ServerReadyRequest) (*tritonpb.ServerReadyResponse, error) {
	return &tritonpb.ServerReadyResponse{Ready: true}, nil
}

func (aggregator) ModelReady(_ context.Context, r *tritonpb.ModelReadyRequest) (*tritonpb.ModelReadyResponse, error) {
	_, err := catalog{}.Model(r.Name, r.Version)
	if status.Code(err) == codes.InvalidArgument {
		return nil, err
	}
	return &tritonpb.ModelReadyResponse{Ready: err == nil}, nil
}

func (aggregator) ServerMetadata(context.Context, *tritonpb.ServerMetadataRequest) (*tritonpb.ServerMetadataResponse, error) {
	return &tritonpb.ServerMetadataResponse{Name: "triton", Version: "2.51.0", Extensions: []string{"classification", "sequence",
		"model_repository", "model_repository(unload_dependents)", "schedule_policy", "model_configuration",
		"system_shared_memory", "cuda_shared_memory", "binary_tensor_data", "parameters", "statistics", "trace", "logging"}}, nil
}

func (aggregator) ModelMetadata(_ context.Context, r *tritonpb.ModelMetadataRequest) (*tritonpb.ModelMetadataResponse, error) {
	if _, err := (catalog{}).Model(r.Name, r.Version); err != nil {
		return nil, err
	}
	tensor := func(name string) *tritonpb.ModelMetadataResponse_TensorMetadata {
		return &tritonpb.ModelMetadataResponse_TensorMetadata{Name: name, Datatype: "INT32", Shape: []int64{-1, 16}}
	}
	m := &tritonpb.ModelMetadataResponse{Name: r.Name, Versions: versions(r.Name), Platform: "python",
		Inputs:  []*tritonpb.ModelMetadataResponse_TensorMetadata{tensor("INPUT0"), tensor("INPUT1")},
		Outputs: []*tritonpb.ModelMetadataResponse_TensorMetadata{tensor("OUTPUT0"), tensor("OUTPUT1")}}
	if r.Version != "" {
		m.Versions = []string{r.Version}
	}
	return m, nil
}

func (aggregator) ModelConfig(_ context.Context, r *tritonpb.ModelConfigRequest) (*tritonpb.ModelConfigResponse, error) {
	c, err := catalog{}.Model(r.Name, r.Version)
	return &tritonpb.ModelConfigResponse{Config: c}, err
}

func (aggregator) ModelStatistics(_ context.Context, r *tritonpb.ModelStatisticsRequest) (*tritonpb.ModelStatisticsResponse, error) {
	if modelConfig(r.Name) == nil {
		return nil, status.Errorf(codes.InvalidArgument, "requested model '%s' is not available", r.Name)
	}
	return nil, status.Errorf(codes.InvalidArgument, "requested model version is not available for model '%s'", r.Name)
}

var errUnscripted = errors.New("not part of this test")

func (aggregator) RepositoryModelLoad(context.Context, *tritonpb.RepositoryModelLoadRequest) (*tritonpb.RepositoryModelLoadResponse, error) {
	return nil, errUnscripted
}

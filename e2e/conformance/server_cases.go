// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

const noSuchModel = "Request for unknown model: 'nope' is not found"

// serverCases ask about the server and its models over gRPC.
func serverCases() []Case {
	fixed := []Case{
		{"server/live and ready", func(e *Env) {
			live, err := e.Client.Live(e.ctx())
			require.NoError(e, err)
			require.True(e, live)
			ready, err := e.Client.Ready(e.ctx())
			require.NoError(e, err)
			require.True(e, ready)
		}},
		{"server/grpc health of any service", func(e *Env) {
			for _, service := range []string{"", "inference.GRPCInferenceService", "nonsense"} {
				r, err := grpc_health_v1.NewHealthClient(e.Client.Conn()).Check(e.ctx(), &grpc_health_v1.HealthCheckRequest{Service: service})
				require.NoError(e, err)
				require.Equal(e, grpc_health_v1.HealthCheckResponse_SERVING, r.Status)
			}
		}},
		{"server/metadata", func(e *Env) {
			r, err := e.Client.Metadata(e.ctx())
			require.NoError(e, err)
			require.Equal(e, "triton", r.Name)
			require.NotEmpty(e, r.Version)
			require.Subset(e, r.Extensions, []string{"sequence", "model_repository", "binary_tensor_data", "parameters", "statistics"})
		}},
		{"server/unknown method", func(e *Env) {
			err := e.Client.Conn().Invoke(e.ctx(), "/inference.GRPCInferenceService/Nope", &pb.ServerLiveRequest{}, &pb.ServerLiveResponse{})
			e.refused(err, codes.Unimplemented, "")
		}},
		{"model/ready", func(e *Env) {
			for _, c := range []struct {
				name, version string
				ready         bool
			}{{"identity", "", true}, {"identity", "1", true}, {"identity", "01", true}, {"identity", "2", false}, {"nope", "", false}, {"", "", false}} {
				ready, err := e.Client.ModelReady(e.ctx(), c.name, c.version)
				require.NoError(e, err)
				require.Equal(e, c.ready, ready, "%q version %q", c.name, c.version)
			}
		}},
		{"model/ready of a version that is no number", func(e *Env) {
			_, err := e.Client.Stub.ModelReady(e.ctx(), &pb.ModelReadyRequest{Name: "identity", Version: "x"})
			e.refused(err, codes.InvalidArgument, "failed to get model version from specified version string 'x' (details: stol), version should be an integral value > 0")
			_, err = e.Client.Stub.ModelReady(e.ctx(), &pb.ModelReadyRequest{Name: "identity", Version: "-1"})
			e.refused(err, codes.InvalidArgument, "invalid model version specified '-1' , version should be an integral value > 0")
		}},
		{"model/metadata", func(e *Env) {
			r, err := e.Client.ModelMetadata(e.ctx(), "add_sub", "")
			require.NoError(e, err)
			tensor := func(name string) *pb.ModelMetadataResponse_TensorMetadata {
				return &pb.ModelMetadataResponse_TensorMetadata{Name: name, Datatype: "INT32", Shape: shape(-1, 16)}
			}
			want := &pb.ModelMetadataResponse{Name: "add_sub", Versions: []string{"1"}, Platform: "python",
				Inputs:  []*pb.ModelMetadataResponse_TensorMetadata{tensor("INPUT0"), tensor("INPUT1")},
				Outputs: []*pb.ModelMetadataResponse_TensorMetadata{tensor("OUTPUT0"), tensor("OUTPUT1")}}
			require.True(e, proto.Equal(want, r), "%v", r)
		}},
		{"model/metadata without batch dimension", func(e *Env) {
			r, err := e.Client.ModelMetadata(e.ctx(), "unbatched", "1")
			require.NoError(e, err)
			require.Equal(e, shape(-1, 2), r.Inputs[0].Shape)
		}},
		{"model/config has defaults filled in", func(e *Env) {
			c, err := e.Client.ModelConfig(e.ctx(), "identity", "")
			require.NoError(e, err)
			require.Equal(e, "identity", c.Name)
			require.Equal(e, "python", c.Backend)
			require.Equal(e, int32(8), c.MaxBatchSize)
			require.Equal(e, uint32(1), c.VersionPolicy.GetLatest().GetNumVersions())
			require.Equal(e, "model.py", c.DefaultModelFilename)
			require.Equal(e, "identity", c.Parameters["conch_builtin"].GetStringValue())
			require.Len(e, c.InstanceGroup, 1)
			require.Equal(e, "identity_0", c.InstanceGroup[0].Name)
			require.Equal(e, int32(1), c.InstanceGroup[0].Count)
			require.Equal(e, pb.ModelInstanceGroup_KIND_CPU, c.InstanceGroup[0].Kind)
			require.True(e, c.Optimization.GetInputPinnedMemory().GetEnable())
			require.Nil(e, c.GetDynamicBatching())
		}},
		{"settings/trace and log read back", func(e *Env) {
			trace, err := e.Client.Stub.TraceSetting(e.ctx(), &pb.TraceSettingRequest{})
			require.NoError(e, err)
			require.Equal(e, []string{"1000"}, trace.Settings["trace_rate"].GetValue())
			log, err := e.Client.Stub.LogSettings(e.ctx(), &pb.LogSettingsRequest{})
			require.NoError(e, err)
			require.Equal(e, "default", log.Settings["log_format"].GetStringParam())
			_, err = e.Client.Stub.TraceSetting(e.ctx(), &pb.TraceSettingRequest{ModelName: "nope"})
			e.refused(err, codes.InvalidArgument, "Request for unknown model : nope")
		}},
	}
	cases := make([]Case, 0, 64)
	for _, c := range []struct {
		name, model, version string
		code                 codes.Code
		message              string
	}{
		{"an unknown model", "nope", "", codes.NotFound, noSuchModel},
		{"no model", "", "", codes.NotFound, "Request for unknown model: '' is not found"},
		{"an unknown version", "identity", "2", codes.NotFound, "Request for unknown model: 'identity' version 2 is not found"},
		{"a version that is no number", "identity", "x", codes.InvalidArgument, "failed to get model version from specified version string 'x' (details: stol), version should be an integral value > 0"},
	} {
		cases = append(cases, Case{"model/metadata, config and infer of " + c.name, func(e *Env) {
			_, err := e.Client.Stub.ModelMetadata(e.ctx(), &pb.ModelMetadataRequest{Name: c.model, Version: c.version})
			e.refused(err, c.code, c.message)
			_, err = e.Client.Stub.ModelConfig(e.ctx(), &pb.ModelConfigRequest{Name: c.model, Version: c.version})
			e.refused(err, c.code, c.message)
			_, err = e.Client.Stub.ModelInfer(e.ctx(), &pb.ModelInferRequest{ModelName: c.model, ModelVersion: c.version})
			e.refused(err, c.code, c.message)
		}})
	}
	return slices.Concat(fixed, cases)
}

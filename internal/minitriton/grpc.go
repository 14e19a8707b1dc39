// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"context"
	"errors"
	"math"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// window is Triton's initial flow-control window.
const window = 4 << 20

func newGRPCServer(s *Server) *grpc.Server {
	g := grpc.NewServer(
		grpc.ForceServerCodecV2(codec{}),
		grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { return errNoSuchMethod }),
	)
	pb.RegisterGRPCInferenceServiceServer(g, &grpcFront{server: s})
	grpc_health_v1.RegisterHealthServer(g, &healthFront{})
	return g
}

// healthFront answers grpc.health.v1 as Triton does: serving, whatever service is asked about, and no Watch.
type healthFront struct {
	grpc_health_v1.UnimplementedHealthServer
}

func (*healthFront) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return &grpc_health_v1.HealthCheckResponse{Status: grpc_health_v1.HealthCheckResponse_SERVING}, nil
}

func (*healthFront) Watch(*grpc_health_v1.HealthCheckRequest, grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse]) error {
	return errNoSuchMethod
}

// grpcFront is Triton's gRPC service.
type grpcFront struct {
	pb.UnimplementedGRPCInferenceServiceServer
	server *Server
}

// errNoSuchMethod has no text in Triton.
var errNoSuchMethod = status.Error(codes.Unimplemented, "")

var errRepositoryName = refuse(codes.Unimplemented, "'repository_name' specification is not supported")

func (f *grpcFront) ServerLive(context.Context, *pb.ServerLiveRequest) (*pb.ServerLiveResponse, error) {
	return &pb.ServerLiveResponse{Live: true}, nil
}

func (f *grpcFront) ServerReady(context.Context, *pb.ServerReadyRequest) (*pb.ServerReadyResponse, error) {
	return &pb.ServerReadyResponse{Ready: true}, nil
}

func (f *grpcFront) ModelReady(_ context.Context, r *pb.ModelReadyRequest) (*pb.ModelReadyResponse, error) {
	if _, err := parseVersion(r.Version); err != nil {
		return nil, err
	}
	_, err := f.server.repo.find(r.Name, r.Version)
	return &pb.ModelReadyResponse{Ready: err == nil}, nil
}

func (f *grpcFront) ServerMetadata(context.Context, *pb.ServerMetadataRequest) (*pb.ServerMetadataResponse, error) {
	return serverMetadata(), nil
}

func (f *grpcFront) ModelMetadata(_ context.Context, r *pb.ModelMetadataRequest) (*pb.ModelMetadataResponse, error) {
	m, err := f.server.repo.find(r.Name, r.Version)
	if err != nil {
		return nil, err
	}
	return f.server.metadata(m, r.Version), nil
}

func serverMetadata() *pb.ServerMetadataResponse {
	return &pb.ServerMetadataResponse{Name: Name, Version: Version, Extensions: extensions[:]}
}

// metadata describes a model's tensors with the batch dimension.
func (s *Server) metadata(m *model, version string) *pb.ModelMetadataResponse {
	versions := []string{m.versionString()}
	if version == "" {
		versions = s.repo.versionsOf(m.name)
	}
	return triton.Metadata(m.config, versions)
}

func (f *grpcFront) ModelConfig(_ context.Context, r *pb.ModelConfigRequest) (*pb.ModelConfigResponse, error) {
	m, err := f.server.repo.find(r.Name, r.Version)
	if err != nil {
		return nil, err
	}
	return &pb.ModelConfigResponse{Config: m.config}, nil
}

func (f *grpcFront) ModelStatistics(_ context.Context, r *pb.ModelStatisticsRequest) (*pb.ModelStatisticsResponse, error) {
	stats, err := f.server.statistics(r.Name, r.Version)
	if err != nil {
		return nil, err
	}
	return &pb.ModelStatisticsResponse{ModelStats: stats}, nil
}

// statistics lists the counters of all served versions, or of those that name and version select.
func (s *Server) statistics(name, version string) ([]*pb.ModelStatistics, *Error) {
	v, err := parseVersion(version)
	if err != nil {
		return nil, err
	}
	var out []*pb.ModelStatistics
	known := false
	for _, m := range s.repo.loaded() {
		if name != "" && m.name != name {
			continue
		}
		known = true
		if v < 0 || m.version == v {
			out = append(out, m.stats.copy().proto(m.name, m.versionString()))
		}
	}
	if name != "" && !known {
		return nil, invalid("requested model '%s' is not available", name)
	}
	if name != "" && len(out) == 0 {
		return nil, invalid("requested model version is not available for model '%s'", name)
	}
	return out, nil
}

func (f *grpcFront) RepositoryIndex(_ context.Context, r *pb.RepositoryIndexRequest) (*pb.RepositoryIndexResponse, error) {
	if r.RepositoryName != "" {
		return nil, errRepositoryName
	}
	models, err := f.server.repo.index(r.Ready)
	if err != nil {
		return nil, err
	}
	return &pb.RepositoryIndexResponse{Models: models}, nil
}

func (f *grpcFront) RepositoryModelLoad(ctx context.Context, r *pb.RepositoryModelLoadRequest) (*pb.RepositoryModelLoadResponse, error) {
	if r.RepositoryName != "" {
		return nil, errRepositoryName
	}
	var l loadRequest
	for k, v := range r.Parameters {
		var value []byte
		switch p := v.ParameterChoice.(type) {
		case *pb.ModelRepositoryParameter_StringParam:
			if strings.HasPrefix(k, filePrefix) {
				return nil, invalid("invalid value type for load parameter '%s', expected bytes_param.", k)
			}
			value = []byte(p.StringParam)
		case *pb.ModelRepositoryParameter_BytesParam:
			if k == "config" {
				return nil, invalid("invalid value type for load parameter 'config', expected string_param.")
			}
			value = p.BytesParam
		default:
			if k == "config" {
				return nil, invalid("invalid value type for load parameter 'config', expected string_param.")
			}
			if strings.HasPrefix(k, filePrefix) {
				return nil, invalid("invalid value type for load parameter '%s', expected bytes_param.", k)
			}
		}
		if err := l.set(k, value); err != nil {
			return nil, err
		}
	}
	if err := f.server.repo.load(ctx, r.ModelName, l); err != nil {
		return nil, err
	}
	return &pb.RepositoryModelLoadResponse{}, nil
}

func (f *grpcFront) RepositoryModelUnload(ctx context.Context, r *pb.RepositoryModelUnloadRequest) (*pb.RepositoryModelUnloadResponse, error) {
	if r.RepositoryName != "" {
		return nil, errRepositoryName
	}
	dependents := false
	if p, ok := r.Parameters["unload_dependents"]; ok {
		v, ok := p.ParameterChoice.(*pb.ModelRepositoryParameter_BoolParam)
		if !ok {
			return nil, invalid("invalid value type for 'unload_dependents' parameter, expected bool_param.")
		}
		dependents = v.BoolParam
	}
	if err := f.server.repo.unload(ctx, r.ModelName, dependents); err != nil {
		return nil, err
	}
	return &pb.RepositoryModelUnloadResponse{}, nil
}

func (f *grpcFront) SystemSharedMemoryStatus(_ context.Context, r *pb.SystemSharedMemoryStatusRequest) (*pb.SystemSharedMemoryStatusResponse, error) {
	regions, err := f.server.regions.status(r.Name)
	if err != nil {
		return nil, err
	}
	return &pb.SystemSharedMemoryStatusResponse{Regions: regions}, nil
}

func (f *grpcFront) SystemSharedMemoryRegister(_ context.Context, r *pb.SystemSharedMemoryRegisterRequest) (*pb.SystemSharedMemoryRegisterResponse, error) {
	if err := f.server.regions.register(r.Name, r.Key, r.Offset, r.ByteSize); err != nil {
		return nil, err
	}
	return &pb.SystemSharedMemoryRegisterResponse{}, nil
}

func (f *grpcFront) SystemSharedMemoryUnregister(_ context.Context, r *pb.SystemSharedMemoryUnregisterRequest) (*pb.SystemSharedMemoryUnregisterResponse, error) {
	if err := f.server.regions.unregister(r.Name); err != nil {
		return nil, err
	}
	return &pb.SystemSharedMemoryUnregisterResponse{}, nil
}

func (f *grpcFront) CudaSharedMemoryStatus(_ context.Context, r *pb.CudaSharedMemoryStatusRequest) (*pb.CudaSharedMemoryStatusResponse, error) {
	if r.Name != "" {
		return nil, refuse(codes.NotFound, "Unable to find cuda shared memory region: '%s'", r.Name)
	}
	return &pb.CudaSharedMemoryStatusResponse{}, nil
}

func (f *grpcFront) CudaSharedMemoryRegister(context.Context, *pb.CudaSharedMemoryRegisterRequest) (*pb.CudaSharedMemoryRegisterResponse, error) {
	return nil, invalid("failed to register shared memory region: invalid args") // as a Triton without a GPU
}

func (f *grpcFront) CudaSharedMemoryUnregister(context.Context, *pb.CudaSharedMemoryUnregisterRequest) (*pb.CudaSharedMemoryUnregisterResponse, error) {
	return &pb.CudaSharedMemoryUnregisterResponse{}, nil
}

// knownToTrace refuses the trace settings of a model that does not serve. Without a name they are those of all.
func (s *Server) knownToTrace(model string) *Error {
	if model == "" {
		return nil
	}
	if _, err := s.repo.find(model, ""); err != nil {
		return invalid("Request for unknown model : %s", model)
	}
	return nil
}

func (f *grpcFront) TraceSetting(_ context.Context, r *pb.TraceSettingRequest) (*pb.TraceSettingResponse, error) {
	if err := f.server.knownToTrace(r.ModelName); err != nil {
		return nil, err
	}
	set := make(map[string][]string, len(r.Settings))
	for k, v := range r.Settings {
		set[k] = v.GetValue()
	}
	inForce, err := f.server.settings.setTrace(r.ModelName, set, traceGRPC)
	if err != nil {
		return nil, err
	}
	out := &pb.TraceSettingResponse{Settings: map[string]*pb.TraceSettingResponse_SettingValue{}}
	for k, v := range inForce {
		out.Settings[k] = &pb.TraceSettingResponse_SettingValue{Value: v}
	}
	return out, nil
}

func (f *grpcFront) LogSettings(_ context.Context, r *pb.LogSettingsRequest) (*pb.LogSettingsResponse, error) {
	all, err := f.server.settings.changeLog(func(l *logging) error {
		if refusal := setLog(l, r.Settings); refusal != nil {
			return refusal
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	type value = pb.LogSettingsResponse_SettingValue
	text := func(s string) *value {
		return &value{ParameterChoice: &pb.LogSettingsResponse_SettingValue_StringParam{StringParam: s}}
	}
	out := &pb.LogSettingsResponse{Settings: map[string]*value{"log_file": text(""), "log_format": text(all.format),
		"log_verbose_level": {ParameterChoice: &pb.LogSettingsResponse_SettingValue_Uint32Param{Uint32Param: all.verbose}}}}
	for _, flag := range all.flags() {
		out.Settings[flag.name] = &value{ParameterChoice: &pb.LogSettingsResponse_SettingValue_BoolParam{BoolParam: *flag.flag}}
	}
	return out, nil
}

// grpcError gives the end of a caller's context its status; refusals carry their own.
func grpcError(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return err
}

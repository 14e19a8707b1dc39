// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate_test

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// settings are those of a partition. Like Triton, it carries out the part of an order that comes before the part it
// refuses.
type settings struct {
	mu    *sync.Mutex
	level uint32
	rates map[string]string // trace_rate by model, "" for all
	// regions by name, with their keys; CUDA regions have none.
	regions, cuda map[string]string
	refuse        bool
	orders        []proto.Message // those that were received, queries left out
}

func newSettings() settings {
	return settings{mu: &sync.Mutex{}, rates: map[string]string{"": "1000"}, regions: map[string]string{}, cuda: map[string]string{}}
}

func (s *triton) LogSettings(_ context.Context, r *tritonpb.LogSettingsRequest) (*tritonpb.LogSettingsResponse, error) {
	s.settings.mu.Lock()
	defer s.settings.mu.Unlock()
	if len(r.Settings) > 0 {
		s.settings.orders = append(s.settings.orders, r)
	}
	if v, ok := r.Settings["log_verbose_level"]; ok {
		s.settings.level = v.GetUint32Param()
	}
	if v, ok := r.Settings["log_format"]; ok && s.settings.refuse {
		return nil, status.Errorf(codes.InvalidArgument, "invalid argument for log_format, got: %s", v.GetStringParam())
	}
	return &tritonpb.LogSettingsResponse{Settings: map[string]*tritonpb.LogSettingsResponse_SettingValue{
		"log_verbose_level": {ParameterChoice: &tritonpb.LogSettingsResponse_SettingValue_Uint32Param{Uint32Param: s.settings.level}}}}, nil
}

func (s *triton) TraceSetting(_ context.Context, r *tritonpb.TraceSettingRequest) (*tritonpb.TraceSettingResponse, error) {
	s.settings.mu.Lock()
	defer s.settings.mu.Unlock()
	if len(r.Settings) > 0 {
		s.settings.orders = append(s.settings.orders, r)
	}
	if v, ok := r.Settings["trace_rate"]; ok {
		switch {
		case len(v.Value) == 0:
			delete(s.settings.rates, r.ModelName)
		case s.settings.refuse && v.Value[0] != "1000":
			return nil, status.Error(codes.InvalidArgument, "no rate")
		default:
			s.settings.rates[r.ModelName] = v.Value[0]
		}
	}
	rate, own := s.settings.rates[r.ModelName]
	if !own {
		rate = s.settings.rates[""]
	}
	return &tritonpb.TraceSettingResponse{Settings: map[string]*tritonpb.TraceSettingResponse_SettingValue{"trace_rate": {Value: []string{rate}}}}, nil
}

func (s *triton) SystemSharedMemoryRegister(_ context.Context, r *tritonpb.SystemSharedMemoryRegisterRequest) (*tritonpb.SystemSharedMemoryRegisterResponse, error) {
	s.settings.mu.Lock()
	defer s.settings.mu.Unlock()
	if s.settings.refuse {
		return nil, status.Errorf(codes.Internal, "Unable to open shared memory region: '%s'", r.Key)
	}
	if _, ok := s.settings.regions[r.Name]; ok {
		return nil, status.Errorf(codes.AlreadyExists, "shared memory region '%s' already in manager", r.Name)
	}
	s.settings.orders = append(s.settings.orders, r)
	s.settings.regions[r.Name] = r.Key
	return &tritonpb.SystemSharedMemoryRegisterResponse{}, nil
}

func (s *triton) SystemSharedMemoryUnregister(_ context.Context, r *tritonpb.SystemSharedMemoryUnregisterRequest) (*tritonpb.SystemSharedMemoryUnregisterResponse, error) {
	s.settings.mu.Lock()
	defer s.settings.mu.Unlock()
	maps.DeleteFunc(s.settings.regions, func(name, _ string) bool { return r.Name == "" || r.Name == name })
	return &tritonpb.SystemSharedMemoryUnregisterResponse{}, nil
}

func (s *triton) SystemSharedMemoryStatus(_ context.Context, r *tritonpb.SystemSharedMemoryStatusRequest) (*tritonpb.SystemSharedMemoryStatusResponse, error) {
	s.settings.mu.Lock()
	defer s.settings.mu.Unlock()
	answer := &tritonpb.SystemSharedMemoryStatusResponse{Regions: map[string]*tritonpb.SystemSharedMemoryStatusResponse_RegionStatus{}}
	if _, ok := s.settings.regions[r.Name]; r.Name != "" && !ok {
		return nil, status.Errorf(codes.NotFound, "Unable to find system shared memory region: '%s'", r.Name)
	}
	for name, key := range s.settings.regions {
		answer.Regions[name] = &tritonpb.SystemSharedMemoryStatusResponse_RegionStatus{Name: name, Key: key}
	}
	return answer, nil
}

func (s *triton) CudaSharedMemoryRegister(_ context.Context, r *tritonpb.CudaSharedMemoryRegisterRequest) (*tritonpb.CudaSharedMemoryRegisterResponse, error) {
	s.settings.mu.Lock()
	defer s.settings.mu.Unlock()
	if s.settings.refuse {
		return nil, status.Error(codes.InvalidArgument, "failed to register shared memory region: invalid args")
	}
	s.settings.cuda[r.Name] = ""
	return &tritonpb.CudaSharedMemoryRegisterResponse{}, nil
}

func (s *triton) CudaSharedMemoryUnregister(_ context.Context, r *tritonpb.CudaSharedMemoryUnregisterRequest) (*tritonpb.CudaSharedMemoryUnregisterResponse, error) {
	s.settings.mu.Lock()
	defer s.settings.mu.Unlock()
	delete(s.settings.cuda, r.Name)
	return &tritonpb.CudaSharedMemoryUnregisterResponse{}, nil
}

func (s *triton) CudaSharedMemoryStatus(context.Context, *tritonpb.CudaSharedMemoryStatusRequest) (*tritonpb.CudaSharedMemoryStatusResponse, error) {
	s.settings.mu.Lock()
	defer s.settings.mu.Unlock()
	answer := &tritonpb.CudaSharedMemoryStatusResponse{Regions: map[string]*tritonpb.CudaSharedMemoryStatusResponse_RegionStatus{}}
	for name := range s.settings.cuda {
		answer.Regions[name] = &tritonpb.CudaSharedMemoryStatusResponse_RegionStatus{Name: name}
	}
	return answer, nil
}

func level(n uint32) *tritonpb.LogSettingsRequest_SettingValue {
	return &tritonpb.LogSettingsRequest_SettingValue{ParameterChoice: &tritonpb.LogSettingsRequest_SettingValue_Uint32Param{Uint32Param: n}}
}

func TestSettingsAreAllOrNothing(t *testing.T) {
	w, a := newWorld(t)
	ctx := t.Context()
	levels := func() []uint32 { return []uint32{w.servers[0].settings.level, w.servers[1].settings.level} }
	set := func(values map[string]*tritonpb.LogSettingsRequest_SettingValue) (*tritonpb.LogSettingsResponse, error) {
		return a.LogSettings(ctx, &tritonpb.LogSettingsRequest{Settings: values})
	}
	r, err := set(map[string]*tritonpb.LogSettingsRequest_SettingValue{"log_verbose_level": level(3)})
	require.NoError(t, err)
	require.EqualValues(t, 3, r.Settings["log_verbose_level"].GetUint32Param())
	require.Equal(t, []uint32{3, 3}, levels())

	// One partition refuses the part of the order that the other accepts.
	w.servers[1].settings.refuse = true
	bad := map[string]*tritonpb.LogSettingsRequest_SettingValue{"log_verbose_level": level(5),
		"log_format": {ParameterChoice: &tritonpb.LogSettingsRequest_SettingValue_StringParam{StringParam: "x"}}}
	_, err = set(bad)
	requireStatus(t, err, codes.InvalidArgument, "invalid argument for log_format, got: x")
	require.Equal(t, []uint32{3, 3}, levels())
	w.servers[0].settings.refuse = true
	_, err = set(bad)
	requireStatus(t, err, codes.InvalidArgument, "invalid argument for log_format, got: x")
	require.Equal(t, []uint32{3, 3}, levels())

	w.servers[0].Up, w.servers[1].Up = false, false
	_, err = set(nil)
	require.Equal(t, codes.Unavailable, status.Code(err))
	_, err = set(bad)
	require.Equal(t, codes.Unavailable, status.Code(err))
}

func TestTraceSettingsOfAModel(t *testing.T) {
	w, a := newWorld(t)
	set := func(model, rate string) (string, error) {
		r := &tritonpb.TraceSettingRequest{ModelName: model}
		if rate != "" {
			r.Settings = map[string]*tritonpb.TraceSettingRequest_SettingValue{"trace_rate": {Value: []string{rate}}}
		}
		answer, err := a.TraceSetting(t.Context(), r)
		if err != nil {
			return "", err
		}
		return answer.Settings["trace_rate"].Value[0], nil
	}
	rate, err := set("n", "9")
	require.NoError(t, err)
	require.Equal(t, "9", rate)
	require.Equal(t, map[string]string{"": "1000"}, w.servers[0].settings.rates, "a does not have the model")
	rate, err = set("n", "")
	require.NoError(t, err)
	require.Equal(t, "9", rate)
	_, err = set("x", "")
	requireStatus(t, err, codes.InvalidArgument, "Request for unknown model : x")

	w.servers[1].settings.refuse = true
	_, err = set("m", "7")
	requireStatus(t, err, codes.InvalidArgument, "no rate")
	require.NotContains(t, w.servers[0].settings.rates, "m", "it follows the setting of all models again")
}

func TestRegionsAreEverywhereOrNowhere(t *testing.T) {
	w, a := newWorld(t)
	ctx := t.Context()
	register := func(name, key string) error {
		_, err := a.SystemSharedMemoryRegister(ctx, &tritonpb.SystemSharedMemoryRegisterRequest{Name: name, Key: key})
		return err
	}
	regions := func() []string {
		r, err := a.SystemSharedMemoryStatus(ctx, &tritonpb.SystemSharedMemoryStatusRequest{})
		require.NoError(t, err)
		return slices.Sorted(maps.Keys(r.Regions))
	}
	require.NoError(t, register("r", "/k"))
	require.Equal(t, []string{"r"}, regions())
	requireStatus(t, register("r", "/k"), codes.AlreadyExists, "shared memory region 'r' already in manager")

	w.servers[1].settings.refuse = true
	requireStatus(t, register("s", "/no"), codes.Internal, "Unable to open shared memory region: '/no'")
	require.Equal(t, map[string]string{"r": "/k"}, w.servers[0].settings.regions)
	_, err := a.CudaSharedMemoryRegister(ctx, &tritonpb.CudaSharedMemoryRegisterRequest{Name: "c"})
	requireStatus(t, err, codes.InvalidArgument, "failed to register shared memory region: invalid args")
	require.Empty(t, w.servers[0].settings.cuda)
	w.servers[1].settings.refuse = false

	// A restart lost the region on one partition: it cannot be used, and can be
	// registered again.
	clear(w.servers[1].settings.regions)
	require.Empty(t, regions())
	_, err = a.SystemSharedMemoryStatus(ctx, &tritonpb.SystemSharedMemoryStatusRequest{Name: "r"})
	requireStatus(t, err, codes.NotFound, "Unable to find system shared memory region: 'r'")
	require.NoError(t, register("r", "/k"))
	require.Equal(t, []string{"r"}, regions())

	_, err = a.SystemSharedMemoryUnregister(ctx, &tritonpb.SystemSharedMemoryUnregisterRequest{})
	require.NoError(t, err)
	require.Empty(t, regions())
	_, err = a.CudaSharedMemoryRegister(ctx, &tritonpb.CudaSharedMemoryRegisterRequest{Name: "c"})
	require.NoError(t, err)
	cuda, err := a.CudaSharedMemoryStatus(ctx, &tritonpb.CudaSharedMemoryStatusRequest{})
	require.NoError(t, err)
	require.Contains(t, cuda.Regions, "c")
}

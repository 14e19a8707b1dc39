// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// settings are the trace and log settings. minitriton keeps them for reading back; it neither traces nor changes its log by them.
type settings struct {
	mu    sync.Mutex
	trace map[string][]string
	log   map[string]*pb.LogSettingsRequest_SettingValue
}

func (s *settings) init() {
	s.trace = map[string][]string{
		"trace_level": {"OFF"}, "trace_rate": {"1000"}, "trace_count": {"-1"}, "log_frequency": {"0"}, "trace_file": {""}, "trace_mode": {"triton"},
	}
	flag := func(b bool) *pb.LogSettingsRequest_SettingValue {
		return &pb.LogSettingsRequest_SettingValue{ParameterChoice: &pb.LogSettingsRequest_SettingValue_BoolParam{BoolParam: b}}
	}
	text := func(t string) *pb.LogSettingsRequest_SettingValue {
		return &pb.LogSettingsRequest_SettingValue{ParameterChoice: &pb.LogSettingsRequest_SettingValue_StringParam{StringParam: t}}
	}
	s.log = map[string]*pb.LogSettingsRequest_SettingValue{
		"log_file": text(""), "log_info": flag(true), "log_warning": flag(true), "log_error": flag(true), "log_format": text("default"),
		"log_verbose_level": {ParameterChoice: &pb.LogSettingsRequest_SettingValue_Uint32Param{}},
	}
}

// setTrace sets what is known, ignores what is not, as Triton does, and returns all settings.
func (s *settings) setTrace(set map[string][]string) map[string][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, v := range set {
		if _, known := s.trace[k]; known && len(v) > 0 {
			s.trace[k] = v
		}
	}
	return maps.Clone(s.trace)
}

// setLog checks the types of what is known, sets it, and returns all settings.
func (s *settings) setLog(set map[string]*pb.LogSettingsRequest_SettingValue) (map[string]*pb.LogSettingsRequest_SettingValue, *Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, v := range set {
		known, ok := s.log[k]
		if !ok {
			continue
		}
		switch known.ParameterChoice.(type) {
		case *pb.LogSettingsRequest_SettingValue_BoolParam:
			if _, ok := v.ParameterChoice.(*pb.LogSettingsRequest_SettingValue_BoolParam); !ok {
				return nil, invalid("expect boolean for '%s'", k)
			}
		case *pb.LogSettingsRequest_SettingValue_Uint32Param:
			if _, ok := v.ParameterChoice.(*pb.LogSettingsRequest_SettingValue_Uint32Param); !ok {
				return nil, invalid("expect unsigned integer for '%s'", k)
			}
		default:
			if _, ok := v.ParameterChoice.(*pb.LogSettingsRequest_SettingValue_StringParam); !ok {
				return nil, invalid("expect string for '%s'", k)
			}
		}
		s.log[k] = v
	}
	return maps.Clone(s.log), nil
}

// regions are the registered system shared memory regions. They can be registered, listed and dropped; tensors in them are refused.
type regions struct {
	mu sync.Mutex
	m  map[string]*pb.SystemSharedMemoryStatusResponse_RegionStatus
}

func (r *regions) register(name, key string, offset, size uint64) *Error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m[name] != nil {
		return refuse(codes.AlreadyExists, "shared memory region '%s' already in manager", name)
	}
	base := strings.TrimPrefix(key, "/")
	info, err := os.Stat(filepath.Join("/dev/shm", base))
	if base == "" || base != filepath.Base(base) || base == ".." || err != nil {
		return refuse(codes.Internal, "Unable to open shared memory region: '%s'", key)
	}
	if have := uint64(info.Size()); offset > have || size > have-offset {
		return refuse(codes.Internal, "Invalid shared memory region: '%s'", key)
	}
	if r.m == nil {
		r.m = map[string]*pb.SystemSharedMemoryStatusResponse_RegionStatus{}
	}
	r.m[name] = &pb.SystemSharedMemoryStatusResponse_RegionStatus{Name: name, Key: key, Offset: offset, ByteSize: size}
	return nil
}

// unregister drops a region, or all of them for an empty name. A region that is not there is none to drop.
func (r *regions) unregister(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if name == "" {
		clear(r.m)
		return
	}
	delete(r.m, name)
}

func (r *regions) status(name string) (map[string]*pb.SystemSharedMemoryStatusResponse_RegionStatus, *Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if name == "" {
		return maps.Clone(r.m), nil
	}
	region := r.m[name]
	if region == nil {
		return nil, refuse(codes.NotFound, "Unable to find system shared memory region: '%s'", name)
	}
	return map[string]*pb.SystemSharedMemoryStatusResponse_RegionStatus{name: region}, nil
}

// use says why a tensor cannot be in a region.
func (r *regions) use(region, tensor string, hasSize bool) *Error {
	if !hasSize {
		return invalid("'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor '%s'", tensor)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m[region] == nil {
		return refuse(codes.NotFound, "Unable to find shared memory region: '%s'", region)
	}
	return refuse(codes.Unimplemented, "minitriton does not read or write tensors in shared memory (tensor '%s', region '%s')", tensor, region)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"maps"
	"sync"

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

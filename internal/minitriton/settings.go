// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"maps"
	"math"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonjson"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// settings are the trace and log settings. minitriton checks and keeps them as Triton does; it neither traces nor changes its log by them.
type settings struct {
	mu     sync.Mutex
	global trace
	models map[string]trace // what a model has of its own
	log    logging
}

// trace is trace settings; one that is not there follows those of all models, and of those the server's own.
type trace map[string][]string

// traceDefaults are those of a server without trace flags.
func traceDefaults() trace {
	return trace{"trace_level": {"OFF"}, "trace_rate": {"1000"}, "trace_count": {"-1"}, "log_frequency": {"0"}, "trace_file": {""}, "trace_mode": {"triton"}}
}

// traceNumbers are the settings that are numbers, and the ranges that Triton says of them.
var traceNumbers = [...]struct{ name, span string }{
	{"trace_rate", "[ 0, 4294967295 ]"}, {"log_frequency", "[ 0, 4294967295 ]"}, {"trace_count", "[ -1, 2147483647 ]"},
}

func (s *settings) init() {
	s.models = map[string]trace{}
	s.log = logging{info: true, warning: true, err: true, format: "default"}
}

// setTrace sets the trace settings of a model, or of all with an empty name, and returns what is in force. A setting without a value goes
// back to its value before it was first set. Nothing is set of an order that is refused.
func (s *settings) setTrace(model string, set map[string][]string, dialect traceDialect) (trace, *Error) {
	checked := trace{}
	if _, ok := set["trace_file"]; ok {
		return nil, refuse(codes.Unimplemented, "trace file location can not be updated through network protocol")
	}
	if levels, ok := set["trace_level"]; ok {
		level, err := traceLevel(levels)
		if err != nil {
			return nil, err
		}
		checked["trace_level"] = level
	}
	for _, number := range traceNumbers {
		values, ok := set[number.name]
		if !ok {
			continue
		}
		if len(values) > 1 {
			return nil, invalid("expect only 1 value for '%s'", number.name)
		}
		if len(values) == 0 {
			checked[number.name] = nil
			continue
		}
		value, err := traceNumber(number.name, values[0], number.span, dialect)
		if err != nil {
			return nil, err
		}
		checked[number.name] = []string{value}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	own := s.global
	if model != "" {
		own = s.models[model]
	}
	own = maps.Clone(own)
	if own == nil {
		own = trace{}
	}
	for name, value := range checked {
		if value == nil {
			delete(own, name)
		} else {
			own[name] = value
		}
	}
	if model == "" {
		s.global = own
	} else {
		s.models[model] = own
	}
	inForce := traceDefaults()
	maps.Copy(inForce, s.global)
	maps.Copy(inForce, s.models[model])
	return inForce, nil
}

// traceLevel reads the levels; nil means none of its own. Words that are no level count for nothing.
func traceLevel(levels []string) ([]string, *Error) {
	tracing := false
	for _, level := range levels {
		if level == "OFF" && len(levels) > 1 {
			return nil, invalid("Expect only one trace level 'OFF' is specified")
		}
		tracing = tracing || level == "TIMESTAMPS" || level == "TENSORS"
	}
	if tracing {
		// Neither can a client name a file, nor was one named at start.
		return nil, invalid("Attempting to set invalid trace setting :trace file name is not given")
	}
	if len(levels) == 0 {
		return nil, nil
	}
	return []string{"OFF"}, nil
}

// traceDialect is the one text that differs between the protocols.
type traceDialect string

const (
	traceGRPC traceDialect = "Unable to parse 'trace_count'. Expecting value >= -1, got: %s"
	traceHTTP traceDialect = "Unable to parse 'trace_count'. Expecting value >= -1, got:%s"
)

// traceNumber reads a number as C++'s stoi does: leading space and trailing text are let through, and what is negative wraps where Triton
// keeps it unsigned.
func traceNumber(name, text, span string, dialect traceDialect) (string, *Error) {
	digits := triton.LeadingInt(text)
	if strings.Trim(digits, "+-") == "" {
		return "", invalid("Unable to parse '%s', got: %s", name, text)
	}
	n, err := strconv.ParseInt(digits, 10, 32)
	switch {
	case err != nil:
		return "", invalid("Unable to parse '%s', value is out of range %s, got: %s", name, span, text)
	case name == "trace_count" && n < -1:
		return "", invalid(string(dialect), text)
	case name != "trace_count" && n < 0:
		n += math.MaxUint32 + 1
	}
	return strconv.FormatInt(n, 10), nil
}

// logging are the log settings.
type logging struct {
	info, warning, err bool
	verbose            uint32
	format             string
}

// flags are the settings that are true or false, in the order in which Triton looks at them.
func (l *logging) flags() [3]struct {
	name string
	flag *bool
} {
	return [3]struct {
		name string
		flag *bool
	}{{"log_info", &l.info}, {"log_warning", &l.warning}, {"log_error", &l.err}}
}

func knownFormat(format string) bool { return format == "default" || format == "ISO8601" }

var errLogFile = refuse(codes.Unimplemented, "log file location can not be updated through network protocol")

// changeLog changes the log settings in order and returns what is in force. As in Triton, what comes before the part that is refused holds.
func (s *settings) changeLog(change func(*logging) error) (logging, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := change(&s.log)
	return s.log, err
}

// setLog reads an order over gRPC.
func setLog(l *logging, set map[string]*pb.LogSettingsRequest_SettingValue) *Error {
	if _, ok := set["log_file"]; ok {
		return errLogFile
	}
	for _, f := range l.flags() {
		v, ok := set[f.name]
		if !ok {
			continue
		}
		flag, ok := v.ParameterChoice.(*pb.LogSettingsRequest_SettingValue_BoolParam)
		if !ok {
			return invalid("expect boolean for '%s'", f.name)
		}
		*f.flag = flag.BoolParam
	}
	if v, ok := set["log_verbose_level"]; ok {
		level, ok := v.ParameterChoice.(*pb.LogSettingsRequest_SettingValue_Uint32Param)
		if !ok {
			return invalid("expect int32 for 'log_verbose_level'")
		}
		l.verbose = level.Uint32Param
	}
	if v, ok := set["log_format"]; ok {
		format, ok := v.ParameterChoice.(*pb.LogSettingsRequest_SettingValue_StringParam)
		if !ok {
			return invalid("expect string for 'log_format'")
		}
		if !knownFormat(format.StringParam) {
			return invalid("invalid argument for log_format, got: %s", format.StringParam)
		}
		l.format = format.StringParam
	}
	return nil
}

// setLogJSON reads an order over HTTP. A null changes nothing.
func setLogJSON(l *logging, doc tritonjson.Value) error {
	if _, ok := doc.Find("log_file"); ok {
		return errLogFile
	}
	for _, f := range l.flags() {
		if v, ok := doc.Find(f.name); ok && v.Kind() != tritonjson.Null {
			flag, err := v.AsBool()
			if err != nil {
				return err
			}
			*f.flag = flag
		}
	}
	if v, ok := doc.Find("log_verbose_level"); ok && v.Kind() != tritonjson.Null {
		level, err := v.AsUint()
		if err != nil {
			return err
		}
		l.verbose = uint32(level) // Triton keeps the lower half
	}
	if v, ok := doc.Find("log_format"); ok && v.Kind() != tritonjson.Null {
		format, err := v.AsString()
		if err != nil {
			return err
		}
		if !knownFormat(format) {
			return refuse(codes.Unavailable, "invalid argument for --log_format, got: %s", format)
		}
		l.format = format
	}
	return nil
}

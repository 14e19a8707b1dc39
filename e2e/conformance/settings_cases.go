// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// traceSetting is one trace setting in an order; without values it goes back to what it was.
type traceSetting struct {
	name   string
	values []string
}

// setTrace orders trace settings of a model, or of all with an empty name, and returns what is in force as one line.
func (e *Env) setTrace(model string, settings ...traceSetting) (string, error) {
	r := &pb.TraceSettingRequest{ModelName: model, Settings: map[string]*pb.TraceSettingRequest_SettingValue{}}
	for _, s := range settings {
		r.Settings[s.name] = &pb.TraceSettingRequest_SettingValue{Value: s.values}
	}
	answer, err := e.Client.Stub.TraceSetting(e.ctx(), r)
	var line []string
	for _, name := range []string{"trace_level", "trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode"} {
		line = append(line, strings.Join(answer.GetSettings()[name].GetValue(), ","))
	}
	return strings.Join(line, " "), err
}

// untouched are the settings in force before any client has set one.
const untouched = "OFF 1000 -1 0  triton"

// clearTrace takes back what a case has set.
func (e *Env) clearTrace(model string) {
	e.Helper()
	_, err := e.setTrace(model, traceSetting{"trace_level", nil}, traceSetting{"trace_rate", nil}, traceSetting{"trace_count", nil}, traceSetting{"log_frequency", nil})
	require.NoError(e, err)
}

// traceJSON is the answer over HTTP.
func traceJSON(rate, count, frequency string) string {
	return fmt.Sprintf(`{"trace_level":["OFF"],"trace_rate":%q,"trace_count":%q,"log_frequency":%q,"trace_file":"","trace_mode":"triton"}`, rate, count, frequency)
}

// settingsCases set trace and log settings. Each leaves them as it found them.
func settingsCases() []Case {
	return append(append(append(traceCases(), traceHTTPCases()...), logCases()...), logHTTPCases()...)
}

func traceCases() []Case {
	const (
		noFile  = "Attempting to set invalid trace setting :trace file name is not given"
		onlyOff = "Expect only one trace level 'OFF' is specified"
		fixed   = "trace file location can not be updated through network protocol"
	)
	cases := make([]Case, 0, 64)
	for _, c := range []struct {
		setting, value string
		want           string
	}{
		{"trace_level", "OFF", untouched}, {"trace_level", "TIMES", untouched}, {"trace_level", "", untouched},
		{"trace_rate", "5", "OFF 5 -1 0  triton"}, {"trace_rate", "0", "OFF 0 -1 0  triton"}, {"trace_rate", "-1", "OFF 4294967295 -1 0  triton"},
		{"trace_rate", "1.5", "OFF 1 -1 0  triton"}, {"trace_rate", " 7x", "OFF 7 -1 0  triton"},
		{"trace_count", "5", "OFF 1000 5 0  triton"}, {"trace_count", "0", "OFF 1000 0 0  triton"}, {"trace_count", "-1", untouched},
		{"log_frequency", "5", "OFF 1000 -1 5  triton"}, {"log_frequency", "-1", "OFF 1000 -1 4294967295  triton"},
		{"trace_mode", "opentelemetry", untouched}, {"no_such_setting", "x", untouched},
	} {
		cases = append(cases, Case{fmt.Sprintf("settings/trace: %s %q", c.setting, c.value), func(e *Env) {
			line, err := e.setTrace("", traceSetting{c.setting, []string{c.value}})
			require.NoError(e, err)
			require.Equal(e, c.want, line)
			line, err = e.setTrace("")
			require.NoError(e, err)
			require.Equal(e, c.want, line, "read back")
			e.clearTrace("")
			line, err = e.setTrace("")
			require.NoError(e, err)
			require.Equal(e, untouched, line, "taken back")
		}})
	}
	for _, c := range []struct {
		setting string
		values  []string
		code    codes.Code
		message string
	}{
		{"trace_level", []string{"TIMESTAMPS"}, codes.InvalidArgument, noFile},
		{"trace_level", []string{"TENSORS"}, codes.InvalidArgument, noFile},
		{"trace_level", []string{"TIMESTAMPS", "TENSORS"}, codes.InvalidArgument, noFile},
		{"trace_level", []string{"OFF", "TIMESTAMPS"}, codes.InvalidArgument, onlyOff},
		{"trace_rate", []string{"abc"}, codes.InvalidArgument, "Unable to parse 'trace_rate', got: abc"},
		{"trace_rate", []string{""}, codes.InvalidArgument, "Unable to parse 'trace_rate', got: "},
		{"trace_rate", []string{"4294967295"}, codes.InvalidArgument, "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 4294967295"},
		{"trace_rate", []string{"1", "2"}, codes.InvalidArgument, "expect only 1 value for 'trace_rate'"},
		{"trace_count", []string{"-2"}, codes.InvalidArgument, "Unable to parse 'trace_count'. Expecting value >= -1, got: -2"},
		{"trace_count", []string{"abc"}, codes.InvalidArgument, "Unable to parse 'trace_count', got: abc"},
		{"trace_count", []string{"2147483648"}, codes.InvalidArgument, "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 2147483648"},
		{"trace_count", []string{"1", "2"}, codes.InvalidArgument, "expect only 1 value for 'trace_count'"},
		{"log_frequency", []string{"abc"}, codes.InvalidArgument, "Unable to parse 'log_frequency', got: abc"},
		{"log_frequency", []string{"9999999999"}, codes.InvalidArgument, "Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: 9999999999"},
		{"log_frequency", []string{"1", "2"}, codes.InvalidArgument, "expect only 1 value for 'log_frequency'"},
		{"trace_file", []string{"x.json"}, codes.Unimplemented, fixed},
		{"trace_file", nil, codes.Unimplemented, fixed},
	} {
		cases = append(cases, Case{fmt.Sprintf("settings/trace refused: %s %q", c.setting, c.values), func(e *Env) {
			_, err := e.setTrace("", traceSetting{c.setting, c.values})
			e.refused(err, c.code, c.message)
			line, err := e.setTrace("")
			require.NoError(e, err)
			require.Equal(e, untouched, line)
		}})
	}
	return append(cases,
		Case{"settings/trace refused: the good half of an order is not set", func(e *Env) {
			_, err := e.setTrace("", traceSetting{"trace_rate", []string{"3"}}, traceSetting{"trace_count", []string{"x"}})
			e.refused(err, codes.InvalidArgument, "Unable to parse 'trace_count', got: x")
			line, err := e.setTrace("")
			require.NoError(e, err)
			require.Equal(e, untouched, line)
		}},
		Case{"settings/trace: a model has its own", func(e *Env) {
			set := func(model string, want string, settings ...traceSetting) {
				e.Helper()
				line, err := e.setTrace(model, settings...)
				require.NoError(e, err)
				require.Equal(e, want, line)
			}
			set("identity", "OFF 7 -1 0  triton", traceSetting{"trace_rate", []string{"7"}})
			set("", untouched)
			set("", "OFF 9 -1 4  triton", traceSetting{"trace_rate", []string{"9"}}, traceSetting{"log_frequency", []string{"4"}})
			set("identity", "OFF 7 -1 4  triton")
			set("half", "OFF 9 -1 4  triton")
			set("identity", "OFF 9 -1 4  triton", traceSetting{"trace_rate", nil})
			set("", "OFF 1000 -1 4  triton", traceSetting{"trace_rate", nil})
			set("identity", "OFF 1000 -1 4  triton")
			e.clearTrace("")
			set("identity", untouched)
			_, err := e.setTrace("identity", traceSetting{"trace_rate", []string{"x"}})
			e.refused(err, codes.InvalidArgument, "Unable to parse 'trace_rate', got: x")
			_, err = e.setTrace("identity", traceSetting{"trace_file", []string{"x"}})
			e.refused(err, codes.Unimplemented, fixed)
		}},
		Case{"settings/trace refused: of an unknown model", func(e *Env) {
			_, err := e.setTrace("nope", traceSetting{"trace_rate", []string{"7"}})
			e.refused(err, codes.InvalidArgument, "Request for unknown model : nope")
		}},
	)
}

func traceHTTPCases() []Case {
	const (
		path    = "/v2/trace/setting"
		noText  = "attempt to access JSON non-string as string"
		noArray = "attempt to access JSON non-array as array"
		fixed   = "trace file location can not be updated through network protocol"
	)
	taken := traceJSON("1000", "-1", "0")
	cases := make([]Case, 0, 64)
	for _, c := range []struct {
		body   string
		status int
		want   string
	}{
		{`{"trace_rate":"5"}`, 200, traceJSON("5", "-1", "0")}, {`{"trace_count":"5"}`, 200, traceJSON("1000", "5", "0")},
		{`{"log_frequency":"3"}`, 200, traceJSON("1000", "-1", "3")}, {`{"trace_rate":null}`, 200, taken},
		{`{"trace_level":["TIMES"]}`, 200, taken}, {`{"trace_level":[]}`, 200, taken}, {`{"trace_level":["OFF"]}`, 200, taken}, {`{"trace_level":null}`, 200, taken},
		{`{"trace_mode":"x","no_such_setting":1}`, 200, taken}, {`{}`, 200, taken}, {`[]`, 200, taken}, {`null`, 200, taken},
		{`{"trace_rate":5}`, 500, errorJSON(noText)}, {`{"trace_rate":["1"]}`, 500, errorJSON(noText)}, {`{"trace_count":true}`, 500, errorJSON(noText)}, {`{"log_frequency":{}}`, 500, errorJSON(noText)},
		{`{"trace_rate":"abc"}`, 400, errorJSON("Unable to parse 'trace_rate', got: abc")},
		{`{"trace_rate":"4294967296"}`, 400, errorJSON("Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 4294967296")},
		{`{"trace_count":"-2"}`, 400, errorJSON("Unable to parse 'trace_count'. Expecting value >= -1, got:-2")},
		{`{"log_frequency":""}`, 400, errorJSON("Unable to parse 'log_frequency', got: ")},
		{`{"trace_level":["TENSORS"]}`, 400, errorJSON("Attempting to set invalid trace setting :trace file name is not given")},
		{`{"trace_level":["OFF","TENSORS"]}`, 400, errorJSON("Expect only one trace level 'OFF' is specified")},
		{`{"trace_level":"OFF"}`, 500, errorJSON(noArray)}, {`{"trace_level":[1]}`, 500, errorJSON(noText)},
		{`{"trace_file":null}`, 501, errorJSON(fixed)}, {`{"trace_rate":"5","trace_file":"x"}`, 501, errorJSON(fixed)},
		{`{"trace_rate":"5","trace_count":"x"}`, 400, errorJSON("Unable to parse 'trace_count', got: x")},
		{``, 500, errorJSON("failed to parse the request JSON buffer: The document is empty. at 0")},
		{`{x`, 500, errorJSON("failed to parse the request JSON buffer: Missing a name for object member. at 1")},
	} {
		cases = append(cases, Case{"settings/trace over HTTP: " + c.body, func(e *Env) {
			e.wantExactly(e.call("POST", path, c.body), c.status, jsonType, c.want)
			e.clearTrace("")
			e.wantExactly(e.call("GET", path, ""), 200, jsonType, taken)
		}})
	}
	return append(cases, Case{"settings/trace over HTTP: of a model", func(e *Env) {
		const own = "/v2/models/identity/trace/setting"
		e.wantExactly(e.call("POST", own, `{"trace_rate":"7"}`), 200, jsonType, traceJSON("7", "-1", "0"))
		e.wantExactly(e.call("GET", own, ""), 200, jsonType, traceJSON("7", "-1", "0"))
		e.wantExactly(e.call("GET", path, ""), 200, jsonType, taken)
		e.wantExactly(e.call("POST", own, `{"trace_rate":"x"}`), 400, jsonType, errorJSON("Unable to parse 'trace_rate', got: x"))
		e.wantExactly(e.call("POST", own, `{"trace_rate":null}`), 200, jsonType, taken)
		e.wantExactly(e.call("GET", "/v2/models/identity/versions/1/trace/setting", ""), 404, textPlain, notFound)
		for _, method := range []string{"GET", "POST"} {
			e.wantExactly(e.call(method, "/v2/models/nope/trace/setting", "{}"), 400, jsonType, errorJSON("Request for unknown model : nope"))
		}
		e.wantExactly(e.call("PUT", own, "{}"), 405, jsonType, `{"error":"Method Not Allowed"}`)
	}})
}

// logValue is a log setting of any type; nil is a value without a type.
func logValue(v any) *pb.LogSettingsRequest_SettingValue {
	s := &pb.LogSettingsRequest_SettingValue{}
	switch v := v.(type) {
	case bool:
		s.ParameterChoice = &pb.LogSettingsRequest_SettingValue_BoolParam{BoolParam: v}
	case int:
		s.ParameterChoice = &pb.LogSettingsRequest_SettingValue_Uint32Param{Uint32Param: uint32(v)}
	case string:
		s.ParameterChoice = &pb.LogSettingsRequest_SettingValue_StringParam{StringParam: v}
	}
	return s
}

// setLog orders log settings, name, value, name, value, and returns what is in force as one line.
func (e *Env) setLog(settings ...any) (string, error) {
	r := &pb.LogSettingsRequest{Settings: map[string]*pb.LogSettingsRequest_SettingValue{}}
	for i := 0; i+1 < len(settings); i += 2 {
		r.Settings[settings[i].(string)] = logValue(settings[i+1])
	}
	answer, err := e.Client.Stub.LogSettings(e.ctx(), r)
	s := answer.GetSettings()
	return fmt.Sprintf("%q %t %t %t %d %s", s["log_file"].GetStringParam(), s["log_info"].GetBoolParam(), s["log_warning"].GetBoolParam(), s["log_error"].GetBoolParam(),
		s["log_verbose_level"].GetUint32Param(), s["log_format"].GetStringParam()), err
}

const asStarted = `"" true true true 0 default`

// resetLog takes back what a case has set.
func (e *Env) resetLog() {
	e.Helper()
	line, err := e.setLog("log_info", true, "log_warning", true, "log_error", true, "log_verbose_level", 0, "log_format", "default")
	require.NoError(e, err)
	require.Equal(e, asStarted, line)
}

func logCases() []Case {
	cases := make([]Case, 0, 32)
	for _, c := range []struct {
		setting string
		value   any
		want    string
	}{
		{"log_info", false, `"" false true true 0 default`}, {"log_warning", false, `"" true false true 0 default`}, {"log_error", false, `"" true true false 0 default`},
		{"log_verbose_level", 1, `"" true true true 1 default`}, {"log_format", "ISO8601", `"" true true true 0 ISO8601`}, {"no_such_setting", 3, asStarted},
	} {
		cases = append(cases, Case{fmt.Sprintf("settings/log: %s %v", c.setting, c.value), func(e *Env) {
			defer e.resetLog()
			line, err := e.setLog(c.setting, c.value)
			require.NoError(e, err)
			require.Equal(e, c.want, line)
			line, err = e.setLog()
			require.NoError(e, err)
			require.Equal(e, c.want, line, "read back")
		}})
	}
	for _, c := range []struct {
		setting string
		value   any
		code    codes.Code
		message string
	}{
		{"log_file", "x.log", codes.Unimplemented, "log file location can not be updated through network protocol"},
		{"log_file", nil, codes.Unimplemented, "log file location can not be updated through network protocol"},
		{"log_info", 1, codes.InvalidArgument, "expect boolean for 'log_info'"},
		{"log_warning", "x", codes.InvalidArgument, "expect boolean for 'log_warning'"},
		{"log_error", nil, codes.InvalidArgument, "expect boolean for 'log_error'"},
		{"log_verbose_level", true, codes.InvalidArgument, "expect int32 for 'log_verbose_level'"},
		{"log_verbose_level", "3", codes.InvalidArgument, "expect int32 for 'log_verbose_level'"},
		{"log_format", 3, codes.InvalidArgument, "expect string for 'log_format'"},
		{"log_format", "iso", codes.InvalidArgument, "invalid argument for log_format, got: iso"},
		{"log_format", "", codes.InvalidArgument, "invalid argument for log_format, got: "},
	} {
		cases = append(cases, Case{fmt.Sprintf("settings/log refused: %s %#v", c.setting, c.value), func(e *Env) {
			_, err := e.setLog(c.setting, c.value)
			e.refused(err, c.code, c.message)
			line, err := e.setLog()
			require.NoError(e, err)
			require.Equal(e, asStarted, line)
		}})
	}
	return append(cases, Case{"settings/log refused: the good half of an order is set", func(e *Env) {
		defer e.resetLog()
		_, err := e.setLog("log_info", false, "log_format", "iso")
		e.refused(err, codes.InvalidArgument, "invalid argument for log_format, got: iso")
		line, err := e.setLog()
		require.NoError(e, err)
		require.Equal(e, `"" false true true 0 default`, line, "what came before the part that is wrong holds")
	}})
}

func logHTTPCases() []Case {
	const (
		path       = "/v2/logging"
		noFlag     = "attempt to access JSON non-boolean as boolean"
		noUnsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer"
		fixed      = "log file location can not be updated through network protocol"
	)
	log := func(info bool, verbose int, format string) string {
		return fmt.Sprintf(`{"log_file":"","log_info":%t,"log_warning":true,"log_error":true,"log_verbose_level":%d,"log_format":%q}`, info, verbose, format)
	}
	started := log(true, 0, "default")
	cases := make([]Case, 0, 32)
	for _, c := range []struct {
		body   string
		status int
		want   string
	}{
		{`{"log_info":false}`, 200, log(false, 0, "default")}, {`{"log_verbose_level":1}`, 200, log(true, 1, "default")}, {`{"log_verbose_level":4294967297}`, 200, log(true, 1, "default")},
		{`{"log_format":"ISO8601"}`, 200, log(true, 0, "ISO8601")}, {`{"log_info":null,"log_verbose_level":null,"log_format":null}`, 200, started},
		{`{"no_such_setting":1}`, 200, started}, {`{}`, 200, started}, {`[]`, 200, started},
		{`{"log_info":0}`, 500, errorJSON(noFlag)}, {`{"log_warning":"x"}`, 500, errorJSON(noFlag)}, {`{"log_error":[]}`, 500, errorJSON(noFlag)},
		{`{"log_verbose_level":-1}`, 500, errorJSON(noUnsigned)}, {`{"log_verbose_level":"3"}`, 500, errorJSON(noUnsigned)}, {`{"log_verbose_level":1.5}`, 500, errorJSON(noUnsigned)},
		{`{"log_format":3}`, 500, errorJSON("attempt to access JSON non-string as string")},
		{`{"log_format":"iso"}`, 503, errorJSON("invalid argument for --log_format, got: iso")}, {`{"log_format":""}`, 503, errorJSON("invalid argument for --log_format, got: ")},
		{`{"log_file":"x.log"}`, 501, errorJSON(fixed)}, {`{"log_file":3}`, 501, errorJSON(fixed)},
		{``, 500, errorJSON("failed to parse the request JSON buffer: The document is empty. at 0")},
		{`{x`, 500, errorJSON("failed to parse the request JSON buffer: Missing a name for object member. at 1")},
	} {
		cases = append(cases, Case{"settings/log over HTTP: " + c.body, func(e *Env) {
			defer e.resetLog()
			e.wantExactly(e.call("POST", path, c.body), c.status, jsonType, c.want)
			if c.status == 200 {
				e.wantExactly(e.call("GET", path, ""), 200, jsonType, c.want)
			} else {
				e.wantExactly(e.call("GET", path, ""), 200, jsonType, started)
			}
		}})
	}
	return cases
}

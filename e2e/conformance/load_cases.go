// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// overrideOf is the model half's config as JSON, with more members behind it.
func overrideOf(more string) string {
	return `{"backend":"python","max_batch_size":4,"input":[{"name":"INPUT0","data_type":"TYPE_FP16","dims":[2]}],"output":[{"name":"OUTPUT0","data_type":"TYPE_FP16","dims":[2]}],` +
		`"instance_group":[{"kind":"KIND_CPU"}],"parameters":{"conch_builtin":{"string_value":"identity"}}` + more + `}`
}

// loadParameters are parameters of a load, name, value, name, value. Text is a string_param, []byte a bytes_param, nil a value without a type.
func loadParameters(list ...any) map[string]*pb.ModelRepositoryParameter {
	all := map[string]*pb.ModelRepositoryParameter{}
	for i := 0; i+1 < len(list); i += 2 {
		p := &pb.ModelRepositoryParameter{}
		switch v := list[i+1].(type) {
		case string:
			p.ParameterChoice = &pb.ModelRepositoryParameter_StringParam{StringParam: v}
		case []byte:
			p.ParameterChoice = &pb.ModelRepositoryParameter_BytesParam{BytesParam: v}
		case int:
			p.ParameterChoice = &pb.ModelRepositoryParameter_Int64Param{Int64Param: int64(v)}
		case bool:
			p.ParameterChoice = &pb.ModelRepositoryParameter_BoolParam{BoolParam: v}
		}
		all[list[i].(string)] = p
	}
	return all
}

func (e *Env) load(model string, parameters ...any) error {
	_, err := e.Client.Stub.RepositoryModelLoad(e.ctx(), &pb.RepositoryModelLoadRequest{ModelName: model, Parameters: loadParameters(parameters...)})
	return err
}

// halves wants the model half to answer.
func (e *Env) halves() *pb.ModelInferResponse {
	e.Helper()
	return e.infer(request("half", input("INPUT0", "FP16", shape(1, 2), []byte{0, 0x3c, 0, 0xc0})))
}

// restore has half as the repository has it, after a load with files. A config alone stays until an unload.
func (e *Env) restore() {
	e.Helper()
	require.NoError(e, e.Client.Load(e.ctx(), "half"))
	require.Equal(e, "1", e.halves().ModelVersion)
}

// loadCases are loads with configs and files: what is refused, and what it comes to. What served before goes on serving.
func loadCases() []Case {
	return slices.Concat(loadRefusedCases(), loadFileCases(), loadHTTPCases())
}

func loadRefusedCases() []Case {
	const (
		notPolled = "failed to load 'half', failed to poll from model repository"
		noVersion = "load failed for model 'half': at least one version must be available under the version policy of model 'half'\n"
		down      = "load failed for model 'half': version 1 is at UNAVAILABLE state: Invalid argument: "
	)
	code, err := python("identity")
	if err != nil {
		panic(err) // it is embedded
	}
	plain := overrideOf("")
	changed := func(from, to string) []any { return []any{"config", strings.Replace(plain, from, to, 1)} }
	more := func(members string) []any { return []any{"config", overrideOf(members)} }
	files := func(path string) []any { return []any{"config", plain, "file:" + path, code} }
	cases := make([]Case, 0, 64)
	for _, c := range []struct {
		name       string
		parameters []any
		code       codes.Code
		message    string
	}{
		{"no text", []any{"config", ""}, codes.Internal, notPolled},
		{"an array", []any{"config", "[]"}, codes.Internal, notPolled},
		{"an unknown field", more(`,"foo":1`), codes.Internal, notPolled},
		{"another name", more(`,"name":"other"`), codes.Internal, notPolled},
		{"a negative batch size", changed(`:4`, `:-1`), codes.Internal, notPolled},
		{"no such datatype", changed("TYPE_FP16", "TYPE_FOO"), codes.Internal, notPolled},
		{"a dimension of zero", changed("[2]", "[0]"), codes.Internal, notPolled},
		{"a preferred size that is too large", more(`,"dynamic_batching":{"preferred_batch_size":[9]}`), codes.Internal, notPolled},
		{"priorities without a default", more(`,"dynamic_batching":{"priority_levels":2}`), codes.Internal, notPolled},
		{"a default beyond the priorities", more(`,"dynamic_batching":{"priority_levels":2,"default_priority_level":3}`), codes.Internal, notPolled},
		{"a policy beyond the priorities", more(`,"dynamic_batching":{"priority_levels":2,"default_priority_level":1,"priority_queue_policy":{"5":{"max_queue_size":2}}}`), codes.Internal, notPolled},
		{"order and priorities", more(`,"dynamic_batching":{"priority_levels":2,"default_priority_level":1,"preserve_ordering":true}`), codes.Internal, notPolled},
		{"no such backend", changed("python", "nope"), codes.InvalidArgument, down + "unable to find backend library for backend 'nope', try specifying runtime on the model configuration.;\n"},
		{"an instance on a GPU", changed("KIND_CPU", "KIND_GPU"), codes.InvalidArgument, down + "instance group half_0 of model half has kind KIND_GPU but no GPUs are available;\n"},
		{"a version that is not there", more(`,"version_policy":{"specific":{"versions":[7]}}`), codes.InvalidArgument, noVersion},
		{"bytes for a config", []any{"config", []byte("{}")}, codes.InvalidArgument, "invalid value type for load parameter 'config', expected string_param."},
		{"a flag for a config", []any{"config", true}, codes.InvalidArgument, "invalid value type for load parameter 'config', expected string_param."},
		{"nothing for a config", []any{"config", nil}, codes.InvalidArgument, "invalid value type for load parameter 'config', expected string_param."},
		{"a parameter of unload", []any{"unload_dependents", true}, codes.InvalidArgument, "unrecognized load parameter 'unload_dependents'."},
		{"a file without a config", []any{"file:1/model.py", code}, codes.Internal, notPolled},
		{"a config among the files", []any{"file:1/model.py", code, "file:config.pbtxt", []byte(`backend: "python"`)}, codes.Internal, notPolled},
		{"text for a file", []any{"config", plain, "file:1/model.py", "text"}, codes.InvalidArgument, "invalid value type for load parameter 'file:1/model.py', expected bytes_param."},
		{"a number for a file", []any{"config", plain, "file:1/model.py", 3}, codes.InvalidArgument, "invalid value type for load parameter 'file:1/model.py', expected bytes_param."},
		{"nothing for a file", []any{"config", plain, "file:1/model.py", nil}, codes.InvalidArgument, "invalid value type for load parameter 'file:1/model.py', expected bytes_param."},
		{"a file in no version", files("model.py"), codes.InvalidArgument, noVersion},
		{"a file in a version that is no number", files("x/model.py"), codes.InvalidArgument, noVersion},
		{"a file in a version with a leading zero", files("01/model.py"), codes.InvalidArgument, noVersion},
		{"a file without a path", files(""), codes.Internal, notPolled},
		{"a file outside", files("../model.py"), codes.Internal, notPolled},
	} {
		cases = append(cases, Case{"repository/load refused: " + c.name, func(e *Env) {
			err := e.load("half", c.parameters...)
			if s := status.Convert(err); strings.Contains(s.Message(), "version 1 is at READY state") {
				// What a real server says here is the state of what serves, sometimes.
				err = status.Error(s.Code(), strings.Replace(s.Message(), "is at READY state", "is at UNAVAILABLE state", 1))
			}
			e.refused(err, c.code, c.message)
			require.Equal(e, "1", e.halves().ModelVersion)
			index, err := e.Client.Index(e.ctx(), true)
			require.NoError(e, err)
			i := slices.IndexFunc(index, func(m *pb.RepositoryIndexResponse_ModelIndex) bool { return m.Name == "half" && m.Version == "1" })
			require.GreaterOrEqual(e, i, 0, "it is still listed as ready")
		}})
	}
	return append(cases, Case{"repository/load refused: a config for a model that is not there", func(e *Env) {
		e.refused(e.load("fresh", "config", plain), codes.Internal, "failed to load 'fresh', failed to poll from model repository")
	}}, Case{"repository/load refused: a broken file", func(e *Env) {
		if e.Target.Name == "minitriton" || strings.HasPrefix(e.Target.Name, "conch minitriton") {
			e.Skip("minitriton runs no python")
		}
		err := e.load("half", "config", overrideOf(`,"metric_tags":{"broken":"yes"}`), "file:1/model.py", []byte("raise Exception('no good')\n"))
		require.ErrorContains(e, err, "load failed for model 'half': version 1 is at UNAVAILABLE state: Internal: Exception: no good")
		require.Equal(e, "1", e.halves().ModelVersion)
	}})
}

func loadFileCases() []Case {
	code, err := python("identity")
	if err != nil {
		panic(err) // it is embedded
	}
	return []Case{
		{"repository/load with a config and files of another version", func(e *Env) {
			// The config may name its model, numbers may be text, fields may be named as in JSON, and a response cache that the server lacks is ignored.
			config := strings.Replace(overrideOf(`,"name":"half","response_cache":{"enable":true}`), `"max_batch_size":4`, `"maxBatchSize":"3"`, 1)
			require.NoError(e, e.load("half", "config", config, "file:3/model.py", code, "file:3/more.txt", []byte("x")))
			c, err := e.Client.ModelConfig(e.ctx(), "half", "")
			require.NoError(e, err)
			require.EqualValues(e, 3, c.MaxBatchSize)
			require.Contains(e, e.call("GET", "/v2/models/half/config", "").body, `"response_cache":{"enable":true}`)
			before := e.quiet("half")
			for range 2 {
				require.Equal(e, "3", e.halves().ModelVersion)
			}
			e.executed(before, 2)
			after := e.settled(before, 2)
			require.Equal(e, before.ExecutionCount+2, after.ExecutionCount)
			require.Zero(e, after.InferenceStats.CacheHit.GetCount())
			require.Zero(e, after.InferenceStats.CacheMiss.GetCount())
			_, err = e.Client.Stub.ModelInfer(e.ctx(), request("half", version("1"), input("INPUT0", "FP16", shape(1, 2), make([]byte, 4))))
			require.Error(e, err, "the directory of the repository is out of use")
			e.restore()
		}},
		{"repository/load with files of version 0", func(e *Env) {
			require.NoError(e, e.load("half", "config", overrideOf(""), "file:0/model.py", code))
			require.Equal(e, "0", e.halves().ModelVersion)
			e.infer(request("half", version("0"), input("INPUT0", "FP16", shape(1, 2), make([]byte, 4))))
			m, err := e.Client.Stub.ModelMetadata(e.ctx(), &pb.ModelMetadataRequest{Name: "half"})
			require.NoError(e, err)
			require.Equal(e, []string{"0"}, m.Versions)
			ready, err := e.Client.ModelReady(e.ctx(), "half", "0")
			require.NoError(e, err)
			require.True(e, ready)
			require.Equal(e, "0", e.statistics("half").Version)
			e.wantHTTP(e.call("GET", "/v2/models/half/versions/0/ready", ""), 200, textPlain, "")
			e.restore()
		}},
		{"repository/load of a model that only the request has", func(e *Env) {
			require.NoError(e, e.load("fresh", "config", overrideOf(""), "file:1/model.py", code))
			e.infer(request("fresh", input("INPUT0", "FP16", shape(1, 2), make([]byte, 4))))
			require.NoError(e, e.Client.Unload(e.ctx(), "fresh"))
			e.refused(e.load("fresh"), codes.Internal, "failed to load 'fresh', failed to poll from model repository")
			_, err := e.Client.Stub.ModelInfer(e.ctx(), request("fresh"))
			e.refused(err, codes.NotFound, "Request for unknown model: 'fresh' has no available versions")
		}},
		{"repository/load of a decoupled model that only the request has", func(e *Env) {
			more, err := python("decoupled")
			require.NoError(e, err)
			const config = `{"backend":"python","max_batch_size":0,"input":[{"name":"IN","data_type":"TYPE_INT32","dims":[-1]},{"name":"DELAY","data_type":"TYPE_UINT32","dims":[-1]}],` +
				`"output":[{"name":"OUT","data_type":"TYPE_INT32","dims":[1]},{"name":"IDX","data_type":"TYPE_UINT32","dims":[1]}],` +
				`"instance_group":[{"kind":"KIND_CPU"}],"model_transaction_policy":{"decoupled":true},"parameters":{"conch_builtin":{"string_value":"decoupled"}}}`
			require.NoError(e, e.load("fresh", "config", config, "file:1/model.py", more))
			defer func() { require.NoError(e, e.Client.Unload(e.ctx(), "fresh")) }()
			r := repeat([]int32{4, 5}, []int32{0, 20}, id("d"))
			r.ModelName = "fresh"
			require.Equal(e, []string{"d|fresh|1|more|04000000|00000000", "d|fresh|1|more|05000000|01000000"}, summaries(e.stream(r)))
		}},
		{"repository/a model that only the request has is not listed", func(e *Env) {
			require.NoError(e, e.load("fresh", "config", overrideOf(""), "file:1/model.py", code))
			defer func() { require.NoError(e, e.Client.Unload(e.ctx(), "fresh")) }()
			index, err := e.Client.Index(e.ctx(), true)
			require.NoError(e, err)
			require.False(e, slices.ContainsFunc(index, func(m *pb.RepositoryIndexResponse_ModelIndex) bool { return m.Name == "fresh" }), "fresh is listed")
		}},
	}
}

func loadHTTPCases() []Case {
	const path = "/v2/repository/models/half/load"
	code, err := python("identity")
	if err != nil {
		panic(err) // it is embedded
	}
	cases := make([]Case, 0, 16)
	for _, c := range []struct {
		body    string
		status  int
		message string
	}{
		{`{"parameters":[]}`, 500, "attempt to get members for non-object"}, {`{"parameters":null}`, 500, "attempt to get members for non-object"}, {`{"parameters":3}`, 500, "attempt to get members for non-object"},
		{`{"parameters":{"x":"y"}}`, 500, "unexpected error on creating Triton parameter"}, {`{"parameters":{"x":1}}`, 500, "attempt to access JSON non-string as string"},
		{`{"parameters":{"config":{}}}`, 500, "attempt to access JSON non-string as string"}, {`{"parameters":{"file:1/model.py":3}}`, 500, "attempt to access JSON non-string as string"},
		{`{"parameters":{"config":"{x"}}`, 500, "failed to load 'half', failed to poll from model repository"},
		{`{"parameters":{"file:1/model.py":"eA=="}}`, 500, "failed to load 'half', failed to poll from model repository"},
		{` `, 500, "failed to parse the request JSON buffer: The document is empty. at 1"},
	} {
		cases = append(cases, Case{"repository/load refused over HTTP: " + c.body, func(e *Env) {
			e.wantHTTP(e.call("POST", path, c.body), c.status, jsonType, errorJSON(c.message))
			e.halves()
		}})
	}
	text := base64.StdEncoding.EncodeToString(append(slices.Clone(code), ' ', ' ')[:len(code)+3-len(code)%3-1]) // of a length that wants padding
	text = text[:40] + "\n" + text[40:80] + "!!\r\n" + strings.TrimRight(text[80:], "=")
	cases = append(cases, Case{"repository/load over HTTP: base64 in lines, without padding and with what is none", func(e *Env) {
		order, err := json.Marshal(map[string]map[string]string{"parameters": {"config": overrideOf(""), "file:2/model.py": text}})
		require.NoError(e, err)
		e.wantHTTP(e.call("POST", path, string(order)), http.StatusOK, jsonType, "")
		require.Equal(e, "2", e.halves().ModelVersion)
		e.restore()
	}})
	return append(cases, Case{"repository/load over HTTP: bodies that say nothing", func(e *Env) {
		for _, body := range []string{"", "{}", "[]", "3", `{"x":1}`, `{"parameters":{}}`} {
			e.wantHTTP(e.call("POST", path, body), http.StatusOK, jsonType, "")
		}
		e.halves()
	}})
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// repositoryCases load and unload. Each leaves its model loaded.
func repositoryCases() []Case {
	state := func(e *Env, model string) (state, reason string) {
		index, err := e.Client.Index(e.ctx(), false)
		require.NoError(e, err)
		for _, m := range index {
			if m.Name == model {
				return m.State, m.Reason
			}
		}
		return "not listed", ""
	}
	load := func(e *Env, r *pb.RepositoryModelLoadRequest) error {
		_, err := e.Client.Stub.RepositoryModelLoad(e.ctx(), r)
		return err
	}
	text := func(s string) *pb.ModelRepositoryParameter {
		return &pb.ModelRepositoryParameter{ParameterChoice: &pb.ModelRepositoryParameter_StringParam{StringParam: s}}
	}
	number := &pb.ModelRepositoryParameter{ParameterChoice: &pb.ModelRepositoryParameter_Int64Param{Int64Param: 3}}
	const notPolled = "failed to load '%', failed to poll from model repository"
	var cases []Case
	for _, c := range []struct {
		name    string
		request *pb.RepositoryModelLoadRequest
		code    codes.Code
		message string
	}{
		{"load an unknown model", &pb.RepositoryModelLoadRequest{ModelName: "nope"}, codes.Internal, strings.Replace(notPolled, "%", "nope", 1)},
		{"load without a name", &pb.RepositoryModelLoadRequest{}, codes.Internal, strings.Replace(notPolled, "%", "", 1)},
		{"load from a named repository", &pb.RepositoryModelLoadRequest{ModelName: "identity", RepositoryName: "r"}, codes.Unimplemented, "'repository_name' specification is not supported"},
		{"load with an unknown parameter", &pb.RepositoryModelLoadRequest{ModelName: "identity", Parameters: map[string]*pb.ModelRepositoryParameter{"foo": text("x")}}, codes.InvalidArgument, "unrecognized load parameter 'foo'."},
		{"load with a config that is no JSON", &pb.RepositoryModelLoadRequest{ModelName: "identity", Parameters: map[string]*pb.ModelRepositoryParameter{"config": text("{x")}}, codes.Internal, strings.Replace(notPolled, "%", "identity", 1)},
		{"load with a config that is no text", &pb.RepositoryModelLoadRequest{ModelName: "identity", Parameters: map[string]*pb.ModelRepositoryParameter{"config": number}}, codes.InvalidArgument, "invalid value type for load parameter 'config', expected string_param."},
	} {
		cases = append(cases, Case{"repository/" + c.name, func(e *Env) {
			e.refused(load(e, c.request), c.code, c.message)
			e.infer(identity()) // what served goes on serving
		}})
	}
	return append(cases,
		Case{"repository/index", func(e *Env) {
			for _, ready := range []bool{false, true} {
				index, err := e.Client.Index(e.ctx(), ready)
				require.NoError(e, err)
				var seen []string
				for _, m := range index {
					if m.State == "READY" {
						require.True(e, m.Version == "1" || versionsOf(m.Name) > 1, "%s: version %s", m.Name, m.Version)
						seen = append(seen, m.Name)
					}
				}
				names, err := ModelNames()
				require.NoError(e, err)
				require.Subset(e, seen, names)
				require.IsNonDecreasing(e, seen)
			}
			_, err := e.Client.Stub.RepositoryIndex(e.ctx(), &pb.RepositoryIndexRequest{RepositoryName: "r"})
			e.refused(err, codes.Unimplemented, "'repository_name' specification is not supported")
		}},
		Case{"repository/index over HTTP", func(e *Env) {
			r := e.call("POST", "/v2/repository/index", `{"ready":true}`)
			require.Equal(e, 200, r.status)
			var index []map[string]string
			require.NoError(e, json.Unmarshal([]byte(r.body), &index), r.body)
			require.Contains(e, index, map[string]string{"name": "identity", "version": "1", "state": "READY"})
			e.wantHTTP(e.call("POST", "/v2/repository/index", `{"ready":3}`), 500, jsonType, errorJSON("attempt to access JSON non-boolean as boolean"))
			e.wantHTTP(e.call("GET", "/v2/repository/index", ""), 405, jsonType, `{"error":"Method Not Allowed"}`)
		}},
		Case{"repository/unload and load", func(e *Env) {
			require.NoError(e, e.Target.Unload(e.ctx(), "string"))
			_, err := e.Client.Stub.ModelInfer(e.ctx(), request("string"))
			e.refused(err, codes.NotFound, "Request for unknown model: 'string' has no available versions")
			_, err = e.Client.Stub.ModelMetadata(e.ctx(), &pb.ModelMetadataRequest{Name: "string"})
			e.refused(err, codes.NotFound, "Request for unknown model: 'string' has no available versions")
			_, err = e.Client.Stub.ModelStatistics(e.ctx(), &pb.ModelStatisticsRequest{Name: "string"})
			e.refused(err, codes.InvalidArgument, "requested model 'string' is not available")
			ready, err := e.Client.ModelReady(e.ctx(), "string", "")
			require.NoError(e, err)
			require.False(e, ready)
			e.wantHTTP(e.call("POST", inferPath("string"), "{}"), 404, textPlain, errorJSON("Request for unknown model: 'string' has no available versions"))
			e.until(func() bool {
				s, reason := state(e, "string")
				return s == "UNAVAILABLE" && reason == "unloaded"
			}, 20*time.Millisecond)
			_, err = e.Client.Stub.ModelInfer(e.ctx(), request("string", version("1")))
			e.refused(err, codes.Unavailable, "Request for unknown model: 'string' version 1 is not at ready state")
			require.NoError(e, e.Target.Load(e.ctx(), "string"))
			s, reason := state(e, "string")
			require.Equal(e, "READY", s)
			require.Empty(e, reason)
			e.infer(request("string", input("INPUT0", "BYTES", shape(1, 1), bytesElements("a"))))
			e.until(func() bool { return e.statistics("string").InferenceCount == 1 }, time.Millisecond, "statistics begin anew")
		}},
		Case{"repository/unload what is not loaded", func(e *Env) {
			_, err := e.Client.Stub.RepositoryModelUnload(e.ctx(), &pb.RepositoryModelUnloadRequest{ModelName: "nope"})
			require.NoError(e, err)
			_, err = e.Client.Stub.RepositoryModelUnload(e.ctx(), &pb.RepositoryModelUnloadRequest{ModelName: "nope",
				Parameters: map[string]*pb.ModelRepositoryParameter{"unload_dependents": text("x")}})
			e.refused(err, codes.InvalidArgument, "invalid value type for 'unload_dependents' parameter, expected bool_param.")
		}},
		Case{"repository/unload lets accepted requests finish", func(e *Env) {
			ctx, gate := e.ctx(), e.close("slow")
			answer := later(func() error {
				_, err := e.Client.Stub.ModelInfer(ctx, request("slow", input("INPUT0", "FP32", shape(1, 1), fp32(1))))
				return err
			})
			gate.executes(1)
			gate.open() // and takes some time yet
			require.NoError(e, e.Target.Unload(e.ctx(), "slow"))
			require.NoError(e, <-answer)
			require.NoError(e, e.Target.Load(e.ctx(), "slow"))
		}},
		Case{"repository/load again changes nothing", func(e *Env) {
			// The first load of a python model writes its bytecode into the directory, which makes a real server reload once more.
			require.NoError(e, e.Target.Load(e.ctx(), "identity"))
			loaded := e.statistics("identity")
			e.infer(identity())
			before := e.settled(loaded, 1)
			require.NoError(e, e.Target.Load(e.ctx(), "identity"))
			// A reload would start at zero. Requests of earlier cases may still come to be counted.
			require.GreaterOrEqual(e, e.statistics("identity").InferenceCount, before.InferenceCount)
		}},
		Case{"repository/load with another config", func(e *Env) {
			const config = `{"backend":"python","max_batch_size":4,"input":[{"name":"INPUT0","data_type":"TYPE_FP16","dims":[2]}],` +
				`"output":[{"name":"OUTPUT0","data_type":"TYPE_FP16","dims":[2]}],"instance_group":[{"kind":"KIND_CPU"}],` +
				`"parameters":{"conch_builtin":{"string_value":"identity"},"mine":{"string_value":"yes"}}}`
			mine := func() string {
				c, err := e.Client.ModelConfig(e.ctx(), "half", "")
				require.NoError(e, err)
				return c.Parameters["mine"].GetStringValue()
			}
			require.NoError(e, e.Target.Load(e.ctx(), "half"))
			require.NoError(e, e.Client.LoadConfig(e.ctx(), "half", config))
			require.Equal(e, "yes", mine())
			require.NoError(e, e.Client.Load(e.ctx(), "half"))
			require.Equal(e, "yes", mine(), "a plain load of unchanged files keeps it")
			require.NoError(e, e.Client.Unload(e.ctx(), "half"))
			require.NoError(e, e.Client.Load(e.ctx(), "half"))
			require.Empty(e, mine(), "an unload forgets it")
		}},
		Case{"repository/over HTTP", func(e *Env) {
			e.wantHTTP(e.call("POST", "/v2/repository/models/nope/load", ""), 500, jsonType, errorJSON("failed to load 'nope', failed to poll from model repository"))
			e.wantHTTP(e.call("POST", "/v2/repository/models/identity/load", "{x"), 500, jsonType, errorJSON("failed to parse the request JSON buffer: Missing a name for object member. at 1"))
			e.wantHTTP(e.call("POST", "/v2/repository/models/identity/load", `{"parameters":{"config":3}}`), 500, jsonType, errorJSON("attempt to access JSON non-string as string"))
			e.wantHTTP(e.call("POST", "/v2/repository/r/models/identity/load", ""), 501, jsonType, errorJSON("'repository_name' specification is not supported"))
			e.wantHTTP(e.call("POST", "/v2/repository/models/nope/unload", ""), 200, jsonType, "")
			e.wantHTTP(e.call("POST", "/v2/repository/models/types/unload", ""), 200, jsonType, "")
			e.wantHTTP(e.call("GET", "/v2/models/types/ready", ""), 400, textPlain, `{"error":"Model version not ready"}`)
			e.wantHTTP(e.call("POST", "/v2/repository/models/types/load", ""), 200, jsonType, "")
			e.wantHTTP(e.call("GET", "/v2/models/types/ready", ""), 200, textPlain, "")
		}},
	)
}

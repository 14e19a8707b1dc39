// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// versioned is a request of a model that adds 100 times its version.
func versioned(model string, options ...option) *pb.ModelInferRequest {
	return request(model, append([]option{input("INPUT0", "INT32", shape(1, 1), i32(7))}, options...)...)
}

// versionCases are a model with three versions on disk, two of which its version policy selects.
func versionCases() []Case {
	const model = "versions_specific"
	served := []string{"1", "3"}
	cases := []Case{
		{"versions/metadata", func(e *Env) {
			all, err := e.Client.Stub.ModelMetadata(e.ctx(), &pb.ModelMetadataRequest{Name: model})
			require.NoError(e, err)
			require.Equal(e, served, all.Versions)
			metadata, err := e.Client.Stub.ModelMetadata(e.ctx(), &pb.ModelMetadataRequest{Name: model, Version: "3"})
			require.NoError(e, err)
			require.Equal(e, []string{"3"}, metadata.Versions)
		}},
		{"versions/each answers for itself", func(e *Env) {
			for _, v := range served {
				resp := e.infer(versioned(model, version(v)))
				require.Equal(e, v, resp.ModelVersion)
				require.Equal(e, i32(100*int32(v[0]-'0')+7), resp.RawOutputContents[0])
				ready, err := e.Client.ModelReady(e.ctx(), model, v)
				require.NoError(e, err)
				require.True(e, ready)
			}
		}},
		{"versions/without a version the latest answers", func(e *Env) {
			resp := e.infer(versioned(model))
			require.Equal(e, "3", resp.ModelVersion)
			require.Equal(e, i32(307), resp.RawOutputContents[0])
		}},
		{"versions/statistics", func(e *Env) {
			stats, err := e.Client.Statistics(e.ctx(), model, "")
			require.NoError(e, err)
			var have []string
			for _, s := range stats {
				have = append(have, s.Version)
			}
			require.Equal(e, served, have)
			ofVersion, err := e.Client.Statistics(e.ctx(), model, "3")
			require.NoError(e, err)
			require.Len(e, ofVersion, 1)
			require.Equal(e, "3", ofVersion[0].Version)
		}},
		{"versions/index", func(e *Env) {
			index, err := e.Client.Index(e.ctx(), false)
			require.NoError(e, err)
			have := []string{}
			for _, m := range index {
				if m.Name == model && m.State == "READY" {
					have = append(have, m.Version)
				}
			}
			require.Equal(e, served, have)
		}},
		{"versions/what is not served", func(e *Env) {
			const gone = "2"
			_, err := e.Client.Stub.ModelInfer(e.ctx(), versioned(model, version(gone)))
			e.refused(err, codes.NotFound, "Request for unknown model: '"+model+"' version "+gone+" is not found")
			_, err = e.Client.Stub.ModelMetadata(e.ctx(), &pb.ModelMetadataRequest{Name: model, Version: gone})
			e.refused(err, codes.NotFound, "Request for unknown model: '"+model+"' version "+gone+" is not found")
			_, err = e.Client.Stub.ModelStatistics(e.ctx(), &pb.ModelStatisticsRequest{Name: model, Version: gone})
			e.refused(err, codes.InvalidArgument, "requested model version is not available for model '"+model+"'")
			ready, err := e.Client.ModelReady(e.ctx(), model, gone)
			require.NoError(e, err)
			require.False(e, ready)
		}},
		{"versions/over HTTP", func(e *Env) {
			e.wantHTTP(e.call("POST", "/v2/models/"+model+"/versions/3/infer", `{"inputs":[{"name":"INPUT0","datatype":"INT32","shape":[1,1],"data":[7]}]}`), 200, jsonType,
				`{"model_name":"`+model+`","model_version":"3","outputs":[{"name":"OUTPUT0","datatype":"INT32","shape":[1,1],"data":[307]}]}`)
			e.wantHTTP(e.call("POST", "/v2/models/"+model+"/versions/9/infer", `{}`), 404, textPlain, errorJSON("Request for unknown model: '"+model+"' version 9 is not found"))
			e.wantHTTP(e.call("GET", "/v2/models/"+model+"/versions/9/ready", ""), 400, textPlain, `{"error":"Model version not ready"}`)
			e.wantHTTP(e.call("GET", "/v2/models/"+model+"/versions/9/config", ""), 404, jsonType, errorJSON("Request for unknown model: '"+model+"' version 9 is not found"))
		}},
	}
	for s, v := range map[string]string{"leading zero": "03", "a fraction": "3.9", "space around it": " 3 "} {
		cases = append(cases, Case{"versions/written with " + s, func(e *Env) {
			require.Equal(e, "3", e.infer(versioned(model, version(v))).ModelVersion)
		}})
	}
	return append(cases, Case{"versions/written as text", func(e *Env) {
		_, err := e.Client.Stub.ModelInfer(e.ctx(), versioned(model, version("x")))
		e.refused(err, codes.InvalidArgument, "failed to get model version from specified version string 'x' (details: stol), version should be an integral value > 0")
	}})
}

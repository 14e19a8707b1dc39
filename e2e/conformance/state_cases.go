// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// statistics of one model with one version.
func (e *Env) statistics(model string) *pb.ModelStatistics {
	e.Helper()
	stats, err := e.Client.Statistics(e.ctx(), model, "")
	require.NoError(e, err)
	require.Len(e, stats, 1)
	return stats[0]
}

// quiet is the statistics of a model once they stand still: what earlier cases asked for may still come to be counted.
func (e *Env) quiet(model string) *pb.ModelStatistics {
	e.Helper()
	last := e.statistics(model)
	require.Eventually(e, func() bool {
		before := last
		last = e.statistics(model)
		return proto.Equal(before, last)
	}, 5*time.Second, 20*time.Millisecond)
	return last
}

// settled waits until a model has counted n requests more than before: a real server counts after it has answered.
func (e *Env) settled(before *pb.ModelStatistics, n uint64) *pb.ModelStatistics {
	e.Helper()
	var after *pb.ModelStatistics
	counted := func(s *pb.ModelStatistics) uint64 {
		return s.InferenceStats.Success.Count + s.InferenceStats.Fail.Count
	}
	require.Eventually(e, func() bool {
		after = e.statistics(before.Name)
		return counted(after) >= counted(before)+n && after.ExecutionCount > before.ExecutionCount
	}, 5*time.Second, time.Millisecond)
	return e.quiet(before.Name) // requests, executions and rows are not counted at the same moment
}

// statisticsCases count what a model did. They compare with what was counted before, since other cases used the models too.
func statisticsCases() []Case {
	return []Case{
		{"statistics/one request more", func(e *Env) {
			before := e.quiet("identity")
			e.infer(request("identity", input("INPUT0", "FP32", shape(3, 1), fp32(1, 2, 3))))
			after := e.settled(before, 1)
			require.Equal(e, "identity", after.Name)
			require.Equal(e, "1", after.Version)
			require.Equal(e, before.InferenceCount+3, after.InferenceCount, "inferences are rows")
			require.Equal(e, before.ExecutionCount+1, after.ExecutionCount)
			require.Equal(e, before.InferenceStats.Success.Count+1, after.InferenceStats.Success.Count)
			require.Equal(e, before.InferenceStats.Queue.Count+1, after.InferenceStats.Queue.Count)
			require.Equal(e, before.InferenceStats.ComputeInfer.Count+1, after.InferenceStats.ComputeInfer.Count)
			require.Equal(e, before.InferenceStats.Fail.Count, after.InferenceStats.Fail.Count)
			require.Greater(e, after.InferenceStats.Success.Ns, before.InferenceStats.Success.Ns)
			require.GreaterOrEqual(e, after.LastInference, uint64(time.Now().Add(-time.Minute).UnixMilli()), "milliseconds since 1970")
			require.Equal(e, batchCount(before, 3)+1, batchCount(after, 3), "batch_stats are by total batch")
		}},
		{"statistics/a refused request is not counted", func(e *Env) {
			before := e.quiet("identity")
			_, err := e.Client.Stub.ModelInfer(e.ctx(), request("identity", input("INPUT0", "INT32", shape(1, 1), i32(1))))
			require.Error(e, err)
			after := e.statistics("identity")
			require.Equal(e, before.InferenceStats.Fail.Count, after.InferenceStats.Fail.Count)
			require.Equal(e, before.InferenceStats.Success.Count, after.InferenceStats.Success.Count)
		}},
		{"statistics/a model's error in its answer is a success, an exception a failure", func(e *Env) {
			before := e.quiet("error")
			for _, v := range []float32{-1, -1000} {
				_, err := e.Client.Stub.ModelInfer(e.ctx(), request("error", input("INPUT0", "FP32", shape(1, 1), fp32(v))))
				require.Error(e, err)
			}
			after := e.settled(before, 2)
			require.Equal(e, before.InferenceStats.Success.Count+1, after.InferenceStats.Success.Count)
			require.Equal(e, before.InferenceStats.Fail.Count+1, after.InferenceStats.Fail.Count)
			require.Equal(e, before.ExecutionCount+2, after.ExecutionCount)
			require.Equal(e, before.InferenceCount+1, after.InferenceCount)
			require.Equal(e, batchCount(before, 1)+2, batchCount(after, 1))
		}},
		{"statistics/of a stream of a decoupled model", func(e *Env) {
			before := e.quiet("decoupled")
			e.stream(repeat([]int32{1, 2}, []int32{0, 0}), repeat(nil, nil), repeat([]int32{3}, []int32{0}, parameter("triton_enable_empty_final_response", true)))
			require.Eventually(e, func() bool { return e.statistics("decoupled").ExecutionCount >= before.ExecutionCount+3 }, 5*time.Second, 5*time.Millisecond)
			after := e.settled(before, 3)
			require.Equal(e, before.InferenceStats.Success.Count+3, after.InferenceStats.Success.Count)
			require.Equal(e, before.InferenceStats.Fail.Count, after.InferenceStats.Fail.Count)
			require.Equal(e, before.ExecutionCount+3, after.ExecutionCount)
		}},
		{"statistics/of a stream over several models", func(e *Env) {
			identity, half := e.quiet("identity"), e.quiet("half")
			requests, _ := mixed(12)
			e.stream(requests...)
			require.Equal(e, identity.InferenceStats.Success.Count+3, e.settled(identity, 3).InferenceStats.Success.Count)
			require.Equal(e, half.InferenceStats.Success.Count+3, e.settled(half, 3).InferenceStats.Success.Count)
		}},
		{"statistics/of many callers", func(e *Env) {
			before := e.quiet("string")
			e.eachItsOwn(30, func(i int) (*pb.ModelInferRequest, map[string]tensor) {
				return request("string", input("INPUT0", "BYTES", shape(1, 1), bytesElements("A"))), map[string]tensor{"OUTPUT0": {"BYTES", shape(1, 1), bytesElements("A")}}
			})
			after := e.settled(before, 30)
			require.Equal(e, before.InferenceStats.Success.Count+30, after.InferenceStats.Success.Count, "requests of clients, whatever ran together")
			require.Equal(e, before.InferenceCount+30, after.InferenceCount)
		}},
		{"statistics/of sequences", func(e *Env) {
			before := e.quiet("sequence")
			for i := range 3 {
				e.sum("sequence", parameter("sequence_id", 500+i), 1, 2, 3)
			}
			after := e.settled(before, 9)
			require.Equal(e, before.InferenceStats.Success.Count+9, after.InferenceStats.Success.Count)
			require.Equal(e, before.InferenceCount+9, after.InferenceCount)
		}},
		{"statistics/of all models", func(e *Env) {
			stats, err := e.Client.Statistics(e.ctx(), "", "")
			require.NoError(e, err)
			seen := map[string]bool{}
			for _, s := range stats {
				seen[s.Name] = true
			}
			names, err := ModelNames()
			require.NoError(e, err)
			for _, n := range names {
				require.True(e, seen[n], n)
			}
		}},
		{"statistics/over HTTP", func(e *Env) {
			before := e.quiet("add_sub")
			e.infer(addSub())
			want := e.settled(before, 1)
			r := e.call("GET", "/v2/models/add_sub/stats", "")
			require.Equal(e, 200, r.status)
			var doc struct {
				ModelStats []struct {
					Name           string
					Version        string
					InferenceCount uint64 `json:"inference_count"`
					InferenceStats struct {
						Success struct{ Count, Ns uint64 }
					} `json:"inference_stats"`
					BatchStats []struct {
						BatchSize uint64 `json:"batch_size"`
					} `json:"batch_stats"`
				} `json:"model_stats"`
			}
			require.NoError(e, json.Unmarshal([]byte(r.body), &doc), r.body)
			require.Len(e, doc.ModelStats, 1)
			s := doc.ModelStats[0]
			require.Equal(e, want.InferenceCount, s.InferenceCount)
			require.Equal(e, want.InferenceStats.Success.Ns, s.InferenceStats.Success.Ns)
			require.Len(e, s.BatchStats, len(want.BatchStats))
		}},
		{"statistics/as metrics", metricsCase},
		{"statistics/refused", func(e *Env) {
			_, err := e.Client.Stub.ModelStatistics(e.ctx(), &pb.ModelStatisticsRequest{Name: "nope"})
			e.refused(err, codes.InvalidArgument, "requested model 'nope' is not available")
			_, err = e.Client.Stub.ModelStatistics(e.ctx(), &pb.ModelStatisticsRequest{Name: "identity", Version: "7"})
			e.refused(err, codes.InvalidArgument, "requested model version is not available for model 'identity'")
		}},
	}
}

// metricsCase compares the metrics with the statistics. The real server refreshes its page when asked, so they agree at once.
func metricsCase(e *Env) {
	if e.Target.Metrics == "" {
		e.Skip("the target has no metrics address")
	}
	before := e.quiet("identity")
	e.infer(identity())
	stats := e.settled(before, 1)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(e.fetch(http.MethodGet, e.Target.Metrics, "/metrics", "").body))
	require.NoError(e, err)
	value := func(name string, labels map[string]string) float64 {
		family := families[name]
		require.NotNil(e, family, name)
		for _, m := range family.Metric {
			got := map[string]string{}
			for _, l := range m.Label {
				got[l.GetName()] = l.GetValue()
			}
			if maps.Equal(got, labels) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
		require.Fail(e, "no such metric", "%s%v", name, labels)
		return 0
	}
	own := map[string]string{"model": "identity", "version": "1"}
	for _, name := range []string{"nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count", "nv_inference_request_duration_us",
		"nv_inference_queue_duration_us", "nv_inference_compute_input_duration_us", "nv_inference_compute_infer_duration_us", "nv_inference_compute_output_duration_us"} {
		require.Equal(e, dto.MetricType_COUNTER, families[name].GetType(), name)
	}
	// Metrics outlive a reload that zeroes the statistics, so they are at least as high.
	require.GreaterOrEqual(e, value("nv_inference_request_success", own), float64(stats.InferenceStats.Success.Count))
	require.GreaterOrEqual(e, value("nv_inference_count", own), float64(stats.InferenceCount))
	require.GreaterOrEqual(e, value("nv_inference_exec_count", own), float64(stats.ExecutionCount))
	require.GreaterOrEqual(e, value("nv_inference_request_duration_us", own), float64(stats.InferenceStats.ComputeInfer.Ns/1000))
	require.Zero(e, value("nv_inference_pending_request_count", own))
	require.Equal(e, dto.MetricType_GAUGE, families["nv_inference_pending_request_count"].GetType())
	for _, reason := range []string{"BACKEND", "CANCELED", "REJECTED", "OTHER"} {
		require.Zero(e, value("nv_inference_request_failure", map[string]string{"model": "identity", "version": "1", "reason": reason}), reason)
	}
}

func batchCount(s *pb.ModelStatistics, size uint64) uint64 {
	for _, b := range s.BatchStats {
		if b.BatchSize == size {
			return b.ComputeInfer.Count
		}
	}
	return 0
}

// together sends requests of the given rows at once and waits for all answers.
func (e *Env) together(model string, rows ...int64) {
	e.Helper()
	ctx := e.ctx()
	errs := make([]error, len(rows))
	var all sync.WaitGroup
	for i, n := range rows {
		all.Go(func() {
			_, errs[i] = e.Client.Stub.ModelInfer(ctx, request(model, input("INPUT0", "FP32", shape(n, 1), make([]byte, 4*n))))
		})
		switch {
		case i == 0:
			time.Sleep(40 * time.Millisecond) // the first alone
		case i+1 < len(rows) && rows[i+1] != n:
			time.Sleep(20 * time.Millisecond) // in this order
		}
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(e, err)
	}
}

// batchingCases see what runs together by the statistics. The models take 200 ms per execution, so that the rest queues meanwhile.
func batchingCases() []Case {
	return []Case{
		{"batching/without dynamic_batching every request runs alone", func(e *Env) {
			before := e.quiet("slow")
			e.together("slow", 1, 1, 1)
			after := e.settled(before, 3)
			require.Equal(e, before.ExecutionCount+3, after.ExecutionCount)
			require.Equal(e, batchCount(before, 1)+3, batchCount(after, 1))
		}},
		{"batching/what queues during an execution runs together", func(e *Env) {
			before := e.quiet("batched")
			e.together("batched", 1, 1, 1, 1, 1, 1, 1, 1)
			after := e.settled(before, 8)
			require.Equal(e, before.ExecutionCount+2, after.ExecutionCount)
			require.Equal(e, before.InferenceCount+8, after.InferenceCount)
			require.Equal(e, batchCount(before, 1)+1, batchCount(after, 1), "the first at once")
			require.Equal(e, batchCount(before, 7)+1, batchCount(after, 7), "the others behind it")
		}},
		{"batching/a request is never split", func(e *Env) {
			before := e.quiet("batched")
			e.together("batched", 3, 2, 8, 1)
			after := e.settled(before, 4)
			require.Equal(e, before.InferenceCount+14, after.InferenceCount)
			require.Equal(e, batchCount(before, 8)+1, batchCount(after, 8), "nothing fits beside eight rows")
		}},
		{"batching/in the order of arrival", func(e *Env) {
			before := e.quiet("batched")
			e.together("batched", 3, 2, 8, 1)
			after := e.settled(before, 4)
			for size, n := range map[uint64]uint64{3: 1, 2: 1, 8: 1, 1: 1} {
				require.Equal(e, batchCount(before, size)+n, batchCount(after, size), "batches of %d", size)
			}
		}},
		{"batching/a cancelled request still in the queue does not run", func(e *Env) {
			before := e.quiet("batched")
			first := make(chan error, 1)
			ctx := e.ctx()
			send := func(ctx context.Context) error {
				_, err := e.Client.Stub.ModelInfer(ctx, request("batched", input("INPUT0", "FP32", shape(8, 1), make([]byte, 32))))
				return err
			}
			// One full batch runs, two are made ahead; the fourth waits in the queue.
			var ahead sync.WaitGroup
			go func() { first <- send(ctx) }()
			time.Sleep(20 * time.Millisecond)
			for range 2 {
				ahead.Go(func() { _ = send(ctx) })
			}
			time.Sleep(20 * time.Millisecond)
			gone, cancel := context.WithCancel(ctx)
			last := make(chan error, 1)
			go func() { last <- send(gone) }()
			time.Sleep(20 * time.Millisecond)
			cancel()
			require.Error(e, <-last)
			require.NoError(e, <-first)
			ahead.Wait()
			require.Eventually(e, func() bool {
				return e.statistics("batched").InferenceStats.Fail.Count == before.InferenceStats.Fail.Count+1
			}, 2*time.Second, 20*time.Millisecond)
			require.Equal(e, before.ExecutionCount+3, e.settled(before, 4).ExecutionCount)
		}},
	}
}

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
			require.Eventually(e, func() bool {
				s, reason := state(e, "string")
				return s == "UNAVAILABLE" && reason == "unloaded"
			}, 5*time.Second, 20*time.Millisecond)
			_, err = e.Client.Stub.ModelInfer(e.ctx(), request("string", version("1")))
			e.refused(err, codes.Unavailable, "Request for unknown model: 'string' version 1 is not at ready state")
			require.NoError(e, e.Target.Load(e.ctx(), "string"))
			s, reason := state(e, "string")
			require.Equal(e, "READY", s)
			require.Empty(e, reason)
			e.infer(request("string", input("INPUT0", "BYTES", shape(1, 1), bytesElements("a"))))
			require.Eventually(e, func() bool { return e.statistics("string").InferenceCount == 1 }, 5*time.Second, time.Millisecond, "statistics begin anew")
		}},
		Case{"repository/unload what is not loaded", func(e *Env) {
			_, err := e.Client.Stub.RepositoryModelUnload(e.ctx(), &pb.RepositoryModelUnloadRequest{ModelName: "nope"})
			require.NoError(e, err)
			_, err = e.Client.Stub.RepositoryModelUnload(e.ctx(), &pb.RepositoryModelUnloadRequest{ModelName: "nope",
				Parameters: map[string]*pb.ModelRepositoryParameter{"unload_dependents": text("x")}})
			e.refused(err, codes.InvalidArgument, "invalid value type for 'unload_dependents' parameter, expected bool_param.")
		}},
		Case{"repository/unload lets accepted requests finish", func(e *Env) {
			answer := make(chan error, 1)
			ctx := e.ctx()
			go func() {
				_, err := e.Client.Stub.ModelInfer(ctx, request("slow", input("INPUT0", "FP32", shape(1, 1), fp32(1))))
				answer <- err
			}()
			time.Sleep(60 * time.Millisecond)
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

// memoryCases are the shared memory API as far as it needs no memory.
func memoryCases() []Case {
	region := func(v string, sized bool) map[string]*pb.InferParameter {
		p := map[string]*pb.InferParameter{"shared_memory_region": inferParameter(v)}
		if sized {
			p["shared_memory_byte_size"] = inferParameter(8)
		}
		return p
	}
	return []Case{
		{"memory/no regions", func(e *Env) {
			r, err := e.Client.Stub.SystemSharedMemoryStatus(e.ctx(), &pb.SystemSharedMemoryStatusRequest{})
			require.NoError(e, err)
			require.Empty(e, r.Regions)
			e.wantHTTP(e.call("GET", "/v2/systemsharedmemory/status", ""), 200, jsonType, "[]")
			e.wantHTTP(e.call("GET", "/v2/cudasharedmemory/status", ""), 200, jsonType, "[]")
		}},
		{"memory/unknown region", func(e *Env) {
			_, err := e.Client.Stub.SystemSharedMemoryStatus(e.ctx(), &pb.SystemSharedMemoryStatusRequest{Name: "x"})
			e.refused(err, codes.NotFound, "Unable to find system shared memory region: 'x'")
			_, err = e.Client.Stub.CudaSharedMemoryStatus(e.ctx(), &pb.CudaSharedMemoryStatusRequest{Name: "x"})
			e.refused(err, codes.NotFound, "Unable to find cuda shared memory region: 'x'")
			_, err = e.Client.Stub.SystemSharedMemoryUnregister(e.ctx(), &pb.SystemSharedMemoryUnregisterRequest{Name: "x"})
			require.NoError(e, err)
		}},
		{"memory/register what is not there", func(e *Env) {
			_, err := e.Client.Stub.SystemSharedMemoryRegister(e.ctx(), &pb.SystemSharedMemoryRegisterRequest{Name: "a", Key: "/no-such-key-of-the-suite", ByteSize: 8})
			e.refused(err, codes.Internal, "Unable to open shared memory region: '/no-such-key-of-the-suite'")
		}},
		{"memory/infer from an unknown region", func(e *Env) {
			r := request("identity", declare("INPUT0", "FP32", shape(1, 2)))
			r.Inputs[0].Parameters = region("zz", true)
			_, err := e.Client.Stub.ModelInfer(e.ctx(), r)
			e.refused(err, codes.NotFound, "Unable to find shared memory region: 'zz'")
			r.Inputs[0].Parameters = region("zz", false)
			_, err = e.Client.Stub.ModelInfer(e.ctx(), r)
			e.refused(err, codes.InvalidArgument, "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'INPUT0'")
		}},
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
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
	e.until(func() bool {
		before := last
		last = e.statistics(model)
		return proto.Equal(before, last)
	}, 20*time.Millisecond)
	return last
}

// settled waits until a model has counted n requests more than before: a real server counts after it has answered.
func (e *Env) settled(before *pb.ModelStatistics, n uint64) *pb.ModelStatistics {
	e.Helper()
	var after *pb.ModelStatistics
	counted := func(s *pb.ModelStatistics) uint64 {
		return s.InferenceStats.Success.Count + s.InferenceStats.Fail.Count
	}
	e.until(func() bool {
		after = e.statistics(before.Name)
		return counted(after) >= counted(before)+n && after.ExecutionCount > before.ExecutionCount
	}, time.Millisecond)
	return e.quiet(before.Name) // requests, executions and rows are not counted at the same moment
}

// executed waits until a model has executed n times more than before: that is counted last.
func (e *Env) executed(before *pb.ModelStatistics, n uint64) {
	e.Helper()
	e.until(func() bool { return e.statistics(before.Name).ExecutionCount >= before.ExecutionCount+n }, 5*time.Millisecond)
}

// ran waits until a model has executed so many rows more than before, in however many batches: batches are counted last.
func (e *Env) ran(before *pb.ModelStatistics, rows uint64) {
	e.Helper()
	batched := func(s *pb.ModelStatistics) (rows uint64) {
		for _, b := range s.BatchStats {
			rows += b.BatchSize * b.ComputeInfer.Count
		}
		return rows
	}
	e.until(func() bool { return batched(e.statistics(before.Name)) >= batched(before)+rows }, 5*time.Millisecond)
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
			e.executed(before, 2)
			after := e.settled(before, 2)
			require.Equal(e, before.InferenceStats.Success.Count+1, after.InferenceStats.Success.Count)
			require.Equal(e, before.InferenceStats.Fail.Count+1, after.InferenceStats.Fail.Count)
			executed := []uint64{2}
			if e.partitions() > 1 { // an execution that failed may be tried once more, on another partition
				executed = append(executed, 3)
			}
			require.Contains(e, executed, after.ExecutionCount-before.ExecutionCount)
			require.Equal(e, before.InferenceCount+1, after.InferenceCount)
			require.Contains(e, executed, batchCount(after, 1)-batchCount(before, 1))
		}},
		{"statistics/of a stream of a decoupled model", func(e *Env) {
			before := e.quiet("decoupled")
			e.stream(repeat([]int32{1, 2}, []int32{0, 0}), repeat(nil, nil), repeat([]int32{3}, []int32{0}, parameter("triton_enable_empty_final_response", true)))
			e.executed(before, 3)
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
			e.ran(before, 30)
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

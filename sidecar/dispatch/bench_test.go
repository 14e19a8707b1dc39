// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// BenchmarkProxy compares calls through Conch (client, front, dispatcher,
// partition) with the same calls straight to the partition.
func BenchmarkProxy(b *testing.B) {
	r := newRig(b, 1, "identity")
	for _, size := range []int{1 << 10, 600 << 10} {
		m := &tritonpb.ModelInferRequest{
			ModelName: "identity", Inputs: []*input{{Name: "INPUT0", Datatype: "FP32", Shape: []int64{1, int64(size / 4)}}},
			RawInputContents: [][]byte{make([]byte, size)},
		}
		for _, callers := range []int{1, 64} {
			for _, to := range []struct {
				name   string
				client tritonpb.GRPCInferenceServiceClient
			}{{"direct", r.direct}, {"conch", r.client}} {
				b.Run(fmt.Sprintf("%dKB/c%d/%s", size>>10, callers, to.name), func(b *testing.B) {
					b.ReportAllocs()
					b.SetParallelism((callers + 1) / 2)
					call := func() {
						if _, err := to.client.ModelInfer(context.Background(), m); err != nil {
							b.Error(err)
						}
					}
					if callers == 1 {
						for b.Loop() {
							call()
						}
						return
					}
					b.RunParallel(func(pb *testing.PB) {
						for pb.Next() {
							call()
						}
					})
				})
			}
		}
	}
}

// BenchmarkInfer is the path from a received message to its answer, the
// partition's side included.
func BenchmarkInfer(b *testing.B) {
	r := newRig(b, 1, "identity")
	wire, err := proto.Marshal(&tritonpb.ModelInferRequest{
		ModelName: "identity", Inputs: []*input{{Name: "INPUT0", Datatype: "FP32", Shape: []int64{1, 256}}},
		RawInputContents: [][]byte{make([]byte, 1<<10)},
	})
	if err != nil {
		b.Fatal(err)
	}
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("1KB/c%d", callers), func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism((callers + 1) / 2)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					req, err := batch.ReadRequest(mem.BufferSlice{mem.SliceBuffer(wire)})
					if err != nil {
						b.Error(err)
						return
					}
					resp, err := r.d.Infer(context.Background(), req)
					if err != nil {
						b.Error(err)
						return
					}
					resp.Free()
				}
			})
		})
	}
}

// BenchmarkStreams is the load of perf_analyzer --streaming, eight streams with
// eight requests under way on each, to a model that takes 2 ms however large its
// batch: straight to the server, as requests that cannot be queued go, and
// through the queue.
func BenchmarkStreams(b *testing.B) {
	for _, queued := range []bool{false, true} {
		b.Run(map[bool]string{false: "straight", true: "queued"}[queued], func(b *testing.B) {
			r := newRig(b, 1, "slow")
			m := *r.table.Models["slow"]
			m.Batchable = queued
			table := *r.table
			table.Revision, table.Models = 2, map[string]*router.Model{"slow": &m}
			require.NoError(b, r.d.Swap(b.Context(), &table))
			request := &tritonpb.ModelInferRequest{
				ModelName: "slow", Inputs: []*input{{Name: "INPUT0", Datatype: "FP32", Shape: []int64{1, 16}}}, RawInputContents: [][]byte{make([]byte, 64)},
			}
			var left atomic.Int64
			left.Store(int64(b.N))
			var all sync.WaitGroup
			for range 8 {
				s, err := r.client.ModelStreamInfer(b.Context())
				require.NoError(b, err)
				all.Go(func() {
					underWay := 0
					for underWay < 8 && left.Add(-1) >= 0 {
						underWay++
						_ = s.Send(request) // what fails is not answered
					}
					for ; underWay > 0; underWay-- {
						if a, err := s.Recv(); err != nil || a.ErrorMessage != "" {
							b.Error(err, a.GetErrorMessage())
							return
						}
						if left.Add(-1) >= 0 {
							underWay++
							_ = s.Send(request)
						}
					}
					_ = s.CloseSend()
				})
			}
			all.Wait()
			b.StopTimer()
			stats, err := r.direct.ModelStatistics(b.Context(), &tritonpb.ModelStatisticsRequest{Name: "slow"})
			require.NoError(b, err)
			b.ReportMetric(float64(stats.ModelStats[0].InferenceCount)/float64(stats.ModelStats[0].ExecutionCount), "rows/execution")
		})
	}
}

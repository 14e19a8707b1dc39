// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
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

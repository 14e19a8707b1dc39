// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch_test

import (
	"fmt"
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

func benchmarkWire(b *testing.B, bytes int) ([]byte, *batch.Rules) {
	b.Helper()
	config := &tritonpb.ModelConfig{
		MaxBatchSize: 64,
		Input:        []*tritonpb.ModelInput{{Name: "INPUT", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{int64(bytes / 4)}}},
		Output:       []*tritonpb.ModelOutput{{Name: "OUTPUT", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{int64(bytes / 4)}}},
	}
	wire, err := proto.Marshal(&tritonpb.ModelInferRequest{
		ModelName:        "resnet50",
		Id:               "17",
		Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "INPUT", Datatype: "FP32", Shape: []int64{1, int64(bytes / 4)}}},
		Outputs:          []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUTPUT"}},
		RawInputContents: [][]byte{make([]byte, bytes)},
	})
	if err != nil {
		b.Fatal(err)
	}
	return wire, batch.NewRules(config, []string{"1"})
}

// received cuts a message the way grpc-go does: one buffer for each frame.
func received(wire []byte) mem.BufferSlice {
	var list mem.BufferSlice
	for len(wire) > 0 {
		n := min(len(wire), 16384)
		list = append(list, mem.SliceBuffer(wire[:n:n]))
		wire = wire[n:]
	}
	return list
}

func BenchmarkReadRequest(b *testing.B) {
	for _, size := range []int{1 << 10, 600 << 10} {
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			wire, rules := benchmarkWire(b, size)
			list := received(wire)
			b.ReportAllocs()
			for b.Loop() {
				r, err := batch.ReadRequest(list)
				if err != nil {
					b.Fatal(err)
				}
				if _, _, ok, reason := rules.Key(r); !ok {
					b.Fatal(reason)
				}
				r.Wire = nil
				r.Free()
			}
		})
	}
}

func BenchmarkAssembleSplit(b *testing.B) {
	for _, n := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("%dx1KB", n), func(b *testing.B) {
			wire, _ := benchmarkWire(b, 1<<10)
			reqs := make([]*batch.Request, 0, n)
			for range n {
				r, err := batch.ReadRequest(received(wire))
				if err != nil {
					b.Fatal(err)
				}
				reqs = append(reqs, r)
			}
			answer, err := proto.Marshal(&tritonpb.ModelInferResponse{
				ModelName: "resnet50", ModelVersion: "1",
				Outputs:           []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "OUTPUT", Datatype: "FP32", Shape: []int64{int64(n), 256}}},
				RawOutputContents: [][]byte{make([]byte, n<<10)},
			})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				joined, err := batch.Assemble(reqs)
				if err != nil {
					b.Fatal(err)
				}
				joined.Marshal()
				joined.Free()
				resp, err := batch.ReadResponse(received(answer))
				if err != nil {
					b.Fatal(err)
				}
				parts, err := batch.Split(resp, reqs)
				if err != nil {
					b.Fatal(err)
				}
				for _, p := range parts {
					p.Marshal()
					p.Free()
				}
			}
			b.ReportMetric(float64(n), "requests/op")
		})
	}
}

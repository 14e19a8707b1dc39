// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package dispatch_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// instant is a server whose models take no time: what is in shared memory it neither reads nor writes, and what comes in a message it sends back. So what is
// measured is the way to it and back.
type instant struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer
	refuses bool // to share memory

	mu      sync.Mutex
	regions map[string][]byte
}

func (s *instant) ServerLive(context.Context, *tritonpb.ServerLiveRequest) (*tritonpb.ServerLiveResponse, error) {
	return &tritonpb.ServerLiveResponse{Live: true}, nil
}

func (s *instant) SystemSharedMemoryRegister(_ context.Context, r *tritonpb.SystemSharedMemoryRegisterRequest) (*tritonpb.SystemSharedMemoryRegisterResponse, error) {
	if s.refuses {
		return nil, status.Error(codes.Unavailable, "shared memory is off")
	}
	f, err := os.OpenFile(filepath.Join("/dev/shm", r.Key), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	memory, err := unix.Mmap(int(f.Fd()), 0, int(r.ByteSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.regions[r.Name] = memory
	return &tritonpb.SystemSharedMemoryRegisterResponse{}, nil
}

func (s *instant) SystemSharedMemoryUnregister(context.Context, *tritonpb.SystemSharedMemoryUnregisterRequest) (*tritonpb.SystemSharedMemoryUnregisterResponse, error) {
	return &tritonpb.SystemSharedMemoryUnregisterResponse{}, nil
}

func (s *instant) ModelInfer(_ context.Context, r *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
	answer := &tritonpb.ModelInferResponse{ModelName: r.ModelName, ModelVersion: "1", Id: r.Id, RawOutputContents: r.RawInputContents}
	for _, o := range r.Outputs {
		answer.Outputs = append(answer.Outputs, &tritonpb.ModelInferResponse_InferOutputTensor{Name: o.Name, Datatype: "FP32", Shape: r.Inputs[0].Shape})
	}
	return answer, nil
}

// BenchmarkSteps is what a step of an ensemble costs, the client's side left out: an ensemble of eight steps, the whole of which takes eight times as long, on one
// server, or with each second step on another one.
func BenchmarkSteps(b *testing.B) {
	const steps = 8
	for _, size := range []int{600 << 10, 4 << 20} {
		for _, way := range []string{"socket", "one server", "two servers"} {
			b.Run(fmt.Sprintf("%dKB/%s", size>>10, way), func(b *testing.B) {
				var parts []*triton
				for i := range 2 {
					path := filepath.Join(b.TempDir(), "triton")
					l, err := net.Listen("unix", path)
					require.NoError(b, err)
					server := grpc.NewServer(grpc.MaxRecvMsgSize(64<<20), grpc.MaxSendMsgSize(64<<20))
					tritonpb.RegisterGRPCInferenceServiceServer(server, &instant{refuses: way == "socket", regions: map[string][]byte{}})
					go func() { _ = server.Serve(l) }()
					b.Cleanup(server.Stop)
					if parts = append(parts, &triton{address: "unix:" + path}); i == 0 && way == "one server" {
						break
					}
				}
				var chain [][3]string
				for i := range steps {
					chain = append(chain, [3]string{[]string{"m", "n"}[i%2], fmt.Sprint("t", i), fmt.Sprint("t", i+1)})
				}
				chain[0][1], chain[steps-1][2] = "IN", "OUT"
				t := stepsTable(map[string]*router.Model{"e": ensembleOf("", chain...)}, parts...)
				if len(parts) > 1 {
					t.Models["m"].Places, t.Models["n"].Places = t.Models["m"].Places[:1], t.Models["n"].Places[1:]
				}
				for _, m := range t.Models {
					m.Config.Input[0].Dims, m.Config.Output[0].Dims = []int64{int64(size / 4)}, []int64{int64(size / 4)}
				}
				d := dispatch.New(dispatch.Options{Observer: &recorder{}, SharedMemoryBytes: 256 << 20})
				b.Cleanup(func() { require.NoError(b, d.Close()) })
				require.NoError(b, d.Swap(b.Context(), t))
				wire, err := proto.Marshal(&tritonpb.ModelInferRequest{
					ModelName: "e", Inputs: []*input{{Name: "IN", Datatype: "FP32", Shape: []int64{1, int64(size / 4)}}}, RawInputContents: [][]byte{make([]byte, size)},
				})
				require.NoError(b, err)
				call := func() {
					req, err := batch.ReadRequest(mem.BufferSlice{mem.SliceBuffer(wire)})
					require.NoError(b, err)
					resp, err := d.Infer(b.Context(), req)
					require.NoError(b, err)
					resp.Free()
				}
				for ends := time.Now().Add(300 * time.Millisecond); time.Now().Before(ends); { // until the servers have their regions
					call()
				}
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					call()
					n++
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(n*steps), "us/step")
			})
		}
	}
}

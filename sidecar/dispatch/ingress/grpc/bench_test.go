// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/grpc"
)

// BenchmarkModelInfer is a call over a socket that is answered at once, with both ways to serve it. The client, which is grpc-go, is part of the time.
func BenchmarkModelInfer(b *testing.B) {
	for name, library := range map[string]bool{"own": false, "grpc-go": true} {
		for size, bytes := range map[string]int{"1KB": 1 << 10, "600KB": 600 << 10} {
			for callers, n := range map[string]int{"c1": 1, "c64": 64} {
				b.Run(size+"/"+callers+"/"+name, func(b *testing.B) { benchmark(b, library, bytes, n) })
			}
		}
	}
}

func benchmark(b *testing.B, library bool, size, callers int) {
	door := gate.New(gate.Options{Requests: 1000, Bytes: 1 << 30, Connections: 10, Stall: time.Minute})
	s := front.New(front.Options{Inferer: &path{}, Aggregator: &control{}, GRPC: library})
	l, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
	require.NoError(b, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(door.Listener(l, true)) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(b, err)
	defer func() { require.NoError(b, conn.Close()); s.Stop(); <-done; door.Close() }()
	message, err := proto.Marshal(&tritonpb.ModelInferRequest{ModelName: "m", RawInputContents: [][]byte{make([]byte, size)}})
	require.NoError(b, err)
	call := func() {
		var out batch.Frame
		err := conn.Invoke(context.Background(), tritonpb.GRPCInferenceService_ModelInfer_FullMethodName,
			&batch.Frame{Data: mem.BufferSlice{mem.SliceBuffer(message)}}, &out, grpc.ForceCodecV2(batch.Codec{}))
		if err != nil {
			b.Error(err)
		}
		out.Data.Free()
	}
	call()
	b.ReportAllocs()
	b.ResetTimer()
	calls := make(chan struct{}, callers)
	var running sync.WaitGroup
	for range callers {
		running.Go(func() {
			for range calls {
				call()
			}
		})
	}
	for range b.N {
		calls <- struct{}{}
	}
	close(calls)
	running.Wait()
}

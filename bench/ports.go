// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	requests "github.com/conch-serving/conch/sidecar/dispatch/batch"
	servers "github.com/conch-serving/conch/sidecar/dispatch/forward"
	turns "github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// echoModel answers with what it is asked, and takes no time of its own.
const (
	echoModel = `import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(r, "IN").as_numpy())]) for r in requests]
`
	echoConfig = `backend: "python" instance_group [ { kind: KIND_CPU } ] max_batch_size: 64
input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ] output [ { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] } ]`
)

// ports measures which port of a tritonserver answers the same rows sooner, asked by Conch's own clients of both, in turns: by which one a batch should go.
func (b *bench) ports(ctx context.Context, r *figure.Report) (err error) {
	repository, err := os.MkdirTemp("", "conch-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(repository)) }()
	model := filepath.Join(repository, "echo")
	if err := errors.Join(os.MkdirAll(filepath.Join(model, "1"), 0o755), os.WriteFile(filepath.Join(model, "config.pbtxt"), []byte(echoConfig), 0o644),
		os.WriteFile(filepath.Join(model, "1", "model.py"), []byte(echoModel), 0o644)); err != nil {
		return err
	}
	server, err := rig.StartServer(ctx, rig.ServerOptions{Server: b.server, Repository: repository})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	to, err := triton.Dial(server.GRPC)
	if err != nil {
		return err
	}
	if err := errors.Join(to.Load(ctx, "echo"), to.Close()); err != nil {
		return err
	}
	conn, err := servers.Dial(server.GRPC, servers.Options{HTTP: server.HTTP, IdleHTTP: time.Hour})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for _, c := range []struct {
		name        string
		rows, bytes int
	}{{"1KB", 1, 1 << 10}, {"64KB", 1, 64 << 10}, {"600KB", 1, 600 << 10}, {"8x600KB", 8, 600 << 10}} {
		byGRPC, byHTTP, err := askPorts(ctx, conn, c.rows, c.bytes, b.roundsOr(5))
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		name := "proxy.real.port." + c.name
		r.AddRuns(name+".http_over_grpc", pairwise(byHTTP, byGRPC, func(h, g float64) float64 { return h / g }), "ratio",
			"median time of a call to the HTTP port of a tritonserver over one to its gRPC port, in turns, by the clients that Conch has")
		r.AddRuns(name+".grpc_p50_us", byGRPC, "us", "")
		r.AddRuns(name+".http_p50_us", byHTTP, "us", "")
		b.say(fmt.Sprintf("%s: gRPC %.0f us, HTTP %.0f us", name, median(byGRPC), median(byHTTP)))
	}
	return nil
}

// askPorts calls both ports in turns, and returns the medians of each round, in microseconds.
func askPorts(ctx context.Context, conn *servers.Conn, rows, bytes, rounds int) (byGRPC, byHTTP []float64, err error) {
	data := make([]byte, rows*bytes)
	request := &requests.Request{Model: "echo", Inputs: []requests.Tensor{{Name: "IN", Datatype: "FP32", Shape: []int64{int64(rows), int64(bytes / 4)}, Data: mem.BufferSlice{mem.SliceBuffer(data)}}}}
	head := fmt.Sprintf(`{"inputs":[{"name":"IN","datatype":"FP32","shape":[%d,%d],"parameters":{"binary_data_size":%d}}],"parameters":{"binary_data_output":true}}`, rows, bytes/4, len(data))
	overHTTP := &servers.HTTPRequest{Model: "echo", HTTP: &requests.HTTP{Body: mem.SliceBuffer(append([]byte(head), data...)), HeaderLength: len(head)}}
	type end struct {
		answer *servers.Answer
		err    error
	}
	ended := make(chan end, 1)
	then := func(_ *turns.Turn, a *servers.Answer, err error) { ended <- end{a, err} }
	const calls = 60 // the first ten only warm up
	for range rounds {
		var grpc, http []float64
		for i := range calls {
			began := time.Now()
			conn.Start(ctx, nil, tritonpb.GRPCInferenceService_ModelInfer_FullMethodName, request.Marshal(), then)
			got := <-ended
			if got.err != nil {
				return nil, nil, got.err
			}
			took := time.Since(began)
			n := got.answer.Frame.Data.Len()
			got.answer.Frame.Data.Free()
			for began = time.Now(); !conn.StartHTTP(ctx, overHTTP, then); began = time.Now() {
				if ctx.Err() != nil {
					return nil, nil, ctx.Err()
				}
				time.Sleep(time.Millisecond) // a connection is made
			}
			if got = <-ended; got.err != nil {
				return nil, nil, got.err
			}
			tookHTTP := time.Since(began)
			m := got.answer.HTTP.Body.Len()
			got.answer.HTTP.Body.Free()
			if n < len(data) || m < len(data) {
				return nil, nil, fmt.Errorf("answers of %d and %d bytes to %d bytes of rows", n, m, len(data))
			}
			if i >= 10 {
				grpc, http = append(grpc, float64(took)/float64(time.Microsecond)), append(http, float64(tookHTTP)/float64(time.Microsecond))
			}
		}
		byGRPC, byHTTP = append(byGRPC, median(grpc)), append(byHTTP, median(http))
	}
	return byGRPC, byHTTP, nil
}

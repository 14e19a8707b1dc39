// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc_test

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/grpc"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// path is a request path that answers everything with the request's id.
type path struct {
	methods chan string
	fail    error
	fault   any // that it panics with
}

func (p *path) Begin(_ context.Context, t *wire.Turn, r *batch.Request, then func(*wire.Turn, *batch.Response, error)) {
	defer r.Free()
	if p.fault != nil {
		panic(p.fault)
	}
	if p.fail != nil {
		then(t, nil, p.fail)
		return
	}
	then(t, &batch.Response{Model: r.Model, ID: r.ID, Outputs: []batch.Tensor{{
		Name: "OUT", Datatype: "UINT8", Shape: []int64{3}, Data: mem.BufferSlice{mem.SliceBuffer("abc")},
	}}}, nil)
}

func (p *path) InferStream(s grpc.ServerStream) error { p.methods <- "stream"; return nil }

func (p *path) Stream(method string, s grpc.ServerStream) error {
	p.methods <- method
	return status.Error(codes.Unimplemented, "as the partition says")
}

// control answers the queries of the tests; other calls would panic.
type control struct {
	front.Aggregator
	ready bool
	fail  error
}

func (c *control) ServerReady(context.Context, *tritonpb.ServerReadyRequest) (*tritonpb.ServerReadyResponse, error) {
	return &tritonpb.ServerReadyResponse{Ready: c.ready}, c.fail
}

func serve(t *testing.T, p front.Inferer, c *control) *grpc.ClientConn {
	s := front.New(front.Options{Inferer: p, Aggregator: c})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()); s.Stop(); <-done })
	return conn
}

func TestModelInfer(t *testing.T) {
	p := &path{}
	conn := serve(t, p, &control{})
	client := tritonpb.NewGRPCInferenceServiceClient(conn)
	for _, name := range []string{"", "gzip", "deflate"} {
		var o []grpc.CallOption
		if name != "" {
			o = append(o, grpc.UseCompressor(name))
		}
		resp, err := client.ModelInfer(t.Context(), &tritonpb.ModelInferRequest{ModelName: "m", Id: "7"}, o...)
		require.NoError(t, err)
		require.Equal(t, "7", resp.Id)
		require.Equal(t, []byte("abc"), resp.RawOutputContents[0])
	}
	p.fail = status.Error(codes.NotFound, "Triton's words")
	_, err := client.ModelInfer(t.Context(), &tritonpb.ModelInferRequest{ModelName: "m"})
	require.Equal(t, codes.NotFound, status.Code(err))
	require.Equal(t, "Triton's words", status.Convert(err).Message())
}

// TestAPanicEndsOneCall: the request path panics on the goroutine that reads the connection, which goes on.
func TestAPanicEndsOneCall(t *testing.T) {
	p := &path{fault: "a fault"}
	client := tritonpb.NewGRPCInferenceServiceClient(serve(t, p, &control{}))
	_, err := client.ModelInfer(t.Context(), &tritonpb.ModelInferRequest{ModelName: "m"})
	require.Equal(t, codes.Internal, status.Code(err))
	p.fault = nil
	_, err = client.ModelInfer(t.Context(), &tritonpb.ModelInferRequest{ModelName: "m"})
	require.NoError(t, err)
}

func TestBytesThatAreNoRequestGoNoFurther(t *testing.T) {
	conn := serve(t, &path{}, &control{})
	for name, c := range map[string]struct {
		bytes []byte
		code  codes.Code
	}{
		"garbage":  {[]byte{0xff, 0xff, 0xff}, codes.Internal},
		"too many": {make([]byte, 0), codes.InvalidArgument},
	} {
		if name == "too many" {
			for range 5000 {
				c.bytes = append(c.bytes, 0x2a, 0x00)
			}
		}
		var out batch.Frame
		err := conn.Invoke(t.Context(), tritonpb.GRPCInferenceService_ModelInfer_FullMethodName,
			&batch.Frame{Data: mem.BufferSlice{mem.SliceBuffer(c.bytes)}}, &out, grpc.ForceCodecV2(batch.Codec{}))
		require.Equal(t, c.code, status.Code(err), "%s: %v", name, err)
	}
}

func TestStreamsAndUnknownMethodsReachThePath(t *testing.T) {
	p := &path{methods: make(chan string, 2)}
	conn := serve(t, p, &control{})
	s, err := tritonpb.NewGRPCInferenceServiceClient(conn).ModelStreamInfer(t.Context())
	require.NoError(t, err)
	_, err = s.Recv()
	require.ErrorContains(t, err, "EOF")
	require.Equal(t, "stream", <-p.methods)
	err = conn.Invoke(t.Context(), "/inference.GRPCInferenceService/Invented", &tritonpb.ServerLiveRequest{}, &tritonpb.ServerLiveResponse{})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	require.Equal(t, "/inference.GRPCInferenceService/Invented", <-p.methods)
}

func TestHealth(t *testing.T) {
	c := &control{ready: true}
	client := healthpb.NewHealthClient(serve(t, &path{}, c))
	check := func() (healthpb.HealthCheckResponse_ServingStatus, error) {
		r, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{})
		return r.GetStatus(), err
	}
	got, err := check()
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, got)
	c.ready = false
	got, err = check()
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, got)
	c.fail = errors.New("broken")
	_, err = check()
	require.Error(t, err)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"bufio"
	"context"
	"io"
	"net"
	nethttp "net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/hostile"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
	grpcfront "github.com/conch-serving/conch/sidecar/dispatch/ingress/grpc"
	httpfront "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/http1"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// victim is a server that records all requests that reach it and answers none.
type victim struct {
	mu   sync.Mutex
	seen []string
	body []byte // of the last HTTP request
}

func (v *victim) note(what string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.seen = append(v.seen, what)
}

func (v *victim) take() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	seen := v.seen
	v.seen = nil
	return seen
}

// ServeHTTP records how a body came: with a length, or in chunks.
func (v *victim) ServeHTTP(w nethttp.ResponseWriter, r *nethttp.Request) {
	body, _ := io.ReadAll(r.Body)
	v.note("HTTP " + r.RequestURI + " " + strings.Join(r.TransferEncoding, ","))
	v.mu.Lock()
	v.body = body
	v.mu.Unlock()
	w.WriteHeader(nethttp.StatusOK)
	_, _ = io.WriteString(w, "{}")
}

// attacked is Conch, both fronts, before a victim.
type attacked struct {
	*victim
	grpc *grpc.ClientConn
	http string
}

func newAttacked(t *testing.T) *attacked {
	a := &attacked{victim: &victim{}}
	behind := httptest.NewServer(a.victim)
	t.Cleanup(behind.Close)
	server := grpc.NewServer(grpc.ForceServerCodecV2(batch.Codec{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		method, _ := grpc.MethodFromServerStream(s)
		a.note("gRPC " + method)
		return status.Error(codes.Internal, "dead")
	}))
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)

	part := &router.PartitionSpec{ID: "p", GPU: "g", GPUType: "T", ThreadPercentage: 100,
		Endpoint: router.Endpoint{GRPC: l.Addr().String(), HTTP: strings.TrimPrefix(behind.URL, "http://")}}
	table := &router.Table{Revision: 1, Partitions: []*router.PartitionSpec{part}, Models: map[string]*router.Model{}}
	for name, tensor := range map[string]struct {
		datatype tritonpb.DataType
		dims     []int64
		batch    int32
	}{
		"identity":  {tritonpb.DataType_TYPE_FP32, []int64{-1}, 8},
		"string":    {tritonpb.DataType_TYPE_STRING, []int64{-1}, 8},
		"unbatched": {tritonpb.DataType_TYPE_INT32, []int64{-1, 2}, 0},
	} {
		config := &tritonpb.ModelConfig{Name: name, MaxBatchSize: tensor.batch,
			Input:  []*tritonpb.ModelInput{{Name: "INPUT0", DataType: tensor.datatype, Dims: tensor.dims}},
			Output: []*tritonpb.ModelOutput{{Name: "OUTPUT0", DataType: tensor.datatype, Dims: tensor.dims}}}
		m := &router.Model{Name: name, Config: config, Versions: []string{"1"}, Places: []router.Place{{Partition: "p"}}}
		m.Batchable, m.PassThroughReason = batch.Batchable(config)
		table.Models[name] = m
	}
	for name, config := range sequenceConfigs() {
		table.Models[name] = &router.Model{Name: name, Config: config, Versions: []string{"1"}, Places: []router.Place{{Partition: "p"}}}
	}
	d, _ := newDispatcher(t, dispatch.Options{}, table)
	r := &rig{d: d, table: table}
	agg := aggregate.New(aggregate.Options{Partitions: r, Models: r})

	front := grpcfront.New(grpcfront.Options{Inferer: d, Aggregator: agg})
	fl, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = front.Serve(fl) }()
	t.Cleanup(func() { front.Stop(); <-done })
	a.grpc, err = grpc.NewClient(fl.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.grpc.Close()) })

	a.http = serveHTTP(t, d, agg)
	return a
}

// sequenceConfigs are a model of sequences whose ids are numbers, and an ensemble of an ensemble that calls it.
func sequenceConfigs() map[string]*tritonpb.ModelConfig {
	ensemble := func(of string) *tritonpb.ModelConfig {
		return &tritonpb.ModelConfig{SchedulingChoice: &tritonpb.ModelConfig_EnsembleScheduling{EnsembleScheduling: &tritonpb.ModelEnsembling{
			Step: []*tritonpb.ModelEnsembling_Step{{ModelName: of}, {ModelName: "identity"}}}}}
	}
	return map[string]*tritonpb.ModelConfig{
		"sequence": {SchedulingChoice: &tritonpb.ModelConfig_SequenceBatching{SequenceBatching: &tritonpb.ModelSequenceBatching{
			ControlInput: []*tritonpb.ModelSequenceBatching_ControlInput{{Name: "CORRID", Control: []*tritonpb.ModelSequenceBatching_Control{
				{Kind: tritonpb.ModelSequenceBatching_Control_CONTROL_SEQUENCE_CORRID, DataType: tritonpb.DataType_TYPE_UINT64}}}},
		}}},
		"inner": ensemble("sequence"),
		"outer": ensemble("inner"),
	}
}

// TestLongTextsAsSequenceIDs: an id that is longer than the tensor that Triton writes it into is refused, for ensembles too. An id that fits, or
// that Triton refuses by itself, is not refused.
func TestLongTextsAsSequenceIDs(t *testing.T) {
	a := newAttacked(t)
	client := tritonpb.NewGRPCInferenceServiceClient(a.grpc)
	for _, model := range []string{"sequence", "inner", "outer", "identity"} {
		for length, fits := range map[int]bool{4: true, 20: true, 21: false, 128: false, 129: true} {
			_, err := client.ModelInfer(t.Context(), &tritonpb.ModelInferRequest{ModelName: model, Parameters: map[string]*tritonpb.InferParameter{
				"sequence_id": {ParameterChoice: &tritonpb.InferParameter_StringParam{StringParam: strings.Repeat("x", length)}}}})
			if fits || model == "identity" {
				require.ErrorContains(t, err, "dead", "%s: %d", model, length)
				require.NotEmpty(t, a.take())
				continue
			}
			requireCode(t, codes.Unimplemented, err)
			require.ErrorContains(t, err, "cannot be longer than 20 characters for model '"+model+"'")
			require.Empty(t, a.take(), "it reached the server")
		}
	}
}

// serveHTTP puts the HTTP front before a dispatcher and returns its address.
func serveHTTP(t testing.TB, d *dispatch.Dispatcher, agg *aggregate.Aggregate) string {
	handler := httpfront.New(httpfront.Options{Inferer: d, Catalog: agg, Picker: picker{d}, Endpoints: agg, Aggregator: agg, Refused: d.Refused})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := http1.New(&nethttp.Server{Handler: handler}, httpfront.Plain)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-done; handler.Close() })
	return l.Addr().String()
}

type picker struct{ d *dispatch.Dispatcher }

func (p picker) Pick(ctx context.Context, model string) (httpfront.Server, func(error), error) {
	on, done, err := p.d.Pick(ctx, model)
	return httpfront.Server{Partition: on.ID, Endpoint: on.Endpoint.HTTP}, done, err
}

// sendHTTP writes a request byte for byte.
func sendHTTP(t *testing.T, address string, wire []byte) (status int, body string) {
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	go func() { _, _ = conn.Write(wire) }() // a server that refuses a body need not read it
	response, err := nethttp.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

// TestHostileRequestsStayOutside: a request that crashes a server is refused, over
// either protocol, unary and in a stream, and does not reach the server.
func TestHostileRequestsStayOutside(t *testing.T) {
	a := newAttacked(t)
	for _, c := range hostile.Calls() {
		t.Run("gRPC/"+c.Name, func(t *testing.T) {
			var out batch.Frame
			err := a.grpc.Invoke(t.Context(), c.Method, &batch.Frame{Data: mem.BufferSlice{mem.SliceBuffer(c.Wire)}}, &out, grpc.ForceCodecV2(batch.Codec{}))
			require.Equal(t, c.Code, status.Code(err), "%v", err)
			require.ErrorContains(t, err, c.Text)
			require.Empty(t, a.take(), "it reached the server")
		})
		if c.Method != tritonpb.GRPCInferenceService_ModelInfer_FullMethodName {
			continue
		}
		t.Run("stream/"+c.Name, func(t *testing.T) {
			s, err := a.grpc.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true},
				tritonpb.GRPCInferenceService_ModelStreamInfer_FullMethodName, grpc.ForceCodecV2(batch.Codec{}))
			require.NoError(t, err)
			require.NoError(t, s.SendMsg(&batch.Frame{Data: mem.BufferSlice{mem.SliceBuffer(c.Wire)}}))
			require.NoError(t, s.CloseSend())
			for err == nil {
				var m tritonpb.ModelStreamInferResponse
				if err = s.RecvMsg(&m); err == nil {
					require.Contains(t, m.ErrorMessage, c.Text)
				}
			}
			require.ErrorIs(t, err, io.EOF, "Triton ends a stream without an error")
			require.Empty(t, a.take(), "it reached the server")
		})
	}
	for _, r := range hostile.HTTPRequests() {
		t.Run("HTTP/"+r.Name, func(t *testing.T) {
			code, body := sendHTTP(t, a.http, r.Wire)
			require.Equal(t, r.Status, code, body)
			require.Contains(t, body, r.Text)
			require.Contains(t, body, `{"error":`)
			require.Empty(t, a.take(), "it reached the server")
		})
	}
	// The victim would have recorded it.
	code, _ := sendHTTP(t, a.http, hostile.Post("/v2/logging", "", `{"log_info":true}`))
	require.Equal(t, 200, code)
	require.Equal(t, []string{"HTTP /v2/logging "}, a.take())
	_, err := tritonpb.NewGRPCInferenceServiceClient(a.grpc).ModelInfer(t.Context(), &tritonpb.ModelInferRequest{
		ModelName: "identity", Inputs: []*input{{Name: "INPUT0", Datatype: "FP32", Shape: []int64{1, 1}}}, RawInputContents: [][]byte{floats(1)},
	})
	require.ErrorContains(t, err, "dead")
	require.NotEmpty(t, a.take())
}

// TestChunksDoNotReachTheServer: however a body came, it is passed on in one
// piece.
func TestChunksDoNotReachTheServer(t *testing.T) {
	a := newAttacked(t)
	body := `{"log_info":true` + strings.Repeat(" ", 10_000) + `}`
	for _, path := range []string{"/v2/logging", "/v2/models/identity/generate", "/v2/new/path"} {
		code, _ := sendHTTP(t, a.http, hostile.Chunked(path, body))
		require.Equal(t, 200, code)
		require.Equal(t, []string{"HTTP " + path + " "}, a.take(), "without a transfer encoding")
		require.Equal(t, body, string(a.body))
	}
}

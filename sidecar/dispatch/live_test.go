// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/minitriton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/grpc"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// These tests run the whole request path: an ordinary gRPC client, the gRPC
// front, the dispatcher, and minitriton partitions.

// rig is Conch in front of partitions that all serve the same repository.
type rig struct {
	d       *dispatch.Dispatcher
	seen    *recorder
	servers []*minitriton.Server
	client  tritonpb.GRPCInferenceServiceClient // through Conch
	direct  tritonpb.GRPCInferenceServiceClient // to the first partition
	conn    *grpc.ClientConn
	agg     *aggregate.Aggregate
	table   *router.Table
	repo    string
}

var liveModels = map[string]string{
	"identity": `backend: "python" max_batch_size: 8
		input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "INPUT1" data_type: TYPE_INT8 dims: [ 2 ] optional: true } ]
		output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "OUTPUT1" data_type: TYPE_INT8 dims: [ 2 ] } ]`,
	"slow": `backend: "python" max_batch_size: 8 parameters { key: "conch_slow_ms" value { string_value: "2" } }
		input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ] output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]`,
	"add_sub": `backend: "python" max_batch_size: 4
		input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 3 ] }, { name: "INPUT1" data_type: TYPE_INT32 dims: [ 3 ] } ]
		output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 3 ] }, { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 3 ] } ]`,
	"string": `backend: "python" max_batch_size: 8
		input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ 2 ] } ] output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ 2 ] } ]`,
	"sequence": `backend: "python" max_batch_size: 4 sequence_batching { max_sequence_idle_microseconds: 5000000 }
		input [ { name: "INPUT", data_type: TYPE_INT32 dims: [ 1 ] } ] output [ { name: "OUTPUT" data_type: TYPE_INT32 dims: [ 1 ] } ]`,
	"decoupled": `backend: "python" max_batch_size: 0 model_transaction_policy { decoupled: true }
		input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] } ]
		output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]`,
}

func newRig(t testing.TB, partitions int, models ...string) *rig {
	repo := t.TempDir()
	for _, name := range models {
		dir := filepath.Join(repo, name)
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "1"), 0o755))
		config := liveModels[name] + fmt.Sprintf(` parameters { key: "conch_builtin" value { string_value: %q } }`, name)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.pbtxt"), []byte(config), 0o644))
	}
	r := &rig{seen: &recorder{}, repo: repo, table: &router.Table{Revision: 1, Models: make(map[string]*router.Model)}}
	for i := range partitions {
		r.table.Partitions = append(r.table.Partitions, r.newPartition(t, fmt.Sprint("p", i), i))
	}
	r.direct = tritonpb.NewGRPCInferenceServiceClient(dialTo(t, r.servers[0].Endpoint().GRPC))
	for _, name := range models {
		c, err := r.direct.ModelConfig(t.Context(), &tritonpb.ModelConfigRequest{Name: name})
		require.NoError(t, err)
		m := &router.Model{Name: name, Config: c.Config, Versions: []string{"1"}, SLO: 50 * time.Millisecond}
		m.Batchable, m.PassThroughReason = batch.Batchable(c.Config)
		for _, p := range r.table.Partitions {
			m.Places = append(m.Places, router.Place{Partition: p.ID})
		}
		r.table.Models[name] = m
	}
	r.d = dispatch.New(dispatch.Options{Observer: r.seen})
	t.Cleanup(func() { require.NoError(t, r.d.Close()) })
	require.NoError(t, r.d.Swap(t.Context(), r.table))

	agg := aggregate.New(aggregate.Options{Partitions: r, Models: r})
	r.agg = agg
	s := front.New(front.Options{Inferer: r.d, Aggregator: agg})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
	r.conn = dialTo(t, l.Addr().String())
	r.client = tritonpb.NewGRPCInferenceServiceClient(r.conn)
	return r
}

func dialTo(t testing.TB, address string) *grpc.ClientConn {
	c, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// newPartition starts one more server on the repository.
func (r *rig) newPartition(t testing.TB, id string, rank int) *router.PartitionSpec {
	s, err := minitriton.New(minitriton.Options{Repository: r.repo, Control: minitriton.ControlNone, Partition: minitriton.Partition{ID: id}})
	require.NoError(t, err)
	l, err := minitriton.Loopback()
	require.NoError(t, err)
	require.NoError(t, s.Start(t.Context(), l))
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	r.servers = append(r.servers, s)
	return &router.PartitionSpec{
		ID: id, GPU: "g", GPUType: "T", ThreadPercentage: 100, Rank: rank,
		Endpoint: router.Endpoint{GRPC: s.Endpoint().GRPC, HTTP: s.Endpoint().HTTP},
	}
}

// Partitions, Lookup and Names implement the aggregate's interfaces.
func (r *rig) Partitions() []aggregate.Partition {
	parts := r.d.Partitions()
	all := make([]aggregate.Partition, 0, len(parts))
	for _, p := range parts {
		all = append(all, aggregate.Partition{ID: p.Partition.ID, HTTP: p.Partition.Endpoint.HTTP, Up: p.Up, Conn: p.Conn})
	}
	return all
}

func (r *rig) Lookup(name string) (aggregate.Model, bool) {
	m := r.d.Routes().Models[name]
	if n := r.d.Routes().Names[name]; n != nil && n.Config != nil {
		return aggregate.Model{Config: n.Config, Versions: n.Versions}, true
	}
	if m == nil {
		return aggregate.Model{}, false
	}
	return aggregate.Model{Config: m.Config, Versions: m.Versions}, true
}

// Ready implements aggregate.Models.
func (r *rig) Ready() error { return r.d.Ready() }

func (r *rig) Repository() []aggregate.Entry {
	models := r.d.Routes().Models
	all := make([]aggregate.Entry, 0, len(models))
	for name := range models {
		all = append(all, aggregate.Entry{Name: name})
	}
	return all
}

// profiles makes all models usable, so that they are deferred.
func (r *rig) profiles(alpha, beta time.Duration) {
	for name := range r.table.Models {
		p := linear(alpha, beta)
		p.Model = name
		r.d.SetProfile(p)
	}
}

func floats(values ...float32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func ints(values ...int32) []byte {
	var b []byte
	for _, v := range values {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

type input = tritonpb.ModelInferRequest_InferInputTensor

// randomRequest makes one of many kinds, good and bad.
func randomRequest(g *rand.Rand, n int) *tritonpb.ModelInferRequest {
	m := &tritonpb.ModelInferRequest{Id: fmt.Sprint("r", n)}
	rows := 1 + g.IntN(3)
	switch g.IntN(8) {
	case 0, 1: // variable width, sometimes with the optional input, sometimes typed
		m.ModelName = "identity"
		width := 1 + g.IntN(3)
		values := make([]float32, rows*width)
		for i := range values {
			values[i] = g.Float32()
		}
		in := &input{Name: "INPUT0", Datatype: "FP32", Shape: []int64{int64(rows), int64(width)}}
		m.Inputs = append(m.Inputs, in)
		if g.IntN(3) == 0 {
			in.Contents = &tritonpb.InferTensorContents{Fp32Contents: values}
			break
		}
		m.RawInputContents = [][]byte{floats(values...)}
		if g.IntN(2) == 0 {
			m.Inputs = append(m.Inputs, &input{Name: "INPUT1", Datatype: "INT8", Shape: []int64{int64(rows), 2}})
			m.RawInputContents = append(m.RawInputContents, make([]byte, rows*2))
		}
	case 2, 3: // two inputs in either order, a choice of outputs
		m.ModelName = "add_sub"
		a, b := make([]int32, rows*3), make([]int32, rows*3)
		for i := range a {
			a[i], b[i] = g.Int32(), g.Int32()
		}
		m.Inputs = []*input{{Name: "INPUT0", Datatype: "INT32", Shape: []int64{int64(rows), 3}}, {Name: "INPUT1", Datatype: "INT32", Shape: []int64{int64(rows), 3}}}
		m.RawInputContents = [][]byte{ints(a...), ints(b...)}
		if g.IntN(2) == 0 {
			m.Inputs[0], m.Inputs[1] = m.Inputs[1], m.Inputs[0]
			m.RawInputContents[0], m.RawInputContents[1] = m.RawInputContents[1], m.RawInputContents[0]
		}
		for _, o := range [][]string{nil, {"OUTPUT0"}, {"OUTPUT1"}}[g.IntN(3)] {
			m.Outputs = append(m.Outputs, &tritonpb.ModelInferRequest_InferRequestedOutputTensor{Name: o})
		}
	case 4: // strings
		m.ModelName = "string"
		var raw []byte
		for i := range rows * 2 {
			word := fmt.Sprintf("word%0*d", g.IntN(6), i)
			raw = append(binary.LittleEndian.AppendUint32(raw, uint32(len(word))), word...)
		}
		m.Inputs = []*input{{Name: "INPUT0", Datatype: "BYTES", Shape: []int64{int64(rows), 2}}}
		m.RawInputContents = [][]byte{raw}
	case 5, 6: // refused by the server in many ways
		m.ModelName = "add_sub"
		m.Inputs = []*input{{Name: "INPUT0", Datatype: "INT32", Shape: []int64{1, 3}}, {Name: "INPUT1", Datatype: "INT32", Shape: []int64{1, 3}}}
		m.RawInputContents = [][]byte{ints(1, 2, 3), ints(4, 5, 6)}
		switch g.IntN(6) {
		case 0:
			m.Inputs[0].Datatype = "FP32"
		case 1:
			m.Inputs[0].Name = "X"
		case 2:
			m.Inputs[0].Shape = []int64{9, 3}
		case 3:
			m.RawInputContents[0] = ints(1)
		case 4:
			m.Outputs = []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "X"}}
		case 5:
			m.ModelVersion = "7"
		}
	case 7:
		m.ModelName = "absent"
	}
	return m
}

// TestAnswersAreTheServersOwn: a random mix through Conch, much of it batched,
// gets exactly what the same requests get from the server itself.
func TestAnswersAreTheServersOwn(t *testing.T) {
	r := newRig(t, 2, "identity", "add_sub", "string")
	r.profiles(100*time.Microsecond, 3*time.Millisecond)
	g := rand.New(rand.NewPCG(7, 7))
	requests := make([]*tritonpb.ModelInferRequest, 400)
	for n := range requests {
		requests[n] = randomRequest(g, n)
	}
	type result struct {
		resp *tritonpb.ModelInferResponse
		err  error
	}
	got := make([]result, len(requests))
	var next atomic.Int32
	var group sync.WaitGroup
	for range 24 {
		group.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(requests) {
					return
				}
				got[i].resp, got[i].err = r.client.ModelInfer(t.Context(), requests[i])
			}
		})
	}
	group.Wait()
	for i, q := range requests {
		want, err := r.direct.ModelInfer(t.Context(), q)
		require.Equal(t, status.Code(err), status.Code(got[i].err), "%v\nserver: %v\nconch: %v", q, err, got[i].err)
		require.Equal(t, status.Convert(err).Message(), status.Convert(got[i].err).Message(), "%v", q)
		require.True(t, proto.Equal(want, got[i].resp), "%v\nserver: %v\nconch: %v", q, want, got[i].resp)
	}
	_, shared := r.seen.shared()
	require.NotZero(t, shared, "nothing was batched")
}

func TestPartitionDeathUnderLoadIsNotSeen(t *testing.T) {
	r := newRig(t, 2, "identity")
	r.profiles(100*time.Microsecond, 3*time.Millisecond)
	var stop atomic.Bool
	var sent atomic.Int32
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			g := rand.New(rand.NewPCG(1, uint64(sent.Load())))
			for !stop.Load() {
				v := g.Float32()
				sent.Add(1)
				resp, err := r.client.ModelInfer(t.Context(), &tritonpb.ModelInferRequest{
					ModelName: "identity", Inputs: []*input{{Name: "INPUT0", Datatype: "FP32", Shape: []int64{1, 1}}}, RawInputContents: [][]byte{floats(v)},
				})
				if err != nil {
					t.Errorf("a caller saw: %v", err)
					return
				}
				if string(resp.RawOutputContents[0]) != string(floats(v)) {
					t.Errorf("somebody else's answer")
				}
			}
		})
	}
	flows := func() {
		before := sent.Load()
		require.Eventually(t, func() bool { return t.Failed() || sent.Load() >= before+50 }, 30*time.Second, time.Millisecond)
	}
	flows()
	require.NoError(t, r.servers[0].Close())
	require.Eventually(t, func() bool { return t.Failed() || !r.d.Partitions()[0].Up }, 30*time.Second, time.Millisecond, "its death is noticed")
	flows()
	stop.Store(true)
	group.Wait()
	require.False(t, r.d.Partitions()[0].Up)
}

func TestStreams(t *testing.T) {
	r := newRig(t, 2, "identity", "decoupled", "sequence")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := r.client.ModelStreamInfer(ctx)
	require.NoError(t, err)

	// In turn: each answer belongs to its request, an error does not end the
	// stream, and a decoupled model may answer any number of times.
	request := func(id string, v float32) *tritonpb.ModelInferRequest {
		return &tritonpb.ModelInferRequest{ModelName: "identity", Id: id, Inputs: []*input{{Name: "INPUT0", Datatype: "FP32", Shape: []int64{1, 1}}}, RawInputContents: [][]byte{floats(v)}}
	}
	for i := range 5 {
		require.NoError(t, s.Send(request(strconv.Itoa(i), float32(i))))
	}
	for i := range 5 {
		m, err := s.Recv()
		require.NoError(t, err)
		require.Empty(t, m.ErrorMessage)
		require.Equal(t, strconv.Itoa(i), m.InferResponse.Id)
		require.Equal(t, floats(float32(i)), m.InferResponse.RawOutputContents[0])
	}
	absent := request("x", 1)
	absent.ModelName = "absent"
	require.NoError(t, s.Send(absent))
	m, err := s.Recv()
	require.NoError(t, err)
	require.Equal(t, "Request for unknown model: 'absent' is not found", m.ErrorMessage)

	require.NoError(t, s.Send(&tritonpb.ModelInferRequest{
		ModelName: "decoupled", Id: "d",
		Inputs:           []*input{{Name: "IN", Datatype: "INT32", Shape: []int64{3}}, {Name: "DELAY", Datatype: "UINT32", Shape: []int64{3}}},
		RawInputContents: [][]byte{ints(4, 5, 6), make([]byte, 12)},
	}))
	for _, want := range []int32{4, 5, 6} {
		m, err := s.Recv()
		require.NoError(t, err)
		require.Empty(t, m.ErrorMessage)
		require.Equal(t, ints(want), m.InferResponse.RawOutputContents[0])
	}
	require.NoError(t, s.CloseSend())
	_, err = s.Recv()
	require.ErrorContains(t, err, "EOF")

	// The unary requests of a sequence reach the partition that has its state.
	sum := int32(0)
	for i := int32(1); i <= 5; i++ {
		sum += i
		resp, err := r.client.ModelInfer(ctx, &tritonpb.ModelInferRequest{
			ModelName: "sequence", Inputs: []*input{{Name: "INPUT", Datatype: "INT32", Shape: []int64{1, 1}}}, RawInputContents: [][]byte{ints(i)},
			Parameters: map[string]*tritonpb.InferParameter{
				"sequence_id":    {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 42}},
				"sequence_start": {ParameterChoice: &tritonpb.InferParameter_BoolParam{BoolParam: i == 1}},
				"sequence_end":   {ParameterChoice: &tritonpb.InferParameter_BoolParam{BoolParam: i == 5}},
			},
		})
		require.NoError(t, err)
		require.Equal(t, ints(sum), resp.RawOutputContents[0])
	}
	r.seen.count(t)
}

func TestControlPlaneAndTheUnknown(t *testing.T) {
	r := newRig(t, 2, "identity")
	live, err := r.client.ServerLive(t.Context(), &tritonpb.ServerLiveRequest{})
	require.NoError(t, err)
	require.True(t, live.Live)
	h, err := healthpb.NewHealthClient(r.conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, h.Status)
	config, err := r.client.ModelConfig(t.Context(), &tritonpb.ModelConfigRequest{Name: "identity"})
	require.NoError(t, err)
	require.Equal(t, "identity", config.Config.Name)

	// An unknown method reaches a partition, which returns the error.
	err = r.conn.Invoke(t.Context(), "/inference.GRPCInferenceService/Invented", &tritonpb.ServerLiveRequest{}, &tritonpb.ServerLiveResponse{})
	requireCode(t, codes.Unimplemented, err)
}

func TestCompressedRequests(t *testing.T) {
	r := newRig(t, 1, "identity")
	for _, name := range []string{"gzip", "deflate"} {
		resp, err := r.client.ModelInfer(t.Context(), &tritonpb.ModelInferRequest{
			ModelName: "identity", Inputs: []*input{{Name: "INPUT0", Datatype: "FP32", Shape: []int64{1, 2}}}, RawInputContents: [][]byte{floats(1, 2)},
		}, grpc.UseCompressor(name))
		require.NoError(t, err)
		require.Equal(t, floats(1, 2), resp.RawOutputContents[0])
	}
}

// TestStreamOutlivesItsPartition: an open stream that owes no answers does not
// keep a partition from draining, and continues on another one.
func TestStreamOutlivesItsPartition(t *testing.T) {
	r := newRig(t, 2, "identity")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := r.client.ModelStreamInfer(ctx)
	require.NoError(t, err)
	send := func(v float32) {
		require.NoError(t, s.Send(&tritonpb.ModelInferRequest{ModelName: "identity", Inputs: []*input{{Name: "INPUT0", Datatype: "FP32", Shape: []int64{1, 1}}}, RawInputContents: [][]byte{floats(v)}}))
		m, err := s.Recv()
		require.NoError(t, err)
		require.Empty(t, m.ErrorMessage)
		require.Equal(t, floats(v), m.InferResponse.RawOutputContents[0])
	}
	send(1)
	without := *r.table
	without.Revision = 2
	without.Partitions = r.table.Partitions[1:]
	m := *r.table.Models["identity"]
	m.Places = m.Places[1:]
	without.Models = map[string]*router.Model{"identity": &m}
	require.NoError(t, r.d.Swap(ctx, &without))
	<-r.d.Drained("p0", "")
	require.NoError(t, r.servers[0].Close())
	send(2)
	send(3)
	require.NoError(t, s.CloseSend())
	_, err = s.Recv()
	require.ErrorContains(t, err, "EOF")
	r.seen.count(t)
}

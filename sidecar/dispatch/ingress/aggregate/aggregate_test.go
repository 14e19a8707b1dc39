// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// triton is a partition that returns the answers that a test sets.
type triton struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer
	aggregate.Partition

	name       string
	index      []*tritonpb.RepositoryIndexResponse_ModelIndex
	statistics []*tritonpb.ModelStatistics
	settings   settings
	refuse     error
	hang       atomic.Bool
	unready    atomic.Bool
}

func (s *triton) ServerReady(ctx context.Context, _ *tritonpb.ServerReadyRequest) (*tritonpb.ServerReadyResponse, error) {
	if s.hang.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &tritonpb.ServerReadyResponse{Ready: !s.unready.Load()}, nil
}

func (s *triton) ServerMetadata(ctx context.Context, _ *tritonpb.ServerMetadataRequest) (*tritonpb.ServerMetadataResponse, error) {
	if s.hang.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &tritonpb.ServerMetadataResponse{Name: s.name}, nil
}

func (s *triton) ModelMetadata(_ context.Context, r *tritonpb.ModelMetadataRequest) (*tritonpb.ModelMetadataResponse, error) {
	return &tritonpb.ModelMetadataResponse{Name: r.Name, Platform: s.name}, s.refuse
}

func (s *triton) ModelConfig(_ context.Context, r *tritonpb.ModelConfigRequest) (*tritonpb.ModelConfigResponse, error) {
	return &tritonpb.ModelConfigResponse{Config: &tritonpb.ModelConfig{Name: r.Name, DefaultModelFilename: s.name}}, s.refuse
}

func (s *triton) RepositoryIndex(context.Context, *tritonpb.RepositoryIndexRequest) (*tritonpb.RepositoryIndexResponse, error) {
	return &tritonpb.RepositoryIndexResponse{Models: s.index}, s.refuse
}

func (s *triton) ModelStatistics(context.Context, *tritonpb.ModelStatisticsRequest) (*tritonpb.ModelStatisticsResponse, error) {
	return &tritonpb.ModelStatisticsResponse{ModelStats: s.statistics}, s.refuse
}

// world is some partitions, a route table, and counts.
type world struct {
	servers []*triton
	models  map[string]aggregate.Model
	entries []aggregate.Entry
	counts  map[string]aggregate.Count // by model/version
	unready error
}

func (w *world) Partitions() []aggregate.Partition {
	var list []aggregate.Partition
	for _, s := range w.servers {
		list = append(list, s.Partition)
	}
	return list
}

func (w *world) Lookup(name string) (aggregate.Model, bool) { m, ok := w.models[name]; return m, ok }
func (w *world) Ready() error                               { return w.unready }
func (w *world) Repository() []aggregate.Entry              { return w.entries }
func (w *world) Count(name, version string) (aggregate.Count, bool) {
	c, ok := w.counts[name+"/"+version]
	return c, ok
}

// newWorld has partitions a and b, both up. Model m is on both, n on b, u is unloaded.
func newWorld(t *testing.T) (*world, *aggregate.Aggregate) {
	t.Helper()
	w := &world{counts: map[string]aggregate.Count{}, entries: []aggregate.Entry{{Name: "m"}, {Name: "n"}, {Name: "u"}, {Name: "z"}}}
	for name, models := range map[string][]string{"a": {"m"}, "b": {"m", "n"}} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		s := &triton{name: name, settings: newSettings(), Partition: aggregate.Partition{ID: name, Conn: dial(t, listener.Addr().String()), HTTP: name + ":8000", Up: true, Models: models}}
		server := grpc.NewServer()
		tritonpb.RegisterGRPCInferenceServiceServer(server, s)
		go server.Serve(listener) //nolint:errcheck // ends with the test
		t.Cleanup(server.Stop)
		w.servers = append(w.servers, s)
	}
	if w.servers[0].name == "b" {
		w.servers[0], w.servers[1] = w.servers[1], w.servers[0]
	}
	config := &tritonpb.ModelConfig{Name: "m", Backend: "python", MaxBatchSize: 4,
		Input:  []*tritonpb.ModelInput{{Name: "I", DataType: tritonpb.DataType_TYPE_STRING, Dims: []int64{2}}},
		Output: []*tritonpb.ModelOutput{{Name: "O", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{-1}}}}
	w.models = map[string]aggregate.Model{"m": {Config: config, Versions: []string{"1"}},
		"n": {Config: &tritonpb.ModelConfig{Name: "n"}, Versions: []string{"1", "3"}}, "u": {Config: &tritonpb.ModelConfig{Name: "u"}}}
	a := aggregate.New(aggregate.Options{Partitions: w, Models: w, Counts: w, Timeout: 2 * time.Second})
	return w, a
}

func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func requireStatus(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	require.Equal(t, code, status.Code(err), "%v", err)
	require.Equal(t, text, status.Convert(err).Message())
}

func TestHealth(t *testing.T) {
	w, a := newWorld(t)
	ctx := t.Context()
	ready := func(name, version string) bool {
		r, err := a.ModelReady(ctx, &tritonpb.ModelReadyRequest{Name: name, Version: version})
		require.NoError(t, err)
		return r.Ready
	}
	server := func() bool {
		r, err := a.ServerReady(ctx, &tritonpb.ServerReadyRequest{})
		require.NoError(t, err)
		return r.Ready
	}
	live, err := a.ServerLive(ctx, &tritonpb.ServerLiveRequest{})
	require.NoError(t, err)
	require.True(t, live.Live)
	require.True(t, server())
	require.True(t, ready("m", ""))
	require.True(t, ready("m", "01"))
	require.False(t, ready("m", "2"))
	require.False(t, ready("u", ""))
	require.False(t, ready("unknown", ""))
	require.Equal(t, []string{"a:8000", "b:8000"}, a.HTTPEndpoints())
	_, err = a.ModelReady(ctx, &tritonpb.ModelReadyRequest{Name: "m", Version: "x"})
	requireStatus(t, err, codes.InvalidArgument,
		"failed to get model version from specified version string 'x' (details: stol), version should be an integral value > 0")
	_, err = a.ModelReady(ctx, &tritonpb.ModelReadyRequest{Name: "m", Version: "-1"})
	requireStatus(t, err, codes.InvalidArgument, "invalid model version specified '-1' , version should be an integral value > 0")

	w.servers[0].unready.Store(true)
	require.True(t, server(), "the other one is")
	w.servers[1].unready.Store(true)
	require.False(t, server(), "by their own word, as where strict readiness is on and a model failed to load")
	w.servers[1].unready.Store(false)
	w.servers[0].hang.Store(true)
	patient := aggregate.New(aggregate.Options{Partitions: w, Models: w, Counts: w, Timeout: time.Hour})
	probe, cancel := context.WithTimeout(ctx, time.Minute) // of Kubernetes, which waits for less long than a call to a partition may take
	defer cancel()
	answer, err := patient.ServerReady(probe, &tritonpb.ServerReadyRequest{})
	require.NoError(t, err)
	require.True(t, answer.Ready, "one that hangs does not keep the other from saying so")

	w.servers[1].Up = false
	require.True(t, ready("m", ""))
	require.False(t, ready("n", ""), "its only partition is down")
	w.servers[0].Up = false
	require.False(t, server())
	require.False(t, ready("m", ""))
}

func TestMetadataAndConfig(t *testing.T) {
	w, a := newWorld(t)
	ctx := t.Context()
	server, err := a.ServerMetadata(ctx, &tritonpb.ServerMetadataRequest{})
	require.NoError(t, err)
	require.Equal(t, "a", server.Name)
	w.servers[0].hang.Store(true)
	server, err = a.ServerMetadata(ctx, &tritonpb.ServerMetadataRequest{})
	require.NoError(t, err)
	require.Equal(t, "b", server.Name, "the next one answers")

	m, err := a.ModelMetadata(ctx, &tritonpb.ModelMetadataRequest{Name: "n", Version: "3"})
	require.NoError(t, err)
	require.Equal(t, "b", m.Platform, "of a partition that has the model")
	w.unready = status.Error(codes.Unavailable, "not yet")
	_, err = a.Model("x", "")
	require.Equal(t, w.unready, err, "nobody knows yet whether there is one")
	w.unready = nil
	for name, text := range map[string]string{"x": "Request for unknown model: 'x' is not found", "u": "Request for unknown model: 'u' has no available versions"} {
		_, err = a.ModelMetadata(ctx, &tritonpb.ModelMetadataRequest{Name: name})
		requireStatus(t, err, codes.NotFound, text)
		_, err = a.ModelConfig(ctx, &tritonpb.ModelConfigRequest{Name: name})
		requireStatus(t, err, codes.NotFound, text)
		_, err = a.Model(name, "")
		requireStatus(t, err, codes.NotFound, text)
	}
	_, err = a.ModelConfig(ctx, &tritonpb.ModelConfigRequest{Name: "n", Version: "2"})
	requireStatus(t, err, codes.NotFound, "Request for unknown model: 'n' version 2 is not found")
	c, err := a.ModelConfig(ctx, &tritonpb.ModelConfigRequest{Name: "m", Version: "1.0"})
	require.NoError(t, err)
	require.Equal(t, "a", c.Config.DefaultModelFilename, "as a partition completed it")

	w.servers[0].Up, w.servers[1].Up = false, false
	server, err = a.ServerMetadata(ctx, &tritonpb.ServerMetadataRequest{})
	require.NoError(t, err)
	require.Equal(t, "triton", server.Name, "our own")
	c, err = a.ModelConfig(ctx, &tritonpb.ModelConfigRequest{Name: "m"})
	require.NoError(t, err)
	require.EqualValues(t, 4, c.Config.MaxBatchSize, "the file's")
	m, err = a.ModelMetadata(ctx, &tritonpb.ModelMetadataRequest{Name: "m"})
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(&tritonpb.ModelMetadataResponse{Name: "m", Versions: []string{"1"}, Platform: "python",
		Inputs:  []*tritonpb.ModelMetadataResponse_TensorMetadata{{Name: "I", Datatype: "BYTES", Shape: []int64{-1, 2}}},
		Outputs: []*tritonpb.ModelMetadataResponse_TensorMetadata{{Name: "O", Datatype: "FP32", Shape: []int64{-1, -1}}}}, m, protocmp.Transform()))
}

// Settings that Conch implements itself are in the configuration that a client reads, as a server would complete it.
func TestConfigIsAsItWasWritten(t *testing.T) {
	w, a := newWorld(t)
	batching := func(preferred ...int32) *tritonpb.ModelConfig {
		return &tritonpb.ModelConfig{Name: "m", MaxBatchSize: 4, SchedulingChoice: &tritonpb.ModelConfig_DynamicBatching{
			DynamicBatching: &tritonpb.ModelDynamicBatching{MaxQueueDelayMicroseconds: 7, PreferredBatchSize: preferred}}}
	}
	for _, c := range []struct {
		written *tritonpb.ModelConfig
		up      bool
		want    *tritonpb.ModelConfig
	}{
		{batching(), false, batching(4)},
		{batching(2), false, batching(2)},
		{&tritonpb.ModelConfig{Name: "m", MaxBatchSize: 4}, false, &tritonpb.ModelConfig{Name: "m", MaxBatchSize: 4}},
		// The partition's own value is kept: its fake reports no maximum.
		{batching(), true, func() *tritonpb.ModelConfig {
			c := batching()
			c.MaxBatchSize, c.DefaultModelFilename = 0, "a"
			return c
		}()},
	} {
		w.models["m"] = aggregate.Model{Config: &tritonpb.ModelConfig{Name: "m", MaxBatchSize: 4}, Written: c.written, Versions: []string{"1"}}
		w.servers[0].Up, w.servers[1].Up = c.up, c.up
		got, err := a.ModelConfig(t.Context(), &tritonpb.ModelConfigRequest{Name: "m"})
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(c.want, got.Config, protocmp.Transform()))
	}
}

func TestAVersionThatIsNotReady(t *testing.T) {
	w, a := newWorld(t)
	w.models["u"] = aggregate.Model{Absent: []string{"1", "5"}}
	for version, want := range map[string]error{
		"":   status.Error(codes.NotFound, "Request for unknown model: 'u' has no available versions"),
		"05": status.Error(codes.Unavailable, "Request for unknown model: 'u' version 5 is not at ready state"),
		"2":  status.Error(codes.NotFound, "Request for unknown model: 'u' version 2 is not found"),
	} {
		_, err := a.ModelMetadata(t.Context(), &tritonpb.ModelMetadataRequest{Name: "u", Version: version})
		requireStatus(t, err, status.Code(want), status.Convert(want).Message())
	}
}

func TestRepositoryIndex(t *testing.T) {
	w, a := newWorld(t)
	type entry = tritonpb.RepositoryIndexResponse_ModelIndex
	w.servers[0].index = []*entry{{Name: "m", Version: "1", State: "READY"}, {Name: "n"}, {Name: "u", Version: "10", State: "UNAVAILABLE", Reason: "unloaded"}}
	w.servers[1].index = []*entry{{Name: "m", Version: "1", State: "UNAVAILABLE", Reason: "unloaded"}, {Name: "n", Version: "1", State: "READY"},
		{Name: "n", Version: "3", State: "LOADING"}, {Name: "u", Version: "9", State: "UNAVAILABLE", Reason: "broken"}}
	index := func(ready bool) []*entry {
		r, err := a.RepositoryIndex(t.Context(), &tritonpb.RepositoryIndexRequest{Ready: ready})
		require.NoError(t, err)
		return r.Models
	}
	require.Empty(t, cmp.Diff([]*entry{
		{Name: "m", Version: "1", State: "READY"}, {Name: "n", Version: "1", State: "READY"}, {Name: "n", Version: "3", State: "LOADING"},
		{Name: "u", Version: "9", State: "UNAVAILABLE", Reason: "broken"}, {Name: "u", Version: "10", State: "UNAVAILABLE", Reason: "unloaded"},
		{Name: "z"}}, index(false), protocmp.Transform()))
	require.Empty(t, cmp.Diff([]*entry{{Name: "m", Version: "1", State: "READY"}, {Name: "n", Version: "1", State: "READY"}}, index(true), protocmp.Transform()))

	// The repository's state of a model that is not served counts, whatever a partition still has.
	w.entries = []aggregate.Entry{{Name: "m", Versions: []string{"1"}, Reason: "unloaded"}, {Name: "n", Versions: []string{"3"}, Reason: "broken"},
		{Name: "w", Versions: []string{"2", "10"}, Reason: "unloaded"}}
	require.Empty(t, cmp.Diff([]*entry{
		{Name: "m", Version: "1", State: "UNLOADING"}, {Name: "n", Version: "1", State: "READY"}, {Name: "n", Version: "3", State: "LOADING"},
		{Name: "u", Version: "9", State: "UNAVAILABLE", Reason: "broken"}, {Name: "u", Version: "10", State: "UNAVAILABLE", Reason: "unloaded"},
		{Name: "w", Version: "2", State: "UNAVAILABLE", Reason: "unloaded"}, {Name: "w", Version: "10", State: "UNAVAILABLE", Reason: "unloaded"}},
		index(false), protocmp.Transform()))
	w.entries = nil

	w.servers[0].refuse = status.Error(codes.Internal, "no")
	require.Empty(t, cmp.Diff([]*entry{{Name: "n", Version: "1", State: "READY"}}, index(true), protocmp.Transform()))
	_, err := a.RepositoryIndex(t.Context(), &tritonpb.RepositoryIndexRequest{RepositoryName: "r"})
	requireStatus(t, err, codes.Unimplemented, "'repository_name' specification is not supported")
}

func TestStatistics(t *testing.T) {
	w, a := newWorld(t)
	d := func(n uint64) *tritonpb.StatisticDuration { return &tritonpb.StatisticDuration{Count: n, Ns: 100 * n} }
	m := func(batches, rows uint64, size uint64) *tritonpb.ModelStatistics {
		return &tritonpb.ModelStatistics{Name: "m", Version: "1", LastInference: rows, InferenceCount: rows, ExecutionCount: batches,
			InferenceStats: &tritonpb.InferStatistics{Success: d(batches), Fail: d(1), Queue: d(batches), ComputeInfer: d(batches)},
			BatchStats:     []*tritonpb.InferBatchStatistics{{BatchSize: size, ComputeInfer: d(batches)}, {BatchSize: 1, ComputeInfer: d(1)}},
			ResponseStats:  map[string]*tritonpb.InferResponseStatistics{"0": {Success: d(2)}}}
	}
	w.servers[0].statistics = []*tritonpb.ModelStatistics{m(2, 16, 8)}
	w.servers[1].statistics = []*tritonpb.ModelStatistics{{Name: "n", Version: "3", InferenceStats: &tritonpb.InferStatistics{Success: d(4)}},
		{Name: "n", Version: "1", InferenceStats: &tritonpb.InferStatistics{Success: d(5)}}, m(3, 12, 4)}
	w.counts["m/1"] = aggregate.Count{Success: 28, Fail: 2, SuccessTime: 70000, FailTime: 10, QueueTime: 3000, Ran: map[int]uint64{8: 16, 4: 12}}
	w.counts["n/3"] = aggregate.Count{Success: 9}

	r, err := a.ModelStatistics(t.Context(), &tritonpb.ModelStatisticsRequest{})
	require.NoError(t, err)
	require.Empty(t, cmp.Diff([]*tritonpb.ModelStatistics{
		{Name: "m", Version: "1", LastInference: 16, InferenceCount: 28, ExecutionCount: 5,
			InferenceStats: &tritonpb.InferStatistics{Success: &tritonpb.StatisticDuration{Count: 28, Ns: 70000}, Fail: &tritonpb.StatisticDuration{Count: 2, Ns: 10},
				// The wait in Conch and the average wait in Triton; every request is charged with the time of its batch.
				Queue: &tritonpb.StatisticDuration{Count: 28, Ns: 3000 + 28*100}, ComputeInfer: d(28),
				ComputeInput: &tritonpb.StatisticDuration{Count: 28}, ComputeOutput: &tritonpb.StatisticDuration{Count: 28}},
			BatchStats: []*tritonpb.InferBatchStatistics{{BatchSize: 1, ComputeInfer: d(2)},
				{BatchSize: 4, ComputeInfer: d(3)}, {BatchSize: 8, ComputeInfer: d(2)}},
			ResponseStats: map[string]*tritonpb.InferResponseStatistics{"0": {Success: d(4)}}},
		{Name: "n", Version: "1", InferenceStats: &tritonpb.InferStatistics{Success: d(5)}},
		{Name: "n", Version: "3", InferenceStats: &tritonpb.InferStatistics{Success: &tritonpb.StatisticDuration{Count: 9}, Fail: d(0), Queue: &tritonpb.StatisticDuration{Count: 9},
			ComputeInput: d(0), ComputeInfer: d(0), ComputeOutput: d(0)}},
	}, r.ModelStats, protocmp.Transform()))

	// A warm-up is no client's request; one from before a restart is in no statistics.
	w.servers[1].WarmedUp = func(model string) []*tritonpb.ModelStatistics {
		if model == "n" {
			return []*tritonpb.ModelStatistics{{Name: "n", Version: "1", InferenceCount: 99, ExecutionCount: 99}}
		}
		return []*tritonpb.ModelStatistics{{Name: "m", Version: "1", InferenceCount: 4, ExecutionCount: 2,
			BatchStats: []*tritonpb.InferBatchStatistics{{BatchSize: 1, ComputeInfer: d(1)}, {BatchSize: 4, ComputeInfer: d(1)}}}}
	}
	r, err = a.ModelStatistics(t.Context(), &tritonpb.ModelStatisticsRequest{})
	require.NoError(t, err)
	require.EqualValues(t, []uint64{24, 3}, []uint64{r.ModelStats[0].InferenceCount, r.ModelStats[0].ExecutionCount})
	require.Empty(t, cmp.Diff([]*tritonpb.InferBatchStatistics{{BatchSize: 1, ComputeInfer: d(1)}, {BatchSize: 4, ComputeInfer: d(2)},
		{BatchSize: 8, ComputeInfer: d(2)}}, r.ModelStats[0].BatchStats, protocmp.Transform()))
	w.servers[1].WarmedUp = nil

	_, err = a.ModelStatistics(t.Context(), &tritonpb.ModelStatisticsRequest{Name: "u"})
	requireStatus(t, err, codes.InvalidArgument, "requested model 'u' is not available")
	_, err = a.ModelStatistics(t.Context(), &tritonpb.ModelStatisticsRequest{Name: "m", Version: "7"})
	requireStatus(t, err, codes.InvalidArgument, "requested model version is not available for model 'm'")
	w.servers[1].refuse = status.Error(codes.Internal, "no")
	r, err = a.ModelStatistics(t.Context(), &tritonpb.ModelStatisticsRequest{Name: "m"})
	require.NoError(t, err)
	require.EqualValues(t, 2, r.ModelStats[0].ExecutionCount, "of the partition that answers")
	w.servers[0].refuse = status.Error(codes.Internal, "no")
	_, err = a.ModelStatistics(t.Context(), &tritonpb.ModelStatisticsRequest{Name: "m"})
	requireStatus(t, err, codes.Internal, "no")
}

// TestAWarmUpOfAServerThatBeganAnew: Triton begins the statistics of an ensemble anew when a member is loaded again. Requests of clients after
// that count from the first one on, though the server later counts as many requests as the warm-up had.
func TestAWarmUpOfAServerThatBeganAnew(t *testing.T) {
	w, a := newWorld(t)
	warm := []*tritonpb.ModelStatistics{{Name: "m", Version: "1", InferenceCount: 2, ExecutionCount: 2}}
	w.servers[0].WarmedUp = func(string) []*tritonpb.ModelStatistics { return warm }
	for _, step := range []struct{ server, clients uint64 }{{2, 0}, {3, 1}, {0, 0}, {1, 1}, {2, 2}, {3, 3}} {
		w.servers[0].statistics = []*tritonpb.ModelStatistics{{Name: "m", Version: "1", InferenceCount: step.server, ExecutionCount: step.server}}
		w.servers[1].statistics = nil
		r, err := a.ModelStatistics(t.Context(), &tritonpb.ModelStatisticsRequest{Name: "m"})
		require.NoError(t, err)
		require.Equal(t, step.clients, r.ModelStats[0].ExecutionCount, "the server counts %d", step.server)
	}
	warm = []*tritonpb.ModelStatistics{{Name: "m", Version: "1", InferenceCount: 2, ExecutionCount: 2}} // of its next load
	r, err := a.ModelStatistics(t.Context(), &tritonpb.ModelStatisticsRequest{Name: "m"})
	require.NoError(t, err)
	require.EqualValues(t, 1, r.ModelStats[0].ExecutionCount)
}

// The steps of an ensemble are requests of the models that it calls, though no client sent them.
func TestStatisticsCountTheStepsOfEnsembles(t *testing.T) {
	w, a := newWorld(t)
	d := func(n uint64) *tritonpb.StatisticDuration { return &tritonpb.StatisticDuration{Count: n, Ns: 100 * n} }
	w.servers[0].statistics = []*tritonpb.ModelStatistics{{Name: "m", Version: "1", InferenceCount: 15, ExecutionCount: 9,
		InferenceStats: &tritonpb.InferStatistics{Success: d(9), Queue: d(9), ComputeInfer: d(9)}}}
	count := aggregate.Count{Success: 8, SuccessTime: 5000, QueueTime: 7, Ran: map[int]uint64{4: 8}, Executions: 2, Asked: 2}
	w.counts["m/1"] = count
	ask := func() (success, queue, infer *tritonpb.StatisticDuration) {
		r, err := a.ModelStatistics(t.Context(), &tritonpb.ModelStatisticsRequest{Name: "m"})
		require.NoError(t, err)
		of := r.GetModelStats()[0].GetInferenceStats()
		return of.GetSuccess(), of.GetQueue(), of.GetComputeInfer()
	}
	success, _, infer := ask()
	require.EqualValues(t, []uint64{8, 8}, []uint64{success.GetCount(), infer.GetCount()}, "nothing calls m: the rest is somebody else's")

	w.models["n"] = aggregate.Model{Versions: []string{"1"}, Config: &tritonpb.ModelConfig{Name: "n", SchedulingChoice: &tritonpb.ModelConfig_EnsembleScheduling{
		EnsembleScheduling: &tritonpb.ModelEnsembling{Step: []*tritonpb.ModelEnsembling_Step{{ModelName: "m"}}}}}}
	success, queue, infer := ask()
	require.Empty(t, cmp.Diff(&tritonpb.StatisticDuration{Count: 8 + 7, Ns: 5000 + 7*100}, success, protocmp.Transform()))
	require.Empty(t, cmp.Diff(&tritonpb.StatisticDuration{Count: 8 + 7, Ns: 7 + 8*100 + 7*100}, queue, protocmp.Transform()))
	require.EqualValues(t, 8+7, infer.GetCount())

	// A server that began anew counts from zero, and Conch goes on.
	count.Asked = 50
	w.counts["m/1"] = count
	success, _, _ = ask()
	require.EqualValues(t, 8, success.GetCount())
}

type repository struct{ calls []string }

func (r *repository) Load(_ context.Context, model string, _ map[string]*tritonpb.ModelRepositoryParameter) error {
	r.calls = append(r.calls, "load "+model)
	return nil
}

func (r *repository) Unload(_ context.Context, model string, _ map[string]*tritonpb.ModelRepositoryParameter) error {
	r.calls = append(r.calls, "unload "+model)
	return status.Error(codes.Internal, "cannot")
}

func TestLoadAndUnload(t *testing.T) {
	w, a := newWorld(t)
	_, err := a.RepositoryModelLoad(t.Context(), &tritonpb.RepositoryModelLoadRequest{ModelName: "m"})
	requireStatus(t, err, codes.Unavailable, "explicit model load / unload is not allowed if polling is enabled")

	r := &repository{}
	a = aggregate.New(aggregate.Options{Partitions: w, Models: w, Repository: r})
	_, err = a.RepositoryModelLoad(t.Context(), &tritonpb.RepositoryModelLoadRequest{ModelName: "m"})
	require.NoError(t, err)
	_, err = a.RepositoryModelUnload(t.Context(), &tritonpb.RepositoryModelUnloadRequest{ModelName: "m"})
	requireStatus(t, err, codes.Internal, "cannot")
	_, err = a.RepositoryModelUnload(t.Context(), &tritonpb.RepositoryModelUnloadRequest{ModelName: "m", RepositoryName: "r"})
	requireStatus(t, err, codes.Unimplemented, "'repository_name' specification is not supported")
	require.Equal(t, []string{"load m", "unload m"}, r.calls)
}

// Members of a merge group are models like any other to clients; the group is not visible to them.
func TestMembersOfAMergeGroup(t *testing.T) {
	w, a := newWorld(t)
	config := &tritonpb.ModelConfig{Name: "a", MaxBatchSize: 4, Input: []*tritonpb.ModelInput{{Name: "IN", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{3}}}}
	w.models["a"] = aggregate.Model{Config: config, Versions: []string{"2"}, Group: "g"}
	w.models["g"] = aggregate.Model{Config: &tritonpb.ModelConfig{Name: "g"}, Versions: []string{"1"}, Internal: true}
	w.entries = []aggregate.Entry{{Name: "a"}, {Name: "g"}, {Name: "m"}}
	w.servers[0].Models = append(w.servers[0].Models, "a", "g")
	w.servers[0].index = []*tritonpb.RepositoryIndexResponse_ModelIndex{{Name: "g", Version: "1", State: "READY"}}
	w.servers[0].statistics = []*tritonpb.ModelStatistics{{Name: "g", Version: "1", InferenceCount: 90, ExecutionCount: 30, LastInference: 5, InferenceStats: &tritonpb.InferStatistics{
		ComputeInfer: &tritonpb.StatisticDuration{Count: 30, Ns: 3000}}, BatchStats: []*tritonpb.InferBatchStatistics{{BatchSize: 3, ComputeInfer: &tritonpb.StatisticDuration{Count: 30, Ns: 3000}}}}}
	w.counts["a/2"] = aggregate.Count{Success: 6, Rows: 7, SuccessTime: 5000, Ran: map[int]uint64{3: 6}, Executions: 5}

	index, err := a.RepositoryIndex(t.Context(), &tritonpb.RepositoryIndexRequest{Ready: true})
	require.NoError(t, err)
	names := map[string]string{}
	for _, m := range index.GetModels() {
		names[m.GetName()] = m.GetVersion() + m.GetState()
	}
	require.Equal(t, "2READY", names["a"])
	require.NotContains(t, names, "g")

	for _, name := range []string{"a", ""} {
		r, err := a.ModelStatistics(t.Context(), &tritonpb.ModelStatisticsRequest{Name: name})
		require.NoError(t, err)
		require.Len(t, r.GetModelStats(), 1, "asked for %q", name)
		s := r.GetModelStats()[0]
		require.Equal(t, [2]string{"a", "2"}, [2]string{s.GetName(), s.GetVersion()})
		require.EqualValues(t, []uint64{7, 5}, []uint64{s.GetInferenceCount(), s.GetExecutionCount()})
		require.EqualValues(t, []uint64{6, 600}, []uint64{s.GetInferenceStats().GetComputeInfer().GetCount(), s.GetInferenceStats().GetComputeInfer().GetNs()})
		require.Empty(t, s.GetBatchStats())
	}
	ready, err := a.ModelReady(t.Context(), &tritonpb.ModelReadyRequest{Name: "a"})
	require.NoError(t, err)
	require.True(t, ready.GetReady())
	answered, err := a.ModelConfig(t.Context(), &tritonpb.ModelConfigRequest{Name: "a"})
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(config, answered.GetConfig(), protocmp.Transform()))
	metadata, err := a.ModelMetadata(t.Context(), &tritonpb.ModelMetadataRequest{Name: "a"})
	require.NoError(t, err)
	require.Equal(t, "IN", metadata.GetInputs()[0].GetName())
	for _, err := range []error{
		second(a.ModelConfig(t.Context(), &tritonpb.ModelConfigRequest{Name: "g"})), second(a.ModelMetadata(t.Context(), &tritonpb.ModelMetadataRequest{Name: "g"})),
	} {
		requireStatus(t, err, codes.NotFound, "Request for unknown model: 'g' is not found")
	}
	_, err = a.ModelStatistics(t.Context(), &tritonpb.ModelStatisticsRequest{Name: "g"})
	requireStatus(t, err, codes.InvalidArgument, "requested model 'g' is not available")
}

func second[T any](_ T, err error) error { return err }

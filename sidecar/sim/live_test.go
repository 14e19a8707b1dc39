// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// TestLiveEqualsSimulated drives the sidecar's own dispatcher with partitions that sleep, on virtual time, and the simulator with the same
// arrivals: what the two say must agree, for both run the same queue with the same knowledge.
func TestLiveEqualsSimulated(t *testing.T) {
	for name, c := range map[string]struct {
		small
		// shares of the GPUs, each with one partition; nil: all 100.
		gpuShares []uint32
		// burst is by how much more arrives from 3 s to 4 s; 0: no burst.
		burst float64
		// lost is when partition 1 goes for ever; 0: never.
		lost time.Duration
		// jitter of executions, of which profiles know nothing: each side draws its own, so that they agree less closely.
		jitter float64
		bad    [2]float64 // the bad rate is between these
	}{
		"single model":             {small: small{models: 1, gpus: 4, rate: 560}, bad: [2]float64{0, .01}},
		"eight models":             {small: small{models: 8, gpus: 4, rate: 300}, bad: [2]float64{0, .02}},
		"burst":                    {small: small{models: 1, gpus: 4, rate: 400}, burst: 3, bad: [2]float64{.02, .2}},
		"overload":                 {small: small{models: 2, gpus: 2, rate: 600}, bad: [2]float64{.3, .7}},
		"overload with jitter":     {small: small{models: 1, gpus: 2, rate: 500}, jitter: .15, bad: [2]float64{.2, .5}},
		"heterogeneous partitions": {small: small{models: 2, gpus: 3, rate: 190}, gpuShares: []uint32{100, 60, 60}, bad: [2]float64{.0005, .05}},
		"partition loss":           {small: small{models: 2, gpus: 2, rate: 200}, lost: 4 * time.Second, bad: [2]float64{.001, .3}},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.small
			s.alpha, s.beta, s.slo, s.batch = 5*time.Millisecond, 25*time.Millisecond, 125*time.Millisecond, 16
			s.discipline, s.late, s.duration, s.warmup, s.seed = "adaptive", policy.LatePolicy_LATE_POLICY_DROP, 10*time.Second, time.Second, 7
			var arrivals []workload.Arrival
			for i := range s.models {
				curve := workload.Constant(s.rate / float64(s.models))
				if c.burst > 0 {
					var err error
					curve, err = workload.Steps(workload.Step{Rate: s.rate}, workload.Step{From: 3 * time.Second, Rate: c.burst * s.rate}, workload.Step{From: 4 * time.Second, Rate: s.rate})
					require.NoError(t, err)
				}
				stream, err := workload.Renewal{Model: int32(i), Curve: curve, Random: workload.Seed(s.seed, "arrivals", strconv.Itoa(i))}.Stream()
				require.NoError(t, err)
				for a := (workload.Arrival{}); stream.Next(&a) && a.At < s.duration; {
					arrivals = append(arrivals, a)
				}
			}
			slices.SortStableFunc(arrivals, func(a, b workload.Arrival) int { return int(a.At - b.At) })

			w := s.world(t)
			for i, share := range c.gpuShares {
				w.Plan.Partitions[i].ThreadPercentage = share
			}
			w.Streams = []workload.Stream{workload.Slice(arrivals...)}
			w.Knowledge, w.Jitter = sim.LearnDelays, c.jitter
			if c.lost > 0 {
				w.Failures = []sim.Failure{{At: c.lost, Partition: w.Plan.Partitions[1].GetId()}}
			}
			simulated := run(t, w)
			require.GreaterOrEqual(t, simulated.Total.BadRate, c.bad[0])
			require.LessOrEqual(t, simulated.Total.BadRate, c.bad[1])

			bubble.Test(t, func(t *testing.T) {
				l := newLive(t, s, w.Plan, w.Snapshot, c.jitter)
				if c.lost > 0 {
					time.AfterFunc(c.lost, l.servers[1].Stop)
				}
				good, p99 := l.offer(t, arrivals, s)
				t.Logf("%d rows in %d batches live, %d in %d simulated", l.rows.Load(), l.batches.Load(), simulated.Queue.Dispatched, simulated.Queue.Batches)
				t.Logf("goodput %.1f req/s live, %.1f simulated; p99 %v live, %.1f ms simulated; bad %.2f%%, mean batch %.1f",
					float64(good)/simulated.Seconds, simulated.Total.Goodput, p99, simulated.Latency.P99Us/1e3, 100*simulated.Total.BadRate, simulated.Models[0].MeanBatch)
				within := .01
				if c.jitter > 0 {
					within = .03
				}
				require.InEpsilon(t, simulated.Total.Good, good, within)
				require.InEpsilon(t, simulated.Latency.P99Us, float64(p99)/1e3, max(.015, within)) // the histogram's own .8% included
			})
		})
	}
}

// live is a dispatcher in front of partitions that take the time of their profile.
type live struct {
	dispatcher *dispatch.Dispatcher
	servers    []*grpc.Server
	// What partitions executed.
	batches, rows atomic.Int64
}

func newLive(t *testing.T, s small, plan *policy.Plan, snapshot *policy.Snapshot, jitter float64) *live {
	l := &live{}
	doors := map[string]*bufconn.Listener{}
	table := &router.Table{Revision: 1, Models: map[string]*router.Model{}}
	for i, p := range plan.GetPartitions() {
		address := fmt.Sprintf("127.0.0.1:%d", i+1)
		door := bufconn.Listen(1 << 20)
		doors[address] = door
		server := grpc.NewServer()
		tritonpb.RegisterGRPCInferenceServiceServer(server, &sleeper{live: l, s: s, share: p.GetThreadPercentage(), jitter: jitter, random: workload.Seed(s.seed, "live", p.GetId())})
		go func() { _ = server.Serve(door) }()
		t.Cleanup(server.Stop)
		l.servers = append(l.servers, server)
		table.Partitions = append(table.Partitions, &router.PartitionSpec{
			ID: p.GetId(), GPU: p.GPU(), GPUType: "X", ThreadPercentage: p.GetThreadPercentage(), Rank: int(p.GetRank()),
			Endpoint: router.Endpoint{GRPC: address},
		})
	}
	for _, m := range snapshot.GetModels() {
		model := &router.Model{
			Name: m.GetName(), Versions: []string{"1"}, SLO: s.slo, Late: s.late, Batchable: true, Discipline: s.discipline,
			Config: &tritonpb.ModelConfig{
				Name: m.GetName(), MaxBatchSize: int32(s.batch),
				Input:  []*tritonpb.ModelInput{{Name: "IN", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{1}}},
				Output: []*tritonpb.ModelOutput{{Name: "OUT", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{1}}},
			},
		}
		for _, p := range table.Partitions {
			model.Places = append(model.Places, router.Place{Partition: p.ID})
		}
		table.Models[model.Name] = model
	}
	l.dispatcher = dispatch.New(dispatch.Options{Clock: clock.Timers(), Forward: forward.Options{DialOptions: []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return doors[address].DialContext(ctx) }),
	}}})
	t.Cleanup(func() { require.NoError(t, l.dispatcher.Close()) })
	require.NoError(t, l.dispatcher.Swap(t.Context(), table))
	for _, p := range snapshot.GetProfiles() {
		l.dispatcher.SetProfile(p)
	}
	return l
}

// offer sends one row for every arrival, and returns how many of those after the warm-up were answered in time, and the 99th percentile of
// the answered ones' latencies.
func (l *live) offer(t *testing.T, arrivals []workload.Arrival, s small) (good int, p99 time.Duration) {
	var mu sync.Mutex
	var latencies []time.Duration
	var all sync.WaitGroup
	start := time.Now()
	for _, a := range arrivals {
		time.Sleep(time.Until(start.Add(a.At)))
		r := oneRow(t, fmt.Sprintf("m%02d", a.Model))
		all.Go(func() {
			sent := time.Now()
			answered := make(chan error, 1)
			l.dispatcher.Begin(t.Context(), nil, r, func(_ *wire.Turn, answer *batch.Response, err error) {
				if err == nil {
					answer.Free()
				}
				answered <- err
			})
			if <-answered != nil {
				return
			}
			if took := time.Since(sent); a.At >= s.warmup {
				mu.Lock()
				defer mu.Unlock()
				latencies = append(latencies, took)
				if took <= s.slo {
					good++
				}
			}
		})
	}
	all.Wait()
	slices.Sort(latencies)
	return good, latencies[len(latencies)*99/100]
}

func oneRow(t *testing.T, model string) *batch.Request {
	wire, err := proto.Marshal(&tritonpb.ModelInferRequest{
		ModelName:        model,
		Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "IN", Datatype: "FP32", Shape: []int64{1, 1}}},
		RawInputContents: [][]byte{make([]byte, 4)},
	})
	require.NoError(t, err)
	r, err := batch.ReadRequest(mem.BufferSlice{mem.SliceBuffer(wire)})
	require.NoError(t, err)
	return r
}

// sleeper is a partition whose batches take l(b, p).
type sleeper struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer
	live   *live
	s      small
	share  uint32
	jitter float64
	turn   sync.Mutex // an execution's; guards random
	random *rand.Rand
}

func (p *sleeper) ModelInfer(_ context.Context, r *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
	p.turn.Lock()
	defer p.turn.Unlock()
	rows := r.GetInputs()[0].GetShape()[0]
	p.live.batches.Add(1)
	p.live.rows.Add(rows)
	whole := p.s.beta + time.Duration(rows)*p.s.alpha
	factor := max(.1, 1+p.jitter*p.random.NormFloat64())
	time.Sleep(time.Duration(factor * float64(whole) * 100 / float64(p.share)))
	return &tritonpb.ModelInferResponse{
		ModelName: r.GetModelName(), ModelVersion: "1", Id: r.GetId(),
		Outputs:           []*tritonpb.ModelInferResponse_InferOutputTensor{{Name: "OUT", Datatype: "FP32", Shape: r.GetInputs()[0].GetShape()}},
		RawOutputContents: r.GetRawInputContents(),
	}, nil
}

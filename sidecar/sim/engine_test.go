// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"encoding/json"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// TestASecondRunGivesTheSameBytes, whatever the number of processors; another seed gives others.
func TestASecondRunGivesTheSameBytes(t *testing.T) {
	once := func(seed uint64, processors int) string {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
		s := resnet50()
		s.models, s.rate, s.seed, s.duration, s.shares = 3, 3000, seed, 5*time.Second, []uint32{50, 50}
		w := s.world(t)
		w.Snapshot.Interference = []*policy.Interference{{GpuType: "X", Constant: 1.1}}
		w.Jitter = .05
		w.Delays = sim.Delays{Control: 100 * time.Microsecond, DataPerRow: 10 * time.Microsecond, Response: time.Millisecond, Jitter: 100 * time.Microsecond}
		w.Breakdowns = sim.Breakdowns{Between: 2 * time.Second, Repair: 100 * time.Millisecond}
		w.Timeline.Max = 1000
		text, err := json.MarshalIndent(run(t, w), "", " ")
		require.NoError(t, err)
		return string(text)
	}
	first := once(1, 1)
	require.Equal(t, first, once(1, 1))
	require.Equal(t, first, once(1, 2))
	require.NotEqual(t, first, once(2, 2))
}

// TestSingleServer compares waiting times with Pollaczek and Khinchine's formula: Poisson arrivals, one partition, no batches, served in
// order of arrival. For a fixed service time D and load rho the mean wait is rho D / (2 (1-rho)); with a coefficient of variation c of
// service times it is (1+c^2) times as long.
func TestSingleServer(t *testing.T) {
	for name, c := range map[string]struct{ rho, jitter float64 }{
		"M/D/1 at half load": {.5, 0}, "M/D/1 at 80%": {.8, 0}, "M/G/1": {.7, .2},
	} {
		t.Run(name, func(t *testing.T) {
			const service = 10 * time.Millisecond
			var means []float64
			for seed := range uint64(10) {
				s := small{
					models: 1, gpus: 1, beta: service, slo: 0, batch: 1, rate: c.rho / service.Seconds(), discipline: "eager", drop: "none",
					duration: 200 * time.Second, warmup: 10 * time.Second, seed: seed,
				}
				w := s.world(t)
				w.Jitter = c.jitter
				means = append(means, run(t, w).Models[0].Latency.MeanUs/1e6)
			}
			want := service.Seconds() + (1+c.jitter*c.jitter)*c.rho*service.Seconds()/(2*(1-c.rho))
			mean, deviation := moments(means)
			// Four standard errors over ten independent runs.
			require.InDelta(t, want, mean, 4*deviation/math.Sqrt(10))
			require.Less(t, deviation/math.Sqrt(10), .04*want, "too noisy to tell anything")
		})
	}
}

func moments(values []float64) (mean, deviation float64) {
	for _, v := range values {
		mean += v / float64(len(values))
	}
	for _, v := range values {
		deviation += (v - mean) * (v - mean) / float64(len(values)-1)
	}
	return mean, math.Sqrt(deviation)
}

// TestLoss compares with a system without a queue: a request that finds all partitions busy cannot be in time, so that the bad rate is
// Erlang's B formula, which holds for fixed service times too.
func TestLoss(t *testing.T) {
	s := small{
		models: 1, gpus: 3, beta: 10 * time.Millisecond, slo: 10 * time.Millisecond, batch: 1, rate: 200, discipline: "eager", drop: "prefix",
		late: policy.LatePolicy_LATE_POLICY_DROP, duration: 1000 * time.Second, warmup: time.Second, seed: 1,
	}
	r := run(t, s.world(t))
	a := 2.0 // erlang
	blocked := a * a * a / 6 / (1 + a + a*a/2 + a*a*a/6)
	require.InEpsilon(t, blocked, r.Total.BadRate, .02)
	busy := 0.0
	for _, p := range r.Partitions {
		busy += p.BusyShare
	}
	require.InEpsilon(t, a*(1-blocked), busy, .02)
}

// TestPublishedGoodput: what Symphony's own scheduler reaches in virtual time without delays (5317 to 5341), and what it loses by its delays.
func TestPublishedGoodput(t *testing.T) {
	goodput := func(delays sim.Delays, seeds ...uint64) float64 {
		found, err := sim.Goodput(t.Context(), sim.Search{Seeds: seeds, Guess: 5300, Run: func(ctx context.Context, rate float64, seed uint64) (*sim.Result, error) {
			s := resnet50()
			s.rate, s.seed, s.duration = rate, seed, 12*time.Second
			w := s.world(t)
			w.Delays = delays
			return sim.Run(ctx, w)
		}})
		require.NoError(t, err)
		require.Less(t, found.High-found.Low, .04*found.Rate)
		return found.Rate
	}
	without := goodput(sim.Delays{}, 1, 2)
	require.InEpsilon(t, 5330, without, .02)
	with := goodput(sim.Delays{Control: 200 * time.Microsecond, DataPerRow: 20 * time.Microsecond, Response: 500 * time.Microsecond}, 1)
	require.Less(t, with, .97*without)
	require.Greater(t, with, .8*without)
}

// TestDelaysAddUp: a lone request meets every delay once, and its latency is their sum.
func TestDelaysAddUp(t *testing.T) {
	s := resnet50()
	s.gpus, s.discipline, s.duration, s.warmup = 1, "eager", time.Second, 0
	w := s.world(t)
	w.Streams = []workload.Stream{workload.Slice(workload.Arrival{At: 10 * time.Millisecond, Rows: 3})}
	w.Delays = sim.Delays{Control: time.Millisecond, DataPerRow: 100 * time.Microsecond, Response: 2 * time.Millisecond}
	w.Timeline.Max = 10
	r := run(t, w)
	require.InDelta(t, 1000+300+5072+3*1053+2000, r.Models[0].Latency.MaxUs, .01)
	require.Equal(t, []sim.BatchRecord{{Rows: 3, Requests: 1, Start: 11300, End: 11300 + 5072 + 3*1053}}, r.Timeline)
	require.InDelta(t, (5072+3*1053)/1e6, r.Partitions[0].BusyShare, 1e-9)
	require.EqualValues(t, 1, r.Total.Good)
}

// TestTheCallersDelays: they are part of a request's latency and of what its SLO allows, and hold no partition up.
func TestTheCallersDelays(t *testing.T) {
	for _, knows := range []sim.Knowledge{sim.KnowDelays, sim.LearnDelays} {
		s := resnet50()
		s.gpus, s.discipline, s.duration, s.warmup, s.slo, s.batch = 1, "eager", time.Second, 0, 20*time.Millisecond, 1
		w := s.world(t)
		w.Streams = []workload.Stream{workload.Slice(
			workload.Arrival{At: 10 * time.Millisecond}, workload.Arrival{At: 10 * time.Millisecond}, // runs after the first, and is in time
			workload.Arrival{At: 999 * time.Millisecond}, // still counts, though Conch has it after the end
		)}
		w.Delays = sim.Delays{Request: 2 * time.Millisecond, Reply: 3 * time.Millisecond}
		w.Knowledge, w.Timeline.Max = knows, 10
		r := run(t, w)
		require.EqualValues(t, 3, r.Total.Good)
		require.InDelta(t, 2000+2*6125+3000, r.Latency.MaxUs, 1)
		require.Equal(t, r.Models[0].Latency.MeanUs, r.Latency.MeanUs)
		require.InDelta(t, 12000+6125, r.Timeline[1].Start, .01, "the partition does not wait for the reply")
	}
}

// TestKnowledge: a queue that knows when the reply must leave drops what would be late; one that learns thinks it has the time.
func TestKnowledge(t *testing.T) {
	outcome := func(knows sim.Knowledge, reply time.Duration) sim.Totals {
		s := resnet50()
		s.gpus, s.discipline, s.duration, s.warmup, s.slo = 1, "eager", time.Second, 0, 10*time.Millisecond
		w := s.world(t)
		w.Streams = []workload.Stream{workload.Slice(workload.Arrival{At: 10 * time.Millisecond})}
		w.Delays.Reply, w.Knowledge = reply, knows
		return run(t, w).Total
	}
	require.EqualValues(t, 1, outcome(sim.KnowDelays, 3*time.Millisecond).Good)
	require.EqualValues(t, 1, outcome(sim.KnowDelays, 5*time.Millisecond).Dropped)
	require.EqualValues(t, 1, outcome(sim.LearnDelays, 3*time.Millisecond).Good)
	require.EqualValues(t, 1, outcome(sim.LearnDelays, 5*time.Millisecond).Late)
}

// TestDeadlineOfARequest overrides the SLO.
func TestDeadlineOfARequest(t *testing.T) {
	s := resnet50()
	s.gpus, s.discipline, s.duration, s.warmup = 1, "eager", time.Second, 0
	w := s.world(t)
	w.Streams = []workload.Stream{workload.Slice(
		workload.Arrival{At: 0, Deadline: time.Millisecond},        // cannot be met
		workload.Arrival{At: 0, Deadline: 100 * time.Millisecond},  // can
		workload.Arrival{At: 10 * time.Millisecond},                // the SLO
		workload.Arrival{At: 20 * time.Millisecond, Rows: 1 << 20}, // more than a batch
	)}
	r := run(t, w)
	require.Equal(t, map[string]uint64{"late": 1, "too_large": 1}, r.Models[0].DroppedBy)
	require.EqualValues(t, 2, r.Total.Good)
}

// TestTheSteadyStateDoesNotAllocate: twice as many requests need no more memory.
func TestTheSteadyStateDoesNotAllocate(t *testing.T) {
	allocations := func(d time.Duration) float64 {
		s := resnet50()
		s.models, s.gpus, s.rate, s.duration, s.discipline, s.drop = 4, 8, 4000, d, "adaptive", ""
		worlds := make([]sim.World, 0, 4)
		for range cap(worlds) {
			worlds = append(worlds, s.world(t))
		}
		i := 0
		return testing.AllocsPerRun(len(worlds)-1, func() {
			run(t, worlds[i])
			i++
		})
	}
	require.InDelta(t, allocations(20*time.Second), allocations(60*time.Second), 60, "160,000 requests more")
}

func TestWorldsThatMakeNoSense(t *testing.T) {
	for want, change := range map[string]func(*sim.World){
		"no models":                             func(w *sim.World) { w.Snapshot.Models = nil },
		"neither a plan nor a policy":           func(w *sim.World) { w.Plan = nil },
		"must be above warmup":                  func(w *sim.World) { w.Warmup = w.Duration },
		"has no usable profile":                 func(w *sim.World) { w.Snapshot.Profiles = nil },
		"is on GPU g000 of node n, which there": func(w *sim.World) { w.Snapshot.Nodes = nil },
		`there is no GPU "g9"`:                  func(w *sim.World) { w.Failures = []sim.Failure{{GPU: "g9"}} },
		"needs a GPU or a partition":            func(w *sim.World) { w.Failures = []sim.Failure{{}} },
		"not from 0 to 1":                       func(w *sim.World) { w.Jitter = math.NaN() },
		"no model of the snapshot":              func(w *sim.World) { w.Plan.Partitions[0].Instances[0] = policy.ModelInstance("x", 0) },
		"unknown name":                          func(w *sim.World) { w.Plan.Dispatch[0].Discipline = "x" },
		"derived models":                        func(w *sim.World) { w.Plan.Recipes = []*policy.Recipe{{}} },
		"no knowledge 2":                        func(w *sim.World) { w.Knowledge = sim.LearnDelays + 1 },
		"a delay is below 0":                    func(w *sim.World) { w.Delays.Request = -1 },
		"a request of model 7":                  func(w *sim.World) { w.Streams = []workload.Stream{workload.Slice(workload.Arrival{Model: 7})} },
	} {
		w := resnet50().world(t)
		change(&w)
		_, err := sim.Run(t.Context(), w)
		require.ErrorIs(t, err, sim.ErrWorld, want)
		require.ErrorContains(t, err, want)
	}
}

func TestAnEndedContextEndsTheRun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := sim.Run(ctx, resnet50().world(t))
	require.ErrorIs(t, err, context.Canceled)
}

// TestPreemption: under flex a batch three times as large takes a running one's place. What ran until then is wasted and counted, its end never
// comes, and its requests are served or dropped later, once.
func TestPreemption(t *testing.T) {
	s := small{
		models: 2, gpus: 1, alpha: time.Millisecond, beta: 20 * time.Millisecond, slo: 200 * time.Millisecond, batch: 32, rate: 200,
		discipline: "flex", late: policy.LatePolicy_LATE_POLICY_DROP, duration: 20 * time.Second, seed: 1,
	}
	w := s.world(t)
	w.Timeline.Max = 1 << 20
	w.Delays.Control = 100 * time.Microsecond
	r := run(t, w)
	require.Positive(t, r.Queue.Preempted)
	require.Positive(t, r.Partitions[0].WastedShare)
	require.Less(t, r.Partitions[0].WastedShare, r.Partitions[0].BusyShare)
	require.Equal(t, r.Total.Arrivals, r.Total.Good+r.Total.Late+r.Total.Dropped)
	require.Zero(t, r.Total.Late, "the queue knew what it did")
	// Each dispatch of a request was its last, or was preempted.
	require.Equal(t, r.Queue.Dispatched, r.Total.Good+r.Queue.PreemptedRequests)
	var cut, wasted float64
	for i, b := range r.Timeline {
		if whole := 20e3 + 1e3*float64(b.Rows); b.End-b.Start < whole-1 {
			next := r.Timeline[i+1]
			require.InDelta(t, b.End+100, next.Start, 1, "the larger one sets out at once")
			require.GreaterOrEqual(t, next.Rows, 3*b.Rows)
			cut++
			wasted += (b.End - b.Start) / 1e6
		}
	}
	require.Positive(t, cut)
	require.LessOrEqual(t, cut, float64(r.Queue.Preempted), "some are preempted on their way")
	require.InDelta(t, wasted/20, r.Partitions[0].WastedShare, 1e-6)

	w = s.world(t)
	for _, d := range w.Plan.Dispatch {
		d.Parameters = map[string]string{"preempt": "0"}
	}
	require.Zero(t, run(t, w).Queue.Preempted)
}

// TestAServerOverSeveralGPUsChoosesThem: of two GPUs, the first and the third model begin at the same one, so that the batch of the third waits there for that of
// the first while the other GPU is idle. Where each partition has a GPU of its own it does not.
func TestAServerOverSeveralGPUsChoosesThem(t *testing.T) {
	const ms = 1000.
	for _, c := range []struct {
		name string
		node bool
		want [3]float64 // latencies of the models' one request each, at 0, 2 and 1 ms
	}{{"a server over both", true, [3]float64{10 * ms, 18 * ms, 19 * ms}}, {"a server each", false, [3]float64{10 * ms, 18 * ms, 10 * ms}}} {
		t.Run(c.name, func(t *testing.T) {
			s := small{models: 3, gpus: 2, beta: 10 * time.Millisecond, slo: time.Second, batch: 1, rate: 1, discipline: "eager", drop: "none", duration: time.Second, seed: 1}
			w := s.world(t)
			w.Streams = []workload.Stream{workload.Slice(
				workload.Arrival{Model: 0, Rows: 1}, workload.Arrival{At: time.Millisecond, Model: 2, Rows: 1}, workload.Arrival{At: 2 * time.Millisecond, Model: 1, Rows: 1},
			)}
			if c.node {
				w.Nodes = [][]string{{w.Plan.GetPartitions()[0].GetId(), w.Plan.GetPartitions()[1].GetId()}}
			}
			r := run(t, w)
			for i, want := range c.want {
				require.InDelta(t, want, r.Models[i].Latency.MeanUs, 1, r.Models[i].Name)
			}
		})
	}
}

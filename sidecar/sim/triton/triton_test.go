// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package triton_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/triton"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// servers are equal servers that all serve equal models of l(b) = beta + alpha*b.
func servers(n, models int, alpha, beta, slo time.Duration, dynamic bool, delay time.Duration) triton.World {
	w := triton.World{Duration: 20 * time.Second, Warmup: time.Second}
	latency := make([]time.Duration, 65)
	for b := range latency {
		latency[b] = beta + time.Duration(b)*alpha
	}
	for i := range models {
		w.Models = append(w.Models, triton.Model{Name: string(rune('a' + i)), SLO: slo, MaxBatch: 64, Dynamic: dynamic, Delay: delay})
	}
	for range n {
		s := triton.Server{Latency: make([][]time.Duration, models)}
		for m := range models {
			s.Latency[m] = latency
		}
		w.Servers = append(w.Servers, s)
	}
	return w
}

// poisson offers a rate, in equal parts to all models.
func poisson(t *testing.T, w triton.World, rate float64, seed uint64) triton.World {
	t.Helper()
	w.Seed, w.Streams = seed, nil
	for i, m := range w.Models {
		s, err := workload.Renewal{Model: int32(i), Shape: 1, Curve: workload.Constant(rate / float64(len(w.Models))), Random: workload.Seed(seed, "arrivals", m.Name)}.Stream()
		require.NoError(t, err)
		w.Streams = append(w.Streams, s)
	}
	return w
}

// TestMeasuredRates: what real tritonservers held on emulated GPUs (results/live.json: ResNet50 five times as slow, SLO 125 ms, four GPUs,
// max_queue_delay 0), the simulated ones hold too, within a twelfth: real executions take a millisecond or two more than they emulate.
func TestMeasuredRates(t *testing.T) {
	for _, c := range []struct {
		models int
		held   float64
	}{{1, 361}, {8, 109}} {
		w := servers(4, c.models, 5265*time.Microsecond, 25360*time.Microsecond, 125*time.Millisecond, true, 0)
		w.Jitter = .02
		found, err := sim.Goodput(t.Context(), sim.Search{Seeds: []uint64{1, 2, 3}, Guess: c.held, Overall: true, Tolerance: .02, Run: func(ctx context.Context, rate float64, seed uint64) (*sim.Result, error) {
			r, err := triton.Run(ctx, poisson(t, w, rate, seed))
			if err != nil {
				return nil, err
			}
			return r.Result, nil
		}})
		require.NoError(t, err)
		t.Logf("%d models: %.0f req/s (%.0f to %.0f), measured %.0f", c.models, found.Rate, found.Low, found.High, c.held)
		assert.InEpsilon(t, c.held, found.Rate, .08)
	}
}

// given offers arrivals one by one.
func given(w triton.World, arrivals ...workload.Arrival) triton.World {
	w.Streams, w.Warmup = []workload.Stream{workload.Slice(arrivals...)}, 0
	return w
}

func at(ms int, model int32) workload.Arrival {
	return workload.Arrival{At: time.Duration(ms) * time.Millisecond, Model: model, Rows: 1}
}

// TestBatches: what executes together, with executions of 10 ms and 1 ms a row.
func TestBatches(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name     string
		world    func() triton.World
		arrivals []workload.Arrival
		want     []triton.Executions
	}{
		{"without dynamic batching every request is alone", func() triton.World { return servers(1, 1, ms, 10*ms, time.Second, false, 0) },
			[]workload.Arrival{at(0, 0), at(1, 0), at(2, 0)}, []triton.Executions{{Rows: 1, Count: 3, Mean: 11 * ms}}},
		{"what waits while one executes goes together", func() triton.World { return servers(1, 1, ms, 10*ms, time.Second, true, 0) },
			[]workload.Arrival{at(0, 0), at(1, 0), at(2, 0), at(3, 0)}, []triton.Executions{{Rows: 1, Count: 1, Mean: 11 * ms}, {Rows: 3, Count: 1, Mean: 13 * ms}}},
		{"a delay waits for company", func() triton.World { return servers(1, 1, ms, 10*ms, time.Second, true, 5*ms) },
			[]workload.Arrival{at(0, 0), at(1, 0), at(2, 0)}, []triton.Executions{{Rows: 3, Count: 1, Mean: 13 * ms}}},
		{"a preferred size goes at once", func() triton.World {
			w := servers(1, 1, ms, 10*ms, time.Second, true, 500*ms)
			w.Models[0].Preferred = []int{2}
			return w
		}, []workload.Arrival{at(0, 0), at(1, 0)}, []triton.Executions{{Rows: 2, Count: 1, Mean: 12 * ms}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := triton.Run(t.Context(), given(c.world(), c.arrivals...))
			require.NoError(t, err)
			require.Equal(t, c.want, r.Executions[0])
			require.EqualValues(t, len(c.arrivals), r.Total.Good)
		})
	}
}

// TestStatisticsCountTheWaitForTheGPU: a batch of one model is counted with the execution of the other that it waited for, as Triton counts.
func TestStatisticsCountTheWaitForTheGPU(t *testing.T) {
	w := servers(1, 2, time.Millisecond, 10*time.Millisecond, time.Second, true, 0)
	r, err := triton.Run(t.Context(), given(w, at(0, 0), at(1, 1)))
	require.NoError(t, err)
	require.Equal(t, []triton.Executions{{Rows: 1, Count: 1, Mean: 11 * time.Millisecond}}, r.Executions[0])
	require.Equal(t, []triton.Executions{{Rows: 1, Count: 1, Mean: 21 * time.Millisecond}}, r.Executions[1])
}

// TestAQueuePerServer: a request that was sent to a busy server waits there, while another one is idle by then.
func TestAQueuePerServer(t *testing.T) {
	w := servers(2, 1, time.Millisecond, 10*time.Millisecond, 15*time.Millisecond, false, 0)
	w.Servers[1].Latency[0] = []time.Duration{0, 100 * time.Millisecond}
	r, err := triton.Run(t.Context(), given(w, at(0, 0), at(1, 0), at(2, 0), at(3, 0)))
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Total.Good, "two are on the slow server, and the second one on the fast server takes 20 ms and more")
	require.EqualValues(t, 4, r.Total.Good+r.Total.Late+r.Total.Unanswered)
}

// TestAServerOverSeveralGPUs: a model's batches execute on both GPUs, from one queue; one that its instance took waits for the GPU of that, whichever other is
// idle by then.
func TestAServerOverSeveralGPUs(t *testing.T) {
	const ms = time.Millisecond
	one := servers(1, 1, ms, 10*ms, 15*ms, false, 0)
	one.Servers[0].GPUs = 2
	r, err := triton.Run(t.Context(), given(one, at(0, 0), at(1, 0), at(11, 0)))
	require.NoError(t, err)
	require.Equal(t, []triton.Executions{{Rows: 1, Count: 3, Mean: 11 * ms}}, r.Executions[0], "side by side, and then on one that is idle")
	require.EqualValues(t, 3, r.Total.Good)
	require.EqualValues(t, 2, r.History[0].GPUs)
	require.Len(t, r.Partitions, 1)
	require.InDelta(t, .033/2/20, r.Partitions[0].BusyShare, 1e-9)

	two := servers(1, 2, ms, 10*ms, time.Second, true, 0)
	two.Servers[0].GPUs = 2
	two.Servers[0].Latency[1] = []time.Duration{0, 100 * ms}
	r, err = triton.Run(t.Context(), given(two, at(0, 1), at(1, 0), at(2, 0)))
	require.NoError(t, err)
	require.Equal(t, []triton.Executions{{Rows: 1, Count: 2, Mean: (11*ms + 109*ms) / 2}}, r.Executions[0], "the second meets the other model's batch")

	// The instance on the first GPU has executed since the other one did: that takes the next batch, and waits.
	r, err = triton.Run(t.Context(), given(two, at(0, 1), at(1, 0), at(20, 0), at(120, 0)))
	require.NoError(t, err)
	require.Equal(t, []triton.Executions{{Rows: 1, Count: 3, Mean: (11*ms + 91*ms + 11*ms) / 3}}, r.Executions[0], "the instance that has waited longest takes a batch")
}

func TestWorldsThatMakeNoSense(t *testing.T) {
	good := servers(1, 1, time.Millisecond, time.Millisecond, time.Second, false, 0)
	for name, spoil := range map[string]func(*triton.World){
		"no models":      func(w *triton.World) { w.Models = nil },
		"no servers":     func(w *triton.World) { w.Servers = nil },
		"served nowhere": func(w *triton.World) { w.Servers = []triton.Server{{Latency: [][]time.Duration{nil}}} },
		"no SLO":         func(w *triton.World) { w.Models = []triton.Model{{Name: "a"}} },
		"no time":        func(w *triton.World) { w.Duration = 0 },
	} {
		w := good
		spoil(&w)
		_, err := triton.Run(t.Context(), w)
		require.ErrorIs(t, err, triton.ErrWorld, name)
	}
}

// The history and the servers add up to the totals.
func TestHistoryAndServersAddUp(t *testing.T) {
	w := servers(2, 2, time.Millisecond, 5*time.Millisecond, 40*time.Millisecond, true, 0)
	w.Warmup = 0
	for i := range w.Servers {
		w.Servers[i].ID, w.Servers[i].GPU = "server", []string{"n/gpu0", "n/gpu1"}[i]
	}
	r, err := triton.Run(t.Context(), poisson(t, w, 300, 1))
	require.NoError(t, err)
	require.Len(t, r.History, 60)
	var arrivals, good uint64
	busy := 0.0
	for _, h := range r.History {
		arrivals, good, busy = arrivals+h.Arrivals, good+h.Good, busy+h.Busy/60
		require.LessOrEqual(t, h.LatencyP50Us, h.LatencyP99Us)
		require.GreaterOrEqual(t, h.LatencyP50Us, 6e3, "no answer comes before its execution")
	}
	require.Equal(t, r.Total.Arrivals, arrivals)
	require.Equal(t, r.Total.Good, good)
	require.Len(t, r.Partitions, 2)
	assert.Equal(t, "n/gpu1", r.Partitions[1].GPU)
	assert.InDelta(t, busy, r.Partitions[0].BusyShare+r.Partitions[1].BusyShare, 1e-6)
	rows := r.Partitions[0].Rows + r.Partitions[1].Rows
	assert.InDelta(t, float64(arrivals), float64(rows), 3, "single rows, all but the last of them executed")
}

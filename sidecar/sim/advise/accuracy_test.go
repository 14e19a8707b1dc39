// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advise_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/advise"
	"github.com/conch-serving/conch/sidecar/sim/triton"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// source is a process of which a recording is a sample, and which can be had at any rate and for any length.
type source struct {
	snapshot *policy.Snapshot
	shape    float64
	rows     int32
}

func (s source) streams(total float64, seed uint64) (all []workload.Stream) {
	for i, m := range s.snapshot.GetModels() {
		stream, err := workload.Renewal{
			Model: int32(i), Rows: s.rows, Shape: s.shape, Curve: workload.Constant(total / float64(len(s.snapshot.GetModels()))), Random: workload.Seed(seed, "source", m.GetName()),
		}.Stream()
		if err != nil {
			panic(err)
		}
		all = append(all, stream)
	}
	return all
}

// record is a trace of the process.
func (s source) record(total float64, length time.Duration, seed uint64) *advise.Traffic {
	t := &advise.Traffic{Length: length}
	for _, m := range s.snapshot.GetModels() {
		t.Models = append(t.Models, workload.TraceModel{Name: m.GetName()})
	}
	streams := s.streams(total, seed)
	heads := make([]workload.Arrival, len(streams))
	for i := range streams {
		streams[i].Next(&heads[i])
	}
	for {
		first := 0
		for i := range heads {
			if heads[i].At < heads[first].At {
				first = i
			}
		}
		if heads[first].At >= length {
			return t
		}
		t.Arrivals = append(t.Arrivals, heads[first])
		streams[first].Next(&heads[first])
	}
}

// conch is the rate that the process holds under Conch, over minutes that were not recorded.
func (s source) conch(t *testing.T) float64 {
	return s.holds(t, func(ctx context.Context, rate float64, seed uint64) (*sim.Result, error) {
		w := sim.World{Snapshot: s.snapshot, Plan: &policy.Plan{Partitions: s.snapshot.GetCurrent().GetPartitions()}, Duration: time.Minute, Warmup: time.Second, Seed: seed, Jitter: .02, Knowledge: sim.LearnDelays, Streams: s.streams(rate, seed)}
		for _, m := range s.snapshot.GetModels() {
			w.Plan.Dispatch = append(w.Plan.Dispatch, &policy.Dispatch{Model: m.GetName(), Discipline: "adaptive"})
		}
		return sim.Run(ctx, w)
	})
}

// triton is what the process holds under servers of its own, a GPU each, with dynamic batching.
func (s source) triton(t *testing.T, delay time.Duration) float64 {
	return s.holds(t, func(ctx context.Context, rate float64, seed uint64) (*sim.Result, error) {
		r, err := triton.Run(ctx, s.servers(rate, time.Minute, seed, delay))
		if err != nil {
			return nil, err
		}
		return r.Result, nil
	})
}

// servers are those of the snapshot: 8 ms a batch and 500 us a row.
func (s source) servers(rate float64, length time.Duration, seed uint64, delay time.Duration) triton.World {
	w := triton.World{Duration: length, Warmup: time.Second, Seed: seed, Jitter: .02, Streams: s.streams(rate, seed)}
	latency := make([]time.Duration, 33)
	for b := range latency {
		latency[b] = 8*time.Millisecond + time.Duration(b)*500*time.Microsecond
	}
	for _, m := range s.snapshot.GetModels() {
		w.Models = append(w.Models, triton.Model{Name: m.GetName(), SLO: 50 * time.Millisecond, MaxBatch: 32, Dynamic: true, Delay: delay})
	}
	for range s.snapshot.GetNodes()[0].GetGpus() {
		server := triton.Server{}
		for range w.Models {
			server.Latency = append(server.Latency, latency)
		}
		w.Servers = append(w.Servers, server)
	}
	return w
}

func (s source) holds(t *testing.T, run func(context.Context, float64, uint64) (*sim.Result, error)) float64 {
	found, err := sim.Goodput(t.Context(), sim.Search{Seeds: []uint64{101, 102}, Guess: 500, Run: run})
	require.NoError(t, err)
	return found.Rate
}

// The advice knows a recording and draws from that; the process that was recorded holds what it holds. Where there is more than ten seconds of
// traffic or not, the range has the truth in it.
func TestTheRangeCoversTheTruth(t *testing.T) {
	for _, c := range []struct {
		name   string
		models []string
		shape  float64
		rows   int32
		length time.Duration
	}{
		{"requests of four rows", []string{"a", "b"}, 1, 4, 30 * time.Second},
		{"a short recording of bursts", []string{"a", "b"}, .05, 1, 10 * time.Second},
		{"more models than GPUs", []string{"a", "b", "c", "d", "e", "f", "g", "h"}, 1, 1, 20 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := source{world(2, 100, c.models...), c.shape, c.rows}
			in := advise.Input{Snapshot: s.snapshot, Seeds: []uint64{1, 2, 3, 4, 5}, Batching: map[string]advise.Batching{}, Traffic: s.record(300, c.length, 7)}
			for _, m := range c.models {
				in.Batching[m] = advise.Batching{Dynamic: true, Delay: 5 * time.Millisecond}
			}
			a, err := advise.Make(t.Context(), in)
			require.NoError(t, err)
			truth := s.conch(t) / s.triton(t, 5*time.Millisecond)
			require.LessOrEqual(t, a.SpreadLow, truth)
			require.GreaterOrEqual(t, a.SpreadHigh, truth)
			require.Less(t, a.SpreadHigh/a.SpreadLow, 1.5, "a spread that says nothing covers everything")
			require.Regexp(t, `[0-9.]+x (the traffic at the same SLO )?in the simulation\. Expect [0-9.]+ to [0-9.]+: `, strings.Join(a.Text, "\n"))
		})
	}
}

// What Triton holds on six GPUs, request by request, Conch holds on as few as the advice says, over minutes that it has not seen, and not on one
// GPU less.
func TestTheNumberOfGPUsIsEnoughAndNotTooMany(t *testing.T) {
	s := source{world(6, 100, "a", "b"), 1, 1}
	a, err := advise.Make(t.Context(), advise.Input{Snapshot: s.snapshot, Seeds: []uint64{1, 2, 3}})
	require.NoError(t, err)
	for n, holds := range map[int]bool{a.Needed: true, a.Needed - 1: false} {
		fewer := source{world(n, 100, "a", "b"), 1, 1}
		require.Equal(t, holds, fewer.conch(t) >= a.Triton.Low, "%d GPUs, %.0f requests a second", n, a.Triton.Low)
	}
}

// observed replaces the profiles of the snapshot by what real servers count of their own batches at a rate: with the time in which a batch
// waited for the other models of its GPU. Of larger batches than most nothing is kept.
func (s source) observed(t *testing.T, rate float64, most int) {
	r, err := triton.Run(t.Context(), s.servers(rate, time.Minute, 1, 0))
	require.NoError(t, err)
	s.snapshot.Profiles = nil
	for i, m := range s.snapshot.GetModels() {
		p := &policy.Profile{Model: m.GetName(), GpuType: "T", Source: policy.ProfileSource_PROFILE_SOURCE_OBSERVED}
		for _, e := range r.Executions[i] {
			if e.Rows <= most {
				us := float64(e.Mean.Microseconds())
				p.Points = append(p.Points, &policy.ProfilePoint{Batch: uint32(e.Rows), ThreadPercentage: 100, Observations: e.Count, LatencyUs: &policy.Estimate{Value: us}, LatencyUpperUs: us})
			}
		}
		p.Usable = len(p.Points) >= 2
		s.snapshot.Profiles = append(s.snapshot.Profiles, p)
	}
}

// TestServersStatisticsAreEnough: two models share each GPU, so that servers count more than what an execution takes. The advice is that
// of the true times nevertheless.
func TestServersStatisticsAreEnough(t *testing.T) {
	models := []string{"a", "b"}
	const rate = 600
	in := advise.Input{Seeds: []uint64{1, 2, 3}, Batching: map[string]advise.Batching{}, Shared: true}
	for _, m := range models {
		in.Batching[m] = advise.Batching{Dynamic: true}
	}
	truth := source{world(2, rate/2, models...), 1, 1}
	in.Snapshot, in.Traffic = truth.snapshot, truth.record(rate, time.Minute, 7)
	want, err := advise.Make(t.Context(), in)
	require.NoError(t, err)
	seen := source{world(2, rate/2, models...), 1, 1}
	seen.observed(t, rate, 32)
	require.Greater(t, seen.snapshot.Profiles[0].Points[0].LatencyUs.Value, 1.3*8500, "a batch of one row waits for others")
	in.Snapshot = seen.snapshot
	got, err := advise.Make(t.Context(), in)
	require.NoError(t, err)
	require.True(t, got.Enough, got.Text)
	t.Logf("true %.0f and %.2f, from statistics %.0f and %.2f", want.Triton.Rate, want.Ratio, got.Triton.Rate, got.Ratio)
	require.InEpsilon(t, want.Triton.Rate, got.Triton.Rate, .15)
	require.InEpsilon(t, want.Ratio, got.Ratio, .15)
}

// TestGeneratedBatchesSlowClientsDown: while batches were timed, clients' batches waited for them, which no simulation of the clients' traffic has: what servers
// counted then is 20 ms too much. Round trips, of which the fastest waited for little, say what a batch takes at most.
func TestGeneratedBatchesSlowClientsDown(t *testing.T) {
	models := []string{"a", "b"}
	const rate = 600
	truth := source{world(2, rate/2, models...), 1, 1}
	in := advise.Input{Snapshot: truth.snapshot, Traffic: truth.record(rate, time.Minute, 7), Seeds: []uint64{1, 2, 3}, Batching: map[string]advise.Batching{}}
	for _, m := range models {
		in.Batching[m] = advise.Batching{Dynamic: true}
	}
	want, err := advise.Make(t.Context(), in)
	require.NoError(t, err)
	in.Shared, in.Counted, in.Timed = true, map[string][]advise.Executions{}, map[string]advise.Grid{}
	for _, m := range models {
		in.Timed[m] = advise.Grid{}
		for _, rows := range []int{1, 2, 4, 8, 16, 32} {
			takes := 8*time.Millisecond + time.Duration(rows)*500*time.Microsecond
			in.Counted[m] = append(in.Counted[m], advise.Executions{Rows: rows, Count: 400 / rows, Mean: takes + 20*time.Millisecond})
			in.Timed[m][rows] = takes + takes/20
			if rows == 1 || rows == 8 { // a batch of these sizes that waited for nothing was not among the few
				in.Timed[m][rows] += 30 * time.Millisecond
			}
		}
	}
	got, err := advise.Make(t.Context(), in)
	require.NoError(t, err)
	require.True(t, got.Enough, got.Text)
	require.InEpsilon(t, want.Triton.Rate, got.Triton.Rate, .15)
	require.InEpsilon(t, want.Ratio, got.Ratio, .15)
	in.Timed = nil
	without, err := advise.Make(t.Context(), in)
	require.NoError(t, err)
	require.Less(t, without.Triton.Rate, .75*want.Triton.Rate)
}

// TestOneBatchSizeGivesARange: clients send single rows, and servers batched none of them. The true ratio of beta to alpha, 16, makes a gain
// beyond that of a ratio of 3; equal costs of all rows make next to none.
func TestOneBatchSizeGivesARange(t *testing.T) {
	s := source{world(2, 40, "a", "b"), 1, 1}
	traffic := s.record(80, time.Minute, 7)
	s.observed(t, 80, 1)
	a, err := advise.Make(t.Context(), advise.Input{
		Snapshot: s.snapshot, Seeds: []uint64{1, 2}, Batching: map[string]advise.Batching{"a": {Dynamic: true}, "b": {Dynamic: true}}, Shared: true, Traffic: traffic,
	})
	require.NoError(t, err)
	require.False(t, a.Enough)
	require.Len(t, a.Possible, 4)
	require.Zero(t, a.Possible[0].Ratio)
	require.InDelta(t, 8, a.Possible[0].Eight, 1e-9)
	require.Less(t, a.Possible[0].Conch, 2/.0085, "no batch is faster than its rows one by one")
	for i, p := range a.Possible[1:] {
		require.Greater(t, p.Conch, a.Possible[i].Conch)
	}
	require.InDelta(t, 1, a.Possible[3].Conch/s.withProfiles(8000, 500).conch(t), .35, "a ratio of 10, where 16 is true")
	text := strings.Join(a.Text, "\n")
	require.Contains(t, text, "How long batches of more than one row take is not known of a, b, so that the gain is a range:")
	require.Contains(t, text, "if 8 rows take 2.8 times as long as one (beta/alpha = 3): Triton's own batching holds ")
	require.Contains(t, text, "tritonctl advise --measure")
}

func (s source) withProfiles(beta, alpha float64) source {
	s.snapshot.Profiles = nil
	for _, m := range s.snapshot.GetModels() {
		p := &policy.Profile{Model: m.GetName(), GpuType: "T", Usable: true}
		for _, b := range []uint32{1, 32} {
			us := beta + alpha*float64(b)
			p.Points = append(p.Points, &policy.ProfilePoint{Batch: b, ThreadPercentage: 100, LatencyUs: &policy.Estimate{Value: us}, LatencyUpperUs: us})
		}
		s.snapshot.Profiles = append(s.snapshot.Profiles, p)
	}
	return s
}

// TestADeclaredGrid: l(b) at a few sizes, as an operator has measured it, is as good as a profile.
func TestADeclaredGrid(t *testing.T) {
	s := source{world(2, 40, "a", "b"), 1, 1}
	in := advise.Input{Snapshot: s.snapshot, Seeds: []uint64{1}, Batching: map[string]advise.Batching{"a": {Dynamic: true}, "b": {Dynamic: true}}, Traffic: s.record(80, time.Minute, 7)}
	want, err := advise.Make(t.Context(), in)
	require.NoError(t, err)
	s.snapshot.Profiles = nil
	grid := advise.Grid{1: 8500 * time.Microsecond, 4: 10 * time.Millisecond, 16: 16 * time.Millisecond}
	in.Grids = map[string]advise.Grid{"a": grid, "b": grid}
	got, err := advise.Make(t.Context(), in)
	require.NoError(t, err)
	require.InEpsilon(t, want.Ratio, got.Ratio, .001)
	require.Contains(t, strings.Join(got.Text, "\n"), "batches of a above 16 rows take on T: they were not seen, and are extrapolated")
}

// TestGeneratedBatchesAreEnough: eight models of single rows share four GPUs, and servers count six generated batches of each size besides.
func TestGeneratedBatchesAreEnough(t *testing.T) {
	models := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	const rate = 300
	in := advise.Input{Seeds: []uint64{1, 2}, Batching: map[string]advise.Batching{}, Shared: true, Grids: map[string]advise.Grid{}, Counted: map[string][]advise.Executions{}}
	truth := source{world(4, rate/8, models...), 1, 1}
	for _, m := range models {
		in.Batching[m] = advise.Batching{Dynamic: true}
		in.Grids[m] = advise.Grid{1: 8500 * time.Microsecond, 32: 24 * time.Millisecond}
	}
	in.Snapshot, in.Traffic = truth.snapshot, truth.record(rate, time.Minute, 7)
	want, err := advise.Make(t.Context(), in)
	require.NoError(t, err)
	r, err := triton.Run(t.Context(), truth.servers(rate, time.Minute, 1, 0))
	require.NoError(t, err)
	for i, m := range models {
		wait := time.Duration(0)
		for _, e := range r.Executions[i] {
			in.Counted[m] = append(in.Counted[m], advise.Executions{Rows: e.Rows, Count: int(e.Count), Mean: e.Mean})
			if e.Rows == 1 {
				wait = e.Mean - 8500*time.Microsecond
			}
		}
		require.Positive(t, wait)
		for _, b := range []int{4, 8, 16, 32} {
			in.Counted[m] = append(in.Counted[m], advise.Executions{Rows: b, Count: 6, Mean: wait + 8*time.Millisecond + time.Duration(b)*500*time.Microsecond})
		}
	}
	in.Grids = nil
	got, err := advise.Make(t.Context(), in)
	require.NoError(t, err)
	require.True(t, got.Enough, got.Text)
	require.InEpsilon(t, want.Triton.Rate, got.Triton.Rate, .08)
	require.InEpsilon(t, want.Ratio, got.Ratio, .08)
}

// TestGeneratedBatchesOfSmallModelsAreEnough: six batches of each size tell as much of l(4) as they do of l(8) where there are larger ones.
func TestGeneratedBatchesOfSmallModelsAreEnough(t *testing.T) {
	for _, largest := range []int{1, 2, 4} {
		s := source{world(1, 20, "a"), 1, 1}
		s.snapshot.Models[0].MaxBatchSize = uint32(largest)
		in := advise.Input{Snapshot: s.snapshot, Traffic: s.record(20, time.Minute, 7), Seeds: []uint64{1}, Shared: true, Counted: map[string][]advise.Executions{}}
		for rows := 1; rows <= largest; rows *= 2 {
			in.Counted["a"] = append(in.Counted["a"], advise.Executions{Rows: rows, Count: 6, Mean: 8*time.Millisecond + time.Duration(rows)*500*time.Microsecond})
		}
		a, err := advise.Make(t.Context(), in)
		require.NoError(t, err)
		require.True(t, a.Enough, a.Text)
		require.NotContains(t, strings.Join(a.Text, " "), "extrapolated")
	}
}

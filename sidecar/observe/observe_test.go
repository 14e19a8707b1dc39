// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/observe"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func recorder(t testing.TB) *observe.Recorder {
	r, err := observe.New(nil)
	require.NoError(t, err)
	return r
}

func TestDetectGPUsSaysWhatItFound(t *testing.T) {
	gpus, remark, err := observe.DetectGPUs()
	require.NoError(t, err)
	if len(gpus) == 0 {
		require.NotEmpty(t, remark)
		return
	}
	for _, g := range gpus {
		require.NotEmpty(t, g.GetType())
		require.NotZero(t, g.GetMemoryBytes())
	}
}

// TestRates: evenly spaced, Poisson and bursty streams of the same rate differ
// in burstiness only.
func TestRates(t *testing.T) {
	for _, test := range []struct {
		name string
		gap  func(*rand.Rand) float64
		want float64
		off  float64
	}{
		{"even", func(*rand.Rand) float64 { return 1 }, 0, .01},
		{"poisson", func(r *rand.Rand) float64 { return r.ExpFloat64() }, 1, .25},
		// Nine gaps in ten are .1, one is 9.1: mean 1, square 8.29, so 7.29.
		{"bursty", func(r *rand.Rand) float64 {
			if r.IntN(10) > 0 {
				return .1
			}
			return 9.1
		}, 7.29, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, random := recorder(t), rand.New(rand.NewPCG(1, 2))
			now := start
			for now.Sub(start) < 30*time.Second {
				now = now.Add(time.Duration(test.gap(random) * float64(5*time.Millisecond)))
				r.Arrived("m", 2, now)
			}
			rates := r.Rates("m", now)
			require.InDelta(t, 200, rates.Window, 40)
			require.InDelta(t, 2*rates.Window, rates.Rows, 1e-9)
			require.InDelta(t, 200, rates.Average, 30)
			require.InDelta(t, test.want, rates.Burstiness, test.off)

			later := r.Rates("m", now.Add(time.Minute))
			require.Zero(t, later.Window)
			require.Zero(t, later.Second)
			require.Less(t, later.Average, 15.0)
		})
	}
	require.Equal(t, observe.Rates{Burstiness: 1}, recorder(t).Rates("nobody", start))
}

// TestRatesAtTheStart: a stream that is a second old is not divided by the
// whole window.
func TestRatesAtTheStart(t *testing.T) {
	r := recorder(t)
	for i := range 100 {
		r.Arrived("m", 1, start.Add(time.Duration(i)*10*time.Millisecond))
	}
	require.InDelta(t, 100, r.Rates("m", start.Add(time.Second)).Window, 11)
	r.Arrived("one", 1, start)
	require.LessOrEqual(t, r.Rates("one", start).Window, 1.0)
}

// A pause between two loads is no burst; regular pauses are.
func TestPausesAndBurstiness(t *testing.T) {
	load := func(r *observe.Recorder, at time.Time, n int) time.Time {
		for range n {
			r.Arrived("m", 1, at)
			at = at.Add(100 * time.Millisecond)
		}
		return at
	}
	r := recorder(t)
	now := load(r, start, 200)
	now = load(r, now.Add(time.Hour), 200)
	require.InDelta(t, 0, r.Rates("m", now).Burstiness, .01, "every gap of a load is the same")

	r = recorder(t)
	now = start
	for range 20 {
		now = load(r, now.Add(30*time.Second), 10)
	}
	require.Greater(t, r.Rates("m", now).Burstiness, 5.)
}

func TestStatistics(t *testing.T) {
	r := recorder(t)
	now := start.Add(10 * time.Second)
	for i := range 100 {
		o := observe.Outcome{Model: "m", Result: observe.OK, Latency: 10 * time.Millisecond, At: now.Add(-time.Duration(i) * time.Millisecond)}
		switch {
		case i < 4:
			o.Result, o.Latency = observe.Late, 80*time.Millisecond
		case i < 10:
			o.Result, o.Reason = observe.Dropped, "late"
		case i < 20:
			o.Result = observe.Failed
		}
		r.Finished(o)
	}
	r.Executed(observe.Execution{Model: "m", Partition: "p", GPUType: "T4", ThreadPercentage: 100, Rows: 8, Start: now.Add(-2500 * time.Millisecond), End: now.Add(-1500 * time.Millisecond)})
	r.Executed(observe.Execution{Model: "m", Partition: "p", GPUType: "T4", ThreadPercentage: 100, Rows: 4, Start: now.Add(-1500 * time.Millisecond), End: now.Add(-1250 * time.Millisecond)})
	r.Busy("p", now.Add(-2500*time.Millisecond), now.Add(-1250*time.Millisecond))
	r.Busy("p", now, now)
	s := r.Statistics("m", now)
	require.InDelta(t, 80/1.5, s.Goodput, 5, "only the second and a half since the first event is covered")
	require.InDelta(t, 10./90, s.BadRate, 1e-9, "failed requests count neither way")
	require.InDelta(t, 20./100, r.Bad("m", now), 1e-9, "here they do")
	require.InDelta(t, 6./90, s.DropRate, 1e-9)
	require.InDelta(t, 6, s.MeanBatch, 1e-9)
	require.InEpsilon(t, 10e3, s.LatencyP50Us, .07)
	require.InEpsilon(t, 80e3, s.LatencyP99Us, .07)

	p := r.PartitionStatistics("p", now)
	require.InDelta(t, 1.25/2.5, 1-p.IdleShare, .03)
	require.InDelta(t, 6, p.MeanBatch, 1e-9)
	require.Equal(t, 1.0, r.PartitionStatistics("idle", now).IdleShare)
	require.Equal(t, 1.0, r.PartitionStatistics("p", now.Add(time.Minute)).IdleShare)
}

// TestJudged: cancelled and failed requests are neither good nor bad, and what is
// older than the window does not count.
func TestJudged(t *testing.T) {
	r := recorder(t)
	now := start.Add(time.Minute)
	for _, o := range []observe.Outcome{
		{Result: observe.OK, At: now}, {Result: observe.OK, At: now.Add(-4 * time.Second)}, {Result: observe.Late, At: now},
		{Result: observe.Dropped, At: now}, {Result: observe.Cancelled, At: now}, {Result: observe.Failed, At: now},
		{Result: observe.Late, At: now.Add(-5500 * time.Millisecond)},
	} {
		o.Model = "m"
		r.Finished(o)
	}
	all, bad := r.Judged("m", now)
	require.EqualValues(t, 4, all)
	require.EqualValues(t, 2, bad)
	all, bad = r.Judged("never heard of", now)
	require.Zero(t, all+bad)
}

func TestSnapshot(t *testing.T) {
	r := recorder(t)
	now := start.Add(10 * time.Second)
	for i := range 500 {
		r.Arrived("a", 1, now.Add(-time.Duration(500-i)*10*time.Millisecond))
	}
	r.SetModel("a", "r1", 4, &observe.Line{Alpha: time.Millisecond, Beta: time.Millisecond})
	r.SetModel("stranger", "r1", 4, &observe.Line{Alpha: time.Millisecond, Beta: time.Millisecond})
	r.DeclareOn("stranger", "T4")
	r.Executed(observe.Execution{Model: "a", Partition: "p0", GPUType: "T4", ThreadPercentage: 100, Rows: 1, Start: now.Add(-2 * time.Second), End: now.Add(-time.Second)})
	r.Busy("p0", now.Add(-2*time.Second), now.Add(-time.Second))
	s := r.Snapshot(now, observe.World{
		Revision: 7, Seed: 1, Budget: time.Second, Objective: policy.Objective_OBJECTIVE_MAX_GOODPUT,
		Nodes:      []*policy.Node{{Name: "n", Gpus: []*policy.GPU{{Id: "gpu0", Type: "T4"}, {Id: "gpu1", Type: "T4"}}}},
		Models:     []*policy.Model{{Name: "a", SloUs: 1000}, {Name: "b"}},
		Current:    &policy.Plan{Partitions: []*policy.Partition{{Id: "p1", Gpus: []string{"gpu1"}}, {Id: "p0", Gpus: []string{"gpu0"}}}},
		Parameters: map[string]string{"k": "v"},
		Queued:     func(model string) int { return len(model) },
		Up:         func(id string) bool { return id == "p0" },
		Advice:     &policy.Advice{ReleaseGpus: 1},
	})
	require.EqualValues(t, 7, s.GetRevision())
	require.EqualValues(t, 1_000_000, s.GetPlanningBudgetUs())
	require.InDelta(t, 100, s.GetModels()[0].GetRate(), 5)
	require.Equal(t, 1.0, s.GetModels()[1].GetBurstiness(), "silence counts as Poisson")
	require.Len(t, s.GetProfiles(), 1, "profiles of strangers stay out")
	require.Len(t, s.GetInterference(), 1)
	st := s.GetStatistics()
	require.EqualValues(t, 1, st.GetModels()[0].GetQueuedRequests())
	require.Equal(t, "p0", st.GetPartitions()[0].GetPartition())
	require.True(t, st.GetPartitions()[0].GetUp())
	require.False(t, st.GetPartitions()[1].GetUp())
	require.Equal(t, 1.0, st.GetAdvice().GetReleaseGpus())
}

// TestConcurrent is for the race detector: writers and readers at once.
func TestConcurrent(t *testing.T) {
	r, err := observe.New(prometheus.NewRegistry())
	require.NoError(t, err)
	var wait sync.WaitGroup
	for w := range 4 {
		wait.Go(func() {
			model := fmt.Sprint("m", w%2)
			for i := range 500 {
				at := start.Add(time.Duration(i) * time.Millisecond)
				r.Arrived(model, 1, at)
				execute(r, model, 1+i%3, time.Millisecond)
				r.Finished(observe.Outcome{Model: model, Result: observe.OK, Latency: time.Millisecond, At: at})
			}
		})
	}
	wait.Go(func() {
		for i := range 50 {
			r.SetModel("m0", fmt.Sprint("r", i/25), 4, nil)
			r.Profiles()
			r.Statistics("m1", start)
			r.Rates("m1", start)
			r.Forget([]string{"m0", "m1"}, []string{"p"})
		}
	})
	wait.Wait()
	require.NotZero(t, r.Rates("m1", start.Add(500*time.Millisecond)).Window)
}

func BenchmarkRecorder(b *testing.B) {
	r, err := observe.New(prometheus.NewRegistry())
	require.NoError(b, err)
	at := start
	b.ReportAllocs()
	for b.Loop() {
		at = at.Add(time.Microsecond)
		r.Arrived("m", 1, at)
		r.Finished(observe.Outcome{Model: "m", Result: observe.OK, Latency: time.Millisecond, At: at})
	}
}

// BenchmarkExecuted is what an execution costs the request path.
func BenchmarkExecuted(b *testing.B) {
	r, err := observe.New(prometheus.NewRegistry())
	require.NoError(b, err)
	at := start
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		at = at.Add(time.Millisecond)
		execution := observe.Execution{Model: "m", Partition: "p", GPUType: "T4", ThreadPercentage: 100, Rows: 1 + i%16, Start: at, End: at.Add(5 * time.Millisecond)}
		r.Executed(execution)
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/sim"
)

// TestInvariants simulates worlds at random: shares, delays, jitter, interference, failures, plans that move everything.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		duration := func(name string, most time.Duration) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(most)).Draw(rt, name))
		}
		s := small{
			models: rapid.IntRange(1, 4).Draw(rt, "models"), gpus: rapid.IntRange(1, 4).Draw(rt, "gpus"),
			alpha: time.Millisecond, beta: 5 * time.Millisecond, slo: 15*time.Millisecond + duration("slo", 100*time.Millisecond),
			batch: rapid.Uint32Range(1, 32).Draw(rt, "batch"), rate: rapid.Float64Range(1, 3000).Draw(rt, "rate"),
			discipline: rapid.SampledFrom(queue.Names()).Draw(rt, "discipline"),
			late:       rapid.SampledFrom([]policy.LatePolicy{policy.LatePolicy_LATE_POLICY_DROP, policy.LatePolicy_LATE_POLICY_SERVE}).Draw(rt, "late"),
			shares:     rapid.SampledFrom([][]uint32{{100}, {50, 50}, {20, 30, 50}}).Draw(rt, "shares"),
			duration:   2 * time.Second, seed: rapid.Uint64().Draw(rt, "seed"),
		}
		w := s.world(t)
		w.Delays = sim.Delays{
			Control: duration("control", time.Millisecond), DataPerRow: duration("data", 100*time.Microsecond),
			Response: duration("response", time.Millisecond), Jitter: duration("delay jitter", time.Millisecond),
		}
		w.Jitter = rapid.Float64Range(0, .3).Draw(rt, "jitter")
		w.Snapshot.Interference = []*policy.Interference{{GpuType: "X", Constant: rapid.Float64Range(.9, 2).Draw(rt, "interference")}}
		w.Snapshot.ChangeCost = &policy.ChangeCost{PartitionStartSeconds: .05, DefaultLoadSeconds: .02}
		for range rapid.IntRange(0, 5).Draw(rt, "failures") {
			f := sim.Failure{At: duration("at", 2*time.Second), For: duration("for", 500*time.Millisecond)}
			if gpu := rapid.IntRange(0, s.gpus-1).Draw(rt, "gpu"); rapid.Bool().Draw(rt, "whole GPU") {
				f.GPU = fmt.Sprintf("g%03d", gpu)
			} else {
				f.Partition = fmt.Sprintf("p%03d.0", gpu)
			}
			w.Failures = append(w.Failures, f)
		}
		if rapid.Bool().Draw(rt, "replan") {
			n := 0
			w.Policy = &asked{answer: func(snapshot *policy.Snapshot) (*policy.Plan, error) {
				p := s.plan()
				p.SnapshotRevision = snapshot.GetRevision()
				for i, part := range p.Partitions {
					if n++; (n+i)%3 == 0 {
						part.Id += "x" // another process in the same place
					}
				}
				for _, node := range snapshot.GetNodes() {
					for _, g := range node.GetGpus() {
						if g.GetUnavailable() {
							p.Partitions = slices.DeleteFunc(p.Partitions, func(part *policy.Partition) bool { return part.GPU() == g.GetId() })
						}
					}
				}
				return p, nil
			}}
			w.Replan = sim.Replan{Every: 700 * time.Millisecond, OnFailure: true}
		}
		w.Timeline.Max = 1 << 20
		w.Drain = time.Hour // nothing executes when it ends
		r := run(t, w)

		// Every request has one outcome, or still waits.
		for _, m := range r.Models {
			require.Equal(rt, m.Arrivals, m.Good+m.Late+m.Dropped+m.Failed+m.Refused+m.Unanswered)
			require.LessOrEqual(rt, m.Latency.P50Us, m.Latency.P99Us)
		}
		require.EqualValues(rt, r.Total.Unanswered, r.Queue.Queued)
		require.Equal(rt, r.Queue.Enqueued, r.Total.Arrivals-r.Total.Refused)
		require.Equal(rt, r.Queue.Requeued, r.Total.Requeued)
		// A partition runs one batch at a time, while it is there and up.
		last := make([]float64, len(r.Partitions))
		slices.SortStableFunc(r.Timeline, func(a, b sim.BatchRecord) int {
			if a.Start < b.Start {
				return -1
			}
			return 1
		})
		var requests uint64
		for _, b := range r.Timeline {
			p := r.Partitions[b.Partition]
			require.GreaterOrEqual(rt, b.Start, last[b.Partition], "two batches at once on %s", p.ID)
			require.GreaterOrEqual(rt, b.Start/1e6, p.FromSeconds-1e-9)
			require.LessOrEqual(rt, b.End/1e6, p.UntilSeconds+1e-9)
			last[b.Partition] = b.End
			requests += uint64(b.Requests)
			require.LessOrEqual(rt, b.Rows, int(s.batch))
			for _, f := range w.Failures {
				from, to := f.At.Seconds()*1e6, (f.At+f.For).Seconds()*1e6
				if p.GPU == "n/"+f.GPU && f.For > 0 {
					require.False(rt, b.Start > from && b.Start < to, "a batch starts on a GPU that is down")
				}
			}
		}
		// What ran was answered or came back to the queue.
		require.GreaterOrEqual(rt, requests+2, r.Total.Good+r.Total.Late)
		for _, h := range r.History {
			require.LessOrEqual(rt, h.Busy, h.GPUs*1.000001*2) // an old and a new process may overlap
		}
	})
}

// TestSearch finds the edge of a world that is not one: bad from an edge on, or inside a hole far below it.
func TestSearch(t *testing.T) {
	world := func(bad func(rate float64) bool) func(context.Context, float64, uint64) (*sim.Result, error) {
		return func(_ context.Context, rate float64, seed uint64) (*sim.Result, error) {
			r := &sim.Result{Models: []sim.ModelResult{{}, {}}, Total: sim.Totals{Arrivals: 1000}}
			if bad(rate - float64(seed)) {
				r.Models[1].BadRate, r.Total.BadRate = .02, .009
			}
			return r, nil
		}
	}
	for _, guess := range []float64{1, 500, 100000} {
		found, err := sim.Goodput(t.Context(), sim.Search{Seeds: []uint64{0, 10, 20}, Guess: guess, Run: world(func(rate float64) bool { return rate > 1000 })})
		require.NoError(t, err)
		require.InEpsilon(t, 1010, found.Rate, .006)
		require.InEpsilon(t, 1000, found.Low, .006)
		require.InEpsilon(t, 1020, found.High, .006)
		for _, h := range found.All {
			require.Greater(t, h.Fails, h.Rate)
			for _, trial := range h.Trials {
				require.Equal(t, trial.Rate <= h.Rate, trial.Holds)
			}
		}
	}

	hole := func(rate float64) bool { return rate > 1000 || rate > 400 && rate < 750 }
	found, err := sim.Goodput(t.Context(), sim.Search{Seeds: []uint64{0}, Guess: 900, Run: world(hole)})
	require.NoError(t, err)
	require.InEpsilon(t, 400, found.Rate, .006, "what holds above a rate that fails does not count")

	never, always := world(func(float64) bool { return false }), world(func(float64) bool { return true })
	for want, search := range map[string]sim.Search{
		"5000: nothing fails":                      {Run: never, Most: 5000},
		"0: nothing holds":                         {Run: always},
		"2000: .9% of all requests are bad":        {Run: always, Most: 2000, Overall: true},
		"0: .9% of all requests are bad, too many": {Run: always, Overall: true, Bad: .005},
	} {
		search.Seeds = []uint64{0}
		found, err = sim.Goodput(t.Context(), search)
		require.NoError(t, err)
		require.Equal(t, strings.Split(want, ":")[0], fmt.Sprint(found.Rate), want)
	}

	// A rate at which no request arrives within the time is no rate that holds.
	found, err = sim.Goodput(t.Context(), sim.Search{Seeds: []uint64{0}, Run: func(_ context.Context, rate float64, _ uint64) (*sim.Result, error) {
		return &sim.Result{Models: []sim.ModelResult{{Totals: sim.Totals{BadRate: min(1, math.Floor(rate))}}}, Total: sim.Totals{Arrivals: uint64(rate)}}, nil
	}})
	require.NoError(t, err)
	require.Zero(t, found.Rate)

	_, err = sim.Goodput(t.Context(), sim.Search{})
	require.ErrorContains(t, err, "something to run and a seed")
}

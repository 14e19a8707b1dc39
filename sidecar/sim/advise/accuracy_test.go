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
		one, err := workload.Renewal{
			Model: int32(i), Rows: s.rows, Shape: s.shape, Curve: workload.Constant(total / float64(len(s.snapshot.GetModels()))), Random: workload.Seed(seed, "source", m.GetName()),
		}.Stream()
		if err != nil {
			panic(err)
		}
		all = append(all, one)
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

// truth is what the process holds under a discipline, over minutes that nobody recorded.
func (s source) truth(t *testing.T, discipline string, parameters map[string]string) float64 {
	found, err := sim.Goodput(t.Context(), sim.Search{Seeds: []uint64{101, 102}, Guess: 500, Run: func(ctx context.Context, rate float64, seed uint64) (*sim.Result, error) {
		w := sim.World{Snapshot: s.snapshot, Plan: &policy.Plan{Partitions: s.snapshot.GetCurrent().GetPartitions()}, Duration: time.Minute, Warmup: time.Second, Seed: seed, Jitter: .02, Knowledge: sim.LearnDelays, Streams: s.streams(rate, seed)}
		for _, m := range s.snapshot.GetModels() {
			w.Plan.Dispatch = append(w.Plan.Dispatch, &policy.Dispatch{Model: m.GetName(), Discipline: discipline, Parameters: parameters})
		}
		return sim.Run(ctx, w)
	}})
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
		gains  bool
	}{
		{"requests of four rows", []string{"a", "b"}, 1, 4, 30 * time.Second, true},
		{"a short recording of bursts", []string{"a", "b"}, .05, 1, 10 * time.Second, true},
		{"more models than GPUs, where batching gains little", []string{"a", "b", "c", "d", "e", "f", "g", "h"}, 1, 1, 20 * time.Second, false},
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
			truth := s.truth(t, "adaptive", nil) / s.truth(t, "timeout", map[string]string{"max_queue_delay": "5ms"})
			require.LessOrEqual(t, a.Low, truth)
			require.GreaterOrEqual(t, a.High, truth)
			require.Less(t, a.High/a.Low, 1.5, "a range that says nothing covers everything")
			require.Equal(t, c.gains, a.Low > 1)
			text := strings.Join(a.Text, "\n")
			if c.gains {
				require.Regexp(t, `Conch would hold 1\.[0-9]{2}x the traffic at the same SLO \(1\.[0-9]{2} to 1\.[0-9]{2} over 5 seeds\)`, text)
			} else {
				require.Contains(t, text, "Conch would gain nothing certain")
			}
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
		require.Equal(t, holds, fewer.truth(t, "adaptive", nil) >= a.Triton.Low, "%d GPUs, %.0f requests a second", n, a.Triton.Low)
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package segment_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/sidecar/sim/segment"
)

// drawn is a random world with queries.
func drawn(t *rapid.T) (segment.World, []segment.Query) {
	n := rapid.IntRange(1, 4).Draw(t, "models")
	w := segment.World{}
	var occupancy segment.Occupancy
	for range n {
		w.Models = append(w.Models, segment.Model{Name: "m", Operators: rapid.IntRange(1, 20).Draw(t, "operators")})
		occupancy = append(occupancy, segment.Occupant{
			Operator: time.Duration(rapid.IntRange(1, 5000).Draw(t, "operator us")) * time.Microsecond, Row: time.Duration(rapid.IntRange(0, 500).Draw(t, "row us")) * time.Microsecond,
			Share: rapid.Float64Range(.05, 1).Draw(t, "share"),
		})
	}
	w.Predictor = occupancy
	var queries []segment.Query
	now := time.Duration(0)
	for range rapid.IntRange(1, 60).Draw(t, "queries") {
		now += time.Duration(rapid.IntRange(0, 20_000).Draw(t, "gap us")) * time.Microsecond
		queries = append(queries, segment.Query{
			Model: rapid.IntRange(0, n-1).Draw(t, "model"), Batch: rapid.IntRange(1, 8).Draw(t, "batch"), Arrival: now,
			Deadline: now + time.Duration(rapid.IntRange(-1, 100).Draw(t, "target ms"))*ms,
		})
	}
	return w, queries
}

func padded(d time.Duration, margin float64) time.Duration {
	return time.Duration(float64(d) * (1 + margin))
}

// TestGroupsFitAndDropsAreHopeless follows every decision of Abacus in random worlds. No group takes more than the least headroom of its queries, margin
// included; what is dropped could not be finished in time even alone; operators run once, in order, with one query of a model at a time, in its order of
// arrival, and only the last slice of a group may be cut. Where predictions are true, nothing is late.
func TestGroupsFitAndDropsAreHopeless(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, queries := drawn(t)
		c := segment.Controller{
			Ways: rapid.IntRange(1, 6).Draw(t, "ways"), Enough: time.Duration(rapid.IntRange(0, 5).Draw(t, "enough ms")) * ms,
			Margin: rapid.SampledFrom([]float64{0, .1, 1}).Draw(t, "margin"), Deciding: time.Duration(rapid.IntRange(0, 1000).Draw(t, "deciding us")) * time.Microsecond,
			Whole: rapid.Bool().Draw(t, "whole"),
		}
		w.Error = rapid.SampledFrom([]float64{0, .07, .3}).Draw(t, "error")
		r, decisions := recorded(t, w, queries, c)
		done := make([]int, len(queries))
		gone := make([]bool, len(queries))
		for _, d := range decisions {
			for _, id := range d.Dropped {
				require.False(t, gone[id])
				gone[id] = true
				q := queries[id]
				rest := segment.Slice{Model: q.Model, Start: done[id], End: w.Models[q.Model].Operators, Batch: q.Batch}
				require.Greater(t, d.Start+padded(w.Predictor.Latency([]segment.Slice{rest}), c.Margin), q.Deadline, "query %d would have made it alone", id)
			}
			require.Equal(t, w.Predictor.Latency(d.Group), d.Predicted)
			models := map[int]bool{}
			for i, s := range d.Group {
				id := d.Queries[i]
				q := queries[id]
				require.LessOrEqual(t, d.Start+padded(d.Predicted, c.Margin), q.Deadline, "the group takes more than the headroom of query %d", id)
				require.False(t, gone[id] || models[s.Model])
				models[s.Model] = true
				require.Equal(t, segment.Slice{Model: q.Model, Start: done[id], End: s.End, Batch: q.Batch}, s)
				require.Greater(t, s.End, s.Start)
				require.LessOrEqual(t, q.Arrival, d.Start)
				for older := range id {
					require.True(t, queries[older].Model != q.Model || gone[older] || done[older] == w.Models[q.Model].Operators, "%d before %d", id, older)
				}
				done[id] = s.End
				if s.End < w.Models[q.Model].Operators {
					require.True(t, i > 0 && i == len(d.Group)-1 && !c.Whole)
				}
			}
		}
		for id, o := range r.Outcomes {
			require.Equal(t, queries[id], o.Query)
			require.Equal(t, gone[id], o.Dropped)
			require.GreaterOrEqual(t, o.End, o.Arrival)
			if !gone[id] {
				require.Equal(t, w.Models[o.Model].Operators, done[id])
			}
			require.False(t, w.Error == 0 && o.Late())
		}
	})
}

// TestTheSearchFindsAll: a search that never ends early finds the largest group of its kind, whatever its ways: with one operator more in it, the
// group would take more than the headroom.
func TestTheSearchFindsAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, queries := drawn(t)
		c := segment.Controller{Ways: rapid.IntRange(1, 6).Draw(t, "ways")}
		_, decisions := recorded(t, w, queries, c)
		for _, d := range decisions {
			if len(d.Group) < 2 {
				continue
			}
			last := &d.Group[len(d.Group)-1]
			if last.End == w.Models[last.Model].Operators {
				continue
			}
			more := slices.Clone(d.Group)
			more[len(more)-1].End++
			require.Greater(t, d.Start+w.Predictor.Latency(more), queries[d.Queries[0]].Deadline)
		}
	})
}

// TestOneAtATime: baselines run whole queries alone, start none whose deadline has passed, and with Hopeless drop only what could not be finished in time.
func TestOneAtATime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, queries := drawn(t)
		s := segment.Sequential{
			Order: rapid.SampledFrom([]segment.Order{segment.FCFS, segment.SJF, segment.EDF}).Draw(t, "order"), Hopeless: rapid.Bool().Draw(t, "hopeless"),
			Rounds: rapid.Bool().Draw(t, "rounds"), Deciding: time.Duration(rapid.IntRange(0, 1000).Draw(t, "deciding us")) * time.Microsecond,
		}
		r, decisions := recorded(t, w, queries, s)
		ran := map[int]bool{}
		last := -1
		for _, d := range decisions {
			for _, id := range d.Dropped {
				alone := time.Duration(0)
				if s.Hopeless {
					alone = w.Predictor.Latency([]segment.Slice{{Model: queries[id].Model, End: w.Models[queries[id].Model].Operators, Batch: queries[id].Batch}})
				}
				require.GreaterOrEqual(t, d.Start+alone, queries[id].Deadline)
			}
			if len(d.Group) == 0 {
				continue
			}
			require.Len(t, d.Group, 1)
			id := d.Queries[0]
			require.False(t, ran[id])
			ran[id] = true
			require.True(t, d.Start < queries[id].Deadline || s.Rounds)
			require.True(t, id > last || s.Order != segment.FCFS || s.Rounds, "first come, first served")
			last = id
		}
		for id, o := range r.Outcomes {
			require.NotEqual(t, ran[id], o.Dropped)
			require.False(t, o.Late() && s.Hopeless && !s.Rounds)
		}
	})
}

// TestSameSeedSameRun: a run is a function of its arguments, and its errors those of the seed.
func TestSameSeedSameRun(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w, queries := drawn(t)
		w.Error = .1
		run := func(seed uint64) *segment.Result {
			r, err := w.Run(t.Context(), queries, segment.Paper(), seed)
			require.NoError(t, err)
			return r
		}
		require.Equal(t, run(1), run(1))
		if r := run(1); r.Groups > 3 && r.Busy > 20*ms {
			require.NotEqual(t, r.Busy, run(2).Busy)
		}
	})
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package segment_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/sim/segment"
)

const ms = time.Millisecond

// recorded runs a world and keeps every decision.
func recorded(t require.TestingT, w segment.World, queries []segment.Query, s segment.Scheduler) (*segment.Result, []segment.Decision) {
	var all []segment.Decision
	w.Watch = func(d segment.Decision) { all = append(all, d) }
	r, err := w.Run(context.Background(), queries, s, 1)
	require.NoError(t, err)
	return r, all
}

// ends are when queries were answered, -1 for dropped ones.
func ends(r *segment.Result) (all []time.Duration) {
	for _, o := range r.Outcomes {
		if o.Dropped {
			all = append(all, -1)
			continue
		}
		all = append(all, o.End)
	}
	return all
}

// exact is Abacus without margin, early end of a search or time to decide.
func exact(ways int) segment.Controller { return segment.Controller{Ways: ways} }

// TestFigure12 is the paper's example of a group: q3 has 25 ms of headroom and takes 10, q2 leaves 10 of the rest, and two operators of q1 fill it. Two
// rounds of predictions find that (section 6.3): one between queries, and one within q1, in three ways. Operators are so large here that they do not overlap.
func TestFigure12(t *testing.T) {
	w := segment.World{
		Models:    []segment.Model{{Name: "a", Operators: 5}, {Name: "b", Operators: 1}, {Name: "c", Operators: 2}},
		Predictor: segment.Occupancy{{Operator: 5 * ms, Share: 1}, {Operator: 5 * ms, Share: 1}, {Operator: 5 * ms, Share: 1}},
	}
	q1, q2, q3 := segment.Query{Model: 0, Batch: 1, Deadline: 45 * ms}, segment.Query{Model: 1, Batch: 1, Deadline: 35 * ms}, segment.Query{Model: 2, Batch: 1, Deadline: 25 * ms}
	r, decisions := recorded(t, w, []segment.Query{q1, q2, q3}, exact(3))
	require.Equal(t, []segment.Decision{
		{
			Queries: []int{2, 1, 0}, Group: []segment.Slice{{Model: 2, End: 2, Batch: 1}, {Model: 1, End: 1, Batch: 1}, {Model: 0, End: 2, Batch: 1}},
			Predicted: 25 * ms, Asked: 2,
		},
		{Start: 25 * ms, Queries: []int{0}, Group: []segment.Slice{{Model: 0, Start: 2, End: 5, Batch: 1}}, Predicted: 15 * ms, Asked: 1},
	}, decisions)
	require.Equal(t, []time.Duration{40 * ms, 25 * ms, 25 * ms}, ends(r))
	require.Equal(t, 1, r.Cut)
}

// TestHandMade has runs that can be followed by hand: two models of four operators of 5 ms, which need half a GPU each.
func TestHandMade(t *testing.T) {
	w := segment.World{
		Models:    []segment.Model{{Name: "a", Operators: 4}, {Name: "b", Operators: 4}},
		Predictor: segment.Occupancy{{Operator: 5 * ms, Share: .5}, {Operator: 5 * ms, Share: .5}},
	}
	a := func(arrival, deadline time.Duration) segment.Query {
		return segment.Query{Batch: 1, Arrival: arrival * ms, Deadline: deadline * ms}
	}
	b := func(arrival, deadline time.Duration) segment.Query {
		return segment.Query{Model: 1, Batch: 1, Arrival: arrival * ms, Deadline: deadline * ms}
	}
	slow := func(s segment.Sequential) segment.Sequential { s.Deciding = 2 * ms; return s }
	padded := exact(2)
	padded.Margin = .5
	whole := exact(2)
	whole.Whole = true
	later := exact(2)
	later.Deciding = 3 * ms
	for name, test := range map[string]struct {
		s       segment.Scheduler
		queries []segment.Query
		ends    []time.Duration // in milliseconds, -1: dropped
	}{
		"two overlap":                            {exact(2), []segment.Query{a(0, 20), b(0, 20)}, []time.Duration{20, 20}},
		"one after the other":                    {segment.Sequential{Order: segment.FCFS}, []segment.Query{a(0, 40), b(0, 40)}, []time.Duration{20, 40}},
		"one of each model at a time":            {exact(2), []segment.Query{a(0, 50), a(0, 50)}, []time.Duration{20, 40}},
		"hopeless: dropped for the next":         {exact(2), []segment.Query{a(0, 19), b(0, 20)}, []time.Duration{-1, 20}},
		"its deadline has passed":                {exact(2), []segment.Query{a(0, 20), a(1, 10), b(1, 60)}, []time.Duration{20, -1, 40}},
		"a margin of half leaves room for one":   {padded, []segment.Query{a(0, 30), b(0, 29)}, []time.Duration{20, -1}},
		"decided while the first runs":           {later, []segment.Query{a(0, 50), b(1, 60)}, []time.Duration{23, 43}},
		"who comes after the decision waits":     {exact(2), []segment.Query{a(0, 100), b(1, 41), a(2, 60)}, []time.Duration{20, 40, 60}},
		"which may be too long":                  {exact(2), []segment.Query{a(0, 100), b(1, 41), a(2, 42)}, []time.Duration{20, 40, -1}},
		"sequential: dropped once it has passed": {segment.Sequential{Order: segment.FCFS}, []segment.Query{a(0, 30), b(0, 21), a(0, 30)}, []time.Duration{20, 40, -1}},
		"sequential: dropped when hopeless":      {segment.Sequential{Order: segment.FCFS, Hopeless: true}, []segment.Query{a(0, 30), b(0, 30), a(0, 40)}, []time.Duration{20, -1, 40}},
		"sequential: decides while nothing runs": {slow(segment.Sequential{Order: segment.FCFS}), []segment.Query{a(0, 99), b(0, 99)}, []time.Duration{22, 44}},
		"earliest deadline first":                {segment.Sequential{Order: segment.EDF}, []segment.Query{a(0, 90), b(0, 80), a(0, 70)}, []time.Duration{60, 40, 20}},
		"whole queries only":                     {whole, []segment.Query{a(0, 20), b(0, 90)}, []time.Duration{20, 20}},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := recorded(t, w, test.queries, test.s)
			var want []time.Duration
			for _, e := range test.ends {
				if e >= 0 {
					e *= ms
				}
				want = append(want, e)
			}
			require.Equal(t, want, ends(r))
		})
	}
}

// TestShortestFirst: SJF runs what is predicted to be shortest; in rounds it takes the oldest of each model only, and all of these before it looks again.
func TestShortestFirst(t *testing.T) {
	w := segment.World{
		Models:    []segment.Model{{Name: "a", Operators: 1}, {Name: "b", Operators: 1}},
		Predictor: segment.Occupancy{{Operator: 10 * ms, Row: 10 * ms, Share: 1}, {Operator: 25 * ms, Share: 1}},
	}
	queries := []segment.Query{
		{Model: 1, Batch: 1, Deadline: time.Second}, {Model: 0, Batch: 2, Deadline: time.Second}, {Model: 0, Batch: 1, Deadline: time.Second},
	}
	r, _ := recorded(t, w, queries, segment.Sequential{Order: segment.SJF})
	require.Equal(t, []time.Duration{55 * ms, 30 * ms, 10 * ms}, ends(r))
	r, _ = recorded(t, w, queries, segment.Sequential{Order: segment.SJF, Rounds: true})
	require.Equal(t, []time.Duration{45 * ms, 20 * ms, 55 * ms}, ends(r))
}

// TestCut: without enough room for all of a query, its operators are searched for, in as many ways as there are, until less than enough is left.
func TestCut(t *testing.T) {
	w := segment.World{
		Models:    []segment.Model{{Name: "urgent", Operators: 1}, {Name: "long", Operators: 100}},
		Predictor: segment.Occupancy{{Operator: 10 * ms, Share: 1}, {Operator: ms, Share: 1}},
	}
	queries := []segment.Query{{Model: 0, Batch: 1, Deadline: 47 * ms}, {Model: 1, Batch: 1, Deadline: time.Second}}
	for _, test := range []struct {
		ways, cut, asked int
		enough           time.Duration
	}{
		{1, 37, 2 + 6, 0},       // one query after the other, then 50, 25, 37, 43, 40, 38: a bisection
		{4, 37, 1 + 3, 0},       // both queries at once, then 20..80, 24..36, 36..39: a fifth a round
		{4, 36, 1 + 2, 5 * ms},  // 1 ms less than all of the headroom is enough
		{4, 20, 1 + 1, 20 * ms}, // so are 17
		{200, 37, 1 + 1, 0},     // all operators at once
	} {
		c := exact(test.ways)
		c.Enough = test.enough
		_, decisions := recorded(t, w, queries, c)
		require.Equal(t, test.cut, decisions[0].Group[1].End, "%+v", test)
		require.Equal(t, test.asked, decisions[0].Asked, "%+v", test)
	}
	whole := exact(4)
	whole.Whole = true
	_, decisions := recorded(t, w, queries, whole)
	require.Len(t, decisions[0].Group, 1)
}

// TestTruth: a group takes its true time, not the predicted one; a group that was planned for the predicted end starts when the one before is over.
func TestTruth(t *testing.T) {
	w := segment.World{
		Models:    []segment.Model{{Name: "a", Operators: 1}, {Name: "b", Operators: 1}},
		Predictor: segment.Occupancy{{Operator: 10 * ms, Share: 1}, {Operator: 10 * ms, Share: 1}},
		Truth:     segment.Occupancy{{Operator: 14 * ms, Share: 1}, {Operator: 8 * ms, Share: 1}},
	}
	queries := []segment.Query{{Model: 0, Batch: 1, Deadline: 12 * ms}, {Model: 1, Batch: 1, Arrival: ms, Deadline: 20 * ms}}
	r, decisions := recorded(t, w, queries, exact(2))
	require.Equal(t, []time.Duration{14 * ms, 22 * ms}, ends(r))
	require.Equal(t, 10*ms, decisions[1].Start)
	require.InDelta(t, 1, r.Outcomes.Violations(), 0)
}

// TestMeasures: late and dropped queries violate, percentiles are of answers, throughput of those in time.
func TestMeasures(t *testing.T) {
	q := func(arrival time.Duration) segment.Query {
		return segment.Query{Arrival: arrival, Deadline: arrival + 10*ms}
	}
	all := segment.Outcomes{{Query: q(0), End: 10 * ms}, {Query: q(0), End: 11 * ms}, {Query: q(0), Dropped: true, End: ms}, {Query: q(500 * ms), End: 505 * ms}}
	require.InDelta(t, .5, all.Violations(), 1e-12)
	require.InDelta(t, 4., all.Throughput(), 1e-12)
	require.InDelta(t, 6., all.Answered(), 1e-12)
	require.Equal(t, 11*ms, all.Percentile(.99))
	require.Equal(t, 10*ms, all.Percentile(.5))
	require.Zero(t, segment.Outcomes{}.Throughput())
	require.Zero(t, segment.Outcomes{}.Percentile(.99))
}

// TestRefused: what cannot be simulated is an error that says why.
func TestRefused(t *testing.T) {
	good := segment.World{Models: []segment.Model{{Name: "a", Operators: 1}}, Predictor: segment.Occupancy{{Operator: ms, Share: 1}}}
	none, wrong := good, good
	none.Models = []segment.Model{{Name: "a"}}
	wrong.Error = .5
	queries := []segment.Query{{Batch: 1, Deadline: ms}}
	for text, c := range map[string]struct {
		w segment.World
		q []segment.Query
		s segment.Scheduler
	}{
		"0 operators":               {none, queries, exact(1)},
		"a deviation of 0.5":        {wrong, queries, exact(1)},
		"in 0 ways":                 {good, queries, segment.Controller{}},
		"not below zero":            {good, queries, segment.Controller{Ways: 1, Margin: -1}},
		`the order "lifo"`:          {good, queries, segment.Sequential{Order: "lifo"}},
		"of fcfs are not":           {good, queries, segment.Sequential{Order: segment.FCFS, Deciding: -1}},
		"query 0 is for model 1":    {good, []segment.Query{{Model: 1}}, exact(1)},
		"query 1 arrives at 0s, be": {good, []segment.Query{{Arrival: 1}, {}}, exact(1)},
	} {
		_, err := c.w.Run(t.Context(), c.q, c.s, 1)
		require.ErrorContains(t, err, text)
	}
}

// TestRunEndsWithItsContext: a run whose context has ended ends at once.
func TestRunEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w := segment.World{
		Models: []segment.Model{{Name: "m", Operators: 1}}, Predictor: segment.Occupancy{{Operator: ms, Share: 1}},
		Watch: func(segment.Decision) { cancel() },
	}
	_, err := w.Run(ctx, []segment.Query{{Batch: 1, Deadline: 5 * ms}, {Batch: 1, Arrival: ms, Deadline: 6 * ms}}, segment.Paper(), 1)
	require.ErrorIs(t, err, context.Canceled)
}

// TestWorkUnderOverload: what a run looks at grows with the queries that arrive, not with how many of them wait: four times as many queries at four times what the GPU
// can do, of which ever more wait, take about four times the work.
func TestWorkUnderOverload(t *testing.T) {
	w := segment.World{
		Models:    []segment.Model{{Name: "a", Operators: 4}, {Name: "b", Operators: 4}, {Name: "c", Operators: 4}},
		Predictor: segment.Occupancy{{Operator: ms, Share: 1}, {Operator: ms, Share: 1}, {Operator: ms, Share: 1}},
	}
	looked := func(n int) float64 {
		var queries []segment.Query
		for i := range n {
			at := time.Duration(i) * ms
			queries = append(queries, segment.Query{Model: i % len(w.Models), Batch: 1, Arrival: at, Deadline: at + time.Hour})
		}
		r, err := w.Run(t.Context(), queries, exact(4), 1)
		require.NoError(t, err)
		require.GreaterOrEqual(t, r.Looked, 2*n, "each query is looked at when it comes and when it goes")
		return float64(r.Looked)
	}
	require.InEpsilon(t, 4, looked(4000)/looked(1000), .1)
}

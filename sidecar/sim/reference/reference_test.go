// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package reference_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/sim/reference"
)

// small is Symphony's example (section 3.3): l(b) = b + 5, an SLO of 12.
func small(gpus int) reference.Model {
	return reference.Model{Table: queue.Linear(1, 5, 8), MaxBatch: 8, SLO: 12, GPUs: gpus}
}

func resnet50() reference.Model {
	return reference.Model{Table: queue.Linear(1053e3, 5072e3, 64), MaxBatch: 64, SLO: 25e6, GPUs: 8}
}

// most is the number of requests that any schedule serves in time, by trying
// every set of waiting requests as the next batch, in any order, on any GPU.
func most(m reference.Model, free []queue.Time, arrivals []queue.Time, left uint) int {
	best := 0
	for set := left; set > 0; set = (set - 1) & left {
		rows, ready, deadline := 0, queue.Time(0), queue.Never
		for i, a := range arrivals {
			if set&(1<<i) != 0 {
				rows, ready, deadline = rows+1, max(ready, a), min(deadline, a+m.SLO)
			}
		}
		for g := range free {
			end := max(free[g], ready) + m.Table.At(rows)
			if rows > m.MaxBatch || end > deadline {
				continue
			}
			then := slices.Clone(free)
			then[g] = end
			best = max(best, rows+most(m, then, arrivals, left&^set))
		}
	}
	return best
}

// TestClairvoyantFindsTheOptimum compares a search that keeps everything with
// all schedules there are, where some requests must be dropped and where none.
func TestClairvoyantFindsTheOptimum(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	everything := reference.Search{Beam: 1 << 20, Price: 1000}
	dropped := 0
	for range 300 {
		m := small(1 + rng.IntN(2))
		m.MaxBatch = 2 + rng.IntN(5)
		var arrivals []queue.Time
		at := queue.Time(0)
		for range 6 {
			at += queue.Time(rng.IntN(4))
			arrivals = append(arrivals, at)
		}
		got, err := reference.Clairvoyant(m, everything, arrivals)
		require.NoError(t, err)
		want := most(m, make([]queue.Time, m.GPUs), arrivals, 1<<len(arrivals)-1)
		require.Equal(t, want, got.Rows, "%d GPUs, batches of %d, arrivals %v", m.GPUs, m.MaxBatch, arrivals)
		require.Equal(t, len(arrivals), got.Rows+got.Bad)
		dropped += got.Bad

		narrow, err := reference.Clairvoyant(m, reference.Search{Beam: 1, Price: 3}, arrivals)
		require.NoError(t, err)
		require.LessOrEqual(t, narrow.Rows, want)
		horizon, err := reference.Horizon(m, m.Foresight(), .5e9, arrivals)
		require.NoError(t, err)
		require.LessOrEqual(t, horizon.Rows, want, "who does not know the future cannot do better")
		require.Equal(t, len(arrivals), horizon.Rows+horizon.Bad)
	}
	require.Greater(t, dropped, 100, "the cases are hard enough to tell anything")
	require.Less(t, dropped, 1500)
}

// TestRegularArrivals: where arrivals come as expected, no request is dropped below
// the rate that GPUs in perfect turns hold, and some are above it. Just below it
// Horizon drops a few: it takes the arrivals for memoryless.
func TestRegularArrivals(t *testing.T) {
	m := reference.Model{Table: queue.Linear(1000, 5000, 32), MaxBatch: 32, SLO: 12000, GPUs: 3}
	exact := reference.Search{Beam: 6, Price: 3000, Ahead: 64} // batches are so small that every difference counts
	require.InDelta(t, 4./9*3, m.Staggered()/1e9*1000, 1e-9, "batches of 4 on 3 GPUs: one each .75")
	regular := func(gap queue.Time) (all []queue.Time) {
		for i := range queue.Time(400) {
			all = append(all, i*gap)
		}
		return all
	}
	for _, c := range []struct {
		gap                   queue.Time
		known, horizon, least int // the most drops of each, and the least of both
	}{{760, 0, 20, 0}, {1100, 0, 0, 0}, {650, 400, 400, 10}} {
		arrivals := regular(c.gap)
		known, err := reference.Clairvoyant(m, exact, arrivals)
		require.NoError(t, err)
		expected, err := reference.Horizon(m, exact, 1e9/float64(c.gap), arrivals)
		require.NoError(t, err)
		require.LessOrEqual(t, known.Bad, c.known, "%d: %+v", c.gap, known)
		require.LessOrEqual(t, expected.Bad, c.horizon, "%d: %+v", c.gap, expected)
		require.GreaterOrEqual(t, min(known.Bad, expected.Bad), c.least, "%d", c.gap)
	}
}

// TestTableTwo holds the references near what they are known to reach on the
// first row of Symphony's table 2, on runs that are short for a test.
func TestTableTwo(t *testing.T) {
	m := resnet50()
	require.InDelta(t, 5839, m.Staggered(), 40, "table 2 has whole batches")
	share := func(rate float64) float64 {
		r, err := reference.Clairvoyant(m, m.Thorough(), reference.Poisson(rate, 1, 1))
		require.NoError(t, err)
		return r.BadShare()
	}
	require.Less(t, share(5300), .01)
	require.Greater(t, share(6400), .02)
	r, err := reference.Horizon(m, m.Foresight(), 5000, reference.Poisson(5000, .1, 1))
	require.NoError(t, err)
	require.Less(t, r.BadShare(), .01)
	require.Greater(t, r.Rows, 5*r.Batches)
}

func TestGoodputBisects(t *testing.T) {
	got, err := reference.Goodput(100, 10000, .001, func(rate float64) (float64, error) { return rate / 1e5, nil })
	require.NoError(t, err)
	require.InEpsilon(t, 1000, got, .001)
	require.LessOrEqual(t, got, 1000.)
}

func TestRefuses(t *testing.T) {
	for _, m := range []reference.Model{
		{Table: queue.Linear(1, 5, 8), MaxBatch: 8, SLO: 12},
		{Table: queue.Linear(1, 5, 8), MaxBatch: 8, SLO: 12, GPUs: 17},
		{Table: queue.Linear(1, 5, 8), SLO: 12, GPUs: 1},
		{MaxBatch: 8, SLO: 12, GPUs: 1},
	} {
		_, err := reference.Clairvoyant(m, reference.Search{}, nil)
		require.ErrorContains(t, err, "reference: ")
		_, err = reference.Horizon(m, reference.Search{}, 1, nil)
		require.ErrorContains(t, err, "reference: ")
	}
}

// TestClockworkOfTableTwo: planning ahead, and the margin, are what makes
// Clockwork run batches of one in Symphony's table 2 (1,358 and 458 req/s).
func TestClockworkOfTableTwo(t *testing.T) {
	inception := reference.Model{Table: queue.Linear(5090e3, 18368e3, 64), MaxBatch: 64, SLO: 70e6, GPUs: 8}
	for _, c := range []struct {
		name    string
		model   reference.Model
		seconds float64
		paper   float64
	}{{"ResNet50", resnet50(), 10, 1358}, {"InceptionResNetV2", inception, 30, 458}} {
		got, err := reference.Clockwork().Goodput(c.model, c.seconds, 1)
		require.NoError(t, err)
		require.InEpsilon(t, c.paper, got, .05, c.name)
		_, median, err := reference.Clockwork().Serve(c.model, reference.Poisson(got, c.seconds, 1))
		require.NoError(t, err)
		require.Equal(t, 1, median, c.name)

		late, err := reference.Ahead{}.Goodput(c.model, c.seconds, 1)
		require.NoError(t, err)
		require.Greater(t, late, 1.1*got, "who decides when a GPU is free, does better")
	}
}

// TestHorizonEnds: the last requests are served though a plan would rather drop
// them than spend a GPU on so few.
func TestHorizonEnds(t *testing.T) {
	m := resnet50()
	r, err := reference.Horizon(m, m.Foresight(), 5000, []queue.Time{1e6})
	require.NoError(t, err)
	require.Equal(t, reference.Result{Requests: 1, Batches: 1, Rows: 1}, r)
}

// TestAheadAccountsForEverybody: every request that is not served is bad, and
// planning ahead without need costs nothing where GPUs are free.
func TestAheadAccountsForEverybody(t *testing.T) {
	m := resnet50()
	for _, rate := range []float64{100, 3000, 20000} {
		r, _, err := reference.Clockwork().Serve(m, reference.Poisson(rate, 2, 1))
		require.NoError(t, err)
		require.Equal(t, r.Requests, r.Rows+r.Bad, "at %g", rate)
	}
	alone, median, err := reference.Clockwork().Serve(m, []queue.Time{0, 1e9, 2e9})
	require.NoError(t, err)
	require.Equal(t, reference.Result{Requests: 3, Batches: 3, Rows: 3}, alone)
	require.Equal(t, 1, median)
}

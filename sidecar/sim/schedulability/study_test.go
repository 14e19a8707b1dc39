// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package schedulability_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/builtin"
	"github.com/conch-serving/conch/plugins/policy/exact"
	"github.com/conch-serving/conch/sidecar/plan"
	"github.com/conch-serving/conch/sidecar/sim/schedulability"
)

func study(t *testing.T) *schedulability.Study {
	t.Helper()
	shapes, err := schedulability.Table()
	require.NoError(t, err)
	s, err := schedulability.New(shapes, 0)
	require.NoError(t, err)
	return s
}

// TestSample counts a sample of the mixes: a policy that schedules fewer than it did has become worse, one that schedules more has become better
// and a new number here.
func TestSample(t *testing.T) {
	want := map[string]int{
		"nexus": 5, "gpulet_none": 5, "infaas": 3, "shepherd": 5, "symphony": 5, "static": 5, // of 60, of which exact search schedules 30
		"gpulet_evensplit": 10, "gpulet_bestfit": 15, "gpulet": 10, "gpulet_five": 18, "usher": 12,
		"gpulet_none_paper": 4, "gpulet_evensplit_paper": 11, "gpulet_bestfit_paper": 15, "gpulet_paper": 10, "gpulet_five_paper": 18,
		"alpaserve": 2, "conch": 4, // of 6, of which it schedules 4
	}
	s := study(t)
	for _, c := range schedulability.Contenders() {
		every := 331
		if c.Every > 0 {
			every = 3310
		}
		got, err := s.Count(t.Context(), c, every)
		require.NoError(t, err)
		assert.Equal(t, want[c.Name], got.Held, "%s, of %d mixes; exact search schedules %d", c.Name, got.Asked, got.Exact)
	}
}

// TestNobodyBeatsExactSearch: in random small worlds, whatever a built-in policy schedules is not impossible, and what its partitions carry in units
// the exact search finds too, with a schedule that holds.
func TestNobodyBeatsExactSearch(t *testing.T) {
	held := 0
	rapid.Check(t, func(t *rapid.T) {
		drawn := schedulability.Draw(rapid.Uint64Range(1, 1000).Draw(t, "table"))[:rapid.IntRange(1, 4).Draw(t, "models")]
		gpus := rapid.IntRange(1, 2).Draw(t, "GPUs")
		s := schedulability.World(drawn, gpus)
		rates := make(map[string]float64)
		for _, m := range s.Models {
			m.Rate = 50 * float64(rapid.IntRange(0, 4).Draw(t, "rate"))
			m.RowRate, rates[m.GetName()] = m.Rate, m.Rate
		}
		s.Evaluations = 30
		w, err := exact.New(s, exact.Options{Unit: 50, Most: 4})
		require.NoError(t, err)
		load, err := w.Load(rates)
		require.NoError(t, err)
		host, err := w.Host(s, nil)
		require.NoError(t, err)
		for _, name := range builtin.Names() {
			p, _ := builtin.New(name)
			d, err := p.Describe(t.Context())
			require.NoError(t, err)
			s.Parameters, err = d.Resolve(nil)
			require.NoError(t, err)
			answer, err := p.Plan(t.Context(), s, host)
			require.NoError(t, err, name)
			require.Empty(t, plan.Validate(s, answer), name)
			if w.Keeps(answer, rates) {
				require.False(t, w.Impossible(load), "%s schedules %v", name, rates)
			}
			holds, err := w.Holds(answer, rates)
			require.NoError(t, err)
			carried, err := w.Carry(answer, load)
			require.NoError(t, err)
			require.Equal(t, holds, carried.Whole, name)
			if !holds {
				continue
			}
			held++
			require.NoError(t, w.Check(carried.Schedule, rates), name)
			require.True(t, w.Schedulable(load), "%s schedules %v", name, rates)
			found, _ := w.Find(load)
			require.NoError(t, w.Check(found, rates))
		}
	})
	require.Positive(t, held)
}

// TestDrawnTablesAreTablesOfTheirOwn: a seed gives the same table, another one another; latency grows with the batch and falls with the share.
func TestDrawnTablesAreTablesOfTheirOwn(t *testing.T) {
	require.Equal(t, schedulability.Draw(1), schedulability.Draw(1))
	require.NotEqual(t, schedulability.Draw(1), schedulability.Draw(2))
	table, err := schedulability.Table()
	require.NoError(t, err)
	require.Len(t, table, 9)
	for _, shapes := range [][]schedulability.Shape{table, schedulability.Draw(3)} {
		for _, p := range schedulability.World(shapes, 1).GetProfiles() {
			for _, share := range exact.Sizes() {
				before := 0.0
				for batch := uint32(1); batch <= 32; batch++ {
					l, ok := p.Latency(batch, share)
					require.True(t, ok)
					require.GreaterOrEqual(t, l, before)
					whole, _ := p.Latency(batch, 100)
					require.GreaterOrEqual(t, l, whole)
					before = l
				}
			}
		}
	}
}

func TestParseSaysWhatIsWrong(t *testing.T) {
	for text, say := range map[string]string{
		"model,slo\nm,1\n":              "has 2 columns",
		"a,b,c,d,e,f,g,h\nm,1,x,,,,,\n": `"x" is no number`,
		"a,b\nm\n":                      "wrong number of fields",
	} {
		_, err := schedulability.Parse([]byte(text))
		require.ErrorContains(t, err, say)
	}
}

func TestRatesOfAMix(t *testing.T) {
	s := study(t)
	rates := s.Rates(1 + 2*9)
	require.InDelta(t, 100, rates["lenet"], 0)
	require.InDelta(t, 200, rates["resnet50"], 0)
	require.Zero(t, rates["googlenet"])
	total := 0.0
	for _, rate := range s.Rates(schedulability.Mixes) {
		total += rate
	}
	require.InDelta(t, 9*200, total, 0)
	require.EqualValues(t, math.Pow(3, 9)-1, schedulability.Mixes)
	_, _, err := s.Schedules(t.Context(), schedulability.Contender{Policy: "nobody"}, 1)
	require.ErrorContains(t, err, "no policy nobody")
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/plugins/policy"
)

func same(string) float64 { return 1 }

// saturated is what a row costs of a GPU that executes the largest batch b with 2 (alpha b + beta) <= us.
func saturated(alpha, beta, us float64) float64 {
	b := math.Floor((us/2 - beta) / alpha)
	if b < 1 {
		return math.Inf(1)
	}
	return (alpha*b + beta) / b
}

// TestSplitOfAChain: the step whose batches gain more from time gets more of it.
func TestSplitOfAChain(t *testing.T) {
	p := &policy.Pipeline{SloUs: 100_000, Rate: 1, Steps: []*policy.PipelineStep{{Model: "flat"}, {Model: "steep", After: []uint32{0}}}}
	us, ok := p.Split(same, func(step int, us float64) float64 {
		if step == 0 {
			return saturated(5000, 100, us) // gains nothing from batches
		}
		return saturated(500, 9000, us)
	})
	require.True(t, ok)
	require.Less(t, us[0], 25_000.)
	require.Greater(t, us[1], 75_000.)
	require.InDelta(t, 100_000, us[0]+us[1], 1)

	_, ok = p.Split(same, func(int, float64) float64 { return math.Inf(1) })
	require.False(t, ok, "no SLO is long enough for what never ends")
}

// TestSplitIsTheBest of all ways to divide an SLO into the same pieces, on trees; on any DAG no path is longer than the SLO.
func TestSplitIsTheBest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "steps")
		p := &policy.Pipeline{SloUs: 100, Rate: 1}
		var alphas, betas []float64
		tree := rapid.Bool().Draw(t, "tree")
		for i := range n {
			step := &policy.PipelineStep{Model: "m"}
			if i > 0 {
				step.After = []uint32{rapid.Uint32Range(0, uint32(i-1)).Draw(t, "after")} //nolint:gosec // few
				if other := rapid.Uint32Range(0, uint32(i-1)).Draw(t, "and"); !tree && other != step.After[0] {
					step.After = append(step.After, other)
				}
			}
			p.Steps = append(p.Steps, step)
			alphas, betas = append(alphas, rapid.Float64Range(.2, 6).Draw(t, "alpha")), append(betas, rapid.Float64Range(0, 12).Draw(t, "beta"))
		}
		cost := func(step int, us float64) float64 { return saturated(alphas[step], betas[step], us) }
		us, ok := p.Split(same, cost)
		if ok {
			ends := make([]float64, n)
			for i, step := range p.Steps {
				for _, before := range step.After {
					ends[i] = max(ends[i], ends[before])
				}
				ends[i] += us[i]
				require.LessOrEqual(t, ends[i], 100+1e-9)
				require.False(t, math.IsInf(cost(i, us[i]), 1))
			}
		}
		if !tree {
			return
		}
		// Every division of a tree: the time until which each step is over.
		best := math.Inf(1)
		ends := make([]float64, n)
		var try func(i int, sum float64)
		try = func(i int, sum float64) {
			if sum >= best {
				return
			}
			if i == n {
				best = sum
				return
			}
			from := 0.
			if after := p.Steps[i].After; len(after) > 0 {
				from = ends[after[0]]
			}
			for end := from; end <= 100; end++ {
				ends[i] = end
				try(i+1, sum+cost(i, end-from))
			}
		}
		try(0, 0)
		require.Equal(t, !math.IsInf(best, 1), ok)
		if ok {
			sum := 0.
			for i := range us {
				sum += cost(i, us[i])
			}
			require.InEpsilon(t, best, sum, 1e-9)
		}
	})
}

func TestPipelinesOfASnapshotAreChecked(t *testing.T) {
	s := &policy.Snapshot{Models: []*policy.Model{{Name: "a"}}, Pipelines: []*policy.Pipeline{{Name: "p", SloUs: 1, Steps: []*policy.PipelineStep{{Model: "a"}}}}}
	require.NoError(t, s.Check())
	s.Pipelines[0].Steps[0].Model = "b"
	require.ErrorContains(t, s.Check(), `step 0 of pipeline p is of model "b", which there is not`)
	s.Pipelines[0].Rate = math.NaN()
	require.ErrorIs(t, s.Check(), policy.ErrNumber)
}

// TestAStepMeetsTheWholeSLO: a model that only pipelines ask for has to meet the longest of their SLOs, however they are divided; one with clients of its
// own has to meet its own.
func TestAStepMeetsTheWholeSLO(t *testing.T) {
	point := func(us float64) []*policy.ProfilePoint {
		return []*policy.ProfilePoint{{Batch: 1, ThreadPercentage: 100, LatencyUs: &policy.Estimate{Value: us}, LatencyUpperUs: us}}
	}
	for name, c := range map[string]struct {
		takes float64
		rate  float64 // beside what the pipelines ask for
		want  bool
	}{
		"within its part":                        {9_000, 0, true},
		"within the longer SLO":                  {30_000, 0, true},
		"beyond every SLO":                       {50_000, 0, false},
		"beyond its own SLO, which clients have": {30_000, 5, false},
		"within its own SLO, which clients have": {9_000, 5, true},
	} {
		m := &policy.Model{Name: "m", SloUs: 10_000, Rate: c.rate, RowRate: c.rate}
		s := &policy.Snapshot{Models: []*policy.Model{m}, Profiles: []*policy.Profile{{Model: "m", GpuType: "g", Usable: true, Points: point(c.takes)}}}
		for _, slo := range []int64{20_000, 40_000} {
			p := &policy.Pipeline{Name: "p", SloUs: slo, Rate: 10, Steps: []*policy.PipelineStep{{Model: "m"}}}
			p.Load(map[string]*policy.Model{"m": m})
			s.Pipelines = append(s.Pipelines, p)
		}
		require.Equal(t, c.want, policy.NewIndex(s).Meets("m", "g", 100), name)
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package symphony

import (
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// small draws problems that every assignment of can be tried for.
func small(t *rapid.T) *problem {
	p := &problem{clusters: rapid.IntRange(1, 3).Draw(t, "sub-clusters"), maxRate: math.Inf(1), maxBytes: math.Inf(1), maxChange: math.Inf(1), weight: 1}
	history := rapid.Bool().Draw(t, "in force")
	for i := range rapid.IntRange(1, 6).Draw(t, "units") {
		u := unit{
			models: []string{strconv.Itoa(i)}, rate: float64(rapid.IntRange(0, 20).Draw(t, "rate")), static: float64(rapid.IntRange(1, 20).Draw(t, "static")),
			dynamic: float64(rapid.IntRange(0, 9).Draw(t, "dynamic")), cost: float64(rapid.IntRange(1, 5).Draw(t, "cost")), was: -1,
		}
		if history {
			u.was = rapid.IntRange(-1, p.clusters-1).Draw(t, "was")
		}
		p.units = append(p.units, u)
	}
	if rapid.Bool().Draw(t, "bounded") {
		p.maxRate, p.maxBytes = float64(rapid.IntRange(10, 60).Draw(t, "R")), float64(rapid.IntRange(10, 60).Draw(t, "S"))
	}
	if history {
		p.maxChange = float64(rapid.IntRange(0, 20).Draw(t, "C"))
	}
	return p
}

// every tries all assignments.
func (p *problem) every() (best float64, found bool) {
	best = math.Inf(1)
	a := make(assignment, len(p.units))
	for {
		if s := p.sums(a); p.within(s) {
			best, found = math.Min(best, p.objective(s)), true
		}
		i := 0
		for ; i < len(a); i++ {
			if a[i]++; a[i] < p.clusters {
				break
			}
			a[i] = 0
		}
		if i == len(a) {
			return best, found
		}
	}
}

// The search finds the optimum of small cases and says that it is, keeps the bounds, and finds nothing exactly where there is nothing. The
// baselines keep the bounds too, and are no better.
func TestSearchIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := small(t)
		want, possible := p.every()
		got, ok := p.solve(1e6)
		require.Equal(t, possible, ok)
		if !ok {
			return
		}
		require.InDelta(t, want, got.objective, 1e-9)
		require.InDelta(t, want, got.least, 1e-9, "nothing is left open")
		require.True(t, p.within(p.sums(got.assignment)))
		require.LessOrEqual(t, p.bound(), want+1e-9, "the bound that needs no search")
		if a, ok := p.greedy(); ok {
			require.True(t, p.within(p.sums(a)))
			require.GreaterOrEqual(t, p.objective(p.sums(a)), want-1e-9)
		}
		if a, ok := p.random(1, 500); ok {
			require.True(t, p.within(p.sums(a)))
			require.GreaterOrEqual(t, p.objective(p.sums(a)), want-1e-9)
		}
	})
}

// A search whose steps are spent states a gap within which the optimum lies.
func TestTheStatedGapHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := small(t)
		want, _ := p.every()
		if got, ok := p.solve(uint64(rapid.IntRange(2, 60).Draw(t, "steps"))); ok {
			require.GreaterOrEqual(t, got.objective, want-1e-9)
			require.LessOrEqual(t, got.least, want+1e-9)
		}
	})
}

// The paper's size: 400 models in 4 sub-clusters with exponential rates (A.1). The search is better than random assignments.
func TestFourHundredModels(t *testing.T) {
	p := &problem{clusters: 4, maxRate: math.Inf(1), maxBytes: math.Inf(1), maxChange: math.Inf(1), weight: 1}
	for i := range 400 {
		quantile := (float64(i*37%400) + .5) / 400
		p.units = append(p.units, unit{rate: -100 * math.Log(1-quantile), static: float64(20 + i*53%500), was: -1})
	}
	got, ok := p.solve(200_000)
	require.True(t, ok)
	random, ok := p.random(1, 200_000)
	require.True(t, ok)
	require.Less(t, got.objective, p.objective(p.sums(random))/2)
}

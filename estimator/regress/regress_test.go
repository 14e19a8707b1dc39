// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package regress_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/estimator/regress"
)

// waves is a function with a trend, a curve and a step, of which lasso alone, ridge alone and trees alone each miss something.
func waves(n int, seed uint64) *regress.Samples {
	random := rand.New(rand.NewPCG(seed, 0))
	s := &regress.Samples{Names: []string{"trend", "curve", "step", "noise"}}
	for range n {
		x := []float64{random.Float64() * 4, random.Float64() * 4, random.Float64(), random.Float64()}
		y := .5*x[0] + math.Sin(x[1])
		if x[2] > .6 {
			y++
		}
		s.X, s.Y = append(s.X, x), append(s.Y, y)
	}
	return s
}

func meanError(predict func([]float64) float64, s *regress.Samples) float64 {
	sum := 0.0
	for i, row := range s.X {
		sum += math.Abs(predict(row) - s.Y[i])
	}
	return sum / float64(len(s.X))
}

func TestStackBeatsItsLinearPart(t *testing.T) {
	stack, err := regress.Fit(waves(1500, 1), regress.Options{Seed: 1})
	require.NoError(t, err)
	fresh := waves(500, 2)
	stacked := meanError(stack.Predict, fresh)
	require.Less(t, stacked, meanError(stack.Lasso.Predict, fresh)/2)
	require.LessOrEqual(t, stacked, 1.05*min(meanError(stack.Ridge.Predict, fresh), meanError(stack.Boost.Predict, fresh)))
	require.InDelta(t, 1, stack.Weights[0]+stack.Weights[1]+stack.Weights[2], 1e-9)
	require.InDelta(t, stacked, stack.Median, .1, "the error on what was left out is that on fresh samples")
}

func TestLassoFindsTheLineAndNothingElse(t *testing.T) {
	s := waves(400, 3)
	for i, x := range s.X {
		s.Y[i] = 2*x[0] - x[2] + 7
	}
	l := regress.FitLasso(s, .01)
	require.Less(t, meanError(l.Predict, s), .05)
	require.Zero(t, l.Coefficients[3], "noise gets no coefficient")
}

func TestAFittedStackSurvivesItsFile(t *testing.T) {
	stack, err := regress.Fit(waves(300, 4), regress.Options{Seed: 1})
	require.NoError(t, err)
	text, err := json.Marshal(stack)
	require.NoError(t, err)
	var back regress.Stack
	require.NoError(t, json.Unmarshal(text, &back))
	require.NoError(t, back.Check())
	row := []float64{1, 2, .7, .1}
	require.InDelta(t, stack.Predict(row), back.Predict(row), 1e-12)

	back.Boost.Trees[0].Feature[0] = 99
	require.ErrorContains(t, back.Check(), "tree 0")
}

func TestFitIsAFunctionOfSamplesAndSeed(t *testing.T) {
	first, err := regress.Fit(waves(300, 5), regress.Options{Seed: 9})
	require.NoError(t, err)
	second, err := regress.Fit(waves(300, 5), regress.Options{Seed: 9})
	require.NoError(t, err)
	require.Equal(t, first, second)
}

func TestBadSamplesAreRefused(t *testing.T) {
	for name, s := range map[string]*regress.Samples{
		"none":        {Names: []string{"a"}},
		"not finite":  {Names: []string{"a"}, X: [][]float64{{math.NaN()}}, Y: []float64{1}},
		"wrong width": {Names: []string{"a"}, X: [][]float64{{1, 2}}, Y: []float64{1}},
		"no target":   {Names: []string{"a"}, X: [][]float64{{1}}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := regress.Fit(s, regress.Options{})
			require.Error(t, err)
		})
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package regress

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// Stack is a weighted mean of three regressors, with the error that it had on samples left out (USHER, section 3.2).
type Stack struct {
	Names []string `json:"features"`
	Lasso *Lasso   `json:"lasso"`
	Ridge *Ridge   `json:"ridge"`
	Boost *Boost   `json:"boost"`
	// Weights of lasso, kernel ridge and boosting: none is negative, together they are 1.
	Weights [3]float64 `json:"weights"`
	// Median and P90 are quantiles of the absolute error on groups that were left out, in units of the target.
	Median float64 `json:"left_out_median"`
	P90    float64 `json:"left_out_p90"`
}

// Options of a fit. The zero value of a field means its default.
type Options struct {
	LassoPenalty float64 // .002
	Centres      int     // 128
	Gamma        float64 // 1
	RidgePenalty float64 // .05
	Boost        BoostOptions
	Seed         uint64
	// Folds is how many parts samples without groups are judged in; 5.
	Folds int
}

func (o Options) filled() Options {
	set := func(v *float64, otherwise float64) {
		if *v == 0 {
			*v = otherwise
		}
	}
	whole := func(v *int, otherwise int) {
		if *v == 0 {
			*v = otherwise
		}
	}
	set(&o.LassoPenalty, .002)
	set(&o.Gamma, 1)
	set(&o.RidgePenalty, .05)
	whole(&o.Centres, 128)
	whole(&o.Boost.Trees, 200)
	whole(&o.Boost.Depth, 4)
	whole(&o.Boost.LeastLeaf, 30)
	set(&o.Boost.Rate, .08)
	set(&o.Boost.Huber, .25)
	set(&o.Boost.Shrink, 5)
	whole(&o.Folds, 5)
	return o
}

// Fit fits the three regressors, and their weights to what each predicted of the groups that it was not fitted on.
func Fit(s *Samples, o Options) (*Stack, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	o = o.filled()
	groups := s.Groups
	if len(groups) == 0 {
		groups = make([]string, len(s.X))
		for i := range groups {
			groups[i] = strconv.Itoa(i % o.Folds)
		}
	}
	names := slices.Compact(slices.Sorted(slices.Values(groups)))
	left := make([][3]float64, len(s.X))
	if len(names) > 1 {
		for _, g := range names {
			three, err := fitThree(s.Where(func(i int) bool { return groups[i] != g }), o)
			if err != nil {
				return nil, fmt.Errorf("regress: without %s: %w", g, err)
			}
			for i, row := range s.X {
				if groups[i] == g {
					left[i] = three.each(row)
				}
			}
		}
	}
	stack, err := fitThree(s, o)
	if err != nil {
		return nil, err
	}
	stack.Names = s.Names
	stack.weigh(left, s.Y)
	return stack, nil
}

func fitThree(s *Samples, o Options) (*Stack, error) {
	ridge, err := FitRidge(s, o.Centres, o.Gamma, o.RidgePenalty, o.Seed)
	if err != nil {
		return nil, err
	}
	boost := o.Boost
	boost.LeastLeaf = max(2, min(boost.LeastLeaf, len(s.X)/20))
	return &Stack{Lasso: FitLasso(s, o.LassoPenalty), Ridge: ridge, Boost: FitBoost(s, boost)}, nil
}

func (s *Stack) each(row []float64) [3]float64 {
	return [3]float64{s.Lasso.Predict(row), s.Ridge.Predict(row), s.Boost.Predict(row)}
}

// weigh chooses the weights, in steps of a twentieth, that have the least mean absolute error.
func (s *Stack) weigh(left [][3]float64, y []float64) {
	best := math.Inf(1)
	for a := 0; a <= 20; a++ {
		for b := 0; a+b <= 20; b++ {
			w := [3]float64{float64(a) / 20, float64(b) / 20, float64(20-a-b) / 20}
			sum := 0.0
			for i, three := range left {
				sum += math.Abs(w[0]*three[0] + w[1]*three[1] + w[2]*three[2] - y[i])
			}
			if sum < best {
				best, s.Weights = sum, w
			}
		}
	}
	errors := make([]float64, len(y))
	for i, three := range left {
		errors[i] = math.Abs(s.Weights[0]*three[0] + s.Weights[1]*three[1] + s.Weights[2]*three[2] - y[i])
	}
	s.Median, s.P90 = Quantile(errors, .5), Quantile(errors, .9)
}

// Predict is the stack's value at a row of features.
func (s *Stack) Predict(row []float64) float64 {
	y := 0.0
	if s.Weights[0] > 0 {
		y += s.Weights[0] * s.Lasso.Predict(row)
	}
	if s.Weights[1] > 0 {
		y += s.Weights[1] * s.Ridge.Predict(row)
	}
	if s.Weights[2] > 0 {
		y += s.Weights[2] * s.Boost.Predict(row)
	}
	return y
}

// Check says whether a stack that was read from a file can predict.
func (s *Stack) Check() error {
	d := len(s.Names)
	if s.Lasso == nil || s.Ridge == nil || s.Boost == nil {
		return errors.New("regress: a stack needs lasso, ridge and boost")
	}
	if len(s.Lasso.Coefficients) != d || len(s.Lasso.Mean) != d || len(s.Lasso.Scale) != d || len(s.Ridge.Mean) != d || len(s.Ridge.Scale) != d ||
		len(s.Ridge.Weights) != len(s.Ridge.Centres) {
		return fmt.Errorf("regress: coefficients do not agree with %d features", d)
	}
	for _, c := range s.Ridge.Centres {
		if len(c) != d {
			return fmt.Errorf("regress: a centre has %d features of %d", len(c), d)
		}
	}
	for i, t := range s.Boost.Trees {
		n := len(t.Feature)
		if n == 0 || len(t.Threshold) != n || len(t.Left) != n || len(t.Value) != n {
			return fmt.Errorf("regress: tree %d is broken", i)
		}
		for node, f := range t.Feature {
			if f >= d || f >= 0 && (t.Left[node] <= node || t.Left[node]+1 >= n) {
				return fmt.Errorf("regress: tree %d, node %d is broken", i, node)
			}
		}
	}
	return nil
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch

import (
	"context"
	"math"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
)

// cheapest looks for the cheapest plan that holds the load (min-cost), of which it is sure where there is one. Best is the cheapest of all beginnings that
// holds it by the arrivals that plans are chosen by.
func (s *search) cheapest(ctx context.Context, others []policy.Policy, all []*candidate, best *candidate) (*candidate, error) {
	if !s.holds(best.outcome) {
		return s.improve(ctx, best)
	}
	// What local search finds last has to be tried too, and so has the plan in force, which stays where it holds the load as cheaply.
	trials := uint32(s.set.draws)
	if s.inForce != nil {
		trials *= 2
	}
	last := min(s.left, trials)
	s.left -= last
	best, err := s.fewer(ctx, others, all, best)
	if err != nil {
		return nil, err
	}
	if best, err = s.settled(ctx, all, best); err != nil {
		return nil, err
	}
	if s.inForce != nil && s.holds(s.inForce.outcome) && (!best.sure || !s.saves(best)) {
		before := s.left
		s.left = last
		if _, err := s.certain(ctx, s.inForce); err != nil {
			return nil, err
		}
		s.left, last = before, s.left
	}
	if !best.sure {
		s.left += last
		return s.settled(ctx, all, best) // local search by the traffic would make it cheaper, and worse
	}
	better, err := s.improve(ctx, best)
	if err != nil {
		return nil, err
	}
	s.left += last
	if better == best {
		return best, nil
	}
	if ok, err := s.certain(ctx, better); err != nil || !ok {
		return best, err
	}
	return better, nil
}

// settled is the cheapest beginning that surely holds the load, or best where it surely does and is cheaper. Where none does it is the least bad of all that were
// tried under other arrivals.
func (s *search) settled(ctx context.Context, all []*candidate, best *candidate) (*candidate, error) {
	var holding []*candidate
	for _, c := range append(slices.Clone(all), best) {
		if s.holds(c.outcome) && !slices.Contains(holding, c) {
			holding = append(holding, c)
		}
	}
	slices.SortStableFunc(holding, func(a, b *candidate) int {
		switch {
		case s.better(a, b):
			return -1
		case s.better(b, a):
			return 1
		}
		return 0
	})
	for _, c := range holding {
		if ok, err := s.certain(ctx, c); ok || err != nil {
			return c, err
		}
	}
	return s.leastBad(best), nil
}

// leastBad is the plan with the least bad share of those that were tried under other arrivals, all in vain; the given one where none was tried.
func (s *search) leastBad(best *candidate) *candidate {
	if s.least != nil {
		return s.least
	}
	return best
}

// certain finds out whether a plan holds the load under arrivals that it was not chosen by: whether the upper bound of its bad share is tolerable, with a
// confidence of 95%, by draws of traffic that no other plan was tried with. A plan that was not tried, for want of evaluations, does not.
//
// The best of many plans under some arrivals is the one that these arrivals flatter most: what they say of it is too good by about as much as
// they differ from others.
func (s *search) certain(ctx context.Context, c *candidate) (bool, error) {
	if c.tried || c.outcome == nil || s.left < uint32(s.set.draws) {
		return c.sure, nil
	}
	c.tried = true
	var bad []float64
	sum := 0.0
	for range s.set.draws {
		s.drawn++
		outcomes, err := s.host.EvaluateDraw(ctx, s.drawn, c.plan)
		if err != nil {
			return false, err
		}
		s.left--
		s.evaluated++
		if len(outcomes[0].GetViolations()) > 0 {
			c.bad = 1
			return false, nil
		}
		bad = append(bad, outcomes[0].GetBadRate())
		if sum += outcomes[0].GetBadRate(); sum > s.set.sure*float64(s.set.draws) {
			break // it does not hold the load, whatever the others say
		}
	}
	c.bad = sum / float64(len(bad))
	if len(bad) == s.set.draws {
		c.upper = upper(bad)
		c.sure = c.upper <= s.set.sure
	}
	if !c.sure && (s.least == nil || c.bad < s.least.bad) {
		s.least = c
	}
	return c.sure, nil
}

// upper is the upper bound of the mean of what was drawn, with a confidence of 95%, by Student's distribution.
func upper(drawn []float64) float64 {
	n := float64(len(drawn))
	mean, squares := 0.0, 0.0
	for _, v := range drawn {
		mean += v / n
	}
	for _, v := range drawn {
		squares += (v - mean) * (v - mean)
	}
	return mean + student(len(drawn)-1)*math.Sqrt(squares/(n-1)/n)
}

// student is the 95th percentile of Student's distribution: by table, and past it by the first terms of its expansion around the normal one.
func student(freedom int) float64 {
	table := []float64{6.314, 2.920, 2.353, 2.132, 2.015}
	if freedom <= len(table) {
		return table[freedom-1]
	}
	const z = 1.6449
	f := float64(freedom)
	return z + (z*z*z+z)/(4*f) + (5*math.Pow(z, 5)+16*z*z*z+3*z)/(96*f*f)
}

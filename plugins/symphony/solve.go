// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package symphony

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// unit is a model with what has to lie where it lies: an ensemble and the models that it calls.
type unit struct {
	models []string
	// rate is r in requests per second; static and dynamic are s and d in bytes; cost is c, the seconds of a load or an unload.
	rate, static, dynamic, cost float64
	// gpus is how many GPUs the unit keeps busy.
	gpus float64
	// was is the sub-cluster that it is in; -1 where it is in none.
	was int
}

// problem is the mixed integer program of appendix A: units into sub-clusters, each in exactly one (8, 9).
type problem struct {
	units []unit
	// clusters is l.
	clusters int
	// maxRate, maxBytes and maxChange are R_max (4), S_max (5) and C_max (10).
	maxRate, maxBytes, maxChange float64
	// weight is w of the objective (3), with both deviations as fractions of their averages.
	weight float64
}

// assignment is the sub-cluster of each unit.
type assignment []int

// sums are what lies in each sub-cluster.
type sums struct {
	rate, static, dynamic []float64
	change                float64
}

func (p *problem) sums(a assignment) *sums {
	s := &sums{rate: make([]float64, p.clusters), static: make([]float64, p.clusters), dynamic: make([]float64, p.clusters)}
	for i, j := range a {
		u := p.units[i]
		s.rate[j] += u.rate
		s.static[j] += u.static
		s.dynamic[j] = math.Max(s.dynamic[j], u.dynamic)
		s.change += p.change(i, j)
	}
	return s
}

// change is the sum of c y over the sub-clusters for one unit (10): a load where it is new, an unload and a load where it moves.
func (p *problem) change(i, j int) float64 {
	switch p.units[i].was {
	case j:
		return 0
	case -1:
		return p.units[i].cost
	}
	return 2 * p.units[i].cost
}

// within reports the bounds (4), (5) and (10), with room for rounding.
func (p *problem) within(s *sums) bool {
	for j := range s.rate {
		if over(s.rate[j], p.maxRate) || over(s.static[j]+s.dynamic[j], p.maxBytes) {
			return false
		}
	}
	return !over(s.change, p.maxChange)
}

func over(value, limit float64) bool { return value > limit*(1+1e-12)+1e-9 }

// means are the averages over sub-clusters, 1 where there is nothing to average.
func (p *problem) means() (rate, static float64) {
	for _, u := range p.units {
		rate, static = rate+u.rate, static+u.static
	}
	rate, static = rate/float64(p.clusters), static/float64(p.clusters)
	if rate == 0 {
		rate = 1
	}
	if static == 0 {
		static = 1
	}
	return rate, static
}

// objective is (3), (6) and (7): the largest deviation of a sub-cluster's rate from the average, plus w times that of its static memory.
func (p *problem) objective(s *sums) float64 {
	meanRate, meanStatic := p.means()
	return deviation(s.rate, meanRate, 0) + p.weight*deviation(s.static, meanStatic, 0)
}

// deviation from the mean as a fraction of it, where so much is still to be given out: what is above stays above, what is below may be filled.
func deviation(all []float64, mean, left float64) float64 {
	worst := 0.0
	for _, value := range all {
		worst = math.Max(worst, math.Max(value-mean, mean-value-left))
	}
	return worst / mean
}

// result of a solver: an assignment within the bounds, its objective, and a lower bound of every assignment's.
type result struct {
	assignment assignment
	objective  float64
	least      float64
}

// greedy is a baseline: the largest units first, each where least lies of what the bounds allow; false where one finds no place. A unit that
// is somewhere stays there as long as changes are bounded.
func (p *problem) greedy() (assignment, bool) {
	meanRate, meanStatic := p.means()
	size := func(i int) float64 { return p.units[i].rate/meanRate + p.weight*p.units[i].static/meanStatic }
	a, placed := make(assignment, len(p.units)), p.sums(nil)
	put := func(i, j int) bool {
		u := p.units[i]
		if over(placed.rate[j]+u.rate, p.maxRate) || over(placed.static[j]+u.static+math.Max(placed.dynamic[j], u.dynamic), p.maxBytes) || over(placed.change+p.change(i, j), p.maxChange) {
			return false
		}
		a[i] = j
		placed.rate[j] += u.rate
		placed.static[j] += u.static
		placed.dynamic[j] = math.Max(placed.dynamic[j], u.dynamic)
		placed.change += p.change(i, j)
		return true
	}
	for _, i := range p.order() {
		if was := p.units[i].was; was >= 0 && !math.IsInf(p.maxChange, 1) && put(i, was) {
			continue
		}
		best, least := -1, math.Inf(1)
		for j := range p.clusters {
			filled := placed.rate[j]/meanRate + p.weight*placed.static[j]/meanStatic + size(i)
			if filled >= least {
				continue
			}
			before := *placed
			before.rate, before.static, before.dynamic = slices.Clone(placed.rate), slices.Clone(placed.static), slices.Clone(placed.dynamic)
			if put(i, j) {
				best, least = j, filled
			}
			*placed = before
		}
		if best < 0 || !put(i, best) {
			return nil, false
		}
	}
	return a, true
}

// order of units: the largest first.
func (p *problem) order() []int {
	meanRate, meanStatic := p.means()
	order := make([]int, len(p.units))
	for i := range order {
		order[i] = i
	}
	size := func(i int) float64 { return p.units[i].rate/meanRate + p.weight*p.units[i].static/meanStatic }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(size(b), size(a)) })
	return order
}

// random is the paper's baseline (A.2): so many random assignments, and the best of those within the bounds.
func (p *problem) random(seed, steps uint64) (assignment, bool) {
	source := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // the snapshot's seed makes the plan repeatable
	var best assignment
	least := math.Inf(1)
	for range steps/uint64(max(1, len(p.units))) + 1 {
		a := make(assignment, len(p.units))
		for i := range a {
			a[i] = source.IntN(p.clusters)
		}
		if s := p.sums(a); p.within(s) && p.objective(s) < least {
			best, least = a, p.objective(s)
		}
	}
	return best, best != nil
}

// improve moves units one by one, and swaps pairs, as long as the objective falls and steps are left.
func (p *problem) improve(a assignment, steps *uint64) assignment {
	a = slices.Clone(a)
	now := p.objective(p.sums(a))
	better := func(changed assignment) bool {
		*steps -= min(*steps, uint64(len(a)))
		if s := p.sums(changed); p.within(s) && p.objective(s) < now-1e-12 {
			now = p.objective(s)
			return true
		}
		return false
	}
	for found := true; found && *steps > 0; {
		found = false
		for i := range a {
			for j := range p.clusters {
				was := a[i]
				if a[i] = j; j == was || *steps == 0 || !better(a) {
					a[i] = was
				} else {
					found = true
				}
			}
			for k := range i {
				if a[i] == a[k] || *steps == 0 {
					continue
				}
				if a[i], a[k] = a[k], a[i]; better(a) {
					found = true
				} else {
					a[i], a[k] = a[k], a[i]
				}
			}
		}
	}
	return a
}

// solve is branch and bound from the best start that a greedy assignment and local search give. With steps to its end the result is the
// optimum, and the lower bound is its objective; else the gap is stated by a bound that needs no search.
func (p *problem) solve(steps uint64) (result, bool) {
	half := steps / 2
	r := result{objective: math.Inf(1), least: p.bound()}
	if a, ok := p.greedy(); ok {
		r.assignment = p.improve(a, &half)
		r.objective = p.objective(p.sums(r.assignment))
	}
	b := &branch{p: p, order: p.order(), a: make(assignment, len(p.units)), s: p.sums(nil), best: r, steps: half + steps/2}
	b.meanRate, b.meanStatic = p.means()
	for _, u := range p.units {
		b.leftRate, b.leftStatic = b.leftRate+u.rate, b.leftStatic+u.static
		b.history = b.history || u.was >= 0
	}
	b.down(0, 0)
	if b.steps > 0 && b.best.assignment != nil {
		b.best.least = b.best.objective
	}
	return b.best, b.best.assignment != nil
}

// bound of the objective: the largest unit alone lies so far above the average.
func (p *problem) bound() float64 {
	meanRate, meanStatic := p.means()
	rate, static := 0.0, 0.0
	for _, u := range p.units {
		rate, static = math.Max(rate, u.rate/meanRate-1), math.Max(static, u.static/meanStatic-1)
	}
	return rate + p.weight*static
}

type branch struct {
	p     *problem
	order []int
	a     assignment
	s     *sums
	best  result
	steps uint64
	// meanRate and meanStatic are the averages, leftRate and leftStatic what is not yet assigned.
	meanRate, meanStatic, leftRate, leftStatic float64
	// history: units are somewhere, so that empty sub-clusters are not alike.
	history bool
}

func (b *branch) down(at, used int) {
	if b.steps == 0 {
		return
	}
	b.steps--
	if deviation(b.s.rate, b.meanRate, b.leftRate)+b.p.weight*deviation(b.s.static, b.meanStatic, b.leftStatic) >= b.best.objective-1e-12 {
		return
	}
	if at == len(b.order) {
		b.best.assignment, b.best.objective = slices.Clone(b.a), b.p.objective(b.s)
		return
	}
	i := b.order[at]
	u := b.p.units[i]
	for j := range b.p.clusters {
		if j > used && !b.history {
			// The first empty sub-cluster stands for all.
			break
		}
		rate, static, dynamic, change := b.s.rate[j], b.s.static[j], b.s.dynamic[j], b.s.change
		b.a[i], b.s.rate[j], b.s.static[j], b.s.dynamic[j], b.s.change = j, rate+u.rate, static+u.static, math.Max(dynamic, u.dynamic), change+b.p.change(i, j)
		b.leftRate, b.leftStatic = b.leftRate-u.rate, b.leftStatic-u.static
		if !over(b.s.rate[j], b.p.maxRate) && !over(b.s.static[j]+b.s.dynamic[j], b.p.maxBytes) && !over(b.s.change, b.p.maxChange) {
			b.down(at+1, max(used, j+1))
		}
		b.leftRate, b.leftStatic = b.leftRate+u.rate, b.leftStatic+u.static
		b.s.rate[j], b.s.static[j], b.s.dynamic[j], b.s.change = rate, static, dynamic, change
	}
}

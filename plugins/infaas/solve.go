// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package infaas

import (
	"cmp"
	"math"
	"slices"
)

// candidate is a variant on one type of place: v_ij of section 4.2.1.
type candidate struct {
	model   string
	gpuType string
	share   uint32
	// batch at which an instance saturates within what it promises, and the rows per second then: Q.
	batch uint32
	rate  float64
	// accuracy, and latency in microseconds that a request is promised.
	accuracy float64
	latency  int64
	// cost of an instance per hour, and seconds to load it: C and T_load.
	cost, load float64
	// running instances that are not interfered: N.
	running int
}

// counts of instances, by candidate in the order of an app's candidates.
type counts []int

// problem is one decision: how many instances of which candidates carry a load at the least cost.
type problem struct {
	candidates []*candidate
	// running is N, less what other wishes of the app took; load is in rows per second, the headroom included.
	running counts
	load    float64
	// unpredictability is lambda.
	unpredictability float64
	// slots by type of place, and whether counts really fit on the hosts.
	slots map[string]int
	fits  func(counts) bool
	// steps that the exact solver may spend.
	steps uint64
}

// cost is the sum of Cost(delta) over the candidates plus what already runs: C (n + lambda T_load max(n - N, 0)).
func (p *problem) cost(n counts) float64 {
	sum := 0.0
	for i, c := range p.candidates {
		sum += c.cost * (float64(n[i]) + p.unpredictability*c.load*float64(max(0, n[i]-p.running[i])))
	}
	return sum
}

func (p *problem) carries(n counts) bool {
	sum, some := 0.0, false
	for i, c := range p.candidates {
		sum += c.rate * float64(n[i])
		some = some || n[i] > 0
	}
	return some && sum >= p.load*(1-1e-9)
}

// feasible reports that there are places for the counts: slots first, for that is cheap.
func (p *problem) feasible(n counts) bool {
	used := make(map[string]int)
	for i, c := range p.candidates {
		if used[c.gpuType] += n[i]; used[c.gpuType] > p.slots[c.gpuType] {
			return false
		}
	}
	return p.fits(n)
}

// most instances of a candidate that can be of use.
func (p *problem) most(i int) int {
	c := p.candidates[i]
	return min(p.slots[c.gpuType], max(1, int(math.Ceil(p.load/c.rate-1e-9))))
}

// greedy is section 4.2.2: what runs as it is, less an instance, more of one variant that runs (replicate), or one variant alone (upgrade or
// downgrade), whichever carries the load at the least cost.
func (p *problem) greedy() (counts, bool) {
	options := []counts{slices.Clone(p.running)}
	carried := 0.0
	for i, c := range p.candidates {
		carried += c.rate * float64(p.running[i])
	}
	for i, c := range p.candidates {
		if p.running[i] > 0 {
			less, more := slices.Clone(p.running), slices.Clone(p.running)
			less[i]--
			more[i] += max(0, int(math.Ceil((p.load-carried)/c.rate-1e-9)))
			options = append(options, less, more)
		}
		alone := make(counts, len(p.candidates))
		alone[i] = max(1, int(math.Ceil(p.load/c.rate-1e-9)))
		options = append(options, alone)
	}
	slices.SortStableFunc(options, func(a, b counts) int { return cmp.Compare(p.cost(a), p.cost(b)) })
	for _, n := range options {
		if p.carries(n) && p.feasible(n) {
			return n, true
		}
	}
	return nil, false
}

// exact solves the integer program of section 4.2.1 by branch and bound: candidates by cost per rate, every count of each from the largest
// down, cut where even the cheapest rate for the rest of the load costs as much as the best. It is exact unless its steps are spent, and then
// the best so far.
func (p *problem) exact() (counts, bool) {
	order := make([]int, len(p.candidates))
	for i := range order {
		order[i] = i
	}
	per := func(i int) float64 { return p.candidates[i].cost / p.candidates[i].rate }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(per(a), per(b)) })
	var best counts
	least := math.Inf(1)
	if n, ok := p.greedy(); ok {
		best, least = n, p.cost(n)
	}
	steps := uint64(0)
	n := make(counts, len(p.candidates))
	var branch func(at int, left float64)
	branch = func(at int, left float64) {
		if steps++; steps > p.steps {
			return
		}
		spent := p.cost(n)
		if left <= 1e-9*math.Max(1, p.load) && p.carries(n) {
			if spent < least-1e-12 && p.feasible(n) {
				best, least = slices.Clone(n), spent
			}
			return
		}
		// Costs of what is still open are at least in proportion, at the ratio of the next candidate: they come by ratio.
		if at == len(order) || spent+math.Max(0, left)*per(order[at]) >= least-1e-12 {
			return
		}
		i := order[at]
		rate := p.candidates[i].rate
		for k := min(p.most(i), max(1, int(math.Ceil(left/rate-1e-9)))); k >= 0; k-- {
			n[i] = k
			branch(at+1, left-rate*float64(k))
		}
		n[i] = 0
	}
	branch(0, p.load)
	return best, best != nil
}

// whatever fits is for a load that no counts carry: instances of the candidates that carry most, as many as there are places for.
func (p *problem) whatever() counts {
	order := make([]int, len(p.candidates))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p.candidates[b].rate, p.candidates[a].rate) })
	n := make(counts, len(p.candidates))
	for _, i := range order {
		for n[i] < p.most(i) && !p.carries(n) {
			if n[i]++; !p.feasible(n) {
				n[i]--
				break
			}
		}
	}
	return n
}

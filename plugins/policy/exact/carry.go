// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package exact

import (
	"fmt"

	"github.com/conch-serving/conch/plugins/policy"
)

// Carried is the most of a load that a plan's partitions carry, and how.
type Carried struct {
	Load     Load
	Schedule Schedule
	// Partitions of the plan, in the schedule's order.
	Partitions [][]*policy.Partition
	// Whole: nothing is left over.
	Whole bool
}

// Carry finds the most units of the load that some schedule on the partitions of the plan carries, each model only where the plan has it. Partitions on
// CPUs or on several GPUs, and GPUs with more than 100% given away, carry nothing; an instance with a share of its own and one of a derived model
// are not counted. Whether the plan may be applied is for plan.Validate to say.
func (w *World) Carry(p *policy.Plan, asked Load) (Carried, error) {
	if !asked.within(w.most) {
		return Carried{}, fmt.Errorf("%w: more than %d units of one model are asked for", ErrWorld, w.o.Most)
	}
	sides := w.sides(p, asked)
	var c Carried
	var lists [4][]placed
	for i := range lists {
		lists[i] = []placed{{}}
		if i < len(sides) {
			lists[i] = w.within(sides[i].spots, asked)
		}
	}
	first, second := newLattice(asked), newLattice(asked)
	for i, l := range []*lattice{first, second} {
		for _, a := range lists[2*i] {
			for _, b := range lists[2*i+1] {
				l.mark(a.sum + b.sum)
			}
		}
		l.fill()
	}
	firstLoad, secondLoad := best(first, second)
	c.Load, c.Whole = firstLoad+secondLoad, firstLoad+secondLoad == asked
	left := c.Load
	for i, half := range []Load{firstLoad, secondLoad} {
		a, b := both(lists[2*i], lists[2*i+1], half)
		for j, carried := range []placed{a, b} {
			if 2*i+j >= len(sides) {
				break
			}
			side := sides[2*i+j]
			for k := range side.spots {
				carried.parts[k] = carried.parts[k].atMost(left)
				left = left.less(carried.parts[k])
			}
			c.Schedule, c.Partitions = append(c.Schedule, w.run(side.spots, carried)), append(c.Partitions, side.parts)
		}
	}
	return c, nil
}

// side is a GPU of a plan.
type side struct {
	spots []spot
	parts []*policy.Partition
}

// sides are the GPUs that a plan uses.
func (w *World) sides(p *policy.Plan, asked Load) (all []side) {
	for _, g := range w.x.GPUs() {
		if g.GetUnavailable() {
			continue
		}
		var used side
		total := uint32(0)
		for _, part := range p.GetPartitions() {
			if len(part.GetGpus()) != 1 || !part.On(g.Node, g.GetId()) {
				continue
			}
			total += min(part.GetThreadPercentage(), 101)
			size := -1
			for i, s := range w.o.Sizes {
				if s <= part.GetThreadPercentage() {
					size = i
				}
			}
			var most Load
			for _, in := range part.GetInstances() {
				i, known := w.index[in.GetModel()]
				if own := in.GetThreadPercentage(); known && most.Of(i) == 0 && (own == 0 || own == part.GetThreadPercentage()) {
					most = most.With(i, asked.Of(i))
				}
			}
			if size >= 0 && most != 0 {
				used.spots, used.parts = append(used.spots, spot{size, most}), append(used.parts, part)
			}
		}
		if len(used.spots) > 0 && total <= 100 {
			all = append(all, used)
		}
	}
	return all
}

// within are the maximal loads that a GPU carries, and how.
func (w *World) within(spots []spot, asked Load) []placed {
	how := make(map[Load]placed)
	var sums []Load
	w.gpu(spots, func(p placed) bool {
		p.sum = p.sum.atMost(asked)
		if _, known := how[p.sum]; !known {
			how[p.sum] = p
			sums = append(sums, p.sum)
		}
		return true
	})
	all := []placed{}
	for _, sum := range w.tops(sums) {
		all = append(all, how[sum])
	}
	if len(all) == 0 {
		all = append(all, placed{})
	}
	return all
}

// best divides most of the load between two halves: a load of each, within what was asked for together.
func best(first, second *lattice) (firstLoad, secondLoad Load) {
	// most[at] is the most that the second half carries within a load.
	units, most := make([]uint8, second.size), make([]uint8, second.size)
	for at := range most {
		for k, stride := range second.stride {
			if at/stride%second.radix[k] == 0 {
				continue
			}
			units[at] = units[at-stride] + 1
			most[at] = max(most[at], most[at-stride])
		}
		if second.has(at) {
			most[at] = units[at]
		}
	}
	top, found := -1, 0
	for at := range first.size {
		if n := int(units[at]) + int(most[first.size-1-at]); first.has(at) && n > top {
			top, found = n, at
		}
	}
	rest := first.size - 1 - found
	for !second.has(rest) {
		for k, stride := range second.stride {
			if rest/stride%second.radix[k] > 0 && most[rest-stride] == most[rest] {
				rest -= stride
				break
			}
		}
	}
	return first.load(found), second.load(rest)
}

// both finds the two GPUs' loads that carry a half.
func both(first, second []placed, half Load) (a, b placed) {
	for _, a := range first {
		left := half.missing(a.sum)
		for _, b := range second {
			if left.within(b.sum) {
				return a, b
			}
		}
	}
	return placed{}, placed{}
}

// Keeps reports whether the plan carries the rates exactly as it promises to divide them (Instance.rate): such a division need not be in whole units.
func (w *World) Keeps(p *policy.Plan, rates map[string]float64) bool {
	s, ok := w.promised(p)
	return ok && w.Check(s, rates) == nil
}

// Holds reports whether the plan carries the rates, divided in whole units on its partitions.
func (w *World) Holds(p *policy.Plan, rates map[string]float64) (bool, error) {
	asked, err := w.Load(rates)
	if err != nil {
		return false, err
	}
	if !asked.within(w.most) {
		return false, nil
	}
	var lists [][]placed
	all := 1
	for _, side := range w.sides(p, asked) {
		lists = append(lists, w.within(side.spots, asked))
		if all < many {
			all *= len(lists[len(lists)-1])
		}
	}
	if all < many {
		return covered(lists, asked), nil
	}
	c, err := w.Carry(p, asked)
	return c.Whole, err
}

// many is from how many combinations on it is quicker to number loads than to go through the combinations.
const many = 20_000

// covered reports whether one load of each list carry the asked together.
func covered(lists [][]placed, asked Load) bool {
	if asked == 0 {
		return true
	}
	if len(lists) == 0 {
		return false
	}
	for _, p := range lists[0] {
		if covered(lists[1:], asked.missing(p.sum)) {
			return true
		}
	}
	return false
}

// promised is the schedule that the rates of a plan's instances make; false where a round is too long for an SLO. Whether it carries what is asked
// for is for Check to say.
func (w *World) promised(p *policy.Plan) (Schedule, bool) {
	var s Schedule
	for _, side := range w.sides(p, w.most) {
		rates := make([][maxModels]float64, len(side.spots))
		for i, part := range side.parts {
			for _, in := range part.GetInstances() {
				if m, known := w.index[in.GetModel()]; known && side.spots[i].most.Of(m) > 0 {
					rates[i][m] = max(0, in.GetRate())
				}
			}
		}
		parts := make([]Part, len(side.spots))
		for i, spot := range side.spots {
			length, batches, ok := w.least(spot.size, &rates[i], w.disturbance(side.spots, i, func(j, m int) bool { return rates[j][m] > 0 }))
			if !ok {
				return nil, false
			}
			parts[i] = w.turns(spot.size, length, &rates[i], &batches)
		}
		s = append(s, parts)
	}
	return s, true
}

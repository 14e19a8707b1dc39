// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package exact

import (
	"slices"
)

// maxParts is how many partitions a GPU may have.
const maxParts = 5

// spot is a partition that may be used: the index of its size, and the most that it may be asked to carry. A model that may not be there has 0.
type spot struct {
	size int
	most Load
}

// placed is what a GPU carries: in all, and by spot.
type placed struct {
	sum   Load
	parts [maxParts]Load
}

// partKey is a partition of a size beside others that disturb it so much.
type partKey struct {
	size        int
	disturbance float64
}

// part are the maximal loads that a partition carries.
func (w *World) part(size int, disturbance float64) []Load {
	key := partKey{size, disturbance}
	if all, ok := w.parts[key]; ok {
		return all
	}
	// The loads that can be carried are closed downwards: a spot without room for one unit more of a model has none for two.
	found := make(map[Load]bool)
	var extend func(at Load, from int)
	extend = func(at Load, from int) {
		found[at] = true
		for i := from; i < len(w.models); i++ {
			if at.Of(i) == w.most.Of(i) {
				continue
			}
			if !w.step(stepsOfRound) {
				return
			}
			next := at + Load(0).With(i, 1)
			if _, _, ok := w.round(size, next, disturbance); ok {
				extend(next, i)
			}
		}
	}
	extend(0, 0)
	all := []Load{}
	for at := range found {
		top := true
		for i := range w.models {
			if at.Of(i) < w.most.Of(i) && found[at+Load(0).With(i, 1)] {
				top = false
				break
			}
		}
		if top {
			all = append(all, at)
		}
	}
	slices.Sort(all) // a map has no order, and the same question has the same answer
	w.parts[key] = all
	return all
}

// partWithin are the maximal loads that a partition carries, none above the most.
func (w *World) partWithin(size int, disturbance float64, most Load) []Load {
	all := w.part(size, disturbance)
	if most == w.most {
		return all
	}
	cut := make([]Load, len(all))
	for i, l := range all {
		cut[i] = l.atMost(most)
	}
	return w.tops(cut)
}

// tops are the loads that lie within no other, sorted. It takes the slice.
func (w *World) tops(all []Load) []Load {
	slices.Sort(all)
	all = slices.Compact(all)
	kept := all[:0:0]
	for _, a := range slices.Backward(all) {
		if !w.step(1 + len(kept)/perStep) {
			break
		}
		// What a load lies within has the larger number.
		if !slices.ContainsFunc(kept, func(b Load) bool { return a.within(b) }) {
			kept = append(kept, a)
		}
	}
	return kept
}

const (
	// stepsOfRound is how many steps it takes to look for the round of a load.
	stepsOfRound = 16
	// perStep is how many loads are compared in the time of a step.
	perStep = 32
)

// gpu yields what a GPU with the spots carries, until yield wants no more: among it everything maximal, not everything that lies within, and
// some twice.
//
// The models on a spot disturb the other spots, so that spots cannot be searched one by one. But only two numbers count: the most that any model
// disturbs the others, and the most that any does on the spots beside its own. The search goes through both: the spot with the first is
// disturbed by the second, all others by the first, and each has only models that disturb no more than that.
func (w *World) gpu(spots []spot, yield func(placed) bool) {
	if len(spots) > maxParts {
		return
	}
	seen := make(map[[maxParts]spot]bool)
	for used := 1; used < 1<<len(spots); used++ {
		var at []int
		var key [maxParts]spot
		for i := range spots {
			if used>>i&1 != 0 && spots[i].most != 0 {
				key[len(at)] = spots[i]
				at = append(at, i)
			}
		}
		if len(at) == 0 || seen[key] {
			continue // equal spots are as good as each other
		}
		seen[key] = true
		if len(at) == 1 {
			for _, l := range w.partWithin(spots[at[0]].size, alone, spots[at[0]].most) {
				p := placed{sum: l}
				p.parts[at[0]] = l
				if !yield(p) {
					return
				}
			}
			continue
		}
		if !w.together(spots, at, yield) {
			return
		}
	}
}

// together yields what spots carry that are all in use.
func (w *World) together(spots []spot, at []int, yield func(placed) bool) bool {
	for k, worst := range at {
		if slices.ContainsFunc(at[:k], func(i int) bool { return spots[i] == spots[worst] }) {
			continue
		}
		others := slices.Delete(slices.Clone(at), k, k+1)
		var beside []float64
		for _, i := range others {
			beside = append(beside, w.harms(spots[i])...)
		}
		slices.Sort(beside)
		beside = slices.Compact(beside)
		for _, first := range w.harms(spots[worst]) {
			for _, second := range beside {
				if second > first {
					break
				}
				lists := [][]Load{w.partWithin(spots[worst].size, second, w.harmless(spots[worst], first))}
				for _, i := range others {
					lists = append(lists, w.partWithin(spots[i].size, first, w.harmless(spots[i], second)))
				}
				if !w.combine(spots, append([]int{worst}, others...), lists, yield) {
					return false
				}
			}
		}
	}
	return true
}

// combine yields all sums of one load of each list; equal spots beside the first take theirs in order, because they are interchangeable.
func (w *World) combine(spots []spot, at []int, lists [][]Load, yield func(placed) bool) bool {
	var from [maxParts]int
	var next func(k int, partial placed) bool
	next = func(k int, partial placed) bool {
		if k == len(at) {
			return yield(partial)
		}
		start := 0
		if k > 1 && spots[at[k]] == spots[at[k-1]] {
			start = from[k-1]
		}
		for j := start; j < len(lists[k]); j++ {
			if !w.step(1) {
				return false
			}
			from[k] = j
			extended := partial
			extended.parts[at[k]] = lists[k][j]
			extended.sum = (partial.sum + lists[k][j]).atMost(ceiling)
			if !next(k+1, extended) {
				return false
			}
		}
		return true
	}
	return next(0, placed{})
}

// ceiling has the most units that may be asked for of every model, so that sums stay within their bits.
const ceiling = maxUnits * (guards >> (width - 1))

// harms are how much the models that may be on the spot disturb others, ascending.
func (w *World) harms(s spot) (all []float64) {
	for i := range w.models {
		if s.most.Of(i) > 0 {
			all = append(all, w.harm[i][s.size])
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// harmless is the most of a spot without the models that disturb others more.
func (w *World) harmless(s spot, harm float64) (most Load) {
	for i := range w.models {
		if w.harm[i][s.size] <= harm {
			most = most.With(i, s.most.Of(i))
		}
	}
	return most
}

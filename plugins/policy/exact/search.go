// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package exact

import "slices"

// prepare finds what one GPU carries, and two.
func (w *World) prepare() {
	if w.oneGPU != nil {
		return
	}
	w.oneGPU = newLattice(w.most)
	for _, cut := range w.cuts {
		w.gpu(w.spots(cut, w.most), func(p placed) bool {
			w.oneGPU.mark(p.sum)
			return true
		})
	}
	if w.spent() {
		return
	}
	w.oneGPU.fill()
	w.top = w.oneGPU.maximal()
	if w.gpus == 1 {
		return
	}
	w.twoGPUs = newLattice(w.most)
	for i, a := range w.top {
		if !w.step(len(w.top) - i) {
			break
		}
		for _, b := range w.top[i:] {
			w.twoGPUs.mark(a + b)
		}
	}
	w.twoGPUs.fill()
}

func (w *World) spots(cut []int, most Load) []spot {
	all := make([]spot, len(cut))
	for i, size := range cut {
		all[i] = spot{size, most}
	}
	return all
}

// halves are what the two halves of the GPUs carry; the first is nil where there is only one GPU.
func (w *World) halves() (first, second *lattice) {
	w.prepare()
	switch w.gpus {
	case 1:
		return nil, w.oneGPU
	case 2:
		return nil, w.twoGPUs
	case 3:
		return w.oneGPU, w.twoGPUs
	}
	return w.twoGPUs, w.twoGPUs
}

// Schedulable reports whether any schedule carries the load. It is false, too, where [Options.Steps] do not suffice to find one.
func (w *World) Schedulable(asked Load) bool {
	_, ok := w.divide(asked)
	return ok
}

// Impossible reports that no schedule carries the load, not even one that divides rates in other ways than in whole units: a partition that
// carries a part of a unit is taken to carry the whole one, and still it is not enough. What is neither [World.Schedulable] nor impossible is
// undecided; smaller units decide more.
func (w *World) Impossible(asked Load) bool {
	if !asked.within(w.most) {
		return false
	}
	b := *w
	b.models = slices.Clone(w.models)
	for i := range b.models {
		if asked.Of(i) == 1 { // one unit has no parts that could count as whole ones
			b.models[i].unit /= 2
			asked = asked.With(i, 2) &^ Load(0).With(i, 1)
		}
	}
	b.most, b.bound = asked, true
	b.parts, b.oneGPU, b.twoGPUs, b.top, b.steps = make(map[partKey][]Load), nil, nil, nil, 0
	return !b.Schedulable(asked) && !b.spent()
}

// divide finds what the first half of the GPUs carries of a load so that the second carries the rest.
func (w *World) divide(asked Load) (Load, bool) {
	first, second := w.halves()
	if !asked.within(w.most) || w.spent() {
		return 0, false
	}
	rest := second.number(asked)
	if first == nil {
		return 0, second.has(rest)
	}
	// In mixed radix a part of a load has a number, and what is left of the load the difference.
	var descend func(k, at int) (int, bool)
	descend = func(k, at int) (int, bool) {
		if k < 0 {
			return at, first.has(at) && second.has(rest-at)
		}
		for range asked.Of(first.models[k]) + 1 {
			if found, ok := descend(k-1, at); ok {
				return found, true
			}
			at += first.stride[k]
		}
		return 0, false
	}
	at, ok := descend(len(first.models)-1, 0)
	return first.load(at), ok
}

// Find is a schedule that carries the load; false where there is none, or [Options.Steps] do not suffice to find it.
func (w *World) Find(asked Load) (Schedule, bool) {
	part, ok := w.divide(asked)
	if !ok {
		return nil, false
	}
	loads := []Load{asked.less(part)}
	if w.gpus > 1 {
		loads = append(loads[:0], w.pair(asked.less(part))...)
	}
	switch w.gpus {
	case 3:
		loads = append(loads, part)
	case 4:
		loads = append(loads, w.pair(part)...)
	}
	var s Schedule
	for _, load := range loads {
		s = append(s, w.gpuFor(load))
	}
	return s, !w.spent()
}

// pair divides what two GPUs carry between them.
func (w *World) pair(load Load) []Load {
	for _, a := range w.top {
		a = a.atMost(load)
		if w.oneGPU.has(w.oneGPU.number(load.less(a))) {
			return []Load{a, load.less(a)}
		}
	}
	return nil
}

// gpuFor is what runs on a GPU that carries the load.
func (w *World) gpuFor(load Load) (parts []Part) {
	for _, cut := range w.cuts {
		spots := w.spots(cut, load)
		w.gpu(spots, func(p placed) bool {
			if load.within(p.sum) {
				parts = w.run(spots, p)
				return false
			}
			return true
		})
		if parts != nil {
			return parts
		}
	}
	return nil
}

// run makes the rounds of a GPU.
func (w *World) run(spots []spot, p placed) []Part {
	parts := make([]Part, len(spots))
	for i, s := range spots {
		disturbance := w.disturbance(spots, i, func(j, m int) bool { return p.parts[j].Of(m) > 0 })
		length, batches, _ := w.round(s.size, p.parts[i], disturbance)
		var rates [maxModels]float64
		for m := range w.models {
			rates[m] = float64(p.parts[i].Of(m)) * w.models[m].unit
		}
		parts[i] = w.turns(s.size, length, &rates, &batches)
	}
	return parts
}

// disturbance of a spot by the worst model that runs on another one.
func (w *World) disturbance(spots []spot, at int, runs func(spot, model int) bool) float64 {
	worst := float64(alone)
	for j, other := range spots {
		for m := range w.models {
			if j != at && runs(j, m) {
				worst = max(worst, w.harm[m][other.size])
			}
		}
	}
	return worst
}

// turns writes a round down.
func (w *World) turns(size int, length float64, rates *[maxModels]float64, batches *[maxModels]uint32) Part {
	p := Part{Size: w.o.Sizes[size], Round: length}
	for m, rate := range rates {
		if rate > 0 {
			p.Turns = append(p.Turns, Turn{w.models[m].name, rate, batches[m]})
		}
	}
	return p
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package usher

import (
	"cmp"
	"math"
	"slices"

	"github.com/conch-serving/conch/plugins/policy/pack"
)

// gpu is a GPU that is being filled: one of the snapshot, or one that could be rented.
type gpu struct {
	// host is nil for a GPU that would be rented.
	host *pack.Host
	kind int
	// closed: it holds what the operator pinned.
	closed bool
	// group is the model group to whose GPU group it belongs, from 1; 0: it is not initialised.
	group int
	// compute in percent and memory as a fraction that are left.
	compute int
	memory  float64
	// at is its place among the initialised ones, and class are those of them that are like it.
	at    int
	class *class
}

func (g *gpu) fits(needs ...need) bool {
	compute, memory := 0, 0.0
	for _, n := range needs {
		if !n.fits {
			return false
		}
		compute, memory = compute+n.share, memory+n.memory
	}
	return compute <= g.compute && memory <= g.memory+1e-9
}

func (g *gpu) left() float64 { return float64(g.compute)/100 + g.memory }

// choice is one configuration of a group: an option for every model.
type choice struct {
	model  *model
	option *option
}

// replica is one that was placed.
type replica struct {
	choice int
	gpu    int
	// opened: its GPU was initialised for it.
	opened bool
	// before is the memory that its GPU had left: undo brings back that and no sum that differs in the last bit.
	before float64
}

// like are the initialised GPUs of one kind and group that have the same left: in placing they differ by their order only.
type like struct {
	kind, group, compute int
	// memory in bits, which hash faster.
	memory uint64
}

func (g *gpu) like() like { return like{g.kind, g.group, g.compute, math.Float64bits(g.memory)} }

// class is GPUs that are alike: their places in opened, in order.
type class struct {
	like
	places []int
	// at is its place in the list of classes.
	at int
}

// enter adds an initialised GPU to those like it; leave takes it away before it changes.
func (r *run) enter(i int) {
	g := r.gpus[i]
	c := r.alike[g.like()]
	if c == nil {
		c = &class{like: g.like(), at: len(r.classes)}
		r.alike[c.like], r.classes = c, append(r.classes, c)
	}
	n, _ := slices.BinarySearch(c.places, g.at)
	c.places, g.class = slices.Insert(c.places, n, g.at), c
}

func (r *run) leave(i int) {
	g := r.gpus[i]
	c := g.class
	n, _ := slices.BinarySearch(c.places, g.at)
	if c.places = slices.Delete(c.places, n, n+1); len(c.places) > 0 {
		return
	}
	delete(r.alike, c.like)
	last := r.classes[len(r.classes)-1]
	r.classes[c.at], last.at = last, c.at
	r.classes = r.classes[:len(r.classes)-1]
}

// initialise makes a GPU the last of those that are initialised.
func (r *run) initialise(i, group int) {
	r.gpus[i].group, r.gpus[i].at = group, len(r.opened)
	r.opened = append(r.opened, i)
}

// placement is what PLACEMENT returns for a configuration.
type placement struct {
	choices  []choice
	replicas []replica
	// goodput is rows per second over all models, missing the replicas that found no GPU, cost that of the GPUs that were initialised, demand
	// the sum of the options' demands.
	goodput float64
	missing int
	cost    float64
	demand  float64
}

// better orders placements: goodput first (which is the whole workload where the cluster can grow), then that every replica has a place, then
// cost, then that less is taken.
func (p *placement) better(q *placement) bool {
	if q == nil {
		return true
	}
	if math.Abs(p.goodput-q.goodput) > 1e-9*math.Max(1, q.goodput) {
		return p.goodput > q.goodput
	}
	if p.missing != q.missing {
		return p.missing < q.missing
	}
	if math.Abs(p.cost-q.cost) > 1e-9 {
		return p.cost < q.cost
	}
	return p.demand < q.demand-1e-9
}

// place is PLACEMENT (algorithm 2) for one configuration of a group. The GPUs are as before when it returns.
func (r *run) place(group int, choices []choice) *placement {
	p := &placement{choices: choices}
	first := slices.Clone(r.first)
	for _, c := range choices {
		p.demand += c.option.demand
	}
	for _, turn := range r.turns(choices) {
		left := make([]int, len(turn))
		for i, c := range turn {
			left[i] = choices[c].option.replicas
		}
		r.fill(p, turn, left, func(of int) bool { return of == group })
		r.fill(p, turn, left, func(of int) bool { return of != group })
		// Lines 13 to 15 as printed: every replica that is left gets a new GPU, though the one before had room. Figure 3c needs that: the replicas
		// of a divided model lie apart, and those of the next fill up what they left.
		for opened := true; opened; {
			opened = r.open(p, group, turn, left)
		}
		for _, n := range left {
			p.missing += n
		}
	}
	achieved := make([]float64, len(choices))
	for _, x := range p.replicas {
		achieved[x.choice] += choices[x.choice].option.needs[r.gpus[x.gpu].kind].goodput
	}
	for i, c := range choices {
		p.goodput += math.Min(achieved[i], c.model.workload)
	}
	for i := len(p.replicas) - 1; i >= 0; i-- {
		r.undo(p, p.replicas[i])
	}
	r.first = first
	return p
}

// turns is lines 7 to 9: pairs of a compute-heavy and a memory-heavy model, those that need most first, and models that are neither in between
// by the same order. The numbers are places in choices.
func (r *run) turns(choices []choice) [][]int {
	order := make([]int, len(choices))
	for i := range order {
		order[i] = i
	}
	size := func(i int) float64 { return choices[i].option.compute + choices[i].option.memory }
	if r.set.sort {
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(size(b), size(a)) })
	}
	if !r.set.classify {
		turns := make([][]int, len(order))
		for i, c := range order {
			turns[i] = []int{c}
		}
		return turns
	}
	var compute, memory, neither []int
	for _, i := range order {
		switch o := choices[i].option; {
		case o.compute >= r.set.heavy*o.memory:
			compute = append(compute, i)
		case o.memory >= r.set.heavy*o.compute:
			memory = append(memory, i)
		default:
			neither = append(neither, i)
		}
	}
	var turns [][]int
	for i := range max(len(compute), len(memory)) {
		var turn []int
		if i < len(compute) {
			turn = append(turn, compute[i])
		}
		if i < len(memory) {
			turn = append(turn, memory[i])
		}
		turns = append(turns, turn)
	}
	for _, i := range neither {
		at := len(turns)
		if r.set.sort {
			if j := slices.IndexFunc(turns, func(turn []int) bool { return size(turn[0]) < size(i) }); j >= 0 {
				at = j
			}
		}
		turns = slices.Insert(turns, at, []int{i})
	}
	return turns
}

// fill puts as many replicas of a turn as possible on initialised GPUs of which the condition holds: the pair together where it fits, then
// each alone, always on the GPU that has least left afterwards.
func (r *run) fill(p *placement, turn, left []int, where func(group int) bool) {
	if len(turn) == 2 {
		for left[0] > 0 && left[1] > 0 && r.fit(p, turn, where) {
			left[0], left[1] = left[0]-1, left[1]-1
		}
	}
	for i := range turn {
		for left[i] > 0 && r.fit(p, turn[i:i+1], where) {
			left[i]--
		}
	}
}

// fit puts one of a turn each on the GPU that has least left afterwards; of several it is the one that was initialised first. Of GPUs that are alike only
// the first is looked at, unless some may not have the model.
func (r *run) fit(p *placement, turn []int, where func(group int) bool) bool {
	best, least := -1, math.Inf(1)
	try := func(at int) {
		i := r.opened[at]
		g := r.gpus[i]
		if !where(g.group) || !r.takes(p, i, turn) {
			return
		}
		left := g.left()
		for _, c := range turn {
			left -= p.choices[c].option.needs[g.kind].size()
		}
		if left = math.Round(left * 1e12); left < least || left == least && at < best { // what is smaller is noise of the sums
			best, least = at, left
		}
	}
	if slices.ContainsFunc(turn, func(c int) bool { return p.choices[c].model.allowed != nil }) {
		for at := range r.opened {
			try(at)
		}
	} else {
		for _, c := range r.classes {
			try(c.places[0])
		}
	}
	if best < 0 {
		return false
	}
	for _, c := range turn {
		r.put(p, replica{choice: c, gpu: r.opened[best]})
	}
	return true
}

func (r *run) takes(p *placement, i int, turn []int) bool {
	g := r.gpus[i]
	for _, c := range turn {
		if allowed := p.choices[c].model.allowed; allowed != nil && !allowed[i] {
			return false
		}
	}
	if len(turn) == 2 {
		return g.fits(p.choices[turn[0]].option.needs[g.kind], p.choices[turn[1]].option.needs[g.kind])
	}
	return g.fits(p.choices[turn[0]].option.needs[g.kind])
}

// open is NEW_LOWEST_COST_GPU_INITIALIZATION: the cheapest GPU that is not initialised and can host the pair, else one of the two.
func (r *run) open(p *placement, group int, turn, left []int) bool {
	tries := [][]int{{0}}
	if len(turn) == 2 {
		tries = [][]int{{0, 1}, {0}, {1}}
	}
	for _, try := range tries {
		wanted := make([]int, 0, 2)
		for _, i := range try {
			if left[i] > 0 {
				wanted = append(wanted, turn[i])
			}
		}
		if len(wanted) < len(try) {
			continue
		}
		if i := r.next(p, wanted); i >= 0 {
			r.initialise(i, group)
			p.cost += r.kinds[r.gpus[i].kind].cost
			for n, c := range wanted {
				r.put(p, replica{choice: c, gpu: i, opened: n == 0})
			}
			for _, i := range try {
				left[i]--
			}
			return true
		}
	}
	return false
}

// next is the cheapest GPU that is neither initialised nor closed and takes one of each choice; -1 where there is none. Such GPUs of one kind are alike, so that
// one is looked at, unless some may not have the model.
func (r *run) next(p *placement, wanted []int) int {
	ruled := slices.ContainsFunc(wanted, func(c int) bool { return p.choices[c].model.allowed != nil })
	best := len(r.cheapest)
	for kind, all := range r.byKind {
		for n := r.first[kind]; n < len(all) && all[n] < best; n++ {
			i := r.cheapest[all[n]]
			if g := r.gpus[i]; g.group != 0 || g.closed {
				if n == r.first[kind] {
					r.first[kind]++
				}
				continue
			}
			if r.takes(p, i, wanted) {
				best = all[n]
			} else if ruled {
				continue
			}
			break
		}
	}
	if best == len(r.cheapest) {
		return -1
	}
	return r.cheapest[best]
}

func (r *run) put(p *placement, x replica) {
	x.before = r.gpus[x.gpu].memory
	r.take(p, x)
	p.replicas = append(p.replicas, x)
}

// take takes what a replica needs off what its GPU has left.
func (r *run) take(p *placement, x replica) {
	g := r.gpus[x.gpu]
	n := p.choices[x.choice].option.needs[g.kind]
	if !x.opened { // else it is like none yet
		r.leave(x.gpu)
	}
	g.compute, g.memory = g.compute-n.share, g.memory-n.memory
	r.enter(x.gpu)
}

func (r *run) undo(p *placement, x replica) {
	g := r.gpus[x.gpu]
	n := p.choices[x.choice].option.needs[g.kind]
	r.leave(x.gpu)
	g.compute, g.memory = g.compute+n.share, x.before
	if x.opened {
		g.group = 0
		r.opened = r.opened[:len(r.opened)-1]
		return
	}
	r.enter(x.gpu)
}

// commit makes a placement permanent.
func (r *run) commit(group int, p *placement) {
	for _, x := range p.replicas {
		if x.opened {
			r.initialise(x.gpu, group)
		}
		r.take(p, x)
		r.placed = append(r.placed, placed{p.choices[x.choice], x.gpu})
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package usher

import (
	"cmp"
	"container/heap"
	"context"
	"math"
	"slices"
)

// groups is section 3.3.1: groups of equal size in which the sum of Creq is near the sum of Mreq. Every pass joins two groups each so that the
// sum of |Creq - Mreq| over the pairs is least. The paper does that by a variant of k-means; the absolute value is convex, so that the pairs of
// the smallest with the largest difference are the optimum. Where the number is odd, one group is joined with nothing.
func (r *run) groups(models []*model) [][]*model {
	type set struct {
		models []*model
		// surplus of Creq over Mreq.
		surplus float64
	}
	sets := make([]set, len(models))
	for i, m := range models {
		sets[i] = set{models: []*model{m}, surplus: m.compute - m.memory}
	}
	for size := 1; size < r.set.group && len(sets) > 1; size *= 2 {
		if len(sets)%2 == 1 {
			sets = append(sets, set{})
		}
		slices.SortStableFunc(sets, func(a, b set) int { return cmp.Compare(a.surplus, b.surplus) })
		joined := make([]set, 0, len(sets)/2)
		for i, j := 0, len(sets)-1; i < j; i, j = i+1, j-1 {
			joined = append(joined, set{models: slices.Concat(sets[i].models, sets[j].models), surplus: sets[i].surplus + sets[j].surplus})
		}
		sets = joined
	}
	all := make([][]*model, len(sets))
	for i, s := range sets {
		all[i] = s.models
		slices.SortStableFunc(all[i], func(a, b *model) int { return cmp.Compare(a.name, b.name) })
	}
	// The paper leaves the order of groups open: those that need most first, as within a group.
	need := func(models []*model) (sum float64) {
		for _, m := range models {
			sum += m.options[0].demand
		}
		return sum
	}
	slices.SortStableFunc(all, func(a, b []*model) int {
		return cmp.Or(cmp.Compare(need(b), need(a)), cmp.Compare(a[0].name, b[0].name))
	})
	return all
}

// node is a configuration of a group in the search: the number of each model's option.
type node struct {
	options []int
	// last is the model whose option was raised last: only it and later ones are raised next, so that every configuration comes once.
	last         int
	lost, demand float64
}

type frontier []*node

func (f frontier) Len() int { return len(f) }
func (f frontier) Less(i, j int) bool {
	if f[i].lost != f[j].lost {
		return f[i].lost < f[j].lost
	}
	if f[i].demand != f[j].demand {
		return f[i].demand < f[j].demand
	}
	return slices.Compare(f[i].options, f[j].options) < 0
}
func (f frontier) Swap(i, j int) { f[i], f[j] = f[j], f[i] }

// Push implements [heap.Interface].
func (f *frontier) Push(x any) { *f = append(*f, x.(*node)) } //nolint:forcetypeassert // nothing else is pushed

// Pop implements [heap.Interface].
func (f *frontier) Pop() any {
	last := (*f)[len(*f)-1]
	*f = (*f)[:len(*f)-1]
	return last
}

// search is algorithm 1 for one group: the best placement over configurations, and how many were placed. Configurations come from the one
// that loses least goodput on, and among equals from the one that demands least on. No later one is better once
//   - none can carry as much as the best did, or
//   - the best carries all that can be carried with a place for every replica, and what a configuration demands beyond what is free on
//     initialised GPUs costs at least as much as the best did.
//
// Both bounds are exact, so that the search finds what an exhaustive one finds, unless its placements are spent before.
func (r *run) search(ctx context.Context, group int, models []*model, placements uint64) (best *placement, spent uint64) {
	total, free := 0.0, 0.0
	for _, m := range models {
		total += m.workload
		slices.SortStableFunc(m.options, func(a, b option) int { return cmp.Or(cmp.Compare(a.lost, b.lost), cmp.Compare(a.demand, b.demand)) })
	}
	for _, i := range r.opened {
		free += r.gpus[i].left()
	}
	cheapest := math.Inf(1)
	for _, k := range r.kinds {
		cheapest = math.Min(cheapest, k.cost)
	}
	at := func(options []int, last int) *node {
		n := &node{options: options, last: last}
		for i, m := range models {
			n.lost, n.demand = n.lost+m.options[options[i]].lost, n.demand+m.options[options[i]].demand
		}
		return n
	}
	open := &frontier{at(make([]int, len(models)), 0)}
	for open.Len() > 0 && ctx.Err() == nil {
		n := heap.Pop(open).(*node) //nolint:forcetypeassert // nothing else is pushed
		if best != nil && !r.set.exhaustive {
			possible := total - n.lost
			same := math.Abs(best.goodput-possible) <= 1e-9*math.Max(1, total)
			least := cheapest * math.Ceil((n.demand-free)/2-1e-6)
			if spent >= placements || best.goodput > possible && !same || same && best.missing == 0 && least >= best.cost-1e-9 && n.demand >= best.demand {
				break
			}
		}
		choices := make([]choice, len(models))
		for i, m := range models {
			choices[i] = choice{m, &m.options[n.options[i]]}
		}
		if p := r.place(group, choices); p.better(best) {
			best = p
		}
		spent++
		for i := n.last; i < len(models); i++ {
			if n.options[i]+1 < len(models[i].options) {
				next := slices.Clone(n.options)
				next[i]++
				heap.Push(open, at(next, i))
			}
		}
	}
	return best, spent
}

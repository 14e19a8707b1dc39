// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
)

// holds is what counts under min-cost before cost does, by the arrivals that plans are chosen by; certain is by others.
func (s *search) holds(o *policy.Outcome) bool { return o != nil && o.GetBadRate() <= s.bad }

// probe is how many beginnings are evaluated for a number of GPUs, the most promising first, and how many of them at once.
const probe, together = 12, 4

// fewer looks for the fewest GPUs, those that carry most for their cost first, on which some plan holds the load: by halves among the beginnings on
// so many GPUs, and then by local search on one GPU less, as long as that succeeds. Only plans count that surely hold the load. Best holds it on all, and is
// the answer where no other does.
func (s *search) fewer(ctx context.Context, others []policy.Policy, all []*candidate, best *candidate) (*candidate, error) {
	order := s.w.worth()
	rank := make(map[string]float64)
	note := func(c *candidate) {
		if c.outcome != nil {
			rank[c.from] = c.outcome.GetBadRate()
		}
	}
	for _, c := range all {
		note(c)
	}
	low, high := 0, len(order)
	var begin *candidate // the best that does not hold on low GPUs
	var on *world
	for high-low > 1 && s.left > 0 {
		n := (low + high) / 2
		small := s.w.only(order[:n])
		tried := small.beginnings(ctx, others)
		slices.SortStableFunc(tried, func(a, b *candidate) int { return cmp.Compare(ranked(rank, a), ranked(rank, b)) })
		tried = tried[:min(len(tried), probe)]
		var top *candidate
		for i := 0; i < len(tried) && (top == nil || !s.holds(top.outcome)); i += together {
			some := tried[i:min(i+together, len(tried))]
			if err := s.evaluate(ctx, some); err != nil {
				return nil, err
			}
			for _, c := range some {
				note(c)
				if c.outcome != nil && (top == nil || s.promising(c, top)) {
					top = c
				}
			}
		}
		sure := false
		if top != nil && s.holds(top.outcome) {
			var err error
			if sure, err = s.certain(ctx, top); err != nil {
				return nil, err
			}
		}
		if sure {
			high = n
			if !best.sure || s.better(top, best) {
				best = top
			}
		} else {
			low, begin, on = n, top, small
		}
	}
	if !best.sure { // a plan that surely holds the load comes before one that may hold it on less, for which local search would spend all that is left
		var err error
		if best, err = s.settled(ctx, all, best); err != nil {
			return nil, err
		}
	}
	for low > 0 && begin != nil && s.left > 0 {
		found, err := s.onFew(ctx, on, begin)
		if err != nil {
			return nil, err
		}
		if found == nil {
			break
		}
		if !best.sure || s.better(found, best) {
			best = found
		}
		// One GPU less: what it had goes where there is room.
		low--
		on = s.w.only(order[:low])
		begin = &candidate{plan: on.build(on.read(found.plan)), from: found.from}
		if err := s.evaluate(ctx, []*candidate{begin}); err != nil {
			return nil, err
		}
		if begin.outcome == nil {
			break
		}
	}
	return best, nil
}

// promising reports whether of two plans on so many GPUs one is the better to go on with: it holds the load, or loads less, or serves more.
func (s *search) promising(c, other *candidate) bool {
	a, b := s.holds(c.outcome), s.holds(other.outcome)
	if a != b {
		return a
	}
	if a && s.loading(c) != s.loading(other) {
		return s.loading(c) < s.loading(other)
	}
	return c.outcome.GetBadRate() < other.outcome.GetBadRate()
}

// onFew is local search on some of the GPUs until a plan surely holds the load; nil where none is found. A plan that does so only by the arrivals that it was
// chosen by is searched on, until half as many are bad.
func (s *search) onFew(ctx context.Context, on *world, at *candidate) (*candidate, error) {
	sub := &search{w: on, set: s.set, host: s.host, left: s.left, drawn: s.drawn, bad: s.bad, least: s.least, enough: true}
	defer func() {
		s.left, s.drawn, s.least, s.evaluated, s.steps = sub.left, sub.drawn, sub.least, s.evaluated+sub.evaluated, s.steps+sub.steps
	}()
	for sub.left > 0 {
		found, err := sub.improve(ctx, at)
		if err != nil || !sub.holds(found.outcome) {
			return nil, err
		}
		if ok, err := sub.certain(ctx, found); ok || err != nil {
			return found, err
		}
		if found.outcome.GetBadRate() == 0 {
			return nil, nil //nolint:nilnil // there is none
		}
		at, sub.bad = found, found.outcome.GetBadRate()/2
	}
	return nil, nil //nolint:nilnil // there is none
}

// ranked is the bad rate of the last plan from the same beginning; the plan in force comes first.
func ranked(rank map[string]float64, c *candidate) float64 {
	if strings.HasPrefix(c.from, inForce) {
		return -1 // it loads least
	}
	if bad, ok := rank[c.from]; ok {
		return bad
	}
	return 1
}

// worth has the GPUs that may be used: those with pinned models, then those on whose type the whole load costs least, of these the ones that the plan in
// force uses, in GPU order.
func (w *world) worth() []string {
	type gpu struct {
		id     string
		pinned bool
		cost   float64
	}
	costs := make(map[string]float64)
	for _, g := range w.x.GPUs() {
		if _, known := costs[g.GetType()]; known {
			continue
		}
		load := 0.0
		for _, m := range w.s.GetModels() {
			if m.GetRate() <= 0 {
				continue
			}
			if _, modelLoad, ok := w.on(m, g.GetType()); ok {
				load += modelLoad
			} else {
				load = math.Inf(1)
			}
		}
		costs[g.GetType()] = load * cmp.Or(g.GetCostPerHour(), 1)
	}
	used := make(map[string]int) // those of the plan in force have its models already
	for _, p := range w.s.GetCurrent().GetPartitions() {
		used[p.GPU()] = 1
	}
	var all []gpu
	for _, h := range w.empty.Hosts {
		if !h.OnCPU() {
			all = append(all, gpu{h.GPU, len(h.Parts) > 0, costs[h.Type]})
		}
	}
	slices.SortStableFunc(all, func(a, b gpu) int {
		if a.pinned != b.pinned {
			return map[bool]int{true: -1, false: 1}[a.pinned]
		}
		return cmp.Or(cmp.Compare(a.cost, b.cost), -cmp.Compare(used[a.id], used[b.id]))
	})
	ids := make([]string, len(all))
	for i, g := range all {
		ids[i] = g.id
	}
	return ids
}

// only is the world with these GPUs alone; the others cannot be used.
func (w *world) only(gpus []string) *world {
	s := proto.CloneOf(w.s)
	used := make(map[string]bool, len(gpus))
	for _, id := range gpus {
		used[id] = true
	}
	for _, n := range s.GetNodes() {
		for _, g := range n.GetGpus() {
			if !used[g.GetId()] {
				g.Unavailable, g.UnavailableReason = true, "not needed"
			}
		}
	}
	small := newWorld(s, w.budget)
	small.smaller = true
	return small
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
)

const (
	// near is the part of the best goodput that a beginning has at least by the traffic which may yet be the best under other arrivals.
	near = .9
	// even is the relative difference in goodput under which two plans count as equal under other arrivals, and mostDraws how many of these are asked about
	// at most to tell such plans apart.
	even, mostDraws = 1e-4, 30
)

// most looks for the plan that serves most on fixed GPUs: by local search under the traffic, or, where that is known to change, under draws of other arrivals.
func (s *search) most(ctx context.Context, all []*candidate, best *candidate) (*candidate, error) {
	if !s.changes() {
		return s.improve(ctx, best)
	}
	chosen, err := s.final(ctx, append([]*candidate{best}, all...))
	if err != nil {
		return nil, err
	}
	return s.further(ctx, chosen)
}

// changes reports whether rates of past minutes are known, so that draws of other arrivals say more of what comes than the traffic does.
func (s *search) changes() bool {
	return s.set.finalists > 1 && slices.ContainsFunc(s.w.s.GetHistory(), func(h *policy.ModelHistory) bool { return len(h.GetRates()) > 1 })
}

// further is local search from a plan under one draw of other arrivals, with half of what is left of the budget. What it finds was chosen by that draw, so
// that it has to serve more by other draws too.
func (s *search) further(ctx context.Context, from *candidate) (*candidate, error) {
	sub := &search{w: s.w, set: s.set, host: s.host, left: s.left / 2, bad: s.bad, under: uint32(len(from.drawn) + 1)} //nolint:gosec // at most mostDraws
	kept := s.left - sub.left
	begin := &candidate{plan: from.plan, from: from.from}
	if sub.left == 0 {
		return from, nil
	}
	if err := sub.evaluate(ctx, []*candidate{begin}); err != nil || begin.outcome == nil {
		return from, err
	}
	found, err := sub.improve(ctx, begin)
	if err != nil {
		return nil, err
	}
	s.left, s.evaluated, s.steps = kept+sub.left, s.evaluated+sub.evaluated, s.steps+sub.steps
	if found == begin || s.left == 0 {
		return from, nil
	}
	changed := &candidate{plan: found.plan, from: found.from}
	if err := s.evaluate(ctx, []*candidate{changed}); err != nil || changed.outcome == nil {
		return from, err
	}
	// The same draws for both, none of which chose the change.
	compared := []*candidate{{plan: from.plan}, {plan: changed.plan}}
	if s.inForce != nil {
		compared = append(compared, &candidate{plan: s.inForce.plan})
	}
	s.drawn = sub.under
	for range min(s.set.draws, int(s.left)/len(compared)) {
		s.drawn++
		if err := s.askOf(ctx, s.drawn, compared); err != nil {
			return nil, err
		}
	}
	n := min(len(compared[0].drawn), len(compared[1].drawn))
	if n > 0 && compared[1].mean(n) > compared[0].mean(n) && !evenly(compared[1], compared[0], n) {
		changed.drawn = compared[1].drawn
		if s.inForce != nil {
			s.inForce.drawn = compared[2].drawn // what the change gains over it is to be seen by the same draws
		}
		return changed, nil
	}
	return from, nil
}

// final is which of the candidates serves most under other arrivals, the same for all of them: those that serve nearly as much as the first by the traffic
// are asked about draw after draw, and of each the better third stays, with the candidates that are even with it. The first and the plan in force always stay. After the draws
// that are a parameter others decide between plans that are even, as long as there are evaluations; then, how late requests are.
func (s *search) final(ctx context.Context, all []*candidate) (*candidate, error) {
	first := all[0]
	on := slices.DeleteFunc(slices.Clone(all[1:]), func(c *candidate) bool {
		return c == first || c == s.inForce || c.outcome == nil || c.outcome.GetGoodput() < near*first.outcome.GetGoodput()
	})
	slices.SortStableFunc(on, func(a, b *candidate) int { return cmp.Compare(b.outcome.GetGoodput(), a.outcome.GetGoodput()) })
	stays := []*candidate{first}
	if s.inForce != nil && s.inForce != first {
		stays = append(stays, s.inForce)
	}
	on = append(stays, on[:min(len(on), s.set.finalists-1, int(s.left/2))]...)
	for n := 1; n <= mostDraws && len(on) > 1; n++ {
		if n > s.set.draws && !evenly(on[0], on[1], n-1) {
			break
		}
		asked := slices.DeleteFunc(slices.Clone(on), func(c *candidate) bool { return len(c.drawn) >= n })
		if int(s.left) < len(asked) {
			break
		}
		if err := s.ask(ctx, asked); err != nil {
			return nil, err
		}
		on = slices.DeleteFunc(on, func(c *candidate) bool { return len(c.drawn) < n })
		slices.SortStableFunc(on, func(a, b *candidate) int {
			if evenly(a, b, n) {
				return cmp.Compare(s.lateness(a, n), s.lateness(b, n))
			}
			return cmp.Compare(b.mean(n), a.mean(n))
		})
		if len(on) == 0 {
			return first, nil
		}
		worst := on[(len(on)+2)/3-1]
		on = slices.DeleteFunc(on, func(c *candidate) bool {
			return !slices.Contains(stays, c) && c.mean(n) < worst.mean(n) && !evenly(c, worst, n)
		})
	}
	return on[0], nil
}

// ask about the next draw of candidates, all of which have been asked about as many. What cannot be run gets no outcome.
func (s *search) ask(ctx context.Context, all []*candidate) error {
	return s.askOf(ctx, uint32(len(all[0].drawn)+1), all) //nolint:gosec // at most mostDraws
}

// askOf asks about a draw.
func (s *search) askOf(ctx context.Context, draw uint32, all []*candidate) error {
	for now := range slices.Chunk(all, policy.MaxEvaluatePlans) {
		plans := make([]*policy.Plan, len(now))
		for i, c := range now {
			plans[i] = c.plan
		}
		outcomes, err := s.host.EvaluateDraw(ctx, draw, plans...)
		if err != nil {
			return err
		}
		for i, c := range now {
			if len(outcomes[i].GetViolations()) == 0 {
				c.drawn = append(c.drawn, outcomes[i])
			}
		}
		s.left -= uint32(len(now)) //nolint:gosec // at most MaxEvaluatePlans
		s.evaluated += len(now)
	}
	s.left = s.w.budget.limit(s.left)
	return nil
}

// mean goodput under the first n draws.
func (c *candidate) mean(n int) (sum float64) {
	for _, o := range c.drawn[:n] {
		sum += o.GetGoodput() / float64(n)
	}
	return sum
}

// evenly reports whether two candidates serve as much as each other under the first n draws.
func evenly(a, b *candidate, n int) bool {
	return math.Abs(a.mean(n)-b.mean(n)) <= even*math.Max(a.mean(n), b.mean(n))
}

// lateness is the 99th percentile latency over the SLO, the mean of models by their rates and of n draws: a candidate with less has more reserve.
func (s *search) lateness(c *candidate, n int) (mean float64) {
	for _, o := range c.drawn[:n] {
		sum, rates := 0.0, 0.0
		for _, m := range o.GetModels() {
			if model := s.w.x.Model(m.GetModel()); model.GetSloUs() > 0 {
				rates += model.GetRate()
				sum += model.GetRate() * m.GetLatencyP99Us() / float64(model.GetSloUs())
			}
		}
		if rates > 0 {
			mean += sum / rates / float64(n)
		}
	}
	return mean
}

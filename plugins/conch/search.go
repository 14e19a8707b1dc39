// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
)

// search spends the snapshot's evaluations.
type search struct {
	w    *world
	set  *settings
	host policy.Host
	left uint32
	// reserved are evaluations that only the question of merging may spend.
	reserved  uint32
	evaluated int
	steps     int
	// bad is the part of the requests that may be bad under min-cost, by the arrivals that plans are chosen by.
	bad float64
	// drawn is the number of the last draw of other arrivals that was asked about.
	drawn uint32
	// under is the draw of other arrivals that plans are compared by; 0: the traffic itself.
	under uint32
	// enough: local search ends with the first plan that holds the load.
	enough bool
	// least is the least bad of the plans that were tried under other arrivals and do not surely hold the load; nil: none was.
	least *candidate
	// inForce is the plan in force, evaluated; nil where there is none that still can be.
	inForce *candidate
}

// evaluate asks about candidates, as far as the budget goes; the rest stay without an outcome.
func (s *search) evaluate(ctx context.Context, all []*candidate) error {
	all = all[:min(len(all), int(s.left))]
	for len(all) > 0 {
		now := all[:min(len(all), policy.MaxEvaluatePlans)]
		plans := make([]*policy.Plan, len(now))
		for i, c := range now {
			plans[i] = c.plan
		}
		outcomes, err := s.host.EvaluateDraw(ctx, s.under, plans...)
		if err != nil {
			return err
		}
		for i, c := range now {
			if len(outcomes[i].GetViolations()) == 0 {
				c.outcome = outcomes[i]
			}
		}
		s.left -= uint32(len(now))
		s.evaluated += len(now)
		all = all[len(now):]
	}
	s.left = s.w.budget.limit(s.left)
	return nil
}

// best of the candidates. Its outcome is nil where none could be evaluated.
func (s *search) best(ctx context.Context, all []*candidate) (*candidate, error) {
	if s.left == 0 {
		return nil, policy.ErrNoEvaluation
	}
	if err := s.evaluate(ctx, all); err != nil {
		return nil, err
	}
	best := all[0]
	for _, c := range all {
		if s.inForce == nil && strings.HasPrefix(c.from, inForce) && c.outcome != nil {
			s.inForce = c
		}
		if s.better(c, best) {
			best = c
		}
	}
	return best, nil
}

// better orders plans by their outcomes: by goodput, unless the difference is too small to count; then by what travels between nodes; then, and under min-cost among those that hold, by what
// they cost with what they load, and by GPUs.
func (s *search) better(c, other *candidate) bool {
	a, b := c.outcome, other.outcome
	switch {
	case a == nil:
		return false
	case b == nil:
		return true
	}
	if s.w.s.GetObjective() == policy.Objective_OBJECTIVE_MIN_COST {
		if x, y := s.holds(a), s.holds(b); x != y {
			return x
		} else if x {
			return cmp.Or(cmp.Compare(s.bill(c), s.bill(other)), cmp.Compare(a.GetGpus(), b.GetGpus()), cmp.Compare(b.GetGoodput(), a.GetGoodput())) < 0
		}
	}
	if s.gains(a, b) {
		return true
	}
	if !s.gains(b, a) {
		// Tensors between steps had better stay on a node.
		switch x, y := s.travel(c), s.travel(other); {
		case x < muchLess*y:
			return true
		case y < muchLess*x:
			return false
		}
	}
	return !s.gains(b, a) && a.GetGoodput() >= b.GetGoodput() && (a.GetGpus() < b.GetGpus() || a.GetGpus() == b.GetGpus() && a.GetGoodput() > b.GetGoodput())
}

// muchLess is the part of what travels from node to node that counts as less.
const muchLess = .9

func (s *search) travel(c *candidate) float64 {
	if c.travel == nil {
		bytes := s.w.s.Travel(c.plan)
		c.travel = &bytes
	}
	return *c.travel
}

func (s *search) gains(a, b *policy.Outcome) bool {
	return a.GetGoodput() > b.GetGoodput()*(1+s.set.gain)
}

// batch is how many moves are evaluated before the best of them is taken.
const batch = 12

// improve is local search: a dozen moves drawn from those that may help, the best is taken if it is better, until the budget is spent or so many
// rounds brought nothing.
func (s *search) improve(ctx context.Context, best *candidate) (*candidate, error) {
	random := rand.New(rand.NewPCG(s.w.s.GetSeed(), 0x636f6e6368))
	at := s.w.read(best.plan)
	for barren := 0; barren < s.set.patience && s.left > 0 && (!s.enough || !s.holds(best.outcome)) && !s.perfect(best); {
		var tried []*candidate
		for range 4 * batch {
			if len(tried) == batch {
				break
			}
			next := s.move(at, best, random)
			if next == nil {
				continue
			}
			p := s.w.build(next)
			if same(p, best.plan) || slices.ContainsFunc(tried, func(c *candidate) bool { return same(c.plan, p) }) {
				continue
			}
			tried = append(tried, &candidate{plan: p, from: best.from + ", changed"})
		}
		if len(tried) == 0 {
			break
		}
		if err := s.evaluate(ctx, tried); err != nil {
			return nil, err
		}
		barren++
		for _, c := range tried {
			if s.better(c, best) {
				best, barren = c, 0
			}
		}
		if barren == 0 {
			s.steps++
			at = s.w.read(best.plan)
		}
	}
	if s.steps > 0 && len(best.from) > len(", changed") {
		best.from = trimmed(best.from)
	}
	return best, nil
}

// perfect reports that nothing goes badly and no tensor travels between nodes, so that nothing is to be gained but GPUs, which count under min-cost alone.
func (s *search) perfect(c *candidate) bool {
	return c.outcome.GetBadRate() == 0 && s.travel(c) == 0 && s.w.s.GetObjective() != policy.Objective_OBJECTIVE_MIN_COST
}

// trimmed says once that a plan was changed, however often it was.
func trimmed(from string) string {
	const suffix = ", changed"
	for len(from) > 2*len(suffix) && from[len(from)-2*len(suffix):] == suffix+suffix {
		from = from[:len(from)-len(suffix)]
	}
	return from
}

// move changes a layout in one way; nil where the way that was drawn does not exist. Models that do badly are drawn more often than others.
func (s *search) move(at *layout, best *candidate, random *rand.Rand) *layout {
	if len(at.parts) == 0 || len(s.w.s.GetModels()) == 0 {
		return nil
	}
	next := at.clone()
	model := s.draw(best.outcome, random)
	from := random.IntN(len(next.parts))
	to := random.IntN(len(next.parts))
	switch random.IntN(9) {
	case 0: // one more place
		next.parts[to].add(model)
	case 1: // one place less
		if s.count(next, model) < 2 || !slices.Contains(next.parts[from].models, model) {
			return nil
		}
		next.parts[from].remove(model)
	case 2: // another place
		if from == to || !slices.Contains(next.parts[from].models, model) {
			return nil
		}
		next.parts[from].remove(model)
		next.parts[to].add(model)
	case 3: // what others wait for leaves a partition of the model
		other := s.w.s.GetModels()[random.IntN(len(s.w.s.GetModels()))].GetName()
		if other == model || !slices.Contains(next.parts[from].models, model) || !slices.Contains(next.parts[from].models, other) || s.count(next, other) < 2 {
			return nil
		}
		next.parts[from].remove(other)
	case 4: // a partition is cut in two, its models on both
		p := &next.parts[from]
		if p.share < 40 || len(p.models) < 2 {
			return nil
		}
		cut := []uint32{p.share / 2, p.share * 2 / 5, p.share * 3 / 5}[random.IntN(3)]
		rest := part{host: p.host, share: p.share - cut}
		for _, name := range slices.Clone(p.models) {
			if random.IntN(2) == 0 {
				p.remove(name)
				rest.add(name)
			}
		}
		if len(p.models) == 0 || len(rest.models) == 0 {
			return nil
		}
		p.share = cut
		next.parts = append(next.parts, rest)
	case 5: // two partitions of a host become one
		if from == to || next.parts[from].host != next.parts[to].host {
			return nil
		}
		next.parts[to].share += next.parts[from].share
		for _, name := range next.parts[from].models {
			next.parts[to].add(name)
		}
		next.parts = slices.Delete(next.parts, from, from+1)
	case 6: // another discipline
		next.disciplines[model] = disciplines()[random.IntN(len(disciplines()))]
	case 7: // a place where nothing is yet: on what is left of a GPU, or on CPUs
		host := random.IntN(len(s.w.empty.Hosts))
		free := next.free(host)
		if free == 0 {
			return nil
		}
		next.parts = append(next.parts, part{host: host, share: free, models: []string{model}})
	case 8: // members merged, or apart again
		offers := s.w.s.GetDerived()
		if len(offers) == 0 {
			return nil
		}
		name := offers[random.IntN(len(offers))].GetRecipe().GetName()
		if s.w.offered(name) == nil || !s.w.merged(next, name) {
			return nil
		}
	}
	return next
}

func (s *search) count(l *layout, model string) int {
	n := 0
	for _, p := range l.parts {
		if slices.Contains(p.models, model) {
			n++
		}
	}
	return n
}

// draw a model: in proportion to its requests that went badly, half of the time; any, the other half.
func (s *search) draw(o *policy.Outcome, random *rand.Rand) string {
	models := s.w.s.GetModels()
	if random.IntN(2) == 0 {
		// A derived model has an outcome of its own name and no rate: its members are drawn as the others are.
		bad := func(m *policy.ModelOutcome) float64 {
			if p := s.w.s.Pipeline(m.GetModel()); p != nil {
				return m.GetBadRate() * p.GetRate()
			}
			return m.GetBadRate() * s.w.x.Model(m.GetModel()).GetRate()
		}
		total := 0.0
		for _, m := range o.GetModels() {
			total += bad(m)
		}
		at := random.Float64() * total
		for _, m := range o.GetModels() {
			if at -= bad(m); at >= 0 {
				continue
			}
			if p := s.w.s.Pipeline(m.GetModel()); p != nil { // one of its steps is what it lacks places of
				return p.GetSteps()[random.IntN(len(p.GetSteps()))].GetModel()
			}
			if s.w.x.Model(m.GetModel()) != nil {
				return m.GetModel()
			}
		}
	}
	return models[random.IntN(len(models))].GetName()
}

// keep takes the plan in force instead, where what the best one gains over the horizon does not pay for the requests that the change disturbs.
func (s *search) keep(best *candidate) *candidate {
	if s.inForce == nil || best == s.inForce {
		return best
	}
	if s.w.s.GetObjective() == policy.Objective_OBJECTIVE_MIN_COST && s.holds(s.inForce.outcome) && best.sure == s.inForce.sure && s.saves(best) {
		return best
	}
	if s.w.s.GetObjective() == policy.Objective_OBJECTIVE_MIN_COST && best.sure && !s.inForce.sure {
		return best // the other does not hold the load
	}
	gain := (best.outcome.GetGoodput() - s.inForce.outcome.GetGoodput()) * s.set.horizon
	if n := min(len(best.drawn), len(s.inForce.drawn)); n > 0 { // other arrivals chose
		gain = (best.mean(n) - s.inForce.mean(n)) * s.set.horizon
	} else if best.tried && s.inForce.tried && !best.sure { // neither of them surely holds the load
		gain = (s.inForce.bad - best.bad) * best.outcome.GetGoodput() / (1 - best.outcome.GetBadRate()) * s.set.horizon
	}
	if gain > worthwhile*s.disturbed(s.inForce.plan, best.plan) {
		return best
	}
	return s.inForce
}

// worthwhile is by how much more than its price a gain has to be worth a change.
const worthwhile = 1.2

// saves reports whether what a plan saves of the rent over the horizon pays for what it loads, against the plan in force.
func (s *search) saves(c *candidate) bool {
	return s.bill(s.inForce)-(s.bill(c)-s.loading(c)) > worthwhile*s.loading(c)
}

// merged is the best plan with merge groups in the place of their members where those lie together, if it serves no less, and holds the load as surely.
func (s *search) merged(ctx context.Context, best *candidate) (*candidate, error) {
	with := &candidate{plan: proto.CloneOf(best.plan), from: best.from + ", merged"}
	if !s.w.x.Merge(with.plan) {
		return best, nil
	}
	s.left += s.reserved
	if err := s.evaluate(ctx, []*candidate{with}); err != nil {
		return nil, err
	}
	if with.outcome == nil || s.gains(best.outcome, with.outcome) {
		return best, nil
	}
	if best.sure {
		if ok, err := s.certain(ctx, with); err != nil || !ok {
			return best, err
		}
	}
	return with, nil
}

// disturbed are the requests that wait or move when models are loaded in places where they were not.
func (s *search) disturbed(from, to *policy.Plan) float64 {
	cost, total := s.w.s.GetChangeCost(), 0.0
	places := make(map[string]int)
	for _, p := range to.GetPartitions() {
		served := make(map[string]bool)
		for _, in := range p.GetInstances() {
			for _, model := range to.ModelsOf(in) {
				if !served[model] {
					served[model] = true
					places[model]++
				}
			}
		}
	}
	s.w.loads(from, to, func(_ *policy.Partition, m *policy.Model, fresh bool) {
		seconds := cmp.Or(m.GetChangeCost().GetSeconds(), m.GetLoadSeconds(), cost.GetDefaultLoadSeconds())
		if fresh {
			seconds += cost.GetPartitionStartSeconds()
		}
		// A load takes from those that are served in the meantime; a place of several is that part of the model's requests.
		total += cmp.Or(m.GetChangeCost().GetRequests(), seconds*m.GetRate()/float64(max(1, places[m.GetName()])))
	})
	return total
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package alpaserve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// Name is what the policy is called.
const Name = "alpaserve"

const version = "1.0.0"

const (
	paramRule       = "rule"
	paramDiscipline = "discipline"
)

// Policy is AlpaServe's placement. The zero value is ready; it has no state.
type Policy struct{}

var _ policy.Policy = Policy{}

// New makes the policy.
func New() Policy { return Policy{} }

// Describe implements [policy.Policy].
func (Policy) Describe(context.Context) (*policy.Description, error) {
	return &policy.Description{
		Name: Name, Version: version, IntervalUs: 60e6,
		Summary:     "Adds one replica after the other to whole GPUs, wherever the simulator says that it serves most.",
		Needs:       []string{policy.NeedProfiles, policy.NeedEvaluate},
		Disciplines: []string{"adaptive", "eager"},
		Parameters: []*policy.Parameter{
			{Name: paramRule, Type: policy.TypeString, DefaultValue: "fast", Values: []string{"fast", "full"},
				Documentation: "fast adds the model with most bad requests to the idlest GPU that takes it, one evaluation a step; full evaluates every model on every GPU and takes the best."},
			{Name: paramDiscipline, Type: policy.TypeString, DefaultValue: "adaptive", Values: []string{"adaptive", "eager"},
				Documentation: "How batches are dispatched; eager is first come, first served, as in the paper."},
		},
	}, nil
}

// place is a replica: a model on a host, by its index.
type place struct {
	model string
	host  int
}

// placer carries one plan.
type placer struct {
	s                *policy.Snapshot
	host             policy.Host
	rule, discipline string
	left             uint32
	models           []*policy.Model
	// evaluated counts plans.
	evaluated int
}

// state is a selection of replicas, its plan and the plan's outcome.
type state struct {
	places  []place
	floor   *pack.Floor
	plan    *policy.Plan
	outcome *policy.Outcome
}

// Plan implements [policy.Policy]: from no replica, one more a step, as long as any fits and evaluations are left; the best selection of all steps
// is the plan. Without evaluations nothing guides it, and every model gets a place wherever it fits.
func (Policy) Plan(ctx context.Context, s *policy.Snapshot, h policy.Host) (*policy.Plan, error) {
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("alpaserve: %w", err)
	}
	d, err := Policy{}.Describe(ctx)
	if err != nil {
		return nil, err
	}
	all, err := d.Resolve(s.GetParameters())
	if err != nil {
		return nil, err
	}
	p := &placer{s: s, host: h, rule: all[paramRule], discipline: all[paramDiscipline], left: s.GetEvaluations()}
	x := policy.NewIndex(s)
	for _, m := range s.GetModels() {
		if m.GetRate() > 0 && !x.Rule(m.GetName()).Pinned {
			p.models = append(p.models, m)
		}
	}
	best, err := p.choose(ctx)
	if err != nil {
		return nil, err
	}
	return best.plan, nil
}

// build makes a plan of replicas. A model without a replica gets a place where there is room, so that no name is lost.
func (p *placer) build(places []place) *state {
	f := pack.New(p.s)
	parts := make(map[int]*pack.Part)
	for _, replica := range places {
		h := f.Hosts[replica.host]
		part := parts[replica.host]
		if part == nil {
			part = f.Open(h, 100)
			parts[replica.host] = part
		}
		f.Put(part, replica.model, 0, 0)
	}
	return &state{places: places, floor: f}
}

// finish writes a state's plan.
func (p *placer) finish(st *state) {
	f := st.floor.Clone()
	for _, replica := range st.places {
		f.Why(replica.model, "a replica on %s, the %d%s that was added", f.Hosts[replica.host].GPU, 1+slices.Index(st.places, replica), suffix(1+slices.Index(st.places, replica)))
	}
	f.Rest()
	st.plan = f.Plan(Name, version, func(string) *policy.Dispatch { return &policy.Dispatch{Discipline: p.discipline} })
	pack.Divide(f.Index, st.plan)
}

func suffix(n int) string {
	switch {
	case n%100 >= 11 && n%100 <= 13:
		return "th"
	case n%10 == 1:
		return "st"
	case n%10 == 2:
		return "nd"
	case n%10 == 3:
		return "rd"
	}
	return "th"
}

// choose is the greedy selection of algorithm 1.
func (p *placer) choose(ctx context.Context) (*state, error) {
	at := p.build(nil)
	p.finish(at)
	best := at
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		candidates := p.candidates(at)
		if len(candidates) == 0 || p.left == 0 {
			break
		}
		next, err := p.evaluate(ctx, candidates)
		if errors.Is(err, policy.ErrNoEvaluation) {
			break
		}
		if err != nil {
			return nil, err
		}
		if next == nil {
			break
		}
		at = next
		if best.outcome == nil || at.outcome.GetGoodput() > best.outcome.GetGoodput() {
			best = at
		}
	}
	text := fmt.Sprintf("%d replicas, the best of %d selections that were evaluated", len(best.places), p.evaluated)
	if p.evaluated == 0 {
		text = "nothing could be evaluated (no traffic, or no evaluations are allowed): every model is where it fits"
	}
	best.plan = proto.CloneOf(best.plan)
	best.plan.Reasons = append(best.plan.Reasons, &policy.Reason{Text: text})
	return best, nil
}

// candidates are the selections with one replica more: all that fit, or with rule fast the first that does, of the models by their bad requests
// and the hosts by how idle they are.
func (p *placer) candidates(at *state) (all []*state) {
	x := at.floor
	models, hosts := slices.Clone(p.models), slices.Clone(x.Hosts)
	if p.rule == "fast" {
		bad, busy := badness(p.models, at), idleness(at)
		slices.SortStableFunc(models, func(a, b *policy.Model) int {
			return cmp.Or(cmp.Compare(bad[b.GetName()], bad[a.GetName()]), strings.Compare(a.GetName(), b.GetName()))
		})
		slices.SortStableFunc(hosts, func(a, b *pack.Host) int {
			return cmp.Or(cmp.Compare(busy[a.Index()], busy[b.Index()]), cmp.Compare(a.Index(), b.Index()))
		})
	}
	for _, m := range models {
		for _, h := range hosts {
			if !fits(at, h, m.GetName()) {
				continue
			}
			next := p.build(append(slices.Clip(at.places), place{m.GetName(), h.Index()}))
			p.finish(next)
			all = append(all, next)
			if p.rule == "fast" {
				return all
			}
		}
	}
	return all
}

// fits reports whether a host takes a replica that it does not have.
func fits(at *state, h *pack.Host, model string) bool {
	if h.OnCPU() || at.floor.UsableProfile(model, h.Type) == nil || slices.Contains(at.places, place{model, h.Index()}) {
		return false
	}
	for _, part := range h.Parts {
		if !part.Pinned() {
			return at.floor.Refuse(part, model, 0) == ""
		}
	}
	return at.floor.RefuseNew(h, 100, model, 0) == ""
}

// badness is the requests per second that went badly, by model; of one without a replica all.
func badness(models []*policy.Model, at *state) map[string]float64 {
	bad := make(map[string]float64)
	for _, m := range models {
		bad[m.GetName()] = m.GetRate()
		for _, o := range at.outcome.GetModels() {
			if o.GetModel() == m.GetName() && slices.ContainsFunc(at.places, func(p place) bool { return p.model == o.GetModel() }) {
				bad[m.GetName()] = m.GetRate() * o.GetBadRate()
			}
		}
	}
	return bad
}

// idleness is how busy each host was, by its index.
func idleness(at *state) map[int]float64 {
	busy := make(map[int]float64)
	for _, part := range at.plan.GetPartitions() {
		for _, h := range at.floor.Hosts {
			if h.Node != part.GetNode() || h.GPU != part.GPU() || !slices.ContainsFunc(at.places, func(p place) bool { return p.host == h.Index() }) {
				continue
			}
			for _, o := range at.outcome.GetPartitions() {
				if o.GetPartition() == part.GetId() {
					busy[h.Index()] += o.GetBusyShare()
				}
			}
		}
	}
	return busy
}

// evaluate asks about candidates and returns the best; nil where none can be run.
func (p *placer) evaluate(ctx context.Context, all []*state) (best *state, err error) {
	all = all[:min(len(all), int(p.left))]
	for len(all) > 0 {
		now := all[:min(len(all), policy.MaxEvaluatePlans)]
		plans := make([]*policy.Plan, len(now))
		for i, st := range now {
			plans[i] = st.plan
		}
		outcomes, err := p.host.Evaluate(ctx, plans...)
		if err != nil {
			return nil, err
		}
		p.left -= uint32(len(now))
		p.evaluated += len(now)
		for i, st := range now {
			if len(outcomes[i].GetViolations()) > 0 {
				continue
			}
			if st.outcome = outcomes[i]; best == nil || st.outcome.GetGoodput() > best.outcome.GetGoodput() {
				best = st
			}
		}
		all = all[len(now):]
	}
	return best, nil
}

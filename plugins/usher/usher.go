// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package usher

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// Name is what the policy is called.
const Name = "usher"

const version = "1.0.0"

// Policy is USHER's placement. The zero value is ready; it has no state.
type Policy struct{}

var _ policy.Policy = Policy{}

// New makes the policy.
func New() Policy { return Policy{} }

// run carries one plan.
type run struct {
	f     *pack.Floor
	set   *settings
	kinds []kind
	gpus  []*gpu
	// cheapest are the GPUs in the order in which they are initialised, opened those that are.
	cheapest, opened []int
	// alike are the initialised GPUs that are alike, and classes the same as a list in no order.
	alike   map[like]*class
	classes []*class
	// byKind are the places in cheapest of the GPUs of each kind, in order, and first, by kind, where in these the first may be that is neither initialised
	// nor closed.
	byKind [][]int
	first  []int
	placed []placed
	// wanted are derived models that the floor knows.
	wanted []string
}

// placed is a replica on a GPU.
type placed struct {
	choice
	gpu int
}

// Plan implements [policy.Policy]: groups of models (section 3.3.1), the best configuration of each (algorithm 1) by its placement
// (algorithm 2), then merged models on the GPUs (section 3.4).
func (Policy) Plan(ctx context.Context, s *policy.Snapshot, _ policy.Host) (*policy.Plan, error) {
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("usher: %w", err)
	}
	set, err := read(s)
	if err != nil {
		return nil, err
	}
	r := &run{f: pack.New(s), set: set, alike: map[like]*class{}}
	r.hosts(s)
	var models []*model
	for _, m := range s.GetModels() {
		if planned, ok := r.model(m); ok {
			models = append(models, planned)
		} else if rate(m) > 0 && !r.f.Rule(m.GetName()).Pinned {
			r.f.Why(m.GetName(), "no SLO, or no batch size makes it on any GPU here by a usable profile with creq and mreq: it is placed without being planned")
		}
	}
	if err := needed(s); err != nil {
		return nil, err
	}
	groups := r.groups(models)
	budget := set.placements
	if s.GetSteps() > 0 && len(groups) > 0 {
		budget = max(1, s.GetSteps()/uint64(len(groups)))
	}
	for i, group := range groups {
		best, spent := r.search(ctx, i+1, group, budget)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r.commit(i+1, best)
		r.explain(i+1, best, spent)
	}
	r.settle()
	r.f.Rest()
	plan := r.f.Plan(Name, version, func(string) *policy.Dispatch { return &policy.Dispatch{Discipline: "adaptive"} })
	pack.Divide(r.f.Index, plan)
	r.rent(s, plan)
	return plan, nil
}

// needed says where the requirements of models with load are to be had from, if the snapshot does not have them.
func needed(s *policy.Snapshot) error {
	if !slices.ContainsFunc(s.GetModels(), func(m *policy.Model) bool { return rate(m) > 0 && m.GetSloUs() > 0 }) || len(s.GetProfiles()) == 0 {
		return nil
	}
	for _, need := range (&policy.Description{Needs: []string{policy.NeedRequirements}}).Unmet(s) {
		return fmt.Errorf("usher: the snapshot lacks %s", policy.Remedy(need))
	}
	return nil
}

// hosts lists the GPUs: those of the snapshot, and those that could be rented where GPUs are to be cheap.
func (r *run) hosts(s *policy.Snapshot) {
	add := func(host *pack.Host, k kind) {
		if k.cost <= 0 {
			k.cost = 1
		}
		i := slices.Index(r.kinds, k)
		if i < 0 {
			i, r.kinds = len(r.kinds), append(r.kinds, k)
		}
		r.cheapest = append(r.cheapest, len(r.gpus))
		r.gpus = append(r.gpus, &gpu{host: host, kind: i, compute: 100, memory: 1, closed: host != nil && len(host.Parts) > 0})
	}
	for _, h := range r.f.Hosts {
		if !h.OnCPU() {
			add(h, kind{h.Type, h.Memory, h.CostPerHour})
		}
	}
	if s.GetObjective() == policy.Objective_OBJECTIVE_MIN_COST {
		for _, o := range s.GetOffers() {
			for range min(o.GetMaxCount(), maxRented) {
				add(nil, kind{o.GetType(), o.GetMemoryBytes(), o.GetCostPerHour()})
			}
		}
	}
	r.order()
}

// order puts the GPUs that there are in the order in which they are initialised.
func (r *run) order() {
	slices.SortStableFunc(r.cheapest, func(a, b int) int {
		return cmp.Compare(r.kinds[r.gpus[a].kind].cost, r.kinds[r.gpus[b].kind].cost)
	})
	r.byKind, r.first = make([][]int, len(r.kinds)), make([]int, len(r.kinds))
	for at, i := range r.cheapest {
		r.byKind[r.gpus[i].kind] = append(r.byKind[r.gpus[i].kind], at)
	}
}

// maxRented bounds the GPUs of one offer that a plan considers.
const maxRented = 1024

// rent fills in what to rent: so many GPUs of a type in all, by those offers that the plan was free to use.
func (r *run) rent(s *policy.Snapshot, plan *policy.Plan) {
	if s.GetObjective() != policy.Objective_OBJECTIVE_MIN_COST {
		return
	}
	for _, o := range s.GetOffers() {
		if plan.WantedGpus == nil {
			plan.WantedGpus = make(map[string]uint32)
		}
		plan.WantedGpus[o.GetType()] = 0
	}
	for _, g := range r.gpus {
		kind := r.kinds[g.kind]
		if _, offered := plan.WantedGpus[kind.gpuType]; !offered {
			continue
		}
		if g.host == nil && g.group != 0 || g.host != nil && g.host.Used() {
			plan.WantedGpus[kind.gpuType]++
		}
	}
}

func (r *run) explain(group int, p *placement, spent uint64) {
	count := make([]int, len(p.choices))
	for _, x := range p.replicas {
		count[x.choice]++
	}
	for i, c := range p.choices {
		o := c.option
		r.f.Why(c.model.name, "group %d: BS %d, RD %d, creq %.0f%% and mreq %.0f%% each; %d of %d replicas placed (%d placements tried, %.4g an hour more for the group)",
			group, o.batch, o.replicas, 100*o.compute, 100*o.memory, count[i], o.replicas, spent, p.cost)
	}
}

// settle brings the replicas onto the floor, merged where that is on offer. Each carries a part of its model's workload in proportion to what it
// achieves.
func (r *run) settle() {
	achieved := make(map[string]float64)
	for _, x := range r.placed {
		achieved[x.model.name] += x.need(r).goodput
	}
	on := make([][]placed, len(r.gpus))
	for _, x := range r.placed {
		on[x.gpu] = append(on[x.gpu], x)
	}
	for i, g := range r.gpus {
		here := on[i]
		if g.host == nil {
			for _, x := range here {
				r.f.Why(x.model.name, "a replica waits for a rented %s", r.kinds[g.kind].gpuType)
			}
			continue
		}
		load := func(x placed) float64 {
			own := x.need(r).goodput
			return math.Min(own, x.model.workload*own/achieved[x.model.name])
		}
		if r.set.merge {
			here = r.merge(g, here, load)
		}
		for _, x := range here {
			share := uint32(x.need(r).share)
			if cause := r.f.RefuseNew(g.host, share, x.model.name, x.option.batch); cause != "" {
				r.f.Why(x.model.name, "no replica on %s after all: %s", g.host.GPU, cause)
				continue
			}
			r.f.Put(r.f.Open(g.host, share), x.model.name, x.option.batch, load(x))
		}
	}
}

func (x placed) need(r *run) need { return x.option.needs[r.gpus[x.gpu].kind] }

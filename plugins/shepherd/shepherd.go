// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shepherd

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// Name is what the policy is called.
const Name = "shepherd"

const version = "1.0.0"

const paramDiscipline = "discipline"

// Policy is Shepherd's planner. The zero value is ready; it has no state.
type Policy struct{}

var _ policy.Policy = Policy{}

// New makes the policy.
func New() Policy { return Policy{} }

// Describe implements [policy.Policy].
func (Policy) Describe(context.Context) (*policy.Description, error) {
	return &policy.Description{
		Name: Name, Version: version, IntervalUs: 60e6,
		Summary:     "Few groups of models, each on whole GPUs of its own that hold all its models, in proportion to their load.",
		Needs:       []string{policy.NeedProfiles},
		Disciplines: []string{"adaptive", "flex"},
		Parameters: []*policy.Parameter{
			{Name: paramDiscipline, Type: policy.TypeString, DefaultValue: "adaptive", Values: []string{"adaptive", "flex"},
				Documentation: "How batches are dispatched: flex is Shepherd's own, which preempts and therefore runs in simulations only."},
		},
	}, nil
}

// group is models that share GPUs.
type group struct {
	models []string
	// load in GPUs of its type that are always busy.
	load  float64
	hosts []*pack.Host
	// trial is an empty GPU with the group's models: what one of its GPUs holds.
	trial *pack.Part
	floor *pack.Floor
}

// Plan implements [policy.Policy]: models join the first group whose GPUs have memory for one more, so that groups are few; then the GPUs are dealt
// to the group that tolerates the least burst, one after the other.
func (Policy) Plan(ctx context.Context, s *policy.Snapshot, _ policy.Host) (*policy.Plan, error) {
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("shepherd: %w", err)
	}
	discipline := cmp.Or(s.GetParameters()[paramDiscipline], "adaptive")
	if discipline != "adaptive" && discipline != "flex" {
		return nil, fmt.Errorf("shepherd: parameter %s: %q is none of adaptive, flex", paramDiscipline, discipline)
	}
	f := pack.New(s)
	var free []*pack.Host
	for _, h := range f.Hosts {
		if !h.OnCPU() && len(h.Parts) == 0 {
			free = append(free, h)
		}
	}
	groups := join(f, free)
	deal(f, groups, free)
	for i, g := range groups {
		for _, h := range g.hosts {
			part := f.Open(h, 100)
			for _, model := range g.models {
				if f.Refuse(part, model, 0) == "" {
					f.Put(part, model, 0, 0)
				}
			}
		}
		for _, model := range g.models {
			f.Why(model, "group %d of %d: %s on %d GPUs, whose load is %.3g GPUs that are always busy", i+1, len(groups), strings.Join(g.models, ", "), len(g.hosts), g.load)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.Rest()
	plan := f.Plan(Name, version, func(string) *policy.Dispatch { return &policy.Dispatch{Discipline: discipline} })
	pack.Divide(f.Index, plan)
	return plan, nil
}

// need is the load of a model in GPUs of a type that are always busy with the largest batches that leave half of its SLO to wait.
func need(f *pack.Floor, m *policy.Model, gpuType string) (float64, bool) {
	p := f.UsableProfile(m.GetName(), gpuType)
	if p == nil {
		return 0, false
	}
	batch := max(1, m.GetMaxBatchSize())
	if m.GetSloUs() > 0 {
		batch = max(1, p.MaxBatch(100, batch, float64(m.GetSloUs())/2))
	}
	l, ok := p.Upper(batch, 100)
	return math.Max(m.GetRowRate(), m.GetRate()) * l / float64(batch) / 1e6, ok
}

// join makes groups of the models that have load and a profile, the heaviest first. All GPUs are measured by the first type that a model knows.
func join(f *pack.Floor, free []*pack.Host) (groups []*group) {
	models := slices.Clone(f.Snapshot().GetModels())
	load := make(map[string]float64)
	models = slices.DeleteFunc(models, func(m *policy.Model) bool {
		for _, h := range free {
			if l, ok := need(f, m, h.Type); ok && l > 0 && !f.Rule(m.GetName()).Pinned {
				load[m.GetName()] = l
				return false
			}
		}
		return true
	})
	slices.SortStableFunc(models, func(a, b *policy.Model) int {
		return cmp.Or(cmp.Compare(load[b.GetName()], load[a.GetName()]), strings.Compare(a.GetName(), b.GetName()))
	})
	for _, m := range models {
		name := m.GetName()
		i := slices.IndexFunc(groups, func(g *group) bool { return g.floor.Refuse(g.trial, name, 0) == "" })
		if i < 0 {
			if len(groups) == len(free) {
				continue // a GPU for each group there is: it gets a place at the end, if there is one
			}
			g := newGroup(f, free, name)
			if g == nil {
				continue
			}
			groups, i = append(groups, g), len(groups)
		}
		g := groups[i]
		if !g.trial.Holds(name) {
			g.floor.Put(g.trial, name, 0, 0)
			g.models = append(g.models, name)
		}
		g.load += load[name]
	}
	for _, g := range groups {
		slices.Sort(g.models)
	}
	return groups
}

// newGroup is a group that a model may found: on a floor of its own, on the first GPU that takes the model.
func newGroup(f *pack.Floor, free []*pack.Host, model string) *group {
	for _, h := range free {
		if f.RefuseNew(h, 100, model, 0) == "" {
			trial := f.Clone()
			return &group{floor: trial, trial: trial.Open(trial.Hosts[h.Index()], 100)}
		}
	}
	return nil
}

// deal gives the GPUs out: one for each group, then each to the group with the least burst tolerance (capacity over load), among those whose
// models it takes.
func deal(f *pack.Floor, groups []*group, free []*pack.Host) {
	takes := func(g *group, h *pack.Host) bool {
		return !slices.ContainsFunc(g.models, func(model string) bool { return f.RefuseNew(h, 100, model, 0) != "" || full(f, g, model) })
	}
	for _, h := range free {
		var best *group
		for _, g := range groups {
			if takes(g, h) && (best == nil || float64(len(g.hosts))/g.load < float64(len(best.hosts))/best.load) {
				best = g
			}
		}
		if best != nil {
			best.hosts = append(best.hosts, h)
		}
	}
}

// full reports that the operator wants no more instances of a model than its group has GPUs.
func full(f *pack.Floor, g *group, model string) bool {
	most := f.Rule(model).MaxInstances
	return most > 0 && len(g.hosts) >= int(most)
}

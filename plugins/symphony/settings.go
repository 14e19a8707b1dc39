// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package symphony

import (
	"cmp"
	"context"
	"math"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// Parameters.
const (
	paramClusters   = "sub_clusters"
	paramRate       = "max_rate"
	paramChange     = "max_disruption"
	paramWeight     = "memory_weight"
	paramSolver     = "solver"
	paramSteps      = "steps"
	paramDiscipline = "discipline"
)

// Solvers.
const (
	bySearch = "search"
	byGreedy = "greedy"
	byRandom = "random"
)

type settings struct {
	clusters             int
	rate, change, weight float64
	solver, discipline   string
	steps                uint64
}

// Describe implements [policy.Policy].
func (Policy) Describe(context.Context) (*policy.Description, error) {
	return &policy.Description{
		Name: Name, Version: version, IntervalUs: 120e6,
		Summary:     "Divides models and whole GPUs into sub-clusters of equal rate and memory, and follows the advice on how many GPUs there should be.",
		Needs:       []string{policy.NeedProfiles},
		Disciplines: []string{"adaptive", "deferred"},
		Parameters: []*policy.Parameter{
			{Name: paramClusters, Type: policy.TypeInt, DefaultValue: "0", Documentation: "Sub-clusters (l of appendix A); 0: the fewest that the bounds allow."},
			{Name: paramRate, Type: policy.TypeFloat, DefaultValue: "0", Documentation: "Most requests per second of a sub-cluster (R_max), what one dispatcher can do; 0: no bound."},
			{Name: paramChange, Type: policy.TypeFloat, DefaultValue: "0",
				Documentation: "Most seconds of loading and unloading models that a new plan may cost (C_max), once for each sub-cluster; 0: no bound."},
			{Name: paramWeight, Type: policy.TypeFloat, DefaultValue: "1", Documentation: "What an imbalance of memory counts beside one of rate (w), both as fractions of their averages."},
			{Name: paramSolver, Type: policy.TypeString, DefaultValue: bySearch, Values: []string{bySearch, byGreedy, byRandom},
				Documentation: "search: branch and bound, with a stated gap where its steps are spent; greedy: the largest models first; random: the paper's baseline."},
			{Name: paramSteps, Type: policy.TypeInt, DefaultValue: "200000", Documentation: "Steps that the solver may spend; the snapshot's, where they are given, come first."},
			{Name: paramDiscipline, Type: policy.TypeString, DefaultValue: "adaptive", Values: []string{"adaptive", "deferred"},
				Documentation: "How batches are dispatched: deferred is Symphony's own."},
		},
	}, nil
}

func read(s *policy.Snapshot) (*settings, error) {
	p, err := pack.Read(Policy{}, s)
	if err != nil {
		return nil, err
	}
	set := &settings{
		solver: cmp.Or(p.Text(paramSolver), bySearch), discipline: cmp.Or(p.Text(paramDiscipline), "adaptive"),
		clusters: p.Int(paramClusters, pack.Between(0, 1<<16), "0 or more"),
		rate:     p.Float(paramRate, pack.AtLeast(0.), "0 or more"),
		change:   p.Float(paramChange, pack.AtLeast(0.), "0 or more"),
		weight:   p.Float(paramWeight, pack.Between(0, math.MaxFloat64), "0 or more"),
		steps:    uint64(p.Int(paramSteps, pack.AtLeast(1), "1 or more")), //nolint:gosec // not negative
	}
	set.rate, set.change = cmp.Or(set.rate, math.Inf(1)), cmp.Or(set.change, math.Inf(1))
	if s.GetSteps() > 0 {
		set.steps = s.GetSteps()
	}
	return set, p.Err()
}

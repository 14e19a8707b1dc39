// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package symphony

import (
	"context"
	"fmt"
	"math"
	"strconv"

	"github.com/conch-serving/conch/plugins/policy"
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
	d, err := Policy{}.Describe(context.Background())
	if err != nil {
		return nil, err
	}
	all, err := d.Resolve(s.GetParameters())
	if err != nil {
		return nil, err
	}
	set := &settings{solver: all[paramSolver], discipline: all[paramDiscipline]}
	if set.solver == "" {
		set.solver = bySearch
	}
	if set.discipline == "" {
		set.discipline = "adaptive"
	}
	// Resolve has seen that the texts are of their types.
	set.clusters, _ = strconv.Atoi(all[paramClusters])
	set.rate, _ = strconv.ParseFloat(all[paramRate], 64)
	set.change, _ = strconv.ParseFloat(all[paramChange], 64)
	set.weight, _ = strconv.ParseFloat(all[paramWeight], 64)
	set.steps, _ = strconv.ParseUint(all[paramSteps], 10, 64)
	for _, check := range []struct {
		name string
		ok   bool
		want string
	}{
		{paramClusters, set.clusters >= 0 && set.clusters <= 1<<16, "0 or more"}, {paramRate, set.rate >= 0, "0 or more"}, {paramChange, set.change >= 0, "0 or more"},
		{paramWeight, set.weight >= 0 && !math.IsInf(set.weight, 0), "0 or more"}, {paramSteps, set.steps >= 1, "1 or more"},
	} {
		if !check.ok {
			return nil, fmt.Errorf("symphony: parameter %s: %q is not %s", check.name, all[check.name], check.want)
		}
	}
	if set.rate == 0 {
		set.rate = math.Inf(1)
	}
	if set.change == 0 {
		set.change = math.Inf(1)
	}
	if s.GetSteps() > 0 {
		set.steps = s.GetSteps()
	}
	return set, nil
}

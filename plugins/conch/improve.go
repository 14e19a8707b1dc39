// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
)

// ErrMinCost means that a plan cannot be improved under the objective min-cost.
var ErrMinCost = errors.New("conch: a plan is improved by its goodput, and the objective is min-cost")

// Improve makes a plan of another policy serve more, with the snapshot's evaluations: the search of [Policy], begun with that plan alone, as it is and
// filled up by conch's rules, and with no plan of conch's own or of further policies. A comparison asks it what the search is worth apart from what it
// begins with. It wraps [policy.ErrNoEvaluation] where neither beginning can be evaluated, and is for every objective but min-cost ([ErrMinCost]).
func Improve(ctx context.Context, s *policy.Snapshot, h policy.Host, from *policy.Plan) (*policy.Plan, error) {
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("conch: %w", err)
	}
	if s.GetObjective() == policy.Objective_OBJECTIVE_MIN_COST {
		return nil, ErrMinCost
	}
	set, err := read(&policy.Snapshot{})
	if err != nil {
		return nil, err
	}
	w := newWorld(s, newBudget(s))
	asIs := proto.CloneOf(from)
	asIs.PolicyState = nil
	candidates := []*candidate{{plan: asIs, from: "the plan to improve"}}
	if filled := w.build(w.read(from)); !same(asIs, filled) {
		candidates = append(candidates, &candidate{plan: filled, from: "the plan to improve, filled up", built: true})
	}
	search := &search{w: w, set: set, host: h, left: s.GetEvaluations(), bad: set.bad}
	best, err := search.best(ctx, candidates)
	if err == nil && best.outcome == nil {
		err = policy.ErrNoEvaluation
	}
	if err != nil {
		return nil, fmt.Errorf("conch: %w", err)
	}
	if best, err = search.most(ctx, candidates, best); err != nil {
		return nil, err
	}
	return w.finish(best.plan), nil
}

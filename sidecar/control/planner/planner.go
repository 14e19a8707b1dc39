// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package planner proposes a plan for a snapshot: by the policy, in a process of its
// own, or by the mirror of attached servers. The disciplines of conch.yaml override
// either.
package planner

import (
	"context"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

// Planner proposes a plan for a snapshot.
type Planner interface {
	Plan(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error)
}

// Host runs the policy in use; a *policyhost.Host is one.
type Host interface {
	Planner
	Use(ctx context.Context, ref policyhost.Ref) (*policy.Description, error)
	Describe(ctx context.Context, ref policyhost.Ref) (*policy.Description, error)
	List(ctx context.Context) ([]policyhost.Known, error)
	// Try asks another policy than the one in use.
	Try(ctx context.Context, ref policyhost.Ref, s *policy.Snapshot) (*policy.Plan, error)
	Status() policyhost.Status
}

// Func is a function that proposes.
type Func func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error)

// Plan implements Planner.
func (f Func) Plan(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) { return f(ctx, s) }

// Ready answers with a plan that there is already, whatever is asked.
func Ready(p *policy.Plan) Planner {
	return Func(func(context.Context, *policy.Snapshot) (*policy.Plan, error) { return p, nil })
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/plan"
)

// API is what sidecar/admin may ask of a *Control.
type API interface {
	Version() Version
	// Ready lists every condition of readiness; all must hold.
	Ready() []Check
	Snapshot(context.Context) (*policy.Snapshot, error)
	Models() []Model
	Model(name string) (Model, error)
	GPUs() []GPU
	GPUAdvice() GPUAdvice
	// CurrentPlan is the plan that serves.
	CurrentPlan() Plan
	// Propose asks the policy and compares; it changes nothing.
	Propose(context.Context) (*Proposal, error)
	Apply(context.Context, ApplyRequest) (*ApplyResult, error)
	Explain(ctx context.Context, model string) (*plan.Explanation, error)
	Policies(context.Context) ([]Policy, error)
	Policy(ctx context.Context, name string) (Policy, error)
	UsePolicy(context.Context, PolicyRequest) (Policy, error)
	Revisions(context.Context) ([]RepositoryRevision, error)
	Import(context.Context, ImportRequest) (RepositoryRevision, error)
	Rollback(context.Context, RollbackRequest) (RepositoryRevision, error)
	// Release gives attached servers back.
	Release(context.Context, ReleaseRequest) (ReleaseResult, error)
	// Events gives those after id since, oldest first.
	Events(since uint64) []Event
	// Follow calls yield for the events after since, then for every new one,
	// until ctx ends (nil) or yield fails (its error).
	Follow(ctx context.Context, since uint64, yield func(Event) error) error
}

var (
	_ API   = (*Control)(nil)
	_ Hooks = (*Control)(nil)
)

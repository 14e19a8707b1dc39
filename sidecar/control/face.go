// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/plan"
)

// What an operator's order can fail with; test with errors.Is. A plan that was
// judged and refused is a plan.Violations in the chain (errors.As).
var (
	// ErrNotFound: no model, policy or revision has that name.
	ErrNotFound = errors.New("not found")
	// ErrConflict: another plan serves than the one the caller saw.
	ErrConflict = errors.New("another plan serves by now")
	// ErrRefused: the mode or the configuration forbids the order.
	ErrRefused = errors.New("refused")
	// ErrInvalid: the order itself makes no sense, whatever serves.
	ErrInvalid = errors.New("invalid")
	// ErrUnavailable: the policy gave no plan; what serves goes on serving.
	ErrUnavailable = errors.New("no plan could be had")
)

// Plan is a plan with its author, time and reason.
type Plan struct {
	// Revision counts the plans that served; it guards against two writers.
	Revision  uint64
	AppliedAt time.Time
	AppliedBy string
	Reason    string
	// Pin is set while no other plan takes its place by itself.
	Pin *api.Pin
	*policy.Plan
}

// Proposal is what the policy would do now, judged and compared, not applied.
type Proposal struct {
	// FromRevision is the plan that serves.
	FromRevision uint64
	Snapshot     *policy.Snapshot
	// Plan is the proposed plan even where Violations refuse it.
	Plan       *policy.Plan
	Diff       *plan.Diff
	Violations plan.Violations
	// Judgement says whether conch would apply the plan by itself; nil where there
	// was nothing to judge.
	Judgement *plan.Judgement
	// Reloads are models whose files changed since they were loaded.
	Reloads []string
	// Duration is what the policy took.
	Duration time.Duration
}

// Applied is what serves after an order.
type Applied struct {
	Changed  bool
	Plan     Plan
	Proposal *Proposal
	Duration time.Duration
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
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
	// ErrUnavailable: the policy gave no plan; what serves goes on serving.
	ErrUnavailable = errors.New("no plan could be had")
)

// Version says which build this is and how it runs.
type Version struct {
	Version, Commit, Go, Mode, Driver string
}

// Check is one condition of readiness.
type Check struct {
	Name   string
	OK     bool
	Reason string
}

// ModelState is what a client of a model would find.
type ModelState string

// States of a model.
const (
	// ModelReady: at least one partition that is up serves it.
	ModelReady ModelState = "ready"
	// ModelDown: it is placed, and all its partitions are down.
	ModelDown ModelState = "down"
	// ModelUnplaced: the serving plan does not place it; the reason says why.
	ModelUnplaced ModelState = "unplaced"
	// ModelUnloaded: an operator unloaded it.
	ModelUnloaded ModelState = "unloaded"
	// ModelInvalid: Triton would not load its files; the reason says what is wrong.
	ModelInvalid ModelState = "invalid"
	// ModelFailed: the server refused to load it; the reason is the server's.
	ModelFailed ModelState = "failed"
)

// Model is a model as it is served now.
type Model struct {
	Name        string
	Versions    []string
	Revision    string
	State       ModelState
	StateReason string
	Backend     string
	SLO         time.Duration
	Late        policy.LatePolicy
	// MaxBatchSize is the model's own; 0 means no batch dimension.
	MaxBatchSize      int
	Batchable         bool
	PassThroughReason string
	// DynamicBatching and MaxQueueDelay are what the operator's own config.pbtxt
	// says: how Triton would batch without Conch.
	DynamicBatching bool
	MaxQueueDelay   time.Duration
	Discipline      string
	DropPolicy      string
	// Partitions are the ids of those that serve it, by rank.
	Partitions []string
	// Rate is requests per second, RowRate rows per second.
	Rate, RowRate, Burstiness float64
	// Statistics cover the statistics window.
	Statistics *policy.ModelStatistics
	Profiles   []*policy.Profile
	// DeclaredAlpha and DeclaredBeta are models.NAME.profile of conch.yaml; both 0 where there is none.
	DeclaredAlpha, DeclaredBeta time.Duration
}

// GPU is a device with the partitions of the serving plan.
type GPU struct {
	Node string
	*policy.GPU
	Partitions []Partition
}

// Partition is a partition of the serving plan and the process behind it.
type Partition struct {
	*policy.Partition
	Up     bool
	Reason string
	// GRPC, HTTP and Metrics are the process's addresses.
	GRPC, HTTP, Metrics string
	Restarts            int
	// BusyShare is the fraction of the statistics window spent executing.
	BusyShare        float64
	BatchesPerSecond float64
	MeanBatch        float64
}

// Plan is a plan with who made it serve.
type Plan struct {
	// Revision counts the plans that served; it guards against two writers.
	Revision  uint64
	AppliedAt time.Time
	AppliedBy string
	Reason    string
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

// ApplyRequest orders a plan to be made and applied.
type ApplyRequest struct {
	// IfRevision refuses to change another plan than this one; 0 does not care.
	IfRevision     uint64
	Author, Reason string
}

// ApplyResult is what serves afterwards.
type ApplyResult struct {
	Changed  bool
	Plan     Plan
	Proposal *Proposal
	Duration time.Duration
}

// Policy is a policy that could decide.
type Policy struct {
	Name           string
	Builtin, InUse bool
	// Description is nil when the policy could not be asked; LastError says why.
	Description *policy.Description
	// Parameters are those in use, empty for a policy that is not.
	Parameters map[string]string
	// State of its process and of its circuit breaker, for the one in use.
	State, Breaker string
	LastError      string
}

// PolicyRequest swaps the policy.
type PolicyRequest struct {
	Name           string
	Parameters     map[string]string
	Author, Reason string
}

// Event is one thing that happened on the plan way.
type Event struct {
	ID       uint64
	Time     time.Time
	Kind     EventKind
	Author   string
	Reason   string
	Message  string
	Duration time.Duration
	Fields   map[string]string
}

// EventKind is a stable word for what happened.
type EventKind string

// Kinds of event.
const (
	EventStarted         EventKind = "started"
	EventPlanApplied     EventKind = "plan_applied"
	EventPlanProposed    EventKind = "plan_proposed"
	EventPlanHeld        EventKind = "plan_held"
	EventPlanRejected    EventKind = "plan_rejected"
	EventPlanFailed      EventKind = "plan_failed"
	EventApplyFailed     EventKind = "apply_failed"
	EventPolicyChanged   EventKind = "policy_changed"
	EventPolicyState     EventKind = "policy_state"
	EventPartitionUp     EventKind = "partition_up"
	EventPartitionDown   EventKind = "partition_down"
	EventRepository      EventKind = "repository_imported"
	EventModelLoaded     EventKind = "model_loaded"
	EventModelUnloaded   EventKind = "model_unloaded"
	EventModelInterfered EventKind = "model_interfered"
	EventReloaded        EventKind = "configuration_reloaded"
	EventStopping        EventKind = "stopping"
	// EventHandover: an attached server's configuration was changed, or why not.
	EventHandover EventKind = "handover"
	// EventReleased: attached servers were given back, or taken again.
	EventReleased EventKind = "released"
)

// RepositoryRevision is one state of the model repository.
type RepositoryRevision struct {
	ID, Parent              string
	Time                    time.Time
	Author, Reason          string
	Models                  []string
	Added, Removed, Changed []string
	Current                 bool
}

// RollbackRequest makes the models of an earlier revision the present ones again.
type RollbackRequest struct {
	// Revision is the earlier one's id.
	Revision       string
	Author, Reason string
}

// ImportRequest reads a model repository into a new revision.
type ImportRequest struct {
	// Directory to read; empty means the configured one.
	Directory      string
	Author, Reason string
}

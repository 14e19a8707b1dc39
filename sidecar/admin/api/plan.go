// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"time"
)

// Plan is a plan with its author, time and reason. Plan itself is the JSON form of
// policy.Plan, with the names of the policy contract.
type Plan struct {
	Revision  uint64    `json:"revision"`
	Policy    string    `json:"policy"`
	AppliedAt time.Time `json:"applied_at,omitzero"`
	AppliedBy string    `json:"applied_by,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	// Pin is set while no other plan takes its place by itself.
	Pin *Pin `json:"pin,omitempty"`
	// Held is why the plan that was made last does not serve; nil where it does, or would change nothing.
	Held *Held `json:"held,omitempty"`
	// Conditions are those of the cluster that carries plans out; none without one.
	Conditions []Condition     `json:"conditions,omitempty"`
	Plan       json.RawMessage `json:"plan"`
}

// Held is why a plan does not serve, as its event says it.
type Held struct {
	// Kind of the event: plan_held, plan_rejected or plan_failed.
	Kind EventKind `json:"kind"`
	// Policy that was asked, Since when it is so.
	Policy  string    `json:"policy"`
	Since   time.Time `json:"since"`
	Message string    `json:"message"`
}

// Pin is the author, the time and the reason of a pin, which keeps the plan in force.
type Pin struct {
	Author string    `json:"author"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}

// PlanRecord is a plan that served, or serves.
type PlanRecord struct {
	Plan
	// Summary is what it changed, in a few words; Diff in full.
	Summary string `json:"summary"`
	Diff    string `json:"diff,omitempty"`
	// Repository is the revision of the repository that it served.
	Repository string `json:"repository,omitempty"`
	// Demand: it changed nothing but which models are loaded of those that load on demand.
	Demand bool `json:"demand,omitempty"`
	// Current: it serves now.
	Current bool `json:"current,omitempty"`
}

// PlanFileKind is what a plan file says that it is.
const PlanFileKind = "conch/plan/v1"

// PlanFile is a plan as tritonctl plan diff -o writes it and plan apply -f reads it.
// Plan may be edited; Basis is what it was made for, and guards it.
type PlanFile struct {
	Kind  string          `json:"kind"`
	Basis PlanBasis       `json:"basis"`
	Plan  json.RawMessage `json:"plan"`
}

// PlanBasis is what a plan was made for, as far as another would make it another
// plan: what serves, the files and SLOs of the models, the GPUs.
type PlanBasis struct {
	// Plan is the revision that served.
	Plan   uint64                `json:"plan"`
	Models map[string]ModelBasis `json:"models"`
	GPUs   map[string]string     `json:"gpus"`
}

// ModelBasis is what a plan counts on of a model.
type ModelBasis struct {
	Revision   string  `json:"revision"`
	SLOSeconds float64 `json:"slo_seconds"`
}

// DiffRequest asks what a plan would change: that of the policy, of a file, or one of
// before.
type DiffRequest struct {
	File *PlanFile `json:"file,omitempty"`
	// Policy is asked in place of the one in use. It comes in no use by that.
	Policy string `json:"policy,omitempty"`
	// Rollback is a plan of the history; RollbackLast the last one that differs.
	Rollback     uint64 `json:"rollback,omitempty"`
	RollbackLast bool   `json:"rollback_last,omitempty"`
}

// Diff is what applying the proposed plan would change.
type Diff struct {
	// FromRevision is the plan that serves; ApplyRequest repeats it so that
	// a change is applied only to the plan that the operator has seen.
	FromRevision uint64      `json:"from_revision"`
	Empty        bool        `json:"empty"`
	Text         string      `json:"text"`
	Changes      []Change    `json:"changes"`
	Violations   []Violation `json:"violations,omitempty"`
	// BreakFirst are partitions whose old servers go before the new ones come, because
	// there is no room for both: requests wait meanwhile.
	BreakFirst []string `json:"break_first,omitempty"`
	// Verdict says what conch would do by itself: apply, or hold the plan back for
	// consent, loss, gain or a pin; Judgement is why. Empty where there is nothing to do.
	Verdict   string `json:"verdict,omitempty"`
	Judgement string `json:"judgement,omitempty"`
	// Expected is what conch's own evaluation expects of both plans; nil where it could not be made.
	Expected *Expected `json:"expected,omitempty"`
	// DisturbedRequests wait or move once for the change.
	DisturbedRequests float64 `json:"disturbed_requests,omitempty"`
	// Proposed is the plan itself, for ApplyRequest.File.
	Proposed *PlanFile `json:"proposed,omitempty"`
}

// Expected compares two plans under the recent load: goodput in requests per second that are answered within their SLO, and the share of requests, from 0 to 1, that are
// late or dropped. Now is the plan in force, Then the other one.
type Expected struct {
	GoodputNow  float64 `json:"goodput_now"`
	GoodputThen float64 `json:"goodput_then"`
	BadNow      float64 `json:"bad_now"`
	BadThen     float64 `json:"bad_then"`
}

// Change is one line of a Diff: an action, the partition or model that it concerns, and a text for a person.
type Change struct {
	Action    string `json:"action"`
	Partition string `json:"partition,omitempty"`
	Model     string `json:"model,omitempty"`
	Detail    string `json:"detail,omitempty"`
}

// Violation is one reason why a plan was refused.
type Violation struct {
	Code    string `json:"code"`
	Subject string `json:"subject"`
	Text    string `json:"text"`
}

// ApplyRequest orders a plan to be applied: the policy's, that of a file, or an earlier plan.
type ApplyRequest struct {
	// IfRevision guards against two writers: a plan other than this one
	// serving is a conflict. Zero applies whatever serves.
	IfRevision uint64 `json:"if_revision,omitempty"`
	DiffRequest
	// Pin has the plan stay until it is unpinned.
	Pin    bool   `json:"pin,omitempty"`
	Author string `json:"author,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// ApplyResult is the plan that serves afterwards.
type ApplyResult struct {
	Changed bool    `json:"changed"`
	Plan    Plan    `json:"plan"`
	Diff    Diff    `json:"diff"`
	Seconds float64 `json:"seconds"`
}

// PinRequest has the plan in force stay, or ends that.
type PinRequest struct {
	// Unpin ends it.
	Unpin  bool   `json:"unpin,omitempty"`
	Author string `json:"author,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Explanation says why a model is where it is: Text for a person, Detail (a
// plan.Explanation: placements, profile used, refusals, expected and measured
// performance) for a program.
type Explanation struct {
	Model  string          `json:"model"`
	Text   string          `json:"text"`
	Detail json.RawMessage `json:"detail,omitempty"`
}

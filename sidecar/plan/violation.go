// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import "strings"

// Code is the kind of a [Violation]. Codes are stable: they are metric labels
// and appear in the API.
type Code string

// What can be wrong with a plan.
const (
	// CodeRevision: the plan answers another snapshot.
	CodeRevision Code = "revision"
	// CodeName: an id or name is empty, used twice, or cannot be a file name.
	CodeName Code = "name"
	// CodeUnknown: something is named that the snapshot does not have.
	CodeUnknown Code = "unknown"
	// CodeUnavailable: a partition lies on a GPU that may not be used.
	CodeUnavailable Code = "unavailable"
	// CodeShare: a thread percentage is out of range, or those of one GPU add up
	// to more than 100.
	CodeShare Code = "share"
	// CodeMemory: a partition or a GPU holds more than its memory.
	CodeMemory Code = "memory"
	// CodeDuplicate: a model is twice in one partition, or described twice.
	CodeDuplicate Code = "duplicate"
	// CodeMaxBatch: an instance's batch exceeds its model's.
	CodeMaxBatch Code = "max_batch"
	// CodeLatency: a model misses its SLO where it is, by its profile.
	CodeLatency Code = "latency"
	// CodeUnplaced: a model with load is neither placed nor refused with a reason.
	CodeUnplaced Code = "unplaced"
	// CodeDispatch: a discipline or drop policy that the request path does not run.
	CodeDispatch Code = "dispatch"
	// CodeConstraint: an operator's order is not obeyed.
	CodeConstraint Code = "constraint"
	// CodeRecipe: a derived model is not on offer, cannot be made, or is written
	// otherwise than it is offered.
	CodeRecipe Code = "recipe"
	// CodeCapacity: a planned rate or weight is none, or more than a profile allows.
	CodeCapacity Code = "capacity"
	// CodeUnsupported: the contract can say it, this build cannot serve it.
	CodeUnsupported Code = "unsupported"
	// CodeExcess: the plan says more than any plan for the snapshot needs.
	CodeExcess Code = "excess"
	// CodeDependency: an ensemble is placed without a model that it calls.
	CodeDependency Code = "dependency"
)

// Violation is one thing that is wrong with a plan.
type Violation struct {
	Code Code `json:"code"`
	// Subject is the partition, model, GPU or group that it is about.
	Subject string `json:"subject,omitempty"`
	// Text is a sentence for a person.
	Text string `json:"text"`
}

// String is the violation as one line.
func (v Violation) String() string {
	if v.Subject == "" {
		return string(v.Code) + ": " + v.Text
	}
	return string(v.Code) + ": " + v.Subject + ": " + v.Text
}

// Violations is a list of what is wrong, in the order of the plan. It is an
// error, so that a caller may pass it up and find it again with errors.As.
//
//nolint:errname // it is a list in the first place
type Violations []Violation

// Error lists the violations, separated by semicolons.
func (vs Violations) Error() string {
	lines := make([]string, len(vs))
	for i, v := range vs {
		lines[i] = v.String()
	}
	return "plan rejected: " + strings.Join(lines, "; ")
}

// Err returns the list as an error, nil where it is empty.
func (vs Violations) Err() error {
	if len(vs) == 0 {
		return nil
	}
	return vs
}

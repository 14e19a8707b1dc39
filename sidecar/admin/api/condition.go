// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package api

import "time"

// ConditionType is what a condition is about.
type ConditionType string

// Types of condition; every partition of the plan, every model, and a cluster that has servers, has each of them.
const (
	// ConditionReady: it serves as the plan asks; a model in one place at least.
	ConditionReady ConditionType = "ready"
	// ConditionProgressing: conch is at work on it.
	ConditionProgressing ConditionType = "progressing"
	// ConditionDegraded: something of it failed and is tried again, or needs a person.
	ConditionDegraded ConditionType = "degraded"
)

// Condition says whether one thing holds of a partition, a model or a cluster, since when and
// why.
type Condition struct {
	Type ConditionType `json:"type"`
	// Holds is whether it does.
	Holds bool `json:"holds"`
	// Reason is a stable word, Message a sentence for a person; both may be empty.
	Reason  string    `json:"reason,omitempty"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since"`
	// Attempts in a row that failed; RetryAt is when the next one is made, zero where
	// only other files or an order help, or that is not known.
	Attempts int       `json:"attempts,omitempty"`
	RetryAt  time.Time `json:"retry_at,omitzero"`
}

// ConditionOf is the condition of a type among all; ok is false where there is none.
func ConditionOf(all []Condition, t ConditionType) (c Condition, ok bool) {
	for _, c := range all {
		if c.Type == t {
			return c, true
		}
	}
	return Condition{}, false
}

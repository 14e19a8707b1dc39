// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import "context"

// Policy is what a scheduling policy implements.
//
// Both methods may be called by several goroutines. A policy keeps no state
// between calls: the host may kill its process at any time, and may run it
// again on an old snapshot to see what it would say.
type Policy interface {
	// Describe says what the policy is, which parameters it takes and what it
	// needs. It always gives the same answer.
	Describe(ctx context.Context) (*Description, error)
	// Plan answers a snapshot, which it must not change. Equal snapshots get
	// equal plans: what is random comes from Snapshot.seed. It returns before
	// Snapshot.planning_budget_us has passed (ctx ends a little later). An error
	// means that the policy could not plan at all, for example because a
	// parameter does not parse; a model without a place is not an error but an
	// entry of Plan.unplaced. The error in answer to a snapshot without models
	// says what is wrong with the parameters: the host asks one before it puts a
	// policy with parameters in use.
	Plan(ctx context.Context, s *Snapshot) (*Plan, error)
}

// Causes of a [Refusal].
const (
	CauseMemory      = "memory"
	CauseLatency     = "latency"
	CauseShare       = "share"
	CauseConstraint  = "constraint"
	CauseUnavailable = "unavailable"
)

// What a policy may need from a snapshot beyond models and GPUs, the words of
// Description.needs.
const (
	NeedProfiles     = "profiles"
	NeedInterference = "interference"
	NeedSimilarity   = "similarity"
	NeedVariants     = "variants"
	NeedCost         = "cost"
)

// AnyModel is the name of a [Constraint] on every model.
const AnyModel = "*"

// Unmet returns the needs of the description that the snapshot does not meet,
// words that this version does not know included. A snapshot without models
// meets every known need: there is nothing to plan.
func (d *Description) Unmet(s *Snapshot) []string {
	var unmet []string
	for _, need := range d.GetNeeds() {
		if met, known := s.has(need); !known || !met {
			unmet = append(unmet, need)
		}
	}
	return unmet
}

func (s *Snapshot) has(need string) (met, known bool) {
	idle := len(s.GetModels()) == 0
	switch need {
	case NeedProfiles:
		return idle || len(s.GetProfiles()) > 0, true
	case NeedInterference:
		return idle || len(s.GetInterference()) > 0, true
	case NeedSimilarity:
		met = idle
		for _, m := range s.GetModels() {
			met = met || len(m.GetSimilarities()) > 0
		}
		return met, true
	case NeedVariants:
		met = idle
		for _, m := range s.GetModels() {
			met = met || len(m.GetVariants()) > 0
		}
		return met, true
	case NeedCost:
		met = idle
		for _, o := range s.GetOffers() {
			met = met || o.GetCostPerHour() > 0
		}
		for _, n := range s.GetNodes() {
			for _, g := range n.GetGpus() {
				met = met || g.GetCostPerHour() > 0
			}
		}
		return met, true
	}
	return false, false
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

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
	// equal plans: what is random comes from Snapshot.seed, and what may be spent
	// is counted (Snapshot.evaluations, Snapshot.steps). The host ends ctx a little
	// after Snapshot.planning_budget_us, which is a failure. The host answers
	// questions while the policy plans. An error means that the policy could not
	// plan at all, for example because a parameter does not parse; a model without
	// a place is not an error but an entry of Plan.unplaced. The error in answer to
	// a snapshot without models says what is wrong with the parameters: the host
	// asks for one before it puts a policy with parameters in use.
	Plan(ctx context.Context, s *Snapshot, h Host) (*Plan, error)
}

// Host is what a policy may ask while it plans.
type Host interface {
	// Evaluate returns the outcomes of up to [MaxEvaluatePlans] plans under the
	// traffic that the snapshot names, in their order. Each plan counts one of
	// Snapshot.evaluations. A plan that cannot be run has violations as its outcome.
	// It fails with [ErrNoEvaluation] where the host evaluates nothing, with
	// [ErrEvaluationsSpent] where the plans are more than the snapshot allows, and
	// with the error of ctx.
	Evaluate(ctx context.Context, plans ...*Plan) ([]*Outcome, error)
	// EvaluateDraw is Evaluate under other arrivals like those of the snapshot's
	// traffic, as many seconds of them: a policy that chose a plan by some arrivals
	// learns here what it is worth under others. Equal draws are equal arrivals;
	// draw 0 is Evaluate. Each plan counts one of Snapshot.evaluations here too.
	EvaluateDraw(ctx context.Context, draw uint32, plans ...*Plan) ([]*Outcome, error)
}

// MaxEvaluatePlans bounds the plans of one question.
const MaxEvaluatePlans = 64

// MaxStateBytes bounds Plan.policy_state.
const MaxStateBytes = 64 << 10

// Errors of [Host.Evaluate].
var (
	// ErrNoEvaluation: this host evaluates no plans; Snapshot.evaluations is 0.
	ErrNoEvaluation = errors.New("policy: this host evaluates no plans")
	// ErrNumber is wrapped by what [Snapshot.Check] finds.
	ErrNumber = errors.New("policy: a number that is none to plan with")
	// ErrEvaluationsSpent: the question holds more plans than are left of
	// Snapshot.evaluations, or than one question may hold.
	ErrEvaluationsSpent = errors.New("policy: more plans than the snapshot's evaluations allow")
)

// Spend takes the plans of one question off the evaluations that are left. It
// fails with [ErrEvaluationsSpent], as [Host.Evaluate] does.
func Spend(left uint32, plans []*Plan) (uint32, error) {
	if len(plans) > MaxEvaluatePlans || uint32(len(plans)) > left {
		return left, fmt.Errorf("%w: asked for %d, %d are left, and one question holds at most %d", ErrEvaluationsSpent, len(plans), left, MaxEvaluatePlans)
	}
	return left - uint32(len(plans)), nil
}

// NoEvaluation is the host that evaluates nothing.
type NoEvaluation struct{}

// Evaluate implements [Host]: it fails with [ErrNoEvaluation].
func (NoEvaluation) Evaluate(context.Context, ...*Plan) ([]*Outcome, error) {
	return nil, ErrNoEvaluation
}

// EvaluateDraw implements [Host]: it fails with [ErrNoEvaluation].
func (NoEvaluation) EvaluateDraw(context.Context, uint32, ...*Plan) ([]*Outcome, error) {
	return nil, ErrNoEvaluation
}

// Causes of a [Refusal].
const (
	CauseMemory      = "memory"
	CauseLatency     = "latency"
	CauseShare       = "share"
	CauseCapacity    = "capacity"
	CauseConstraint  = "constraint"
	CauseUnavailable = "unavailable"
	CauseOnDemand    = "on-demand"
)

// What a policy may need from a snapshot beyond models and GPUs, the words of
// Description.needs.
const (
	NeedProfiles     = "profiles"
	NeedInterference = "interference"
	NeedRequirements = "requirements"
	NeedUtilizations = "utilizations"
	NeedSimilarity   = "similarity"
	NeedDerived      = "derived"
	NeedVariants     = "variants"
	NeedCost         = "cost"
	NeedEvaluate     = "evaluate"
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

// Remedy says in words where an operator gets what a need asks for.
func Remedy(need string) string {
	switch need {
	case NeedProfiles:
		return "profiles: declare a grid (models.NAME.profiles in conch.yaml), estimate it (tritonctl estimate), measure it (tritonctl calibrate model NAME), or let traffic teach it"
	case NeedInterference:
		return "interference: declare coefficients per GPU type (interference in conch.yaml), or fit them from measured pairs (tritonctl calibrate interference --from FILE)"
	case NeedRequirements:
		return "requirements: creq and mreq of every model in its profile (a declared grid, tritonctl estimate, or tritonctl calibrate)"
	case NeedUtilizations:
		return "utilizations: bandwidth_utilization and l2_utilization of every model in its profile (a declared grid, tritonctl estimate, or tritonctl calibrate)"
	case NeedSimilarity:
		return "similarity: what models share (tritonctl merge analyze)"
	case NeedDerived:
		return "derived: merge groups on offer (tritonctl merge analyze, or merge in conch.yaml)"
	case NeedVariants:
		return "variants: apps with their variants (apps in conch.yaml)"
	case NeedCost:
		return "cost: the cost per hour of GPUs (gpus or offers in conch.yaml)"
	case NeedEvaluate:
		return "evaluate: a host that evaluates plans (policy.evaluations in conch.yaml above 0)"
	}
	return need + ": unknown to this version of Conch"
}

func (s *Snapshot) has(need string) (met, known bool) {
	met, known = s.hasAny(need)
	return met || known && len(s.GetModels()) == 0, known
}

func (s *Snapshot) hasAny(need string) (met, known bool) {
	switch need {
	case NeedProfiles:
		return len(s.GetProfiles()) > 0, true
	case NeedInterference:
		return len(s.GetInterference()) > 0, true
	case NeedRequirements:
		return s.everyProfile(func(q *ProfilePoint) bool { return q.GetCreq().GetValue() > 0 && q.GetMreq().GetValue() > 0 }), true
	case NeedUtilizations:
		return s.everyProfile(func(q *ProfilePoint) bool {
			return q.GetBandwidthUtilization().GetValue() > 0 && q.GetL2Utilization().GetValue() > 0
		}), true
	case NeedSimilarity:
		return slices.ContainsFunc(s.GetModels(), func(m *Model) bool { return len(m.GetSimilarities()) > 0 }), true
	case NeedDerived:
		return len(s.GetDerived()) > 0, true
	case NeedVariants:
		return slices.ContainsFunc(s.GetApps(), func(a *App) bool { return len(a.GetVariants()) > 0 }), true
	case NeedCost:
		if slices.ContainsFunc(s.GetOffers(), func(o *GPUOffer) bool { return o.GetCostPerHour() > 0 }) {
			return true, true
		}
		return slices.ContainsFunc(s.GetNodes(), func(n *Node) bool {
			return slices.ContainsFunc(n.GetGpus(), func(g *GPU) bool { return g.GetCostPerHour() > 0 })
		}), true
	case NeedEvaluate:
		return s.GetEvaluations() > 0 && s.GetTraffic().GetDigest() != "", true
	}
	return false, false
}

// everyProfile reports that there are usable profiles and that every one of them
// has a point of which the condition holds: a zero is not known, not small.
func (s *Snapshot) everyProfile(holds func(*ProfilePoint) bool) bool {
	some := false
	for _, p := range s.GetProfiles() {
		if !p.GetUsable() || len(p.GetPoints()) == 0 {
			continue
		}
		if !slices.ContainsFunc(p.GetPoints(), holds) {
			return false
		}
		some = true
	}
	return some
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
)

// Verdict is the decision on a valid plan that differs from the one in force.
type Verdict string

// Verdicts.
const (
	// VerdictApply: it may be applied.
	VerdictApply Verdict = "apply"
	// VerdictConsent: names that clients use would no longer be served; an operator has to agree.
	VerdictConsent Verdict = "consent"
	// VerdictLoss: it would serve less than the plan in force by more than the operator's margin.
	VerdictLoss Verdict = "loss"
	// VerdictGain: what it gains does not pay for the requests that the change disturbs.
	VerdictGain Verdict = "gain"
	// VerdictPinned: an operator has pinned the plan in force. Judge never returns it; the package that keeps the pin sets it.
	VerdictPinned Verdict = "pinned"
)

// Judgement is a verdict with its reasons.
type Judgement struct {
	Verdict Verdict `json:"verdict"`
	// Text is a sentence for a person.
	Text string `json:"text"`
	// Lost are the names that would no longer be served.
	Lost []string `json:"lost,omitempty"`
	// GainPerSecond is the goodput that is expected to be gained, Disturbed the requests that wait or move for it; 0 without an evaluation.
	GainPerSecond float64 `json:"gain_per_second"`
	Disturbed     float64 `json:"disturbed_requests"`
	// Now and Then are the evaluations of the plan in force and of the next one; nil where there is none.
	Now  *policy.Outcome `json:"-"`
	Then *policy.Outcome `json:"-"`
}

// Margins are how the operator weighs plans.
type Margins struct {
	// Loss is the part of the goodput in force that a plan may cost without an operator's word.
	Loss float64
	// Horizon is the seconds over which a gain has to pay, Payoff what a disturbed request counts in requests gained.
	Horizon, Payoff float64
	// Young: the plan in force has not had its horizon yet. Then a plan whose outcome could not be evaluated waits, unless the one in force
	// cannot be kept: what changes its mind every second must not be followed blindly.
	Young bool
}

// Judge says whether a valid plan for the snapshot should take the place of the one in force. Now and then are what the host itself expects of
// both ([Living] of the plan in force), never what the policy predicts; nil without an evaluation: then only consent counts. A change that has
// to be made (files changed, the plan in force is no longer valid) needs no gain.
func Judge(s *policy.Snapshot, d *Diff, current, next *policy.Plan, now, then *policy.Outcome, m Margins) Judgement {
	j := Judgement{Verdict: VerdictApply, Disturbed: Disturbed(s, d)}
	if len(current.GetPartitions()) == 0 {
		j.Text = "nothing serves yet"
		return j
	}
	if j.Lost = Lost(s, current, next); len(j.Lost) > 0 {
		j.Verdict = VerdictConsent
		j.Text = strings.Join(j.Lost, ", ") + " would no longer be served, and clients use it; apply it yourself if that is wanted"
		return j
	}
	if now == nil || then == nil || len(now.GetViolations()) > 0 || len(then.GetViolations()) > 0 {
		j.Text = "what it would bring is not known"
		if m.Young && j.Disturbed+float64(len(d.Loads)+len(d.Unloads)+len(d.Dispatch)) > 0 && !necessary(s, d, current) {
			j.Verdict = VerdictGain
			j.Text = fmt.Sprintf("what it would bring could not be evaluated, and the plan in force has not served for %.4g s yet", m.Horizon)
		}
		return j
	}
	j.Now, j.Then, j.GainPerSecond = now, then, then.GetGoodput()-now.GetGoodput()
	if j.GainPerSecond < -m.Loss*now.GetGoodput() {
		j.Verdict = VerdictLoss
		j.Text = fmt.Sprintf("it is expected to serve %.4g requests/s where the plan in force serves %.4g; apply it yourself if that is wanted", then.GetGoodput(), now.GetGoodput())
		return j
	}
	if necessary(s, d, current) {
		j.Text = "the plan in force can no longer be kept as it is"
		return j
	}
	saves := s.GetObjective() == policy.Objective_OBJECTIVE_MIN_COST && then.GetCostPerHour() < now.GetCostPerHour()
	if gain := j.GainPerSecond * m.Horizon; gain <= m.Payoff*j.Disturbed && j.Disturbed > 0 && !saves {
		j.Verdict = VerdictGain
		j.Text = fmt.Sprintf("it gains %.4g requests/s, %.4g in %.4g s, and disturbs %.4g", j.GainPerSecond, gain, m.Horizon, j.Disturbed)
		return j
	}
	j.Text = fmt.Sprintf("it gains %.4g requests/s and disturbs %.4g requests once", j.GainPerSecond, j.Disturbed)
	return j
}

// Lost are the names that clients use now, that the plan in force serves, and that the next one would not: models that are asked for by their own
// names, served by themselves or in a derived model, and apps. Models that load on demand may come and go, and so may variants of apps that no
// client asks for by name.
func Lost(s *policy.Snapshot, current, next *policy.Plan) []string {
	var lost []string
	now, then := current.Places(), next.Places()
	for _, m := range s.GetModels() {
		if m.OwnRate() > 0 && !m.GetOnDemand() && len(now[m.GetName()]) > 0 && len(then[m.GetName()]) == 0 {
			lost = append(lost, m.GetName())
		}
	}
	served := func(p *policy.Plan, app string) bool {
		return slices.ContainsFunc(p.GetAppRoutes(), func(r *policy.AppRoute) bool { return r.GetApp() == app && len(r.GetVariants()) > 0 })
	}
	for _, a := range s.GetApps() {
		if a.GetRate() > 0 && served(current, a.GetName()) && !served(next, a.GetName()) {
			lost = append(lost, a.GetName())
		}
	}
	slices.Sort(lost)
	return lost
}

// Living is the plan in force as far as it can still serve: without partitions on GPUs that are dead, drained or gone, and without models that
// are. It answers the snapshot.
func Living(s *policy.Snapshot, current *policy.Plan) *policy.Plan {
	x := policy.NewIndex(s)
	p := &policy.Plan{
		SnapshotRevision: s.GetRevision(), Policy: current.GetPolicy(), PolicyVersion: current.GetPolicyVersion(), Recipes: current.GetRecipes(),
	}
	placed := make(map[string]bool)
	for _, part := range current.GetPartitions() {
		if g := x.GPUOf(part); !part.OnCPU() && (g == nil || g.GetUnavailable()) || part.OnCPU() && x.CPU(part.GetNode()) == nil {
			continue
		}
		partition := &policy.Partition{
			Id: part.GetId(), Node: part.GetNode(), Gpus: part.GetGpus(), ThreadPercentage: part.GetThreadPercentage(),
			MemoryLimitBytes: part.GetMemoryLimitBytes(), Rank: part.GetRank(),
		}
		for _, in := range part.GetInstances() {
			if x.Model(in.GetModel()) == nil && current.Recipe(in.GetModel()) == nil {
				continue
			}
			// A rate was promised for another load.
			partition.Instances = append(partition.Instances, &policy.Instance{Model: in.GetModel(), MaxBatch: in.GetMaxBatch(), ThreadPercentage: in.GetThreadPercentage()})
			for _, name := range current.ModelsOf(in) {
				placed[name] = true
			}
		}
		p.Partitions = append(p.Partitions, partition)
	}
	for _, d := range current.GetDispatch() {
		if placed[d.GetModel()] || current.Recipe(d.GetModel()) != nil {
			p.Dispatch = append(p.Dispatch, d)
		}
	}
	for _, r := range current.GetAppRoutes() {
		route := &policy.AppRoute{App: r.GetApp()}
		for _, v := range r.GetVariants() {
			if placed[v.GetModel()] && slices.ContainsFunc(s.GetApps(), func(a *policy.App) bool { return a.GetName() == r.GetApp() }) {
				route.Variants = append(route.Variants, v)
			}
		}
		if len(route.Variants) > 0 {
			p.AppRoutes = append(p.AppRoutes, route)
		}
	}
	for _, m := range s.GetModels() {
		if !placed[m.GetName()] {
			p.Unplaced = append(p.Unplaced, &policy.Unplaced{Model: m.GetName(), Text: "not in the plan in force"})
		}
	}
	return p
}

// necessary reports that the plan in force cannot simply stay: files changed, or what it says is no longer valid.
func necessary(s *policy.Snapshot, d *Diff, current *policy.Plan) bool {
	if slices.ContainsFunc(d.Updates, func(u Update) bool { return u.Reload }) {
		return true
	}
	living := Living(s, current)
	if len(living.GetPartitions()) != len(current.GetPartitions()) {
		return true
	}
	places := current.Places()
	for _, m := range s.GetModels() {
		if m.OwnRate() > 0 && len(places[m.GetName()]) == 0 {
			return true
		}
	}
	return len(Validate(s, living)) > 0
}

// Disturbed are the requests that wait or move while a diff is applied: for every load, what the model gets in the time that it takes, divided
// among its places; starting a process counts for everything in it.
func Disturbed(s *policy.Snapshot, d *Diff) float64 {
	x, total := policy.NewIndex(s), 0.0
	starts := make(map[*policy.Partition]bool)
	for _, p := range d.Start {
		starts[p] = true
	}
	for _, r := range d.Replace {
		starts[r.New] = true
	}
	places := make(map[string]int)
	count := func(p *policy.Partition) {
		for _, in := range p.GetInstances() {
			places[in.GetModel()]++
		}
	}
	for p := range starts {
		count(p)
	}
	for _, k := range d.Keep {
		count(k.New)
	}
	cost := func(part *policy.Partition, model string) {
		m := x.Model(model)
		if own := m.GetChangeCost().GetRequests(); own > 0 {
			total += own
			return
		}
		seconds := cmp.Or(m.GetChangeCost().GetSeconds(), m.GetLoadSeconds(), s.GetChangeCost().GetDefaultLoadSeconds())
		if starts[part] {
			seconds += s.GetChangeCost().GetPartitionStartSeconds()
		}
		total += seconds * m.GetRate() / float64(max(1, places[model]))
	}
	for _, l := range d.Loads {
		cost(l.Partition, l.Instance.GetModel())
	}
	for _, u := range d.Updates {
		if u.Reload {
			cost(u.Partition, u.New.GetModel())
		}
	}
	return total
}

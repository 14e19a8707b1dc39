// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/planner"
	"github.com/conch-serving/conch/sidecar/plan"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

// A plan, top-down. cycle is one turn of the loop; its steps carry the numbers
// that logs and documents use:
//
//	1 observe   what is, as a snapshot
//	2 ask       the policy, in its own process
//	3 validate  its answer, which is not trusted
//	4 diff      against the plan that serves; weigh it unless an operator ordered it
//	5 desire    one durable write; the reconciler does the rest
//	6 reconcile the servers come to the desired state, model by model
//	7 record    author, time, reason, what changed, how long it took
//
// Everything else in this package decides when a cycle runs (triggers.go), what
// the snapshot holds (world.go) or says what there is to see (look.go).

// order is a request for a cycle: its author, its reason and how far it may go.
type order struct {
	author, reason string
	// apply lets step 5 happen.
	apply bool
	// ifRevision refuses to change another plan than this one; 0 does not care.
	ifRevision uint64
	// dry keeps a question of an operator out of the event log.
	dry bool
	// weigh lets a plan be held back that loses names or goodput, or gains too
	// little: no operator ordered it.
	weigh bool
	// wait holds the answer until the servers have come to the plan, though it was
	// desired before.
	wait bool
	// planner proposes in place of the policy.
	planner planner.Planner
	// cordons are looked at in place of those that are declared.
	cordons map[string]api.Cordon
	// policy has the policy asked though the plan in force is pinned.
	policy bool
	// try is asked in place of the policy in use.
	try *policyhost.Ref
	// model is the one that the order is about: a plan without it is no answer, and
	// if its server refuses to load it the order has failed.
	model string
}

// cycle makes a plan and, if the order says so, applies it. The caller holds
// the planning turn.
func (c *Control) cycle(ctx context.Context, o order) (*Proposal, *Applied, error) {
	began := c.clock.Now()
	from := c.current()
	if o.ifRevision != 0 && o.ifRevision != from.Revision {
		return nil, nil, fmt.Errorf("%w: revision %d serves, not %d; look at it and decide again", ErrConflict, from.Revision, o.ifRevision)
	}

	// 1. observe
	in := c.intent()
	in.asked = o.model
	in.staying = o.model != "" || c.stays(from, o)
	if o.cordons != nil {
		in.cordons = o.cordons
	}
	snapshot := c.observe(in)
	proposal := &Proposal{FromRevision: from.Revision, Snapshot: snapshot}

	// 2. ask, and 3. validate: the host calls Check before an answer counts.
	asked := c.clock.Now()
	answer, err := c.planner(in, o).Plan(ctx, snapshot)
	proposal.Duration = c.clock.Now().Sub(asked)
	if err != nil && o.planner != nil {
		return proposal, nil, err
	}
	if err != nil {
		return c.unanswered(proposal, o, err)
	}
	proposal.Plan = answer
	if proposal.Violations = c.judge(snapshot, proposal.Plan, in); len(proposal.Violations) > 0 {
		return c.unanswered(proposal, o, proposal.Violations)
	}
	if o.model != "" && len(proposal.Plan.PartitionsOf(o.model)) == 0 {
		return proposal, nil, fmt.Errorf("%w: the policy finds no place for %s: %s", ErrUnavailable, o.model, unplaced(proposal.Plan, o.model))
	}

	// 4. diff
	if from.snapshot != nil && !in.given {
		proposal.Reloads = plan.Changed(from.snapshot, snapshot)
	}
	proposal.Diff = plan.Compute(from.Plan.Plan, proposal.Plan, proposal.Reloads...)
	if !in.given {
		proposal.Diff.BreakFirst = c.reconciler.BreakFirst(from.Plan.Plan, proposal.Plan, snapshot)
	}
	result := &Applied{Plan: from.Plan, Proposal: proposal}
	same := proposal.Diff.Empty() && sameSettings(from.snapshot, snapshot) && from.given == in.given && !regrouped(from.files, in.files, proposal.Plan)
	if from.Revision > 0 && same && (from.passThrough == "" || !o.apply) {
		c.metrics.Planned(proposal.Plan.GetPolicy(), "unchanged", proposal.Duration)
		if !o.dry {
			c.withhold(nil)
			c.planned(snapshot)
		}
		result.Duration = c.clock.Now().Sub(began)
		if !o.apply || o.model == "" && !o.wait {
			return proposal, result, nil
		}
		if o.model == "" {
			// It is desired already, as the order wants it. What fails is a condition, which the answer's plan shows.
			_ = c.settle(ctx, c.generation, o, proposal)
			return proposal, result, nil
		}
		// It is desired already, and may have failed a moment ago.
		return proposal, result, about(o.model, c.settle(ctx, c.generation, o, proposal))
	}
	if (o.weigh || o.dry) && !in.given {
		judgement := plan.Judgement{Verdict: plan.VerdictApply, Text: "models that load on demand come and go"}
		if !plan.OnDemand(snapshot, proposal.Diff) {
			judgement = c.weighUp(ctx, snapshot, from.Plan.Plan, proposal.Plan, proposal.Diff, in.config)
		}
		if pin := c.orders.Declared().Pin; pin != nil {
			judgement.Verdict, judgement.Text = plan.VerdictPinned, fmt.Sprintf("plan %d is pinned by %s%s", from.Revision, pin.Author, because(pin.Reason))
		}
		proposal.Judgement = &judgement
		if o.weigh && o.apply && judgement.Verdict != plan.VerdictApply {
			return c.held(proposal, o, result)
		}
	}
	if !o.apply {
		c.metrics.Planned(proposal.Plan.GetPolicy(), "proposed", proposal.Duration)
		if !o.dry && c.propose(proposal.Plan) {
			c.event(api.Event{
				Kind: events.PlanProposed, Author: o.author, Reason: o.reason, Seconds: proposal.Duration.Seconds(),
				Message: "proposed: " + summary(proposal.Diff, in.given), Fields: map[string]string{"policy": proposal.Plan.GetPolicy()},
			})
		}
		if !o.dry {
			c.withhold(nil)
			c.planned(snapshot)
		}
		return proposal, result, nil
	}

	// 5. desire, and 6. reconcile
	if err := c.apply(ctx, o, in, proposal); err != nil {
		c.metrics.Planned(proposal.Plan.GetPolicy(), "apply_failed", proposal.Duration)
		return proposal, nil, err
	}

	// 7. record
	c.news(&c.holding, "")
	c.withhold(nil)
	c.metrics.Planned(proposal.Plan.GetPolicy(), "applied", proposal.Duration)
	c.planned(snapshot)
	result.Changed, result.Plan, result.Duration = true, c.current().Plan, c.clock.Now().Sub(began)
	return proposal, result, nil
}

// judge validates a plan. Where the servers give the placement there is nothing
// in it to refuse: the policy's own answer was judged by Check.
func (c *Control) judge(s *policy.Snapshot, p *policy.Plan, in intent) plan.Violations {
	if in.given {
		return nil
	}
	return append(plan.Validate(s, p, c.checks...), in.cordoned(p, c.current().Plan.Plan)...)
}

// planner returns the planner of a cycle. If attached servers give the placement, the
// policy only says how requests are dispatched. A pinned plan stays.
func (c *Control) planner(in intent, o order) planner.Planner {
	var who planner.Planner = planner.Func(func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
		return c.ask(ctx, forPolicies(s, in))
	})
	if o.try != nil {
		who = planner.Func(func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
			return c.policies.Try(ctx, *o.try, forPolicies(s, in))
		})
	}
	from, pin := c.current(), c.orders.Declared().Pin
	switch {
	case in.given:
		who = planner.Mirror{Placement: c.attached.Partitions, Disciplines: who}
	case o.planner != nil:
		who = o.planner
	case c.stays(from, o):
		who = planner.Staying{Before: from.Plan.Plan, Why: fmt.Sprintf("plan %d is pinned by %s and has no place for it; tritonctl plan unpin", from.Revision, pin.Author)}
	default:
		who = in.cordoning(who, from.Plan.Plan)
	}
	return c.operator(in).Obeying(who)
}

// stays reports that the plan in force is pinned and the order does not ask the policy.
func (c *Control) stays(from serving, o order) bool {
	return o.planner == nil && !o.policy && from.Revision > 0 && c.orders.Declared().Pin != nil
}

func (c *Control) operator(in intent) planner.Operator {
	return planner.Operator{Config: in.config, Attached: c.attached != nil}
}

// ask puts the question to the policy. The plan that serves needs no policy, so
// a policy that hangs holds up nothing but this.
func (c *Control) ask(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
	c.rejected = nil
	answer, err := c.policies.Plan(ctx, s)
	status := c.policies.Status()
	c.metrics.Breaker(status.Name, string(status.Breaker), breakerStates()...)
	return answer, err
}

// unanswered ends a cycle without a plan: what serves goes on serving.
func (c *Control) unanswered(p *Proposal, o order, err error) (*Proposal, *Applied, error) {
	var violations plan.Violations
	name := c.policies.Status().Name
	if o.try != nil {
		name = o.try.Name
	}
	lasts := !o.dry && o.planner == nil // a plan of an operator's file is asked for once
	if errors.As(err, &violations) {
		p.Violations = violations
		if p.Plan == nil {
			p.Plan = c.rejected
		}
		if p.Plan != nil {
			p.Diff = plan.Compute(c.current().Plan.Plan, p.Plan)
		}
		c.metrics.Planned(name, "rejected", p.Duration)
		message := fmt.Sprintf("the plan of policy %s was rejected, %s serves on: %s", name, c.servingName(), violations.Error())
		if lasts {
			c.withhold(&api.Held{Kind: events.PlanRejected, Policy: name, Message: message})
		}
		if !o.dry && c.news(&c.failure, violations.Error()) {
			c.event(api.Event{
				Kind: events.PlanRejected, Author: o.author, Reason: o.reason, Seconds: p.Duration.Seconds(),
				Message: message, Fields: map[string]string{"policy": name, "violations": strconv.Itoa(len(violations))},
			})
		}
		return p, nil, violations
	}
	c.metrics.Planned(name, "failed", p.Duration)
	message := fmt.Sprintf("policy %s gave no plan, %s serves on: %v", name, c.servingName(), err)
	if lasts {
		c.withhold(&api.Held{Kind: events.PlanFailed, Policy: name, Message: message})
	}
	if !o.dry && c.news(&c.failure, err.Error()) {
		c.event(api.Event{
			Kind: events.PlanFailed, Author: o.author, Reason: o.reason, Seconds: p.Duration.Seconds(),
			Message: message, Fields: map[string]string{"policy": name},
		})
	}
	return p, nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// news reports whether text differs from what was written down last.
func (c *Control) news(last *string, text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *last == text {
		return false
	}
	*last = text
	return true
}

// propose reports whether a plan differs from the one that was proposed last.
func (c *Control) propose(p *policy.Plan) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.proposed
	c.proposed = p
	return last == nil || !plan.Compute(last, p).Empty()
}

func (c *Control) servingName() string {
	if r := c.current().Revision; r > 0 {
		return fmt.Sprintf("plan %d", r)
	}
	return "nothing"
}

// apply makes a proposal the desired state, and waits until the servers have come
// to it, have failed at it, or another caller wants to plan. If a model of the order
// fails, that is the error. Every other failure is a condition, which is tried again
// while the rest serves.
func (c *Control) apply(ctx context.Context, o order, in intent, p *Proposal) error {
	began := c.clock.Now()
	// The request path learns l(b) before it sees the placements that need it.
	c.pushProfiles(p.Snapshot.GetProfiles())
	for _, d := range p.Snapshot.GetDerived() {
		c.pushProfiles(d.GetProfiles())
	}
	if c.groups != nil {
		c.groups.Make(p.Plan.GetRecipes())
	}
	c.mu.Lock()
	clear(c.spent)
	number := max(c.serving.Revision, c.before) + 1
	c.mu.Unlock()
	generation, err := c.reconciler.Set(ctx, apply.Desired{
		Number: number, Snapshot: p.Snapshot, Plan: p.Plan, Revision: in.files, Author: o.author, Reason: o.reason, Time: began,
		Given: in.given, PassThrough: in.passThrough,
	}, 0)
	if err != nil {
		if c.news(&c.failure, err.Error()) {
			c.event(api.Event{
				Kind: events.ApplyFailed, Author: o.author, Reason: o.reason, Seconds: c.clock.Now().Sub(began).Seconds(),
				Message: fmt.Sprintf("a plan could not be applied, %s serves on: %v", c.servingName(), err),
			})
		}
		return fmt.Errorf("apply: %w; %s serves on", err, c.servingName())
	}
	c.generation = generation
	c.mu.Lock()
	next := serving{
		Plan:     Plan{Revision: number, AppliedAt: began, AppliedBy: o.author, Reason: o.reason, Plan: p.Plan},
		snapshot: p.Snapshot, files: in.files, given: in.given, passThrough: in.passThrough,
	}
	other := c.serving.files == nil || c.serving.files.ID != in.files.ID
	if other && c.serving.files != nil {
		c.servedBefore = c.serving.files.ID
	}
	lost := displaced(c.serving.Plan.Plan, p.Plan)
	c.serving, c.proposed = next, nil
	c.mu.Unlock()
	c.save()
	c.remembered(next.Plan, p.Diff, in.files.ID, in.given, o.weigh && !p.Diff.Empty() && plan.OnDemand(p.Snapshot, p.Diff))
	c.tidy(next)
	if other && !in.given {
		c.collect(context.WithoutCancel(ctx), in.files.ID)
	}
	c.metrics.Serving(next.Revision, next.AppliedAt)
	failed := c.settle(ctx, generation, o, p)
	c.setStarting("")
	fields := c.took()
	fields["plan"], fields["policy"], fields["diff"] = strconv.FormatUint(next.Revision, 10), p.Plan.GetPolicy(), strings.TrimSpace(p.Diff.Text())
	message := fmt.Sprintf("plan %d serves: %s", next.Revision, summary(p.Diff, in.given))
	if failed != nil {
		message = fmt.Sprintf("plan %d is in force: %s; not all of it serves yet: %v", next.Revision, summary(p.Diff, in.given), failed)
	}
	message += lost
	c.event(api.Event{Kind: events.PlanApplied, Author: o.author, Reason: o.reason, Seconds: c.clock.Now().Sub(began).Seconds(), Message: message, Fields: fields})
	// A warm-up has just measured what was loaded.
	c.pushProfiles(c.profiles())
	c.countPartitions()
	if o.model != "" && errors.Is(failed, errHurry) {
		return errHurry
	}
	return about(o.model, failed)
}

// about is a failure of a model, or nil where it is one of something else.
func about(model string, failed error) error {
	var refused *driver.LoadError
	if model != "" && errors.As(failed, &refused) && refused.Model == model {
		return failed
	}
	return nil
}

// errHurry ends a wait for servers because another caller wants to plan.
var errHurry = errors.New("its servers are still coming to it")

// settle waits for the servers. The error says what does not serve yet.
func (c *Control) settle(ctx context.Context, generation uint64, o order, p *Proposal) error {
	c.settling.Store(true)
	defer c.settling.Store(false)
	select {
	case <-c.hurry: // of a caller that waited before
	default:
	}
	if c.waiting.Load() > 0 || c.demandLater() {
		c.press() // callers that came while the plan was made wait still
	}
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case <-c.hurry:
			stop(errHurry)
		case <-waiting.Done():
		}
	}()
	if o.model == "" {
		return c.reconciler.Settle(waiting, generation)
	}
	// What else the plan brings is waited for, such as an ensemble that calls the
	// model; a failure of what served before is not reported here.
	if err := c.reconciler.Settle(waiting, generation, append(brings(p), o.model)...); err == nil || errors.Is(err, errHurry) {
		return err
	}
	return c.reconciler.Settle(waiting, generation, o.model)
}

// brings are the models that a proposal loads.
func brings(p *Proposal) (models []string) {
	for _, l := range p.Diff.Loads {
		models = append(models, l.Instance.GetModel())
	}
	return models
}

// took sums up the seconds of what was done for a plan by kind of action.
func (c *Control) took() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	fields := map[string]string{}
	for kind, sum := range c.spent {
		fields["seconds."+kind] = fmt.Sprintf("%.3f", sum.Seconds())
	}
	return fields
}

// partitions are those of the desired state; old servers that retire are left
// out.
func (c *Control) partitions() []apply.PartitionState {
	return lasting(c.reconciler.Observed())
}

// lasting are the servers that are not to go.
func lasting(o apply.Observed) []apply.PartitionState {
	return slices.DeleteFunc(slices.Clone(o.Partitions), func(p apply.PartitionState) bool { return p.Retiring })
}

// failing are the models that are wanted, load nowhere, and why, by name.
func failing(observed apply.Observed) map[string]apply.Condition {
	all := map[string]apply.Condition{}
	for _, condition := range observed.Conditions {
		if condition.Model != "" && condition.Kind == decide.IsFailing {
			all[condition.Model] = condition
		}
	}
	for _, p := range observed.Partitions {
		for _, model := range p.Models {
			delete(all, model)
		}
	}
	return all
}

// summary is a diff in a few words. Where others run the servers (given), applying
// it starts and loads nothing: they have it so already.
func summary(d *plan.Diff, given bool) string {
	words := []string{"partition started", "partition replaced", "partition stopped", "load", "unload", "update"}
	if given {
		words = []string{"server followed", "server followed anew", "server left out", "instance found loaded", "instance found unloaded", "instance found changed"}
	}
	words = append(words, "discipline changed")
	var parts []string
	for i, n := range []int{len(d.Start), len(d.Replace), len(d.Stop), len(d.Loads), len(d.Unloads), len(d.Updates), len(d.Dispatch)} {
		if n > 0 {
			noun, rest, _ := strings.Cut(words[i], " ")
			parts = append(parts, strings.TrimSpace(count(n, noun)+" "+rest))
		}
	}
	if len(parts) == 0 {
		return "settings of models changed"
	}
	return strings.Join(parts, ", ")
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/history"
	"github.com/conch-serving/conch/sidecar/control/orders"
	"github.com/conch-serving/conch/sidecar/control/planner"
	"github.com/conch-serving/conch/sidecar/plan"
)

// Propose says what a plan would change, that of the policy unless the request names
// another: it is Apply with step 5 left out. A plan that is refused is no error; its
// violations are in the proposal.
func (c *Control) Propose(ctx context.Context, r api.DiffRequest) (*Proposal, error) {
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	defer c.release()
	o := order{dry: true, policy: true}
	if err := c.named(&o, r); err != nil {
		return nil, err
	}
	proposal, _, err := c.cycle(ctx, o)
	var violations plan.Violations
	if err != nil && (!errors.As(err, &violations) || proposal.Plan == nil) {
		return nil, err
	}
	return proposal, nil
}

// Apply applies a plan by an operator's order: that of the policy unless the request
// names another. It is not weighed.
func (c *Control) Apply(ctx context.Context, r api.ApplyRequest) (*Applied, error) {
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	defer c.release()
	// A reload may have come while this order waited for its turn.
	if c.settings().Mode == config.ModeObserve {
		return nil, fmt.Errorf("%w: mode is observe, in which no plan is applied; set mode to advise or control in conch.yaml and send SIGHUP", ErrRefused)
	}
	if pin := c.orders.Declared().Pin; pin != nil {
		return nil, fmt.Errorf("%w: plan %d is pinned by %s%s; tritonctl plan unpin lets another take its place", ErrRefused, c.current().Revision, pin.Author, because(pin.Reason))
	}
	o := order{
		author: cmp.Or(r.Author, "operator"), reason: cmp.Or(r.Reason, "an operator's order"), apply: true, wait: true, ifRevision: r.IfRevision, policy: true,
	}
	if err := c.named(&o, r.DiffRequest); err != nil {
		return nil, err
	}
	if !r.Pin {
		_, result, err := c.cycle(ctx, o)
		return result, err
	}
	// The pin is declared first: a conch that dies in between keeps what it pinned.
	if err := c.pin(&api.Pin{Author: o.author, Reason: r.Reason, Since: c.clock.Now()}); err != nil {
		return nil, err
	}
	_, result, err := c.cycle(ctx, o)
	if err != nil {
		return nil, errors.Join(err, c.pin(nil))
	}
	result.Plan.Pin = c.orders.Declared().Pin
	c.event(api.Event{Kind: events.PlanPinned, Author: o.author, Reason: r.Reason, Message: fmt.Sprintf("plan %d is pinned: no other takes its place by itself", result.Plan.Revision)})
	return result, nil
}

// named lets an order propose the plan that a request names.
func (c *Control) named(o *order, r api.DiffRequest) error {
	rollback := r.Rollback > 0 || r.RollbackLast
	if r.Policy != "" {
		if r.File != nil || rollback {
			return fmt.Errorf("%w: a policy to ask and a plan that there is already; choose one", ErrInvalid)
		}
		return c.trying(o, r.Policy)
	}
	switch {
	case r.File == nil && !rollback:
		return nil
	case r.File != nil && rollback:
		return fmt.Errorf("%w: a plan file and a rollback at once; choose one", ErrInvalid)
	case c.Given():
		return fmt.Errorf("%w: which model is where is up to the servers in front of which conch stands; a plan of another placement cannot be applied there", ErrRefused)
	case r.File != nil:
		o.planner = planner.Func(func(_ context.Context, s *policy.Snapshot) (*policy.Plan, error) { return c.filed(r.File, s) })
		return nil
	}
	record, err := c.earlier(r.Rollback)
	if err != nil {
		return err
	}
	was, err := decoded(record.Plan.Plan)
	if err != nil {
		return fmt.Errorf("plan %d of the history: %w", record.Revision, err)
	}
	o.planner = planner.Staying{Before: was, Why: fmt.Sprintf("plan %d, which was gone back to, has no place for it", record.Revision)}
	if o.reason == "an operator's order" {
		o.reason = fmt.Sprintf("rollback to plan %d", record.Revision)
	}
	return nil
}

// trying lets an order ask another policy than the one in use.
func (c *Control) trying(o *order, name string) error {
	switch {
	case o.apply:
		return fmt.Errorf("%w: a policy that is not in use is only asked; apply the plan that it proposed as a file, or put it in use", ErrInvalid)
	case name == c.policies.Status().Name:
		return nil // it is asked as it is in use
	}
	ref := c.chosen(orders.Policy{Name: name}, c.settings())
	o.try = &ref
	return nil
}

// earlier is a plan of the history; with 0 the last one that differs from the plan in
// force, plans for models that load on demand left out.
func (c *Control) earlier(revision uint64) (api.PlanRecord, error) {
	if revision > 0 {
		record, err := c.plans.Get(revision)
		if errors.Is(err, history.ErrNoPlan) {
			return record, fmt.Errorf("%w: %w", ErrNotFound, err)
		}
		return record, err
	}
	all, err := c.plans.List()
	if err != nil {
		return api.PlanRecord{}, err
	}
	all = slices.DeleteFunc(all, func(r api.PlanRecord) bool { return r.Demand })
	current := c.current().Plan.Plan
	for i, record := range all {
		was, err := decoded(record.Plan.Plan)
		switch {
		case err != nil:
		case i == 0: // it is in force, or was before models came and went on demand
			current = was
		case !plan.Compute(current, was).Empty():
			return record, nil
		}
	}
	return api.PlanRecord{}, fmt.Errorf("%w: the history has no plan before this one that differs from it; tritonctl plan history shows those there are", ErrNotFound)
}

// History lists the plans that served, newest first.
func (c *Control) History() ([]api.PlanRecord, error) {
	all, err := c.plans.List()
	current := c.CurrentPlan()
	for i := range all {
		if all[i].Revision == current.Revision {
			all[i].Current, all[i].Pin = true, current.Pin
		}
	}
	return all, err
}

// Pin has the plan in force stay whatever the policy says, over restarts too, or ends
// that.
func (c *Control) Pin(ctx context.Context, r api.PinRequest) (Plan, error) {
	if err := c.ready(ctx); err != nil {
		return Plan{}, err
	}
	defer c.release()
	author, current := cmp.Or(r.Author, "operator"), c.current()
	switch {
	case c.Given():
		return Plan{}, fmt.Errorf("%w: which model is where is up to the servers in front of which conch stands, and follows them", ErrRefused)
	case current.Revision == 0:
		return Plan{}, fmt.Errorf("%w: no plan serves yet", ErrUnavailable)
	case r.Unpin:
		if c.orders.Declared().Pin == nil {
			return c.CurrentPlan(), nil
		}
		if err := c.pin(nil); err != nil {
			return Plan{}, err
		}
		c.event(api.Event{Kind: events.PlanUnpinned, Author: author, Reason: r.Reason, Message: fmt.Sprintf("plan %d is no longer pinned", current.Revision)})
		c.promptly("the plan was unpinned")
		return c.CurrentPlan(), nil
	}
	if err := c.pin(&api.Pin{Author: author, Reason: r.Reason, Since: c.clock.Now()}); err != nil {
		return Plan{}, err
	}
	c.withhold(nil) // no other is asked for
	c.event(api.Event{Kind: events.PlanPinned, Author: author, Reason: r.Reason, Message: fmt.Sprintf("plan %d is pinned: no other takes its place by itself", current.Revision)})
	return c.CurrentPlan(), nil
}

func (c *Control) pin(p *api.Pin) error {
	return c.orders.Declare(func(d *orders.Declared) { d.Pin = p })
}

// remembered keeps a plan that came into force in the history. A disk that fails costs
// the plan its way back, nothing else.
func (c *Control) remembered(p Plan, d *plan.Diff, files string, given, demand bool) {
	encoded, err := encoded(p.Plan)
	if err == nil {
		record := api.PlanRecord{
			Plan:    api.Plan{Revision: p.Revision, Policy: p.GetPolicy(), AppliedAt: p.AppliedAt, AppliedBy: p.AppliedBy, Reason: p.Reason, Plan: encoded},
			Summary: summary(d, given), Diff: strings.TrimSpace(d.Text()), Repository: files, Demand: demand,
		}
		err = c.plans.Add(record)
	}
	if err != nil {
		c.log.Warn("a plan could not be written to the history", "plan", p.Revision, "error", err)
	}
}

// File is a proposal as a file that can be applied later.
func (p *Proposal) File() (*api.PlanFile, error) {
	text, err := encoded(p.Plan)
	if err != nil {
		return nil, err
	}
	return &api.PlanFile{Kind: api.PlanFileKind, Basis: basis(p.Snapshot, p.FromRevision), Plan: text}, nil
}

// filed is the plan of a file, if what it was made for still holds.
func (c *Control) filed(f *api.PlanFile, s *policy.Snapshot) (*policy.Plan, error) {
	if f.Kind != api.PlanFileKind {
		return nil, fmt.Errorf("%w: a plan file of kind %q; this conch reads %q, as tritonctl plan diff -o FILE.json writes it", ErrInvalid, f.Kind, api.PlanFileKind)
	}
	p := &policy.Plan{}
	if err := protojson.Unmarshal(f.Plan, p); err != nil {
		return nil, fmt.Errorf("%w: the plan in the file: %w", ErrInvalid, err)
	}
	if moved := moved(f.Basis, basis(s, c.current().Revision), p); len(moved) > 0 {
		return nil, fmt.Errorf("%w: the plan in the file is for another state than the present one: %s; make it anew with tritonctl plan diff -o", ErrConflict, strings.Join(moved, "; "))
	}
	p.SnapshotRevision, p.Policy = s.GetRevision(), cmp.Or(p.GetPolicy(), "operator")
	return p, nil
}

// basis is what a plan for a snapshot counts on. Rates are not part of it: they are
// never the same twice, and a plan is no less valid for it.
func basis(s *policy.Snapshot, revision uint64) api.PlanBasis {
	b := api.PlanBasis{Plan: revision, Models: map[string]api.ModelBasis{}, GPUs: map[string]string{}}
	for _, m := range s.GetModels() {
		b.Models[m.GetName()] = api.ModelBasis{Revision: m.GetRevision(), SLOSeconds: float64(m.GetSloUs()) / 1e6}
	}
	for _, n := range s.GetNodes() {
		for _, g := range n.GetGpus() {
			b.GPUs[n.GetName()+"/"+g.GetId()] = strings.TrimSpace(g.GetType() + " " + g.GetUnavailableReason())
		}
	}
	return b
}

// moved describes in words the parts of a plan's basis that have changed since and that
// matter to the plan.
func moved(was, is api.PlanBasis, p *policy.Plan) (words []string) {
	if was.Plan != is.Plan {
		words = append(words, fmt.Sprintf("plan %d serves and plan %d did when the file was made", is.Plan, was.Plan))
	}
	models, gpus := map[string]bool{}, map[string]bool{}
	for _, part := range p.GetPartitions() {
		gpus[part.GetNode()+"/"+part.GPU()] = true
		for _, in := range part.GetInstances() {
			for _, m := range p.ModelsOf(in) {
				models[m] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(models)) {
		before, had := was.Models[name]
		now, has := is.Models[name]
		switch {
		case !had: // it was written into the file by hand, and is judged like all the rest
		case !has:
			words = append(words, "model "+name+" is gone")
		case before.Revision != now.Revision:
			words = append(words, "the files of model "+name+" changed")
		case before.SLOSeconds != now.SLOSeconds:
			words = append(words, fmt.Sprintf("the SLO of model %s is %v and was %v", name, seconds(now.SLOSeconds), seconds(before.SLOSeconds)))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(gpus)) {
		if before, had := was.GPUs[id]; had && before != is.GPUs[id] {
			words = append(words, fmt.Sprintf("GPU %s is %q and was %q", id, is.GPUs[id], before))
		}
	}
	return words
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return " (" + reason + ")"
}

// encoded is a plan as JSON with the names of the contract, stable to the byte:
// protojson varies its white space from build to build.
func encoded(p *policy.Plan) (json.RawMessage, error) {
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("plan as JSON: %w", err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, text); err != nil {
		return nil, fmt.Errorf("plan as JSON: %w", err)
	}
	return compact.Bytes(), nil
}

func decoded(text json.RawMessage) (*policy.Plan, error) {
	p := &policy.Plan{}
	return p, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, p)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/planner"
	"github.com/conch-serving/conch/sidecar/plan"
)

// Load carries out Triton's order to load a model, in whatever mode: a revision
// of the repository, and a plan in which the model has a place. It returns once
// the model serves everywhere it is placed, or says why it cannot: the error
// wraps ErrNotFound where there is nothing of that name, repo.ErrOverride or
// repo.ErrInvalidModel where it is no model, a *driver.LoadError where its server
// refused it. What served before serves on then, and the revision is taken back. The
// reason may be empty.
func (c *Control) Load(ctx context.Context, o repo.Order, by repo.Origin) error {
	if err := c.ready(ctx); err != nil {
		return err
	}
	defer c.release()
	before, served, settings := c.intent().files, c.current().Revision, c.settings()
	if when, _ := settings.LoadOf(o.Model); when == config.LoadNever {
		return fmt.Errorf("%w: conch.yaml says load: never of %s", ErrRefused, o.Model)
	}
	reason := "load of " + o.Model
	switch {
	case len(o.Files) > 0:
		reason += " with files"
	case o.Config != nil:
		reason += " with a config"
	}
	reason = cmp.Or(by.Reason, reason)
	files, err := c.repository.Load(ctx, before.ID, settings.Repository, o, repo.Origin{Author: by.Author, Reason: reason, Time: c.clock.Now()})
	switch {
	case errors.Is(err, repo.ErrNoModel):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case err != nil:
		// The client hears what Triton says, which is less.
		c.event(api.Event{Kind: events.Repository, Author: by.Author, Reason: reason, Message: "refused: " + err.Error(), Fields: map[string]string{"model": o.Model}})
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	_, fails := failing(c.reconciler.Observed())[o.Model]
	serves := len(c.current().PartitionsOf(o.Model)) > 0 && !fails
	if files.ID == before.ID && serves {
		return nil
	}
	c.take(files, by.Author, reason)
	c.reconciler.Retry(o.Model)
	load := order{author: by.Author, reason: reason, apply: true, model: o.Model}
	if from := c.current(); from.Revision > 0 && !from.given {
		// It changes that model and no other, in whatever mode.
		cordoning := c.intent().cordoning(planner.Func(c.ask), from.Plan.Plan)
		load.planner = planner.Single{Current: from.Plan.Plan, Model: o.Model, Policy: cordoning, Cordoned: cordoning.GPUs}
	}
	_, _, err = c.cycle(ctx, load)
	if errors.Is(err, errHurry) {
		// It is desired. Others plan meanwhile; the client waits on.
		c.release()
		err = about(o.Model, c.reconciler.Settle(ctx, 0, c.callers(files, o.Model)...))
		if turn := c.acquire(context.WithoutCancel(ctx)); turn != nil {
			return turn
		}
	}
	if err != nil {
		var refused *driver.LoadError
		if !serves && errors.As(err, &refused) && refused.Model == o.Model {
			return err // it is shown as failed, and tried again
		}
		return errors.Join(err, c.takeBack(ctx, before, files, served, reason, err))
	}
	if ctx.Err() != nil {
		return ctx.Err() // the client has gone; the model is desired, and conditions say what comes of it
	}
	c.event(api.Event{Kind: events.ModelLoaded, Author: by.Author, Reason: by.Reason, Message: "model " + o.Model + " is loaded", Fields: map[string]string{"model": o.Model, "revision": files.ID}})
	return nil
}

// Unload carries out Triton's order to unload a model: a revision of the
// repository in which it is not served, until it is loaded again. Ensembles that
// call it go with it; with dependents, the models that it calls go too, those
// that were loaded only for its sake. It needs no policy: the plan that serves
// goes on without them.
//
// As with Triton, it returns once no new request is let in; accepted ones are
// answered after that.
func (c *Control) Unload(ctx context.Context, model string, by repo.Origin, dependents bool) error {
	if err := c.ready(ctx); err != nil {
		return err
	}
	defer c.release()
	before, served := c.intent(), c.current().Revision
	reason := cmp.Or(by.Reason, "unload of "+model)
	files, err := c.repository.Unload(ctx, before.files.ID, leaving(before.files, model, dependents), repo.Origin{Author: by.Author, Reason: reason, Time: c.clock.Now()})
	if err != nil || files.ID == before.files.ID {
		return err
	}
	c.take(files, by.Author, reason)
	// The client's impatience must not stop an unload half-way.
	whole := context.WithoutCancel(ctx)
	err = c.unload(whole, order{author: by.Author, reason: reason, model: model})
	if errors.Is(err, errHurry) {
		err = c.reconciler.Settle(whole, 0, model) // which takes a moment: the route table is another then
	}
	if err != nil {
		return errors.Join(err, c.takeBack(whole, before.files, files, served, reason, err))
	}
	c.event(api.Event{Kind: events.ModelUnloaded, Author: by.Author, Reason: by.Reason, Message: "model " + model + " is unloaded", Fields: map[string]string{"model": model, "revision": files.ID}})
	return nil
}

// callers are a model and the ensembles that call it.
func (c *Control) callers(files *repo.Revision, model string) []string {
	all := []string{model}
	for _, m := range files.Models {
		for _, step := range m.Config.GetEnsembleScheduling().GetStep() {
			if step.GetModelName() == model {
				all = append(all, m.Name)
			}
		}
	}
	return all
}

// leaving are the models that an unload takes out of service.
func leaving(files *repo.Revision, model string, dependents bool) []string {
	gone := []string{model}
	m := files.Model(model)
	if m == nil || !dependents {
		return gone
	}
	needed := map[string]bool{}
	for _, other := range files.Models {
		if other.Name != model && !other.Unloaded {
			for _, step := range other.Config.GetEnsembleScheduling().GetStep() {
				needed[step.GetModelName()] = true
			}
		}
	}
	for _, step := range m.Config.GetEnsembleScheduling().GetStep() {
		if member := files.Model(step.GetModelName()); member != nil && member.Dependent && !needed[member.Name] {
			gone = append(gone, member.Name)
		}
	}
	return gone
}

// unload applies the plan that serves without the models that are out.
func (c *Control) unload(ctx context.Context, o order) error {
	in, from := c.intent(), c.current()
	next := proto.CloneOf(from.Plan.Plan)
	for _, m := range in.files.Models {
		if state, _ := in.out(m); state == api.ModelUnloaded {
			next = without(next, m.Name)
		}
	}
	snapshot := c.observe(in)
	next.SnapshotRevision = snapshot.GetRevision()
	return c.apply(ctx, o, in, &Proposal{FromRevision: from.Revision, Snapshot: snapshot, Plan: next, Diff: plan.Compute(from.Plan.Plan, next)})
}

// take makes a client's revision the one to plan for.
func (c *Control) take(files *repo.Revision, author, reason string) {
	// If the new files turn out broken, what was learnt of the old ones is wanted.
	c.learnt()
	c.adopt(files, c.settings())
	c.event(api.Event{Kind: events.Repository, Author: author, Reason: reason,
		Message: fmt.Sprintf("repository revision %s: %s", files.ID, changes(files.Diff)), Fields: map[string]string{"revision": files.ID}})
}

// takeBack undoes what an order that failed changed from the revision before it,
// and desires that where the order's had come to be desired: another plan is in force
// than the one that served before. What others ordered meanwhile stays.
func (c *Control) takeBack(ctx context.Context, before, ordered *repo.Revision, served uint64, reason string, cause error) error {
	ctx = context.WithoutCancel(ctx)
	by := repo.Origin{Author: "conch", Reason: reason + " failed", Time: c.clock.Now()}
	present := c.intent().files
	files, err := c.repository.Revert(ctx, present.ID, ordered.ID, before.ID, by)
	if err != nil {
		files = present // the store is amiss; what serves goes on all the same
		if present.ID == ordered.ID {
			files = before
		}
	}
	c.adopt(files, c.settings())
	c.event(api.Event{Kind: events.Repository, Reason: reason + " failed",
		Message: fmt.Sprintf("repository revision %s is without what %s brought: %v", files.ID, ordered.ID, cause), Fields: map[string]string{"revision": files.ID}})
	if from := c.current(); from.files != nil && from.Revision != served {
		in := c.intent()
		snapshot := c.observe(in)
		next := proto.CloneOf(from.Plan.Plan)
		next.SnapshotRevision = snapshot.GetRevision()
		err = errors.Join(err, c.apply(ctx, order{author: "conch", reason: reason + " failed"}, in, &Proposal{
			FromRevision: from.Revision, Snapshot: snapshot, Plan: next, Diff: plan.Compute(from.Plan.Plan, next, plan.Changed(from.snapshot, snapshot)...),
		}))
	}
	// A client that orders again and again what cannot be makes two revisions each time, and no plan comes into force for them.
	c.collect(ctx, files.ID)
	return err
}

// without is a plan that says nothing of a model.
func without(p *policy.Plan, model string) *policy.Plan {
	next := proto.CloneOf(p)
	if next == nil {
		next = &policy.Plan{}
	}
	for _, part := range next.GetPartitions() {
		part.Instances = slices.DeleteFunc(part.Instances, func(i *policy.Instance) bool { return i.GetModel() == model })
	}
	next.Dispatch = slices.DeleteFunc(next.Dispatch, func(d *policy.Dispatch) bool { return d.GetModel() == model })
	next.Predictions = slices.DeleteFunc(next.Predictions, func(d *policy.Prediction) bool { return d.GetModel() == model })
	next.Reasons = slices.DeleteFunc(next.Reasons, func(d *policy.Reason) bool { return d.GetModel() == model })
	next.Unplaced = slices.DeleteFunc(next.Unplaced, func(d *policy.Unplaced) bool { return d.GetModel() == model })
	return next
}

// Absence is why a model is not served, as Triton's repository index has it.
type Absence struct {
	// Versions are those that would be served, ascending.
	Versions []string
	Reason   string
}

// Absent lists the models of the repository that are unloaded or would not load.
func (c *Control) Absent() map[string]Absence {
	in := c.intent()
	absent, failing := map[string]Absence{}, failing(c.reconciler.Observed())
	if in.files == nil {
		return absent
	}
	for _, m := range in.files.Models {
		state, _ := in.out(m)
		failed, fails := failing[m.Name]
		if state != api.ModelUnloaded && !fails {
			continue
		}
		a := Absence{Reason: "unloaded"}
		for _, v := range repo.ServedVersions(m.Config, m.Versions) {
			a.Versions = append(a.Versions, strconv.FormatInt(v, 10))
		}
		if state != api.ModelUnloaded {
			a.Reason = loadReason(failed)
		}
		absent[m.Name] = a
	}
	return absent
}

// loadReason is the part of a server's refusal that its index gives as reason.
func loadReason(f apply.Condition) string {
	var own interface{ GRPCStatus() *status.Status }
	if !errors.As(f.Err, &own) {
		return f.Reason
	}
	text := own.GRPCStatus().Message()
	if _, reason, found := strings.Cut(text, " is at UNAVAILABLE state: "); found {
		text = strings.TrimSuffix(strings.TrimSpace(reason), ";")
	}
	return cmp.Or(text, f.Reason)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/grid"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/history"
	"github.com/conch-serving/conch/sidecar/control/planner"
	"github.com/conch-serving/conch/sidecar/control/snapshot"
	"github.com/conch-serving/conch/sidecar/observe"
	"github.com/conch-serving/conch/sidecar/plan"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

// Run starts serving and plans until ctx ends. It returns nil then; before, it
// returns only if the repository cannot be read at all, or if there is no such
// policy or parameter as conch.yaml says and no plan from before to serve by.
func (c *Control) Run(ctx context.Context) error {
	background, stop := context.WithCancel(ctx)
	defer stop()
	c.tails.Go(func() { c.merge(background) })
	c.tails.Go(func() { c.estimates.Run(background, c.foundEstimate, c.foundEstimates) })
	t := newTriggers(c.clock.Now())
	var err error
	c.meanwhile(t, func() { err = c.begin(ctx) })
	if ctx.Err() == nil && err != nil {
		return err
	}
	c.loop(ctx, t)
	c.tails.Wait()
	c.learnt()
	c.event(api.Event{Kind: events.Stopping, Message: "conch is stopping"})
	return nil
}

// begin gets to a first serving plan: the policy's in mode control, else the
// one that served last.
func (c *Control) begin(ctx context.Context) error {
	if err := c.acquire(ctx); err != nil {
		return err
	}
	defer c.release()
	if c.attached != nil {
		return c.beginAttached(ctx)
	}
	// First of all: what an earlier conch left serves, whatever comes of the rest.
	resumed, err := c.resume(ctx)
	if err != nil {
		return err
	}
	settings := c.settings()
	files, err := c.importFirst(ctx, settings.Repository)
	if err != nil {
		return err
	}
	if resumed != nil {
		files = c.unspoilt(ctx, resumed.Revision, files)
	}
	c.event(api.Event{Kind: events.Started, Message: fmt.Sprintf("conch %s started in mode %s with driver %s, %s", c.version.Version, settings.Mode, settings.Driver.Kind, count(len(files.Models), "model")) + owned(c.version.Replica)})
	c.adopt(files, settings)
	if resumed == nil {
		c.setStarting("the policy is starting")
	}
	if err := c.usePolicy(ctx, settings); mistaken(err) && resumed == nil {
		return fmt.Errorf("policy in conch.yaml: %w", err)
	}
	if resumed == nil {
		c.setStarting("the first plan is being applied")
	}
	if resumed != nil && (settings.Mode != config.ModeControl || c.unchanged(resumed)) {
		return c.undecided(c.again(ctx, resumed))
	}
	_, _, err = c.cycle(ctx, order{author: "conch", reason: "start", apply: true})
	if err != nil && resumed != nil {
		err = c.again(ctx, resumed)
	}
	return c.undecided(err)
}

// unchanged reports that a plan from before the restart is for the world that is now, as
// far as it is known: then it serves on. The load is known only after a while, and a
// policy that was asked now would plan for none.
func (c *Control) unchanged(d *apply.Desired) bool {
	before, now := d.Snapshot, c.observe(c.intent())
	unlike := func(s *policy.Snapshot) *policy.Snapshot {
		return &policy.Snapshot{
			Seed: s.GetSeed(), Objective: s.GetObjective(), Nodes: s.GetNodes(), Offers: s.GetOffers(), Interference: s.GetInterference(),
			Constraints: s.GetConstraints(), Parameters: s.GetParameters(), Steps: s.GetSteps(),
		}
	}
	return d.Revision.ID == c.CurrentRevision() && c.policyBefore == c.policyUsed() &&
		sameSettings(before, now) && proto.Equal(unlike(before), unlike(now))
}

// resume serves what was desired before the restart; nil where nothing was, or
// where it cannot be served any more.
func (c *Control) resume(ctx context.Context) (*apply.Desired, error) {
	d, err := c.reconciler.Start(ctx)
	if errors.Is(err, repo.ErrNoRevision) {
		c.log.Warn("the plan from before the restart cannot be served again", "error", err)
		return nil, nil
	}
	if err != nil || d == nil {
		return nil, err
	}
	number := cmp.Or(d.Number, c.before, 1)
	c.mu.Lock()
	c.starting = ""
	c.serving = serving{
		Plan:     Plan{Revision: number, AppliedAt: d.Time, AppliedBy: d.Author, Reason: d.Reason, Plan: d.Plan},
		snapshot: d.Snapshot, files: d.Revision, given: d.Given, passThrough: d.PassThrough,
	}
	c.before, c.snapshot = max(c.before, number), max(c.snapshot, d.Snapshot.GetRevision())
	resumed := c.serving.Plan
	c.mu.Unlock()
	if _, err := c.plans.Get(number); errors.Is(err, history.ErrNoPlan) {
		// The conch before ended between the plan's two writes.
		var before *policy.Plan
		if last, err := c.plans.List(); err == nil && len(last) > 0 {
			before, _ = decoded(last[0].Plan.Plan)
		}
		c.remembered(resumed, plan.Compute(before, d.Plan), d.Revision.ID, d.Given, false)
	}
	return d, nil
}

// usePolicy puts the policy that is to decide in use. Where an operator's choice
// cannot be, conch.yaml's is.
func (c *Control) usePolicy(ctx context.Context, settings *config.Config) error {
	ref := c.inUse(settings)
	_, err := c.policies.Use(ctx, ref)
	if own := c.reference(settings.Policy); err != nil && !samePolicy(ref, own) {
		c.event(api.Event{Kind: events.PlanFailed, Message: fmt.Sprintf("policy %s, which %s chose, could not be put in use; conch.yaml's is: %v", ref.Name, c.orders.Declared().Policy.Author, err)})
		_, err = c.policies.Use(ctx, own)
	}
	if err != nil {
		c.event(api.Event{Kind: events.PlanFailed, Message: fmt.Sprintf("policy %s could not be put in use: %v", settings.Policy.Name, err)})
	}
	return err
}

// mistaken reports whether an error is a mistake in conch.yaml, which does not go
// away by itself, and not a failure of the policy. Where nothing served before,
// conch does not start with such a mistake.
func mistaken(err error) bool {
	return errors.Is(err, policyhost.ErrUnknownPolicy) || errors.Is(err, policyhost.ErrParameter)
}

// undecided notes that nothing serves yet; the loop tries again.
func (c *Control) undecided(err error) error {
	if err != nil && c.current().Revision == 0 {
		c.setStarting("no plan serves yet: " + err.Error())
	}
	return nil
}

// again goes on with the plan that served before the restart, if it still fits what
// is there. Where it does not, a plan is made anew in every mode.
func (c *Control) again(ctx context.Context, t *apply.Desired) error {
	const restart = "restart: "
	o := order{author: t.Author, reason: restart + strings.TrimPrefix(t.Reason, restart), apply: true}
	o.planner = planner.Func(func(_ context.Context, s *policy.Snapshot) (*policy.Plan, error) {
		p := proto.CloneOf(t.Plan)
		p.SnapshotRevision = s.GetRevision()
		return p, nil
	})
	_, _, err := c.cycle(ctx, o)
	var misfit plan.Violations
	if errors.As(err, &misfit) {
		_, _, err = c.cycle(ctx, order{author: "conch", reason: "start: the plan from before does not fit any more", apply: true})
	}
	return err
}

func (c *Control) setStarting(why string) {
	c.mu.Lock()
	c.starting = why
	c.mu.Unlock()
}

// importFirst reads the repository at start, unless a rollback holds. If it cannot
// be read, what was imported before serves on.
func (c *Control) importFirst(ctx context.Context, dir string) (*repo.Revision, error) {
	if held, err := c.repository.Current(); err == nil && held.Held {
		message := fmt.Sprintf("a rollback holds: repository revision %s serves, and %s is not read until tritonctl repo import", held.ID, dir)
		c.event(api.Event{Kind: events.Repository, Author: "conch", Reason: "start", Message: message, Fields: map[string]string{"revision": held.ID, "directory": dir}})
		return held, nil
	}
	files, err := c.repository.ImportReporting(ctx, dir, repo.Origin{Author: "conch", Reason: "start", Time: c.clock.Now()}, nil)
	if err == nil {
		return files, nil
	}
	before, had := c.repository.Current()
	if had != nil {
		return nil, fmt.Errorf("model repository %s: %w", dir, err)
	}
	c.log.Warn("the model repository cannot be read; the revision from before serves", "directory", dir, "revision", before.ID, "error", err)
	return before, nil
}

// adopt makes a repository revision the one to plan for, and sets its models in the
// recorder, with what was learnt of them before.
func (c *Control) adopt(files *repo.Revision, settings *config.Config) {
	grids, misfit := c.declared(files, settings), c.misfits(files, settings)
	c.mu.Lock()
	c.files, c.grids, c.misfit = files, grids, misfit
	c.mu.Unlock()
	c.requests.LeaveEnsembles(settings.EnsemblesLeft())
	for _, m := range files.Models {
		if err := m.Err(); err != nil {
			c.log.Warn("a model is left out", "model", m.Name, "error", err)
			continue
		}
		var line *observe.Line
		declares := m.Name
		if members := m.Derived.MemberNames(); len(members) > 0 {
			declares = members[0] // a batch of a group runs the same operators as one of a member
		}
		if p := settings.Models[declares].Profile; p != nil {
			line = &observe.Line{Alpha: p.Alpha.Std(), Beta: p.Beta.Std()}
		}
		c.recorder.SetModel(m.Name, m.Digest, int(m.Config.GetMaxBatchSize()), line)
	}
	if err := c.recorder.Restore(c.store); err != nil {
		c.log.Warn("what was learnt about models is not usable and is learnt again", "error", err)
	}
	c.unknownModels(files, settings)
	c.estimates.Want(files.Models, c.places(settings))
	if c.groups != nil {
		c.groups.Want(files, wish(settings.Merge))
	}
}

// declared are the profiles that files declare: those that conch.yaml names, else profile.json or profile.csv beside a model's config.pbtxt.
// A file that cannot be read costs its model the profile, and nothing else.
func (c *Control) declared(files *repo.Revision, settings *config.Config) snapshot.Grids {
	grids := snapshot.Grids{}
	for _, m := range files.Models {
		if named := settings.DeclaredProfiles()[m.Name]; named != nil {
			grids[m.Name] = named
			continue
		}
		for _, name := range []string{"profile.json", "profile.csv"} {
			if !slices.ContainsFunc(m.Files, func(f repo.File) bool { return f.Path == name }) {
				continue
			}
			text, err := c.repository.ReadFile(files.ID, m.Name, name)
			if err == nil {
				grids[m.Name], err = grid.Read(bytes.NewReader(text))
			}
			if err != nil {
				c.log.Warn("a profile file is left out", "model", m.Name, "file", name, "error", err)
				delete(grids, m.Name)
			}
			break
		}
	}
	return grids
}

// learnt saves what was learnt about models.
func (c *Control) learnt() {
	if err := c.recorder.Save(c.store); err != nil {
		c.log.Warn("what was learnt about models could not be saved", "error", err)
	}
}

// tidy forgets what is measured of models and partitions that are gone.
func (c *Control) tidy(s serving) {
	models, partitions := make([]string, 0, len(s.files.Models)), make([]string, 0, len(s.GetPartitions()))
	for _, m := range s.files.Models {
		models = append(models, m.Name)
	}
	for _, p := range s.GetPartitions() {
		partitions = append(partitions, p.GetId())
	}
	c.recorder.Forget(models, partitions)
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.loads, func(model string, _ float64) bool { return !slices.Contains(models, model) })
	maps.DeleteFunc(c.loadedAt, func(model string, _ time.Time) bool { return !slices.Contains(models, model) })
}

func count(n int, singular string) string {
	if n == 1 {
		return "1 " + singular
	}
	return fmt.Sprintf("%d %ss", n, singular)
}

// owned says which replica owns the models from now on, where there may be several.
func owned(replica string) string {
	if replica == "" {
		return ""
	}
	return "; replica " + replica + " owns them"
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/planner"
	"github.com/conch-serving/conch/sidecar/plan"
)

// Attached are servers that others run; an *attached.Catalogue is one. Which
// model is where is given by them, and followed by mirror below, unless mode is
// control and conch may write their repositories: then the policy decides as it
// does for servers of conch's own.
type Attached interface {
	// Read makes a revision of what the servers serve now.
	Read(ctx context.Context, by repo.Origin) (*repo.Revision, error)
	// Partitions are those of the last Read, with the models that each server has.
	Partitions() []*policy.Partition
	// Batching is a model's dynamic_batching as the servers' operator configured it; nil
	// where there is none.
	Batching(model string) *tritonpb.ModelDynamicBatching
	// Remarks are what the operator should know of the last Read.
	Remarks() []string
	// Writable reports whether conch may place models on the servers.
	Writable() bool
	// TakeOver makes the servers leave batching to conch; HandBack undoes that and
	// whatever conch staged. Delay is the max_queue_delay of a model that had no
	// batching of its own.
	TakeOver(ctx context.Context) []driver.Handover
	HandBack(ctx context.Context, dry bool, delay func(model string) time.Duration) ([]driver.Handover, error)
}

// ServersChanged is called when attached servers serve something else than before.
func (c *Control) ServersChanged(reason string) {
	c.mu.Lock()
	c.moved = reason
	c.mu.Unlock()
	c.rouse()
}

// serversMoved reports whether attached servers are to be followed.
func (c *Control) serversMoved() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.moved != ""
}

// Given reports whether attached servers, and not plans, decide where models are.
func (c *Control) Given() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.attached != nil && !c.placing
}

// PassingThrough reports whether requests are passed on as they came to servers of
// others, which batch them themselves.
func (c *Control) PassingThrough() bool {
	mode := c.settings().Mode
	return c.attached != nil && passThrough(mode, c.current()) != ""
}

// Mirror follows the servers now.
func (c *Control) Mirror(ctx context.Context, reason string) error {
	if err := c.acquire(ctx); err != nil {
		return err
	}
	defer c.release()
	return c.mirror(ctx, reason)
}

// beginAttached is begin for servers that others run: what they serve is served
// at once, whatever the policy says of it.
func (c *Control) beginAttached(ctx context.Context) error {
	settings := c.settings()
	c.event(api.Event{Kind: events.Started, Message: fmt.Sprintf("conch %s started in mode %s with driver %s", c.version.Version, settings.Mode, settings.Driver.Kind)})
	if c.orders.Declared().Released {
		c.event(api.Event{Kind: events.Released, Message: "the servers were released before the restart: mode is observe until conch.yaml is read again (SIGHUP) or tritonctl release --undo"})
	}
	if _, err := c.reconciler.Start(ctx); err != nil && !errors.Is(err, repo.ErrNoRevision) {
		return err
	}
	if err := c.usePolicy(ctx, settings); mistaken(err) && c.before == 0 {
		return fmt.Errorf("policy in conch.yaml: %w", err)
	}
	c.setStarting("the servers are being asked what they serve")
	if err := c.mirror(ctx, "start"); err != nil {
		return c.undecided(err)
	}
	if settings.Mode == config.ModeControl {
		c.promptly("start")
	}
	return nil
}

// keepUp follows the servers if they changed. It reports whether anything is
// served.
func (c *Control) keepUp(ctx context.Context, t *triggers) bool {
	now := c.clock.Now()
	c.mu.Lock()
	reason, serving := c.moved, c.serving.Revision > 0
	if serving && (reason == "" || now.Sub(t.followed) < alarmPace) {
		c.mu.Unlock()
		return true
	}
	c.moved = ""
	c.mu.Unlock()
	if err := c.acquire(ctx); err != nil {
		return false
	}
	defer c.release()
	var err error
	c.meanwhile(t, func() { err = c.mirror(ctx, cmp.Or(reason, "start")) })
	if err == nil {
		t.followed = c.clock.Now()
	}
	if err != nil {
		if !serving {
			c.setStarting("no plan serves yet: " + err.Error())
		}
		// Tried again after a tick.
		c.mu.Lock()
		c.moved = cmp.Or(c.moved, reason, "start")
		c.mu.Unlock()
	}
	return c.current().Revision > 0
}

// mirror makes what the servers serve what conch serves. It needs no policy and
// is done in every mode. The caller holds the planning turn.
func (c *Control) mirror(ctx context.Context, reason string) error {
	settings := c.settings()
	served, err := c.attached.Read(ctx, repo.Origin{Author: "servers", Reason: reason, Time: c.clock.Now()})
	if err != nil {
		if ctx.Err() == nil {
			c.say(err.Error())
		}
		return err
	}
	for _, remark := range c.attached.Remarks() {
		c.say(remark)
	}
	wants := settings.Mode == config.ModeControl && c.attached.Writable()
	if wants && c.current().Revision > 0 {
		placing, err := c.place(ctx, served, settings)
		if placing || err != nil {
			return err
		}
	}
	c.mu.Lock()
	before := c.files
	c.placing = false
	c.mu.Unlock()
	if before != served {
		c.adopt(served, settings)
		if before != nil {
			c.event(api.Event{Kind: events.Repository, Author: "servers", Reason: reason, Message: "the servers' models: " + changes(served.Diff), Fields: map[string]string{"revision": served.ID}})
		}
	}
	if err := c.follows(ctx, reason); err != nil {
		return err
	}
	if wants { // what is there is served by now, so that the policy may take its time
		placing, err := c.place(ctx, served, settings)
		if placing || err != nil {
			return err
		}
	}
	switch settings.Mode {
	case config.ModeControl:
		c.handovers(c.attached.TakeOver(ctx), "conch")
	case config.ModeObserve:
		// What an earlier mode changed is not left behind.
		done, err := c.attached.HandBack(ctx, false, c.releaseDelay)
		c.handovers(done, "conch")
		if err != nil {
			return err
		}
	}
	return nil
}

// place leaves the placement to the policy, which wants a plan made of conch's
// own repository. It reports false where that would take away a model that the
// servers serve and the repository does not have.
func (c *Control) place(ctx context.Context, served *repo.Revision, settings *config.Config) (bool, error) {
	own, err := c.importFirst(ctx, settings.Repository)
	if err != nil {
		return false, err
	}
	var strays []string
	for _, m := range served.Models {
		// What conch itself has loaded there is its own to unload: the servers may not have
		// come to it yet.
		loadedByConch := m.Config.GetParameters()[repo.RevisionParameter].GetStringValue() != ""
		if mine := own.Model(m.Name); !loadedByConch && (mine == nil || mine.Err() != nil) {
			strays = append(strays, m.Name)
		}
	}
	if len(strays) > 0 {
		c.say(fmt.Sprintf("the servers serve %s, which repository %s does not have: models stay where they are until they are in it or unloaded", strings.Join(strays, ", "), settings.Repository))
		return false, nil
	}
	c.mu.Lock()
	already := c.placing
	c.placing = true
	c.mu.Unlock()
	if !already {
		c.adopt(own, settings)
		c.ordered("conch places the models of " + settings.Repository)
	}
	return true, nil
}

// follows applies the plan that the servers give.
func (c *Control) follows(ctx context.Context, reason string) error {
	in := c.intent()
	from := c.current()
	in.passThrough = passThrough(in.config.Mode, from)
	snapshot := c.observe(in)
	mirror := planner.Mirror{Placement: c.attached.Partitions}
	if from.passThrough == "" { // else the plan's disciplines were not chosen
		mirror.Disciplines = planner.Ready(from.Plan.Plan)
	}
	next, err := c.operator(in).Obeying(mirror).Plan(ctx, snapshot)
	if err != nil {
		return err
	}
	if in.passThrough != "" {
		next = planner.PassingThrough(next)
	}
	diff := plan.Compute(from.Plan.Plan, next)
	if from.Revision > 0 && diff.Empty() && sameSettings(from.snapshot, snapshot) && from.passThrough == in.passThrough && from.given {
		return nil
	}
	return c.apply(ctx, order{author: "conch", reason: reason}, in, &Proposal{FromRevision: from.Revision, Snapshot: snapshot, Plan: next, Diff: diff})
}

// passThrough returns why requests are passed through to attached servers, which then
// batch themselves while no request waits for conch's scheduler. It is empty if conch
// batches.
func passThrough(mode config.Mode, from serving) string {
	switch {
	case mode == config.ModeObserve:
		return "mode is observe: every request is passed on at once, as it came"
	case mode == config.ModeAdvise && (from.Revision == 0 || from.passThrough != ""):
		return "mode is advise and no plan was applied yet: every request is passed on at once, as it came"
	}
	return ""
}

// handovers writes down what was changed on the servers.
func (c *Control) handovers(done []driver.Handover, author string) {
	for _, h := range done {
		fields := map[string]string{"model": h.Model, "partition": h.GPU, "endpoint": h.Endpoint}
		if h.Err != nil {
			c.say(fmt.Sprintf("model %s at %s is left as its server has it: %v", h.Model, h.Endpoint, h.Err))
			continue
		}
		c.event(api.Event{Kind: events.Handover, Author: author, Message: fmt.Sprintf("model %s at %s: %s", h.Model, h.Endpoint, h.Change), Fields: fields})
	}
}

// say writes a remark about the servers down, once.
func (c *Control) say(remark string) {
	c.mu.Lock()
	known := c.remarks[remark]
	c.remarks[remark] = true
	if len(c.remarks) > 1000 {
		clear(c.remarks)
	}
	c.mu.Unlock()
	if !known {
		c.event(api.Event{Kind: events.Handover, Message: remark})
	}
}

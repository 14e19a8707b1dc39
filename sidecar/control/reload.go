// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/orders"
	"github.com/conch-serving/conch/sidecar/control/planner"
	"github.com/conch-serving/conch/sidecar/plan"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

// Reload puts another configuration into force, all of it or nothing.
func (c *Control) Reload(ctx context.Context, next *config.Config) error {
	// The turn comes first: nothing may plan between the new policy and the new
	// settings.
	if err := c.acquire(ctx); err != nil {
		return err
	}
	defer c.release()
	before := c.settings()
	if err := config.Reloadable(before, next); err != nil {
		return err
	}
	// An operator's choice of a policy holds as long as conch.yaml says what it did.
	own := c.orders.Declared().Policy
	if own != nil && own.Over != policyText(next.Policy) {
		own = nil
	}
	ref := c.reference(next.Policy)
	if own != nil {
		ref = c.chosen(*own, next)
	}
	if err := c.homeless(ctx, ref, next); err != nil {
		return fmt.Errorf("reload refused, nothing was changed: %w", err)
	}
	declare := c.orders.Declare
	if a, b := c.reference(before.Policy), c.reference(next.Policy); own == nil && (!samePolicy(a, b) || c.policies.Status().Name != b.Name || c.orders.Declared().Policy != nil) {
		used := c.inForce(before)
		if err := c.use(ctx, b, "conch", "reload of the configuration"); err != nil {
			return fmt.Errorf("reload refused, nothing was changed: %w", err)
		}
		declare = func(change func(*orders.Declared)) error { return c.declareUsed(ctx, used, change) }
	}
	if err := declare(func(d *orders.Declared) { d.Released, d.Policy = false, own }); err != nil {
		return err
	}
	c.mu.Lock()
	c.config, c.asRead = next, next
	c.version.Mode = string(next.Mode)
	files := c.files
	c.mu.Unlock()
	if files != nil {
		c.adopt(files, next)
	}
	if c.attached != nil {
		c.ServersChanged("the configuration was read again")
	}
	c.event(api.Event{Kind: events.Reloaded, Message: "the configuration was read again"})
	c.ordered("the configuration was read again")
	return nil
}

// ReloadRefused takes in why the configuration was not read again, whether it could not be or Reload refused it.
func (c *Control) ReloadRefused(err error) {
	c.event(api.Event{Kind: events.ReloadRefused, Message: fmt.Sprintf("the configuration was not reloaded, the one before stays in force: %v", err)})
}

// homeless says which models would have no place under another configuration, though they serve and have one under the present configuration: a
// misspelt GPU must not unload a model. It is nil where there are none, and where the policy has no plan for either: what serves serves on then.
func (c *Control) homeless(ctx context.Context, ref policyhost.Ref, next *config.Config) error {
	from := c.current()
	in := c.intent()
	if next.Mode != config.ModeControl || in.given || in.files == nil || from.Revision == 0 || c.stays(from, order{}) {
		return nil
	}
	observed := c.reconciler.Observed()
	serves := func(m *policy.Model) bool {
		return slices.ContainsFunc(from.PartitionsOf(m.GetName()), func(p *policy.Partition) bool {
			is, _ := readyOn(observed, p.GetId(), m.GetName())
			return is
		})
	}
	would, lost := c.wouldLose(ctx, ref, next, serves)
	if len(lost) == 0 {
		return nil
	}
	// What the policy takes away in any case is not the new configuration's doing.
	settings := c.settings()
	_, anyhow := c.wouldLose(ctx, c.inForce(settings), settings, serves)
	lost = slices.DeleteFunc(lost, func(model string) bool { return slices.Contains(anyhow, model) })
	if len(lost) == 0 {
		return nil
	}
	why := make([]string, len(lost))
	for i, model := range lost {
		why[i] = model + ": " + unplaced(would, model)
	}
	return fmt.Errorf("%s, which %s, would have no place: %s. A model that is not to serve is unloaded first (tritonctl model unload), or has load: never",
		some(lost), map[bool]string{true: "serves", false: "serve"}[len(lost) == 1], strings.Join(why[:min(len(why), 3)], "; "))
}

// inForce names the policy that decides now.
func (c *Control) inForce(settings *config.Config) policyhost.Ref {
	if own := c.orders.Declared().Policy; own != nil && own.Over == policyText(settings.Policy) {
		return c.chosen(*own, settings)
	}
	return c.reference(settings.Policy)
}

// wouldLose asks a policy for a plan under a configuration, and gives the models that serve, are to serve and have no place in it, sorted. Those
// that load on demand, and variants that no client asks for by name, come and go. None where the policy has no valid plan.
func (c *Control) wouldLose(ctx context.Context, ref policyhost.Ref, settings *config.Config, serves func(*policy.Model) bool) (would *policy.Plan, lost []string) {
	in := c.intent()
	in.config = settings
	snapshot := c.observe(in)
	try := planner.Func(func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
		return c.policies.Try(ctx, ref, s)
	})
	would, err := c.operator(in).Obeying(in.cordoning(try, c.current().Plan.Plan)).Plan(ctx, snapshot)
	if err != nil || len(plan.Validate(snapshot, would, c.checks...)) > 0 {
		return would, nil
	}
	variants := map[string]bool{}
	for _, a := range settings.Apps {
		for _, v := range a.Variants {
			variants[v.Model] = true
		}
	}
	for _, m := range snapshot.GetModels() {
		name := m.GetName()
		if !m.GetOnDemand() && (!variants[name] || m.OwnRate() > 0) && len(would.PartitionsOf(name)) == 0 && serves(m) {
			lost = append(lost, name)
		}
	}
	slices.Sort(lost)
	return would, lost
}

// unknownModels writes down which models conch.yaml names and the repository does not have, once: what it says of them means nothing.
func (c *Control) unknownModels(files *repo.Revision, settings *config.Config) {
	if c.attached != nil {
		servers := 0 // a GPU stands for each
		for _, n := range c.nodes() {
			servers += len(n.GetGpus())
		}
		if len(c.attached.Partitions()) < servers {
			return // one that has not answered may have them
		}
	}
	known := make([]string, len(files.Models))
	for i, m := range files.Models {
		known[i] = m.Name
	}
	var remarks []string
	for _, p := range settings.UnknownModels(known) {
		remarks = append(remarks, p.String())
	}
	if c.news(&c.unknown, strings.Join(remarks, "; ")) && len(remarks) > 0 {
		c.event(api.Event{Kind: events.ModelUnknown, Message: "conch.yaml: " + strings.Join(remarks, "; ")})
	}
}

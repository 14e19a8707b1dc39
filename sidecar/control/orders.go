// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/orders"
	"github.com/conch-serving/conch/sidecar/plan"
)

// Snapshot is what the policy would be asked now.
func (c *Control) Snapshot(ctx context.Context) (*policy.Snapshot, error) {
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	defer c.release()
	return c.observe(c.intent()), nil
}

// ready takes the planning turn once there is a repository to plan for.
func (c *Control) ready(ctx context.Context) error {
	if err := c.acquire(ctx); err != nil {
		return err
	}
	c.mu.Lock()
	files, why := c.files, c.starting
	c.mu.Unlock()
	if files == nil {
		c.release()
		return fmt.Errorf("%w: conch is starting: %s", ErrUnavailable, why)
	}
	return nil
}

// Explain says why a model is where it is.
func (c *Control) Explain(ctx context.Context, model string) (*plan.Explanation, error) {
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	defer c.release()
	e, err := plan.Explain(c.observe(c.intent()), c.current().Plan.Plan, model)
	if errors.Is(err, plan.ErrUnknownModel) {
		if m, known := c.LookAtModel(model); known == nil {
			return nil, fmt.Errorf("%w: model %s has no place in a plan: %s", ErrNotFound, model, m.outOfPlans())
		}
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err != nil {
		return nil, err
	}
	// People know plans by the number under which they serve.
	e.Revision = c.current().Revision
	return e, nil
}

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
	if a, b := c.reference(before.Policy), c.reference(next.Policy); own == nil && (!samePolicy(a, b) || c.policies.Status().Name != b.Name || c.orders.Declared().Policy != nil) {
		if err := c.use(ctx, b, "conch", "reload of the configuration"); err != nil {
			return fmt.Errorf("reload refused, nothing was changed: %w", err)
		}
	}
	if err := c.orders.Declare(func(d *orders.Declared) { d.Released, d.Policy = false, own }); err != nil {
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

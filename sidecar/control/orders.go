// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/plan"
)

// Snapshot is what the policy would be asked now.
func (c *Control) Snapshot(ctx context.Context) (*policy.Snapshot, error) {
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	defer c.release()
	in := c.intent()
	return forPolicies(c.observe(in), in), nil
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
		m, err := c.LookAtModel(model)
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%w: model %s has no place in a plan: %s", ErrNotFound, model, m.outOfPlans())
	}
	if err != nil {
		return nil, err
	}
	// People know plans by the number under which they serve.
	e.Revision = c.current().Revision
	return e, nil
}

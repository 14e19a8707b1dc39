// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/plan"
)

// Evaluator says what would become of plans; a *evaluate.Child is one.
type Evaluator interface {
	Evaluate(ctx context.Context, s *policy.Snapshot, plans []*policy.Plan) ([]*policy.Outcome, error)
}

// weighTime bounds an evaluation: a plan that cannot be evaluated in time is
// judged without one.
const weighTime = 5 * time.Second

// weighUp judges a valid plan against the one in force, by the host's own
// evaluation of both.
func (c *Control) weighUp(ctx context.Context, s *policy.Snapshot, current, next *policy.Plan, d *plan.Diff, settings *config.Config) plan.Judgement {
	margins := plan.Margins{Loss: settings.Changes.Loss, Horizon: settings.Changes.Horizon.Std().Seconds(), Payoff: settings.Changes.Payoff}
	var now, then *policy.Outcome
	if c.evaluator != nil && s.GetTraffic().GetDigest() != "" && len(current.GetPartitions()) > 0 {
		ctx, cancel := context.WithTimeout(ctx, weighTime)
		defer cancel()
		outcomes, err := c.evaluator.Evaluate(ctx, s, []*policy.Plan{plan.Living(s, current), next})
		if err != nil {
			c.log.Warn("a plan could not be evaluated and is judged without", "error", err)
			margins.Young = c.clock.Now().Sub(c.current().AppliedAt).Seconds() < margins.Horizon
		} else {
			now, then = outcomes[0], outcomes[1]
		}
	}
	return plan.Judge(s, d, current, next, now, then, margins)
}

// held ends a cycle whose plan is valid and is not applied by itself: an operator
// may still apply it.
func (c *Control) held(p *Proposal, o order, result *Applied) (*Proposal, *Applied, error) {
	c.metrics.Planned(p.Plan.GetPolicy(), "held", p.Duration)
	c.planned(p.Snapshot)
	message := fmt.Sprintf("%s serves on, a plan of policy %s is held back: %s (%s)", c.servingName(), p.Plan.GetPolicy(), p.Judgement.Text, p.Diff.Summary())
	c.withhold(&api.Held{Kind: events.PlanHeld, Policy: p.Plan.GetPolicy(), Message: message})
	if c.news(&c.holding, string(p.Judgement.Verdict)+" "+p.Diff.Summary()) {
		c.event(api.Event{
			Kind: events.PlanHeld, Author: o.author, Reason: o.reason, Seconds: p.Duration.Seconds(),
			Message: message, Fields: map[string]string{"policy": p.Plan.GetPolicy(), "verdict": string(p.Judgement.Verdict)},
		})
	}
	return p, result, nil
}

// withhold shows why the plan that was made last does not serve, since now or since the last one did not serve for a reason of the same kind. Nil: it does, or would
// change nothing.
func (c *Control) withhold(why *api.Held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if why != nil {
		why.Since = c.clock.Now()
		if last := c.withheld; last != nil && last.Kind == why.Kind && last.Policy == why.Policy {
			why.Since = last.Since
		}
	}
	c.withheld = why
}

// Held is why the plan that was made last does not serve; nil where it does, or would change nothing.
func (c *Control) Held() *api.Held {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.withheld
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/orders"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

// Policies lists the policies that could be used, those in use with their
// state. Only with describe is a process started to ask the others what they are.
func (c *Control) Policies(ctx context.Context, describe bool) ([]api.Policy, error) {
	known, err := c.policies.List(ctx)
	if err != nil && len(known) == 0 {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	var all []api.Policy
	for _, k := range known {
		all = append(all, c.describe(ctx, k, describe))
	}
	return all, nil
}

// Policy describes one of them.
func (c *Control) Policy(ctx context.Context, name string, describe bool) (api.Policy, error) {
	known, err := c.policies.List(ctx)
	if i := slices.IndexFunc(known, func(k policyhost.Known) bool { return k.Name == name }); i >= 0 {
		return c.describe(ctx, known[i], describe), nil
	}
	if err != nil {
		return api.Policy{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return api.Policy{}, fmt.Errorf("%w: no policy is called %q; tritonctl policy ls shows those there are", ErrNotFound, name)
}

func (c *Control) describe(ctx context.Context, k policyhost.Known, ask bool) api.Policy {
	p := api.Policy{Name: k.Name, Builtin: k.Builtin, InUse: k.InUse}
	var description *policy.Description
	var parameters map[string]string
	if k.InUse {
		s := c.policies.Status()
		description, parameters, p.State, p.LastError = s.Description, s.Parameters, string(s.State), s.LastError
	} else if ask {
		var err error
		if description, err = c.policies.Describe(ctx, policyhost.Ref{Name: k.Name}); err != nil {
			p.LastError = err.Error()
		}
	}
	p.Version, p.Summary, p.Disciplines = description.GetVersion(), description.GetSummary(), description.GetDisciplines()
	for _, q := range description.GetParameters() {
		p.Parameters = append(p.Parameters, api.PolicyParameter{
			Name: q.GetName(), Type: q.GetType(), Default: q.GetDefaultValue(),
			Value: parameters[q.GetName()], Documentation: q.GetDocumentation(), Values: q.GetValues(),
		})
	}
	return p
}

// UsePolicy swaps the policy. The old one decides on where the new one cannot
// start. A plan is asked of the new one at once; whether it is applied is up to
// the mode. The choice survives restarts; it holds until conch.yaml names another
// policy than it did when the choice was made.
func (c *Control) UsePolicy(ctx context.Context, r api.UsePolicyRequest) (api.Policy, error) {
	if err := c.choose(ctx, orders.Policy{Name: r.Name, Parameters: r.Parameters, Author: cmp.Or(r.Author, "operator"), Reason: r.Reason}); err != nil {
		return api.Policy{}, err
	}
	c.ordered("policy " + r.Name + " came into use")
	return c.Policy(ctx, r.Name, true)
}

// choose swaps the policy by an operator's order.
func (c *Control) choose(ctx context.Context, p orders.Policy) error {
	if err := c.acquire(ctx); err != nil {
		return err
	}
	defer c.release()
	settings := c.settings()
	ref, before := c.chosen(p, settings), c.inForce(settings)
	if err := c.use(ctx, ref, p.Author, p.Reason); err != nil {
		return err
	}
	p.Over, p.Since = policyText(settings.Policy), c.clock.Now()
	return c.declareUsed(ctx, before, func(d *orders.Declared) {
		d.Policy = &p
		if samePolicy(ref, c.reference(settings.Policy)) {
			d.Policy = nil // it is conch.yaml's own again
		}
	})
}

// declareUsed declares what a policy was swapped for. Where that cannot be written down, the policy before is put back in use: a restart would take it.
func (c *Control) declareUsed(ctx context.Context, before policyhost.Ref, change func(*orders.Declared)) error {
	err := c.orders.Declare(change)
	if err != nil {
		err = errors.Join(err, c.use(context.WithoutCancel(ctx), before, "conch", "an order could not be written down"))
	}
	return err
}

// chosen names an operator's choice.
func (c *Control) chosen(p orders.Policy, settings *config.Config) policyhost.Ref {
	ref := policyhost.Ref{Name: p.Name, Parameters: p.Parameters}
	if settings.Policy.Name == p.Name {
		ref.Executable = c.reference(settings.Policy).Executable
	}
	return ref
}

// inUse names the policy that is to decide: an operator's choice, as long as
// conch.yaml says what it did when that was made, else conch.yaml's.
func (c *Control) inUse(settings *config.Config) policyhost.Ref {
	own := c.orders.Declared().Policy
	if own == nil {
		return c.reference(settings.Policy)
	}
	if own.Over == policyText(settings.Policy) {
		return c.chosen(*own, settings)
	}
	c.event(api.Event{Kind: events.PolicyChanged, Message: fmt.Sprintf("conch.yaml names another policy since %s chose %s: conch.yaml's holds", own.Author, own.Name), Fields: map[string]string{"policy": settings.Policy.Name, "before": own.Name}})
	if err := c.orders.Declare(func(d *orders.Declared) { d.Policy = nil }); err != nil {
		c.log.Warn("an order that no longer holds could not be removed", "error", err)
	}
	return c.reference(settings.Policy)
}

// policyText is what conch.yaml says of the policy, as a text to compare.
func policyText(p config.Policy) string {
	text, err := json.Marshal([]any{p.Name, p.Parameters, p.Executable, p.Checksum})
	if err != nil {
		return err.Error() // strings and maps of them always have a form
	}
	return string(text)
}

// use swaps the policy; the caller holds the planning turn.
func (c *Control) use(ctx context.Context, ref policyhost.Ref, author, reason string) error {
	before := c.policies.Status().Name
	d, err := c.policies.Use(ctx, ref)
	switch {
	case errors.Is(err, policyhost.ErrUnknownPolicy):
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case errors.Is(err, policyhost.ErrParameter):
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	message := fmt.Sprintf("policy %s %s is in use", ref.Name, d.GetVersion())
	if before != "" && before != ref.Name {
		message += " in place of " + before
	}
	c.withhold(nil) // another policy, or the same with other parameters, has other plans
	c.event(api.Event{Kind: events.PolicyChanged, Author: author, Reason: reason, Message: message, Fields: map[string]string{"policy": ref.Name, "before": before}})
	return nil
}

func samePolicy(a, b policyhost.Ref) bool {
	if a.Name != b.Name || (a.Executable == nil) != (b.Executable == nil) || len(a.Parameters) != len(b.Parameters) {
		return false
	}
	for name, value := range a.Parameters {
		if other, ok := b.Parameters[name]; !ok || other != value {
			return false
		}
	}
	return a.Executable == nil || a.Executable.Path == b.Executable.Path && a.Executable.SHA256 == b.Executable.SHA256
}

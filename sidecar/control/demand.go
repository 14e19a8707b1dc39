// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/config"
)

// Load on demand: requests for a model that no plan has placed wait in the request
// path, which lists such models (Wanted). A plan is made while one of them has no
// place. The callers are not stored here: the list is read again in every turn of
// the loop, so that no waiting request is missed.

const (
	// demandPace is the shortest time between two plans for models that are waited
	// for, demandRetry that after one which left some of them without a place.
	demandPace  = 20 * time.Millisecond
	demandRetry = 500 * time.Millisecond
)

// demand is what the loop remembers of the last plan for models that are waited
// for.
type demand struct {
	next time.Time
	// seen are those that the last snapshot knew to be waited for.
	seen map[string]bool
	// refused are those that a plan did not place a moment ago, by name.
	refused map[string]refused
}

// refused is why a model was not placed, which holds for a while.
type refused struct {
	why   string
	until time.Time
}

// LoadWanted is called when requests begin to wait for a model that loads on demand.
// It does not block.
func (c *Control) LoadWanted(string) {
	c.rouse()
	c.press()
}

// demanded are the models that requests wait for and that the plan in force does
// not place, or why nothing is done for them: requests for those are refused.
func (c *Control) demanded() []string {
	settings, from, failing := c.settings(), c.current(), failing(c.reconciler.Observed())
	var all []string
	for _, model := range c.requests.Wanted() {
		switch failed, fails := failing[model]; {
		case fails:
			c.requests.FailLoad(model, "its server does not load it: "+oneLine(failed.Reason))
		case len(from.PartitionsOf(model)) > 0: // it is being loaded
		case settings.Mode != config.ModeControl:
			c.requests.FailLoad(model, fmt.Sprintf("mode %s applies no plan without an operator's order", settings.Mode))
		default:
			if why := c.refusedJustNow(model); why != "" {
				c.requests.FailLoad(model, why)
				continue
			}
			all = append(all, model)
		}
	}
	return all
}

// refuse fails the requests that wait for a model, and those that come within
// demandRetry: a flood of requests for a model without a place must not cause a flood
// of plans.
func (c *Control) refuse(model, why string) {
	c.mu.Lock()
	c.demand.refused[model] = refused{why, c.clock.Now().Add(demandRetry)}
	c.mu.Unlock()
	c.requests.FailLoad(model, why)
}

func (c *Control) refusedJustNow(model string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.demand.refused[model]
	if ok && !c.clock.Now().Before(r.until) {
		delete(c.demand.refused, model)
		return ""
	}
	return r.why
}

// demandDue is why a plan is wanted for models that are waited for, empty where
// none is, and when to look again.
func (c *Control) demandDue(now time.Time) (reason string, look time.Duration) {
	wanted := c.demanded()
	if len(wanted) == 0 {
		return "", tick
	}
	c.mu.Lock()
	wait := c.demand.next.Sub(now)
	c.mu.Unlock()
	if wait > 0 {
		return "", min(tick, wait)
	}
	if len(wanted) > 3 {
		wanted = append(wanted[:3], fmt.Sprintf("%d others", len(wanted)-3))
	}
	return "requests wait for " + strings.Join(wanted, ", "), tick
}

// demandSeen notes which models the snapshot shows as waited for.
func (c *Control) demandSeen(models []*policy.Model) {
	seen := map[string]bool{}
	for _, m := range models {
		if m.GetRequestsUnderWay() > 0 {
			seen[m.GetName()] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.demand.seen = seen
}

// demandLater reports that requests began to wait for a model after the last
// snapshot was made: its plan should not wait for the servers of this one.
func (c *Control) demandLater() bool {
	return slices.ContainsFunc(c.requests.Wanted(), func(model string) bool { return !c.demandKnown(model) })
}

// demandKnown reports that the last snapshot showed a model as waited for.
func (c *Control) demandKnown(model string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.demand.seen[model]
}

// demandAnswered ends the wait for models that a proposal does not place, unless
// what is in the way are requests of others that load on demand: those end.
func (c *Control) demandAnswered(p *Proposal, err error) {
	now := c.clock.Now()
	pace := demandPace
	if err != nil || p == nil || p.Plan == nil {
		pace = demandRetry
	} else {
		for _, model := range c.demanded() {
			switch u := refusal(p.Plan, model); {
			case len(p.Plan.PartitionsOf(model)) > 0 && p.Judgement != nil:
				c.refuse(model, "a plan that places it is held back: "+p.Judgement.Text)
			case !c.demandKnown(model): // it is asked for since
			case slices.ContainsFunc(u.GetRefusals(), func(r *policy.Refusal) bool { return r.GetCause() == policy.CauseOnDemand }):
				pace = demandRetry
			default:
				c.refuse(model, cmp.Or(u.GetText(), "the policy "+p.Plan.GetPolicy()+" does not place it"))
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.demand.next = now.Add(pace)
}

// refusal is a plan's reason why a model has no place; nil where it gives none.
func refusal(p *policy.Plan, model string) *policy.Unplaced {
	for _, u := range p.GetUnplaced() {
		if u.GetModel() == model {
			return u
		}
	}
	return nil
}

// uses completes the models of a snapshot with when they are loaded, and how they
// are used. Asked is a model that an order loads.
func (c *Control) uses(models []*policy.Model, settings *config.Config, asked string, now time.Time) {
	c.mu.Lock()
	loaded, current := maps.Clone(c.loadedAt), c.serving
	began := c.began
	c.mu.Unlock()
	for _, m := range models {
		load, idle := settings.LoadOf(m.GetName())
		m.OnDemand, m.MaxIdleSeconds = load == config.LoadDemand, idle.Seconds()
		counts, _ := c.requests.Counts(m.GetName())
		m.RequestsUnderWay = uint64(max(0, counts.UnderWay))
		if m.GetName() == asked {
			m.RequestsUnderWay = max(1, m.RequestsUnderWay)
		}
		used := counts.LastArrival
		if at := loaded[m.GetName()]; at.After(used) {
			used = at
		}
		// What was used before this conch began is not known.
		if used.Before(began) && len(current.PartitionsOf(m.GetName())) > 0 {
			used = began
		}
		if !used.IsZero() {
			m.IdleSeconds = max(1e-9, now.Sub(used).Seconds())
		}
	}
}

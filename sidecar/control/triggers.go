// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/advice"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/conditions"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/snapshot"
	"github.com/conch-serving/conch/sidecar/observe"
	"github.com/conch-serving/conch/sidecar/plan"
)

const (
	// tick is how often rates are looked at and profiles are given to the request
	// path.
	tick = 500 * time.Millisecond
	// saveEvery is how often what was learnt is written to disk.
	saveEvery = time.Minute
	// A first plan, and any for which the policy gave no answer, is tried for after
	// retryFirst, then after twice as long each time, up to retryMost.
	retryFirst = 2 * time.Second
	retryMost  = 30 * time.Second
	// alarmPace is the least time between the end of a plan and the next one for an
	// alarm that is no order, and between two looks at attached servers: a server that comes
	// and goes must not keep the policy, or the disk, busy.
	alarmPace = time.Second
	// profileStep is the least change of an upper latency that reaches the
	// request path: below it, l(b) is noise.
	profileStep = 0.02
)

// loop plans when a trigger says so, until ctx ends.
func (c *Control) loop(ctx context.Context, t *triggers) {
	look := tick
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-c.clock.After(look):
		}
		if c.attached != nil && !c.keepUp(ctx, t) {
			continue
		}
		now := c.clock.Now()
		c.lookOn(t, now)
		wanted, soon := c.demandDue(now)
		reason := cmp.Or(t.pending, c.due(t, now), wanted)
		if look = soon; reason == "" {
			continue
		}
		t.pending, t.last = "", now
		if err := c.acquire(ctx); err != nil {
			return
		}
		t.ordered = c.takeOrdered() || t.ordered
		o := order{
			author: "conch", reason: reason, weigh: !t.ordered && c.current().Revision > 0,
			apply: c.settings().Mode == config.ModeControl || c.current().Revision == 0,
		}
		var proposal *Proposal
		var err error
		c.meanwhile(t, func() { proposal, _, err = c.cycle(ctx, o) })
		c.demandAnswered(proposal, err)
		if err != nil && c.current().Revision == 0 {
			c.setStarting("no plan serves yet: " + err.Error())
		}
		c.release()
		t.planned(reason, err, c.clock.Now())
	}
}

// lookOn passes on what was learnt.
func (c *Control) lookOn(t *triggers, now time.Time) {
	c.remind(now)
	c.follow(t)
	c.weigh(t, now)
	if now.Sub(t.saved) >= saveEvery {
		t.saved = now
		c.learnt()
	}
}

// meanwhile goes on with what the loop does besides planning until work ends. Work that only waits for servers still is
// ended once there is something else to plan for: a server may take minutes to load a model, and one that others run may never
// come back.
func (c *Control) meanwhile(t *triggers, work func()) {
	done := make(chan struct{})
	go func() { defer close(done); work() }()
	woken := false
	for {
		select {
		case <-done:
			if woken {
				c.rouse()
			}
			return
		case <-c.wake:
			woken = true
		case <-c.clock.After(tick):
		}
		if c.current().Revision == 0 {
			continue
		}
		now := c.clock.Now()
		c.lookOn(t, now)
		if !c.settling.Load() {
			continue
		}
		if t.pending = cmp.Or(t.pending, c.due(t, now)); t.pending != "" || c.serversMoved() {
			c.press()
		}
	}
}

// triggers is what the loop remembers between two looks.
type triggers struct {
	// last cycle of the loop, and when learning was saved.
	last, saved time.Time
	// pushed are the profiles that the request path knows.
	pushed map[string]*policy.Profile
	// retry is the wait before a plan is tried for again, and again why one is at
	// retryAt: the policy gave no answer to it.
	retry   time.Duration
	again   string
	retryAt time.Time
	// ended is when the last plan was made; pending is why another was due while its servers
	// were waited for.
	ended   time.Time
	pending string
	// followed is when attached servers were followed last.
	followed time.Time
	// ordered: an operator's order is among the reasons, and no plan was made for it yet.
	ordered bool
	// drifted are models that changed between as fast as their profile and not
	// since the last plan.
	drifted []string
	// since when each threshold is crossed.
	since map[string]time.Time
	// weighed is when the load was last held against the GPUs, under weighedPlan;
	// size is what is known from the times before.
	weighed     time.Time
	weighedPlan uint64
	size        advice.State
}

func newTriggers(now time.Time) *triggers {
	return &triggers{pushed: map[string]*policy.Profile{}, since: map[string]time.Time{}, last: now, saved: now, retry: retryFirst, weighed: now}
}

// planned notes how a plan ended. What the policy answered is not asked again before something changes, what it did not
// answer is.
func (t *triggers) planned(reason string, err error, now time.Time) {
	t.last, t.ended = now, now
	var refused plan.Violations
	if t.again = ""; err == nil {
		t.retry, t.ordered = retryFirst, false
		return
	}
	if !errors.As(err, &refused) {
		t.again, t.retryAt = reason, now.Add(t.retry)
	}
	t.retry = min(2*t.retry, retryMost)
}

// interval between plans though nothing changed: conch.yaml's, or that which the policy wants where it is shorter (INFaaS ticks every
// second, gpulet every 20).
func (c *Control) interval(settings *config.Config) time.Duration {
	every := settings.Interval.Std()
	if own := time.Duration(c.policies.Status().Description.GetIntervalUs()) * time.Microsecond; own >= tick {
		every = min(every, own)
	}
	return every
}

// due says why a plan is wanted now; empty if none is.
func (c *Control) due(t *triggers, now time.Time) string {
	c.mu.Lock()
	var alarms []string
	if c.urgent || now.Sub(t.ended) >= alarmPace {
		alarms, c.alarms, c.urgent = c.alarms, nil, false
	}
	settings, s, rates := c.config, c.serving, c.rates
	c.mu.Unlock()
	switch {
	case s.Revision == 0:
		if now.Sub(t.last) < t.retry && len(alarms) == 0 {
			return ""
		}
		return "nothing serves yet"
	case len(alarms) > 0:
		slices.Sort(alarms)
		return strings.Join(slices.Compact(alarms), "; ")
	case t.again != "" && !now.Before(t.retryAt):
		return t.again
	}
	if every := c.interval(settings); now.Sub(t.last) >= every {
		return "interval of " + every.String()
	}
	crossed := c.crossed(settings.Triggers, s, rates, now)
	// Hysteresis in time: what was crossed must stay crossed.
	maps.DeleteFunc(t.since, func(why string, _ time.Time) bool { _, still := crossed[why]; return !still })
	held := slices.Clone(t.drifted)
	for key, text := range crossed {
		if _, ok := t.since[key]; !ok {
			t.since[key] = now
		}
		if now.Sub(t.since[key]) >= settings.Triggers.Hold.Std() {
			held = append(held, text)
		}
	}
	if len(held) == 0 || now.Sub(t.last) < settings.Triggers.Cooldown.Std() {
		return ""
	}
	slices.Sort(held)
	clear(t.since)
	t.drifted = nil
	return strings.Join(held, "; ")
}

// crossed lists the thresholds that are crossed now: key to sentence.
func (c *Control) crossed(t config.Triggers, s serving, rates map[string]float64, now time.Time) map[string]string {
	crossed := map[string]string{}
	for _, m := range s.snapshot.GetModels() {
		name := m.GetName()
		planned := rates[name]
		rate := c.recorder.Rates(name, now).Window
		if change := RateChange(planned, rate, t); change != "" {
			crossed["rate "+name] = fmt.Sprintf("rate of %s %s from %.1f to %.1f a second", name, change, planned, rate)
		}
		if bad := c.recorder.Statistics(name, now).GetBadRate(); bad > t.BadRate {
			crossed["bad "+name] = fmt.Sprintf("%.1f%% of the requests of %s are bad", 100*bad, name)
		}
	}
	return crossed
}

// RateChange is gpulet's rule: a plan is due when a rate grew by a fraction or
// by so many requests a second, whichever is less, or fell by a fraction. A
// change within two standard deviations of a Poisson count over the window is
// none. It returns "rose", "fell" or nothing.
func RateChange(planned, rate float64, t config.Triggers) string {
	noise := 2 * math.Sqrt(max(planned, rate)/observe.Window.Seconds())
	change := rate - planned
	switch {
	case change > noise && change >= min(t.RateUp*planned, t.RateUpBy):
		return "rose"
	case -change > noise && -change >= t.RateDown*planned:
		return "fell"
	}
	return ""
}

// remind adds the present rates to the history.
func (c *Control) remind(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.files == nil {
		return
	}
	rates := make(map[string]float64, len(c.files.Models))
	for _, m := range c.files.Models {
		rates[m.Name] = c.recorder.Rates(m.Name, now).Window
	}
	c.history.Add(c.began.Add(now.Sub(c.began)), rates) // no minute comes twice where the machine's clock is set back
}

// planned notes the rates that a plan was made for.
func (c *Control) planned(s *policy.Snapshot) {
	rates := map[string]float64{}
	for _, m := range s.GetModels() {
		rates[m.GetName()] = m.GetRate() - s.PipedRate(m.GetName()) // what ensembles ask of it changes with their own rates
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rates, c.failure = rates, ""
}

// follow passes the profiles that moved to the request path, and notices models
// that have become slower than their profile.
func (c *Control) follow(t *triggers) {
	seen := map[string]bool{}
	for _, p := range c.profiles() {
		key := p.GetModel() + "\x00" + p.GetGpuType()
		seen[key] = true
		before := t.pushed[key]
		if !observe.Moved(before, p, profileStep) {
			continue
		}
		t.pushed[key] = p
		c.requests.SetProfile(p)
		c.compareEstimate(p)
		if p.GetInterfered() != before.GetInterfered() {
			verb := "is slower than its profile by half or more"
			if !p.GetInterfered() {
				verb = "is as fast as its profile again"
			}
			message := fmt.Sprintf("%s on %s %s", p.GetModel(), p.GetGpuType(), verb)
			c.event(api.Event{Kind: events.ModelInterfered, Message: message, Fields: map[string]string{"model": p.GetModel(), "gpu_type": p.GetGpuType()}})
			t.drifted = append(t.drifted, message)
		}
	}
	maps.DeleteFunc(t.pushed, func(key string, _ *policy.Profile) bool { return !seen[key] })
	c.countPartitions()
}

// countPartitions exports which partitions are up, and how far what is observed is
// from what is desired.
func (c *Control) countPartitions() {
	up := map[string]bool{}
	for _, p := range c.partitions() {
		up[p.ID] = p.Up
	}
	c.metrics.Partitions(up)
	v := c.look()
	c.mu.Lock()
	for id, s := range v.states {
		if s.Log != "" {
			c.logs[id] = s.Log
		}
	}
	maps.DeleteFunc(c.logs, func(id, _ string) bool { _, wanted := v.states[id]; return !wanted })
	c.mu.Unlock()
	var all []observe.Condition
	for subject, list := range v.conditions {
		for _, condition := range list {
			all = append(all, observe.Condition{Kind: string(subject.Kind), Name: subject.Name, Type: string(condition.Type), Holds: condition.Holds})
		}
	}
	c.metrics.Conditions(all, v.serving.Revision > 0 && conditions.Differs(v.observed))
	c.showEjected()
	c.degraded(v.conditions)
}

// degraded writes down which models and merge groups, or the cluster, came to fail, or no longer do. Of servers,
// PartitionChanged says so.
func (c *Control) degraded(now conditions.All) {
	c.mu.Lock()
	before := c.shown
	c.shown = now
	c.mu.Unlock()
	for _, subject := range conditions.Turned(before, now, api.ConditionDegraded) {
		if subject.Kind == conditions.Partition {
			continue
		}
		is, _ := api.ConditionOf(now[subject], api.ConditionDegraded)
		e := api.Event{Kind: events.Recovered, Message: fmt.Sprintf("%s %s no longer fails", subject.Kind, subject.Name), Fields: map[string]string{string(subject.Kind): subject.Name}}
		if is.Holds {
			e.Kind, e.Message = events.Degraded, fmt.Sprintf("%s %s: %s", subject.Kind, subject.Name, is.Message)
		}
		c.event(e)
	}
}

// profiles are those that are observed, each completed by what a file declares of its model: what was not observed often enough to plan with does not take the place of
// what is declared, neither at its own share nor at the others.
func (c *Control) profiles() []*policy.Profile {
	all := c.recorder.Profiles()
	c.mu.Lock()
	grids := c.grids
	c.mu.Unlock()
	for i, p := range all {
		if len(grids[p.GetModel()]) > 0 {
			all[i] = snapshot.Complete([]*policy.Profile{p}, grids, nil, []*policy.Model{{Name: p.GetModel()}}, []string{p.GetGpuType()})[0]
		}
	}
	return all
}

func (c *Control) pushProfiles(all []*policy.Profile) {
	for _, p := range all {
		c.requests.SetProfile(p)
	}
}

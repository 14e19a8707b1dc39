// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/merger"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/conditions"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/merging"
	"github.com/conch-serving/conch/sidecar/observe"
)

// Merge groups on the plan way: what is on offer is in the snapshot; a plan asks for some of it by recipes; those are made and verified in
// the background while their members serve; what was made is a revision of the repository, for which the next plan is made.

// wish is what conch.yaml says of merging.
func wish(m config.Merge) merging.Wish {
	w := merging.Wish{Auto: m.Auto}
	for _, g := range m.List {
		w.Groups = append(w.Groups, merging.Group{Members: g.Members, Mode: merger.Mode(g.Mode)})
	}
	return w
}

// offers are the merge groups that are or could be, with what their executions would take: where they were not observed yet, what the
// slowest member takes, since a batch of a group runs the same operators as one of a member.
func (c *Control) offers(profiles []*policy.Profile) []*policy.DerivedModel {
	if c.groups == nil {
		return nil
	}
	observed := c.recorder.Profiles()
	all := c.groups.Offers()
	for _, d := range all {
		types := map[string][]*policy.Profile{}
		var order []string
		for _, p := range profiles {
			if slices.Contains(d.GetRecipe().GetMembers(), p.GetModel()) && p.GetUsable() {
				if types[p.GetGpuType()] == nil {
					order = append(order, p.GetGpuType())
				}
				types[p.GetGpuType()] = append(types[p.GetGpuType()], p)
			}
		}
		slices.Sort(order)
		for _, gpuType := range order {
			i := slices.IndexFunc(observed, func(p *policy.Profile) bool {
				return p.GetModel() == d.GetRecipe().GetName() && p.GetGpuType() == gpuType && p.GetUsable()
			})
			switch members := types[gpuType]; {
			case i >= 0:
				d.Profiles = append(d.Profiles, observed[i])
			case len(members) == len(d.GetRecipe().GetMembers()):
				d.Profiles = append(d.Profiles, slowest(d.GetRecipe().GetName(), members))
			}
		}
	}
	return all
}

// slowest is the member's profile that takes longest at its largest batch, under another name.
func slowest(name string, members []*policy.Profile) *policy.Profile {
	most := slices.MaxFunc(members, func(a, b *policy.Profile) int {
		return int(last(a) - last(b))
	})
	p := proto.CloneOf(most)
	p.Model = name
	return p
}

func last(p *policy.Profile) float64 {
	if points := p.GetPoints(); len(points) > 0 {
		return points[len(points)-1].GetLatencyUs().GetValue()
	}
	return 0
}

// unlike is how far a group's times may be from those of its slowest member: heads that run one by one take longer than one.
const unlike = .25

// expect makes what was offered of a group the prior of what is observed of it: until then its requests would be forwarded at once.
func (c *Control) expect(group string) {
	for _, d := range c.current().snapshot.GetDerived() {
		if d.GetRecipe().GetName() != group {
			continue
		}
		for _, p := range d.GetProfiles() {
			prior := observe.Prior{Source: policy.ProfileSource_PROFILE_SOURCE_ESTIMATED}
			for _, q := range p.GetPoints() {
				us := q.GetLatencyUs().GetValue()
				prior.Points = append(prior.Points, observe.PriorPoint{
					Rows: int(q.GetBatch()), Share: q.GetThreadPercentage(), Latency: time.Duration(us * float64(time.Microsecond)),
					Bound: max(unlike, q.GetLatencyUs().GetErrorBound()/max(us, 1)),
				})
			}
			if err := c.recorder.SetPrior(group, p.GetGpuType(), prior); err != nil {
				c.log.Warn("what a merge group is expected to take is left out", "group", group, "error", err)
			}
		}
	}
}

// regrouped reports whether a merge group of the plan was made, or is out of date, since the files that serve.
func regrouped(before, files *repo.Revision, p *policy.Plan) bool {
	digest := func(r *repo.Revision, name string) string {
		if r == nil || r.Model(name) == nil {
			return ""
		}
		return r.Model(name).Digest
	}
	return slices.ContainsFunc(p.GetRecipes(), func(r *policy.Recipe) bool { return digest(before, r.GetName()) != digest(files, r.GetName()) })
}

// merge makes merge groups until ctx ends.
func (c *Control) merge(ctx context.Context) {
	if c.groups == nil {
		return
	}
	say := func(kind api.EventKind, group, text string) {
		c.event(api.Event{Kind: kind, Message: "merge group " + group + ": " + text, Fields: map[string]string{"group": group}})
	}
	c.groups.Run(ctx, merging.Hooks{
		Progress: func(group, text string) { say(events.Merging, group, text) },
		Failed: func(group string, err error, next time.Time) {
			until := "until one of them changes"
			if !next.IsZero() {
				until = "until it is tried again at " + next.UTC().Format(time.RFC3339)
			}
			say(events.MergeFailed, group, err.Error()+"; its members serve by themselves "+until)
		},
		Looked: func(refusals []merger.Refusal, err error, next time.Time) { c.lookedForGroups(refusals, err, next) },
		// Groups that an operator names are wanted: what they change is not weighed.
		Changed: func() { c.ordered("other merge groups are on offer") },
		Made: func(ctx context.Context, m merging.Made) error {
			if err := c.acquire(ctx); err != nil {
				return err
			}
			defer c.release()
			by := repo.Origin{Author: "conch", Reason: "merge group " + m.Derivation.Recipe, Time: c.clock.Now()}
			files, err := c.repository.Derive(ctx, m.Dir, m.Derivation, by)
			if err != nil {
				return err
			}
			c.adopt(files, c.settings())
			c.expect(m.Derivation.Recipe)
			say(events.Merged, m.Derivation.Recipe, fmt.Sprintf("made and verified by %d executions: largest difference %.2g", m.Runs, m.MaxDifference))
			c.ordered("merge group " + m.Derivation.Recipe + " was made")
			return nil
		},
	})
}

// groupings are the merge groups that the plan in force wants, and those that could not be made.
func (v sight) groupings() (all []conditions.Grouping) {
	if v.c.groups == nil || v.serving.Plan.Plan == nil {
		return nil
	}
	for _, s := range v.c.groups.States() {
		if !s.Wanted && s.Failure == "" {
			continue
		}
		g := conditions.Grouping{
			Name: s.Group, Made: s.Made, Making: s.Busy && s.Wanted, Failure: s.Failure, Attempts: s.Attempts, RetryAt: s.Next,
		}
		if s.Failure != "" && s.Next.IsZero() {
			g.Failure += "; it is tried again when a member changes"
		}
		for _, p := range v.serving.PartitionsOf(s.Group) {
			g.Places = append(g.Places, p.GetId())
		}
		all = append(all, g)
	}
	return all
}

// mostRefusals are shown of one search for groups.
const mostRefusals = 3

// lookedForGroups says what a search among all models left out, or why it failed.
func (c *Control) lookedForGroups(refusals []merger.Refusal, err error, next time.Time) {
	if err != nil {
		c.event(api.Event{Kind: events.MergeFailed, Message: fmt.Sprintf("looking for models to merge: %v; it is tried again at %s", err, next.UTC().Format(time.RFC3339))})
		return
	}
	var reasons []string
	for _, r := range refusals {
		if !slices.ContainsFunc(reasons, func(reason string) bool { return strings.HasPrefix(reason, r.Member+": ") }) {
			reasons = append(reasons, r.Member+": "+r.Reason)
		}
	}
	text := fmt.Sprintf("%d models can be merged with no other: %s", len(reasons), strings.Join(reasons[:min(len(reasons), mostRefusals)], "; "))
	if len(reasons) > mostRefusals {
		text += "; and so on: tritonctl merge analyze --all says it of each"
	}
	c.event(api.Event{Kind: events.Merging, Message: text})
}

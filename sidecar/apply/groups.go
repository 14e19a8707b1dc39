// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// instances are those of a partition that can be: a derived model that was not made yet, or of members that are others by now, is
// replaced by its members.
func instances(d *Desired, p *policy.Partition) (all []*policy.Instance) {
	has := func(model string) bool {
		return p.Has(model) ||
			slices.ContainsFunc(all, func(in *policy.Instance) bool { return in.GetModel() == model })
	}
	for _, in := range p.GetInstances() {
		r := d.Plan.Recipe(in.GetModel())
		if r == nil || made(d, r) {
			all = append(all, in)
			continue
		}
		for _, member := range r.GetMembers() {
			if has(member) {
				continue
			}
			limit := in.GetMaxBatch()
			if m := d.Revision.Model(member); m != nil {
				if own := uint32(max(0, m.Config.GetMaxBatchSize())); own > 0 && own < limit { //nolint:gosec // not negative
					limit = own
				}
			}
			all = append(all, policy.ModelInstance(member, limit))
		}
	}
	return all
}

// made reports whether the revision has what a recipe makes. Only what was verified comes into a revision.
func made(d *Desired, r *policy.Recipe) bool {
	m := d.Revision.Model(r.GetName())
	for _, p := range d.Plan.GetPartitions() {
		if slices.ContainsFunc(p.GetInstances(), func(in *policy.Instance) bool { return slices.Contains(r.GetMembers(), in.GetModel()) }) {
			return false // a model is either a member or by itself: its requests wait in one queue
		}
	}
	return !d.Given && m != nil && m.Err() == nil && slices.Equal(m.Derived.MemberNames(), r.GetMembers())
}

// groupFiles are the files of a merge group that is loaded somewhere, or wanted.
func (l *loop) groupFiles(name string, places []decide.Place) *repo.Model {
	for _, p := range places {
		if m := l.files[fileKey(name, p.Revision)]; m != nil && m.Derived != nil {
			return m
		}
	}
	if m := l.desired.Revision.Model(name); m != nil && m.Derived != nil {
		return m
	}
	return nil
}

// memberOf is a model in the route table that runs as rows of a merge group; nil where it does not.
func (l *loop) memberOf(files *repo.Model, places []decide.Place) *router.Model {
	if len(places) == 0 || places[0].Group == "" {
		return nil
	}
	group := l.groupFiles(places[0].Group, places)
	if group == nil {
		return nil
	}
	m := l.modelOf(files, nil)
	for i, member := range group.Derived.Rows {
		if member.Name != files.Name {
			continue
		}
		m.Membership = &router.Membership{
			Member: member.Name, Version: member.Version, Group: group.Name, Input: group.Derived.RowInput, Index: int32(i), //nolint:gosec // small
			Outputs: member.Outputs,
		}
		for _, out := range files.Config.GetOutput() {
			m.Membership.Produced = append(m.Membership.Produced, out.GetName())
		}
		return m
	}
	return nil
}

// groupsOf adds the merge groups that members run in: not for clients, with the tightest of the members' SLOs.
func (l *loop) groupsOf(t *router.Table, routes decide.Routes, executions map[string]driver.Executions) {
	members := map[string][]*router.Model{}
	for _, m := range t.Models {
		if m.Membership != nil {
			members[m.Membership.Group] = append(members[m.Membership.Group], m)
		}
	}
	for name, list := range members {
		places := routes.Places[name]
		files := l.groupFiles(name, places)
		g := l.modelOf(files, places)
		g.Internal, g.Revision, g.Late = true, files.StagedRevision(), policy.LatePolicy_LATE_POLICY_DROP
		for _, m := range list {
			if m.SLO > 0 && (g.SLO == 0 || m.SLO < g.SLO) {
				g.SLO = m.SLO
			}
			if m.Late != policy.LatePolicy_LATE_POLICY_DROP {
				g.Late = m.Late // requests are dropped only if all members drop theirs
			}
			if !m.Batchable {
				g.Batchable, g.PassThroughReason = false, m.PassThroughReason
			}
		}
		for _, p := range places {
			g.Places = append(g.Places, router.Place{Partition: p.Route, MaxBatch: p.MaxBatch, Executions: executions[p.Route].Mask(name)})
		}
		t.Models[name] = g
	}
}

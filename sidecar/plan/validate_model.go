// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
)

// models checks each model against all the places that it has.
func (v *validator) models() {
	for _, m := range v.s.GetModels() {
		name := m.GetName()
		refused := v.refused(name)
		if len(v.places[name]) == 0 && m.GetRate() > 0 && !refused {
			v.add(CodeUnplaced, name, "has %.4g requests a second, no place, and no reason for it", m.GetRate())
		}
		v.complete(name)
		v.dependencies(m)
		v.rule(name, refused)
	}
}

// refused reports whether the plan says why the model has no (further) place.
func (v *validator) refused(name string) bool {
	return slices.ContainsFunc(v.p.GetUnplaced(), func(u *policy.Unplaced) bool {
		return u.GetModel() == name && (u.GetText() != "" || len(u.GetRefusals()) > 0)
	})
}

// complete checks that a model served in segments has all of them somewhere,
// and is not served whole as well.
func (v *validator) complete(name string) {
	placed := make(map[string]bool)
	whole := false
	for _, part := range v.places[name] {
		for _, in := range part.GetInstances() {
			if slices.Contains(v.p.ModelsOf(in), name) {
				segment, ok := in.GetWhat().(*policy.Instance_Segment)
				if !ok {
					whole = true
				} else {
					placed[segment.Segment] = true
				}
			}
		}
	}
	if whole || len(placed) == 0 {
		return
	}
	for _, g := range v.p.GetSegments() {
		if g.GetModel() == name && !placed[g.GetName()] {
			v.add(CodeSegment, name, "its segment %s is in no partition", g.GetName())
		}
	}
}

// dependencies checks that an ensemble lies with the models that it calls.
func (v *validator) dependencies(m *policy.Model) {
	for _, d := range m.GetDependsOn() {
		for _, part := range v.places[m.GetName()] {
			if v.x.Model(d) == nil {
				v.add(CodeDependency, m.GetName(), "calls %s, which is not in the snapshot", d)
				break
			}
			if !slices.Contains(v.places[d], part) {
				v.add(CodeDependency, part.GetId(), "holds %s without %s, which it calls", m.GetName(), d)
			}
		}
	}
}

// rule checks the operator's orders about one model.
func (v *validator) rule(name string, refused bool) {
	rule, places := v.x.Rule(name), v.places[name]
	for _, part := range places {
		if !rule.AllowsGPU(part.GetGpu()) {
			v.add(CodeConstraint, name, "may not be on GPU %s", part.GetGpu())
		}
		if share := part.GetThreadPercentage(); !rule.AllowsShare(share) {
			v.add(CodeConstraint, name, "may not be in %s with its %d%%", part.GetId(), share)
		}
		if rule.Exclusive {
			v.alone(name, part)
		}
	}
	count := uint32(len(places))
	if rule.MaxInstances > 0 && count > rule.MaxInstances {
		v.add(CodeConstraint, name, "is in %d partitions, %d at most are allowed", count, rule.MaxInstances)
	}
	if count > 0 && count < rule.MinInstances && !refused {
		v.add(CodeConstraint, name, "is in %d partitions, at least %d are wanted, and no reason is given", count, rule.MinInstances)
	}
	if rule.Pinned {
		v.pinned(name, refused)
	}
}

func (v *validator) alone(name string, part *policy.Partition) {
	for _, in := range part.GetInstances() {
		for _, other := range v.p.ModelsOf(in) {
			if !v.x.MayShare(name, other) {
				v.add(CodeConstraint, name, "wants %s for itself, %s is there too", part.GetId(), other)
			}
		}
	}
}

// pinned checks that the model is where it was: nowhere else, and everywhere
// unless the plan says why not. Partitions on GPUs that are gone do not count.
func (v *validator) pinned(name string, refused bool) {
	was := make(map[string]bool)
	for _, part := range v.s.GetCurrent().PartitionsOf(name) {
		if g := v.x.GPU(part.GetNode(), part.GetGpu()); g != nil && !g.GetUnavailable() {
			was[place(part)] = true
		}
	}
	if len(was) == 0 {
		return
	}
	for _, part := range v.places[name] {
		if !was[place(part)] {
			v.add(CodeConstraint, name, "is pinned and was not in %s", part.GetId())
		}
		delete(was, place(part))
	}
	if len(was) > 0 && !refused {
		v.add(CodeConstraint, name, "is pinned and left %d of its partitions, and no reason is given", len(was))
	}
}

// place is what a pinned model must not change.
func place(part *policy.Partition) string {
	return part.GetId() + " " + part.GetNode() + " " + part.GetGpu()
}

// names checks that reasons, predictions, app routes and wishes are about
// things that exist.
func (v *validator) names() {
	partitions := make(map[string]bool)
	for _, part := range v.p.GetPartitions() {
		partitions[part.GetId()] = true
	}
	served := func(name string) bool {
		return v.x.Model(name) != nil ||
			slices.ContainsFunc(v.p.GetMergeGroups(), func(g *policy.MergeGroup) bool { return g.GetName() == name })
	}
	for _, r := range v.p.GetReasons() {
		if r.GetModel() != "" && !served(r.GetModel()) {
			v.add(CodeUnknown, r.GetModel(), "has a reason and is no model or merge group")
		}
		if r.GetPartition() != "" && !partitions[r.GetPartition()] {
			v.add(CodeUnknown, r.GetPartition(), "has a reason and is no partition of the plan")
		}
	}
	for _, d := range v.p.GetPredictions() {
		if !served(d.GetModel()) {
			v.add(CodeUnknown, d.GetModel(), "has a prediction and is no model or merge group")
		}
	}
	for _, u := range v.p.GetUnplaced() {
		if v.x.Model(u.GetModel()) == nil {
			v.add(CodeUnknown, u.GetModel(), "is called unplaced and is no model")
		}
	}
	apps := make(map[string]bool)
	for _, a := range v.s.GetApps() {
		apps[a.GetName()] = true
	}
	for _, r := range v.p.GetAppRoutes() {
		if !apps[r.GetApp()] {
			v.add(CodeUnknown, r.GetApp(), "has a route and is no app")
		}
		for _, name := range r.GetModels() {
			if len(v.places[name]) == 0 {
				v.add(CodeUnplaced, r.GetApp(), "is served by %s, which has no place", name)
			}
		}
	}
}

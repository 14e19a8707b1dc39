// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
)

// models checks each model against all the places that it has.
func (v *validator) models() {
	for _, m := range v.s.GetModels() {
		name := m.GetName()
		refused := v.refused(name)
		if len(v.places[name]) == 0 && m.GetRate() > 0 && !refused && !m.GetOnDemand() {
			v.add(CodeUnplaced, name, "has %.4g requests a second, no place, and no reason for it", m.GetRate())
		}
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

// dependencies checks that an ensemble lies with the models that it calls.
func (v *validator) dependencies(m *policy.Model) {
	for _, d := range m.GetDependsOn() {
		there := make(map[*policy.Partition]bool, len(v.places[d]))
		for _, part := range v.places[d] {
			there[part] = true
		}
		for _, part := range v.places[m.GetName()] {
			if v.x.Model(d) == nil {
				v.add(CodeDependency, m.GetName(), "calls %s, which is not in the snapshot", d)
				break
			}
			if !there[part] {
				v.add(CodeDependency, part.GetId(), "holds %s without %s, which it calls", m.GetName(), d)
			}
		}
	}
}

// rule checks the operator's orders about one model.
func (v *validator) rule(name string, refused bool) {
	rule, places := v.x.Rule(name), v.places[name]
	for _, part := range places {
		if !rule.AllowsGPU(part.GPU()) {
			v.add(CodeConstraint, name, "may not be on GPU %s", part.GPU())
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
		if g := v.x.GPUOf(part); g != nil && !g.GetUnavailable() {
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
	return part.GetId() + " " + part.GetNode() + " " + part.GPU()
}

// names checks that reasons, predictions, app routes and wishes are about
// things that exist.
func (v *validator) names() {
	partitions := make(map[string]bool)
	for _, part := range v.p.GetPartitions() {
		partitions[part.GetId()] = true
	}
	for _, r := range v.p.GetReasons() {
		if r.GetModel() != "" && !v.served(r.GetModel()) {
			v.add(CodeUnknown, r.GetModel(), "has a reason and is no model")
		}
		if r.GetPartition() != "" && !partitions[r.GetPartition()] {
			v.add(CodeUnknown, r.GetPartition(), "has a reason and is no partition of the plan")
		}
	}
	for _, d := range v.p.GetPredictions() {
		if !v.served(d.GetModel()) {
			v.add(CodeUnknown, d.GetModel(), "has a prediction and is no model")
		}
	}
	for _, u := range v.p.GetUnplaced() {
		if v.x.Model(u.GetModel()) == nil {
			v.add(CodeUnknown, u.GetModel(), "is called unplaced and is no model")
		}
	}
	v.appRoutes()
}

// appRoutes checks that a route leads an app's requests to variants of its own
// that are placed.
func (v *validator) appRoutes() {
	apps := make(map[string]*policy.App)
	for _, a := range v.s.GetApps() {
		apps[a.GetName()] = a
	}
	seen := make(map[string]bool)
	for _, r := range v.p.GetAppRoutes() {
		app := apps[r.GetApp()]
		if app == nil {
			v.add(CodeUnknown, r.GetApp(), "has a route and is no app")
		}
		if seen[r.GetApp()] {
			v.add(CodeDuplicate, r.GetApp(), "has two routes")
		}
		seen[r.GetApp()] = true
		for _, w := range r.GetVariants() {
			name := w.GetModel()
			if app != nil && !slices.ContainsFunc(app.GetVariants(), func(x *policy.Variant) bool { return x.GetModel() == name }) {
				v.add(CodeUnknown, r.GetApp(), "is routed to %q, which is no variant of it", name)
				continue
			}
			if len(v.places[name]) == 0 {
				v.add(CodeUnplaced, r.GetApp(), "is served by %s, which has no place", name)
			}
			if weight := w.GetWeight(); !(weight >= 0) || math.IsInf(weight, 0) {
				v.add(CodeCapacity, r.GetApp(), "the weight %v of %s is none", weight, name)
			}
		}
	}
}

// subClusters checks that a model and the partitions that serve it are in the
// same sub-cluster, where the plan has any.
func (v *validator) subClusters() {
	partitions, models := make(map[string]string), make(map[string]string)
	known := make(map[string]bool)
	for _, part := range v.p.GetPartitions() {
		known[part.GetId()] = true
	}
	names := make(map[string]bool)
	for _, c := range v.p.GetSubClusters() {
		name := c.GetName()
		if name == "" || names[name] {
			v.add(CodeName, name, "a sub-cluster needs a name that no other has")
		}
		names[name] = true
		for _, id := range c.GetPartitions() {
			if !known[id] {
				v.add(CodeUnknown, name, "the partition %q is not in the plan", id)
			}
			if other, twice := partitions[id]; twice {
				v.add(CodeDuplicate, name, "the partition %s is in %s already", id, other)
			}
			partitions[id] = name
		}
		for _, model := range c.GetModels() {
			if !v.served(model) {
				v.add(CodeUnknown, name, "the model %q is not in the snapshot", model)
			}
			if other, twice := models[model]; twice {
				v.add(CodeDuplicate, name, "the model %s is in %s already", model, other)
			}
			models[model] = name
		}
	}
	if len(names) == 0 {
		return
	}
	for _, part := range v.p.GetPartitions() {
		for _, in := range part.GetInstances() {
			if models[in.GetModel()] != partitions[part.GetId()] {
				v.add(CodeUnsupported, part.GetId(), "it is in sub-cluster %q and serves %s of sub-cluster %q; one dispatcher serves a sub-cluster alone",
					partitions[part.GetId()], in.GetModel(), models[in.GetModel()])
			}
		}
	}
}

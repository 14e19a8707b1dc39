// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"slices"
	"strings"
)

// Merge puts the derived models that are on offer in the place of their members, where those lie on the same partitions and nowhere else,
// the largest groups first. It reports whether the plan is another now.
//
// A group's batch may be as large as its members' largest, its planned rate is the sum of theirs, and it is dispatched as the first of
// them. Groups with a refusal, and members that must never be merged, stay as they are.
func (x *Index) Merge(p *Plan) bool {
	offers := slices.Clone(x.Snapshot().GetDerived())
	slices.SortStableFunc(offers, func(a, b *DerivedModel) int {
		if n := len(b.GetRecipe().GetMembers()) - len(a.GetRecipe().GetMembers()); n != 0 {
			return n
		}
		return strings.Compare(a.GetRecipe().GetName(), b.GetRecipe().GetName())
	})
	merged := false
	for _, d := range offers {
		if r := d.GetRecipe(); r.GetKind() == RecipeKind_RECIPE_KIND_MERGE && r.GetMode() == MergeMode_MERGE_MODE_BACKBONE && d.GetRefusal() == "" && x.together(p, r.GetMembers()) {
			mergeInto(p, r)
			merged = true
		}
	}
	return merged
}

// together reports whether models lie by themselves on the same partitions, of which there are some.
func (x *Index) together(p *Plan, members []string) bool {
	if len(members) < 2 || slices.ContainsFunc(members, func(m string) bool { return x.Rule(m).NeverMerge || x.Model(m) == nil }) {
		return false
	}
	some := false
	for _, part := range p.GetPartitions() {
		n := 0
		for _, in := range part.GetInstances() {
			if slices.Contains(members, in.GetModel()) && in.GetRole() <= Role_ROLE_SERVE && in.GetThreadPercentage() == 0 {
				n++
			}
		}
		if n != 0 && n != len(members) {
			return false
		}
		some = some || n > 0
	}
	return some
}

// mergeInto replaces the members of a recipe.
func mergeInto(p *Plan, r *Recipe) {
	for _, part := range p.GetPartitions() {
		group := &Instance{Model: r.GetName()}
		var rest []*Instance
		at := math.MaxInt
		for i, in := range part.GetInstances() {
			if !slices.Contains(r.GetMembers(), in.GetModel()) {
				rest = append(rest, in)
				continue
			}
			at = min(at, i)
			group.MaxBatch, group.Rate = max(group.MaxBatch, in.GetMaxBatch()), group.Rate+in.GetRate()
		}
		if at < math.MaxInt {
			part.Instances = slices.Insert(rest, at, group) // before it there are no members
		}
	}
	dispatched := false
	p.Dispatch = slices.Clone(p.GetDispatch())
	for i, d := range p.GetDispatch() {
		if !dispatched && slices.Contains(r.GetMembers(), d.GetModel()) {
			p.Dispatch[i] = &Dispatch{Model: r.GetName(), Discipline: d.GetDiscipline(), Parameters: d.GetParameters(), DropPolicy: d.GetDropPolicy()}
			dispatched = true
		}
	}
	p.Dispatch = slices.DeleteFunc(p.Dispatch, func(d *Dispatch) bool { return slices.Contains(r.GetMembers(), d.GetModel()) })
	p.Recipes = append(p.Recipes, r)
	for _, member := range r.GetMembers() {
		p.Reasons = append(p.Reasons, &Reason{Model: member, Text: "its requests share batches with those of the other members of " + r.GetName()})
	}
}

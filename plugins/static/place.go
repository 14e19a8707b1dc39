// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package static

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
)

// place puts every model where it belongs. First come the models with a given
// place: pinned ones, then those of the parameter placement. Then every
// other model gets the places it must have (one, or its min_instances), the
// largest first, each on the GPU with the most memory left, so that as many
// models as possible have one at all. Only then do models spread to every
// further partition on which they fit, exclusive ones last.
func (f *floor) place() {
	models := slices.Clone(f.Snapshot().GetModels())
	slices.SortStableFunc(models, func(a, b *policy.Model) int {
		return cmp.Or(
			cmp.Compare(f.turn(a), f.turn(b)),
			cmp.Compare(b.GetPriority(), a.GetPriority()),
			cmp.Compare(b.GetMemoryBytes(), a.GetMemoryBytes()),
			strings.Compare(a.GetName(), b.GetName()),
		)
	})
	for _, m := range models {
		if turn := f.turn(m); m.GetOnDemand() && turn != turnPinned {
			continue
		} else if turn == turnPinned || turn == turnPlaced {
			f.spread(m.GetName())
		}
	}
	for _, m := range models {
		want := f.want(m)
		for f.Count(m.GetName()) < want {
			best := f.best(m.GetName())
			if best == nil {
				break
			}
			f.put(best, m.GetName())
		}
	}
	f.demand(models)
	ensembles := slices.ContainsFunc(models, func(m *policy.Model) bool { return len(m.GetDependsOn()) > 0 })
	for _, exclusive := range []bool{false, true} {
		// A model that one ensemble brought along may make room for another
		// ensemble, hence until nothing more moves. Without ensembles nothing makes room.
		for moved := true; moved; {
			moved = false
			for _, m := range models {
				if f.Rule(m.GetName()).Exclusive == exclusive && !m.GetOnDemand() {
					moved = f.spread(m.GetName()) && ensembles || moved
				}
			}
		}
	}
	for _, s := range f.slots {
		if s.part == nil {
			continue
		}
		for _, in := range s.part.Instances {
			s.partition.Instances = append(s.partition.Instances, policy.ModelInstance(in.GetModel(), f.Model(in.GetModel()).GetMaxBatchSize()))
		}
		slices.SortFunc(s.partition.Instances, func(a, b *policy.Instance) int {
			return strings.Compare(a.GetModel(), b.GetModel())
		})
	}
}

// The order in which models choose.
const (
	turnPinned = iota
	turnPlaced
	turnExclusive
	turnFree
)

func (f *floor) turn(m *policy.Model) int {
	_, placed := f.set.placement[m.GetName()]
	switch {
	case f.Pins(m.GetName()) != nil:
		return turnPinned
	case placed:
		return turnPlaced
	case f.Rule(m.GetName()).Exclusive:
		return turnExclusive
	}
	return turnFree
}

// candidates are the slots on which the model may be by the parameters.
func (f *floor) candidates(model string) []*slot {
	places, given := f.set.placement[model]
	if !given || f.Pins(model) != nil {
		return f.slots
	}
	var list []*slot
	for _, s := range f.slots {
		if slices.Contains(places, s.gpu.GetId()) || slices.Contains(places, s.partition.GetId()) {
			list = append(list, s)
		}
	}
	return list
}

// spread puts the model on every candidate that takes it and reports whether
// there was one.
func (f *floor) spread(model string) bool {
	moved := false
	for _, s := range f.candidates(model) {
		if !s.holds(model) && f.refuse(s, model) == "" {
			f.put(s, model)
			moved = true
		}
	}
	return moved
}

// best is the slot with the most memory left, of several that with the fewest
// models, of several that on the node with the fewest places of the model, of
// several the first; nil where none takes the model.
func (f *floor) best(model string) *slot {
	var best *slot
	on := f.OnNodes(model)
	better := func(a, b *slot) int {
		return cmp.Or(
			cmp.Compare(a.part.Host.FreeBytes(), b.part.Host.FreeBytes()), cmp.Compare(len(b.part.Instances), len(a.part.Instances)),
			cmp.Compare(on[b.part.Host.Node], on[a.part.Host.Node]),
		)
	}
	for _, s := range f.candidates(model) {
		if s.holds(model) || f.refuse(s, model) != "" {
			continue
		}
		if best == nil || better(s, best) > 0 {
			best = s
		}
	}
	return best
}

// explain writes a reason for every model, and an entry for every one that has
// no place or fewer places than the operator wants.
func (f *floor) explain(plan *policy.Plan) {
	for _, m := range f.Snapshot().GetModels() {
		name := m.GetName()
		tally, lacking := f.tally(name)
		u := tally.Unplaced(name)
		for _, place := range lacking {
			text := fmt.Sprintf("parameter %s names %s, which is no GPU or partition here; there are %s", paramPlacement, place, f.places())
			u.Text += "; " + text
			plan.Reasons = append(plan.Reasons, &policy.Reason{Text: name + ": " + text})
		}
		want := max(f.want(m), len(f.Pins(name)))
		if m.GetOnDemand() && f.Count(name) == 0 || f.Count(name) < want {
			if f.Count(name) > 0 {
				u.Text += fmt.Sprintf("; the operator wants %d", want)
			}
			plan.Unplaced = append(plan.Unplaced, u)
		}
		if f.Count(name) > 0 {
			plan.Reasons = append(plan.Reasons, &policy.Reason{Model: name, Text: f.reason(name) + ": " + u.Text})
		}
	}
	for _, name := range sortedKeys(f.set.placement) {
		if f.Model(name) == nil {
			plan.Reasons = append(plan.Reasons, policy.Unknown(paramPlacement, name))
		}
	}
}

// places names the GPUs, and the partitions of those that are divided; the first of many.
func (f *floor) places() string {
	const most = 8
	var names []string
	for _, s := range f.slots {
		for _, name := range []string{s.gpu.GetId(), s.partition.GetId()} {
			if len(names) <= most && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if len(names) > most {
		names = append(names[:most], "...")
	}
	return strings.Join(names, ", ")
}

// want is how many places a model must have. One that loads on demand gets its
// own in demand.
func (f *floor) want(m *policy.Model) int {
	least := int(f.Rule(m.GetName()).MinInstances)
	if m.GetOnDemand() {
		return least
	}
	return max(1, least)
}

// tally counts the model's candidates, and names the places of the parameter
// that do not exist.
func (f *floor) tally(model string) (*policy.Tally, []string) {
	t := &policy.Tally{}
	for _, s := range f.candidates(model) {
		cause := ""
		if !s.holds(model) {
			cause = f.refuse(s, model)
		}
		if m := f.Model(model); m.GetOnDemand() && (m.GetRequestsUnderWay() == 0 && f.Count(model) == 0 || cause == policy.CauseMemory && f.busy(s, model)) {
			cause = policy.CauseOnDemand
		}
		t.Try(cause)
	}
	var lacking []string
	if f.Pins(model) == nil {
		for _, place := range f.set.placement[model] {
			if !slices.ContainsFunc(f.slots, func(s *slot) bool {
				return s.gpu.GetId() == place || s.partition.GetId() == place
			}) {
				lacking = append(lacking, place)
				t.Try(policy.CauseUnavailable)
			}
		}
	}
	return t, lacking
}

func (f *floor) reason(model string) string {
	text := "wherever it fits"
	if f.Model(model).GetOnDemand() {
		text = "loaded on demand"
	}
	if places, ok := f.set.placement[model]; ok {
		text = "parameter " + paramPlacement + " says " + strings.Join(places, ", ")
	}
	if f.Pins(model) != nil {
		text = "pinned to where it was"
	}
	if f.Hopeless(model) {
		text += " (by its profile no GPU here meets its SLO, it is served all the same)"
	}
	return text
}

func sortedKeys(m map[string][]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

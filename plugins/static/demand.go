// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package static

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
)

// Models that load on demand have a place while requests ask for them, and after
// that until they are idle for too long or others need their memory: then the
// least recently used leave. None with requests under way leaves.

// demand places the models that load on demand. Those that are loaded stay where
// they are, the most recently used first; those that are asked for take what is
// free, or the place of the least recently used.
func (f *floor) demand(models []*policy.Model) {
	var loaded, wanted []*policy.Model
	for _, m := range models {
		switch {
		case !m.GetOnDemand() || f.Count(m.GetName()) > 0: // brought along by an ensemble
		case len(f.now[m.GetName()]) > 0 && !stale(m):
			loaded = append(loaded, m)
		case m.GetRequestsUnderWay() > 0:
			wanted = append(wanted, m)
		}
	}
	slices.SortStableFunc(loaded, func(a, b *policy.Model) int {
		return cmp.Or(cmp.Compare(disuse(a), disuse(b)), strings.Compare(a.GetName(), b.GetName()))
	})
	for _, m := range loaded {
		for _, s := range f.candidates(m.GetName()) {
			if f.now[m.GetName()][s.partition.GetId()] && f.Count(m.GetName()) == 0 && f.refuse(s, m.GetName()) == "" {
				f.put(s, m.GetName())
			}
		}
	}
	for _, m := range loaded { // those whose place something else has now
		if f.Count(m.GetName()) > 0 {
			continue
		}
		if s := f.best(m.GetName()); s != nil {
			f.put(s, m.GetName())
		} else if m.GetRequestsUnderWay() > 0 {
			wanted = append(wanted, m)
		}
	}
	for _, m := range wanted {
		if f.Count(m.GetName()) > 0 {
			continue
		}
		s := f.best(m.GetName())
		if s == nil {
			s = f.clear(m.GetName())
		}
		if s != nil {
			f.put(s, m.GetName())
		}
	}
}

// stale reports that a model has been idle for longer than the operator allows.
func stale(m *policy.Model) bool {
	return m.GetMaxIdleSeconds() > 0 && m.GetIdleSeconds() > m.GetMaxIdleSeconds() && m.GetRequestsUnderWay() == 0
}

// disuse is for how long a model has not been used. A model without a known use is
// the least recently used; a model with requests under way is in use.
func disuse(m *policy.Model) float64 {
	switch {
	case m.GetRequestsUnderWay() > 0:
		return 0
	case m.GetIdleSeconds() == 0:
		return math.Inf(1)
	}
	return m.GetIdleSeconds()
}

// clear makes room for a model in the partition where that takes out what was not
// used for longest, and returns it; nil where nothing may go that would help.
func (f *floor) clear(model string) *slot {
	var best *slot
	var leave map[string]bool
	var longest float64
	for _, s := range f.candidates(model) {
		out := make(map[string]bool)
		last := math.Inf(1) // disuse of the one among those that leave that was used last
		for f.refuse(f.without(s, out), model) == policy.CauseMemory {
			victim := f.leastUsed(s, out)
			if victim == nil {
				break
			}
			out[victim.GetName()] = true
			last = min(last, disuse(victim))
		}
		if s.holds(model) || f.refuse(f.without(s, out), model) != "" {
			continue
		}
		if best == nil || last > longest || last == longest && len(out) < len(leave) {
			best, leave, longest = s, out, last
		}
	}
	if best != nil {
		f.Remove(best.part, leave)
	}
	return best
}

// leastUsed is the model of a partition that may leave and was not used for
// longest, besides those that leave already; nil where there is none.
func (f *floor) leastUsed(s *slot, out map[string]bool) (least *policy.Model) {
	for _, in := range s.part.Instances {
		name := in.GetModel()
		m := f.Model(name)
		if out[name] || !m.GetOnDemand() || m.GetRequestsUnderWay() > 0 || f.Pins(name) != nil || f.needed(s, name, out) {
			continue
		}
		if least == nil || disuse(m) > disuse(least) {
			least = m
		}
	}
	return least
}

// needed reports that an ensemble that stays in a partition calls a model.
func (f *floor) needed(s *slot, model string, out map[string]bool) bool {
	for _, in := range s.part.Instances {
		if other := in.GetModel(); other != model && !out[other] && slices.ContainsFunc(f.Requires(other), func(m *policy.Model) bool { return m.GetName() == model }) {
			return true
		}
	}
	return false
}

// without is a partition, and its GPU, as they would be without some models.
func (f *floor) without(s *slot, out map[string]bool) *slot {
	if len(out) == 0 || s.part == nil {
		return s
	}
	return &slot{partition: s.partition, gpu: s.gpu, part: f.Without(s.part, out)}
}

// busy reports that a partition has no room for a model because of others that
// load on demand and have requests under way: it may have later.
func (f *floor) busy(s *slot, model string) bool {
	out := make(map[string]bool)
	for _, in := range s.part.Instances {
		if name := in.GetModel(); f.Model(name).GetOnDemand() {
			out[name] = true
		}
	}
	return len(out) > 0 && f.refuse(f.without(s, out), model) == ""
}

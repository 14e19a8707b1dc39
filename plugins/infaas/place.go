// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package infaas

import (
	"math"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// place puts the counts of an app's candidates on the floor, and calls with, which may be nil, for every instance. Where not all fit it returns
// the first candidate that does not.
func (r *run) place(f *pack.Floor, a *app, n counts, with func(int, *pack.Part)) *candidate {
	for i, c := range a.candidates {
		for range n[i] {
			h := r.host(f, c)
			if h == nil {
				return c
			}
			p := f.Open(h, c.share)
			f.Put(p, c.model, c.batch, 0)
			if with != nil {
				with(i, p)
			}
		}
	}
	return nil
}

// host for one more instance: where one of its kind runs and is not interfered, so that nothing is loaded anew; else the one with most left
// (the worker of the lowest utilisation), those where it is interfered last.
func (r *run) host(f *pack.Floor, c *candidate) *pack.Host {
	var best *pack.Host
	rank := func(h *pack.Host) float64 {
		here, interferedHere := 0, false
		for _, part := range r.s.GetCurrent().GetPartitions() {
			if part.GetNode() != h.Node || part.GPU() != h.GPU || part.GetThreadPercentage() != c.share {
				continue
			}
			for _, in := range part.GetInstances() {
				if in.GetModel() == c.model {
					if r.states[part.GetId()][c.model] == interfered {
						interferedHere = true
					} else {
						here++
					}
				}
			}
		}
		for _, p := range h.Parts {
			if p.Holds(c.model) && p.Share == c.share {
				here--
			}
		}
		switch {
		case here > 0:
			return 1000 + float64(h.FreeShare())
		case interferedHere:
			return float64(h.FreeShare()) - 1000
		}
		return float64(h.FreeShare())
	}
	for _, h := range f.Hosts {
		if h.Type != c.gpuType || f.RefuseNew(h, c.share, c.model, c.batch) != "" {
			continue
		}
		if best == nil || rank(h) > rank(best) {
			best = h
		}
	}
	return best
}

// put brings an app's instances onto the floor, each with its part of what its variant is to carry, and says what changes.
func (r *run) put(a *app, n counts, loads []float64) {
	parts := make([][]*pack.Part, len(n))
	if c := r.place(r.f, a, n, func(i int, p *pack.Part) { parts[i] = append(parts[i], p) }); c != nil {
		r.f.Why(c.model, "there is no place for all instances that %s needs", a.name)
	}
	r.planned[a.name] = make(map[string]float64)
	for i, c := range a.candidates {
		if loads[i] == 0 {
			// It is not counted on, and goes after its ticks. While it runs it is the cheapest that it is.
			r.planned[a.name][c.model] += c.rate * float64(len(parts[i]))
		}
		each := loads[i] / (1 + r.set.slack) / math.Max(1, float64(len(parts[i])))
		for _, p := range parts[i] {
			p.Instance(c.model).Rate = math.Min(each, c.rate)
		}
		r.planned[a.name][c.model] += loads[i]
		if len(parts[i]) > 0 {
			r.f.Why(c.model, "%s: %s %d on %s (%d ran), %.4g rows/s each at most, %.4g an hour each",
				a.name, action(len(parts[i])-c.running, c.running), len(parts[i]), c.gpuType, c.running, c.rate, c.cost)
		}
	}
}

// action is what the paper calls a change of the number of instances.
func action(change, running int) string {
	switch {
	case change > 0 && running > 0:
		return "replicate to"
	case change > 0:
		return "load"
	case change < 0:
		return "scale down to"
	}
	return "keep"
}

// inactive are variants of apps that do not run. They have no place, and the reason is that they are not needed now.
func (r *run) inactive() (names []string) {
	for _, a := range r.s.GetApps() {
		some := slices.ContainsFunc(a.GetVariants(), func(v *policy.Variant) bool { return r.f.Count(v.GetModel()) > 0 })
		for _, v := range a.GetVariants() {
			// Of an app of which nothing runs, every variant gets what place there is. One that is no model is nothing to speak of.
			if some && r.f.Model(v.GetModel()) != nil && r.f.Count(v.GetModel()) == 0 && !slices.Contains(names, v.GetModel()) {
				names = append(names, v.GetModel())
				r.f.Fail(v.GetModel(), policy.CauseOnDemand)
				r.f.Why(v.GetModel(), "inactive: what runs serves %s", a.GetName())
			}
		}
	}
	return names
}

// routes sends each app's requests to its variants that run: each has what was planned for it as its weight, what it can carry where nothing was,
// and interfered ones none, so that they serve only where no other can.
func (r *run) routes(plan *policy.Plan) {
	plan.AppRoutes = nil
	for _, app := range r.s.GetApps() {
		route := &policy.AppRoute{App: app.GetName()}
		for _, v := range app.GetVariants() {
			if len(plan.PartitionsOf(v.GetModel())) == 0 {
				continue
			}
			w := &policy.WeightedVariant{
				Model: v.GetModel(), Accuracy: v.GetAccuracy(), LatencyUs: r.f.Model(v.GetModel()).GetSloUs(), Weight: r.planned[app.GetName()][v.GetModel()],
			}
			for _, a := range r.apps {
				if i := slices.IndexFunc(a.candidates, func(c *candidate) bool { return c.model == v.GetModel() }); i >= 0 && !a.own {
					w.LatencyUs = a.candidates[i].latency
				}
			}
			w.Weight = r.steady(app.GetName(), v.GetModel(), w.GetWeight())
			for _, part := range plan.PartitionsOf(v.GetModel()) {
				if r.states[part.GetId()][v.GetModel()] == interfered {
					w.Weight = 0
				}
			}
			route.Variants = append(route.Variants, w)
		}
		r.f.CheapestFirst(app, route)
		plan.AppRoutes = append(plan.AppRoutes, route)
	}
}

// steadyWithin is how far the load of a variant may move before its weight does, to avoid a plan a second that changes nothing else.
const steadyWithin = 1.25

// steady is a weight as it is in force, where that is about the same.
func (r *run) steady(app, model string, weight float64) float64 {
	for _, route := range r.s.GetCurrent().GetAppRoutes() {
		for _, v := range route.GetVariants() {
			if was := v.GetWeight(); route.GetApp() == app && v.GetModel() == model && was > 0 && weight > 0 && weight <= was*steadyWithin && was <= weight*steadyWithin {
				return was
			}
		}
	}
	return weight
}

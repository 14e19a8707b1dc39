// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/conch-serving/conch/plugins/policy"
)

// Why adds a reason to the plan: about a model, about a partition as a whole (model empty is not allowed then), in one sentence.
func (f *Floor) Why(model, format string, args ...any) {
	f.reasons = append(f.reasons, &policy.Reason{Model: model, Text: fmt.Sprintf(format, args...)})
}

// Fail notes why the policy itself found no place for the model somewhere: one of the causes of policy.Refusal, once per place that it looked
// at. Together they are the model's entry among the unplaced, instead of what [Floor.Refuse] says of the floor as it is in the end.
func (f *Floor) Fail(model, cause string) { f.causes[model] = append(f.causes[model], cause) }

// Rest gives a place to every model that has none, or fewer than the operator wants, in partitions that are there, else in new ones on hosts
// that are empty, else in what is left of a host: models without load, and models that the policy knows too little of. It never counts on
// a rate for them. Models that load on demand are left out, and so are those excepted that the operator wants no instance of.
func (f *Floor) Rest(except ...string) {
	models := slices.Clone(f.Snapshot().GetModels())
	slices.SortStableFunc(models, func(a, b *policy.Model) int {
		return cmp.Or(
			cmp.Compare(b.GetPriority(), a.GetPriority()), cmp.Compare(b.GetRate(), a.GetRate()),
			cmp.Compare(b.GetMemoryBytes(), a.GetMemoryBytes()), strings.Compare(a.GetName(), b.GetName()),
		)
	})
	most := uint64(0) // that is free of a host: no more will be
	for _, h := range f.Hosts {
		most = max(most, h.FreeBytes())
	}
	for _, m := range models {
		name := m.GetName()
		if m.GetOnDemand() && m.GetRate() == 0 || slices.Contains(except, name) && f.Rule(name).MinInstances == 0 {
			continue
		}
		for f.served(name) < f.want(name) && f.known(name).weights <= most && f.restOne(name) {
		}
	}
}

// want is how many partitions have to serve a model.
func (f *Floor) want(model string) int {
	return max(1, int(f.Rule(model).MinInstances), len(f.pins[model]))
}

// restOne gives a model one more place: on the node with whose models it exchanges most bytes as a step of pipelines, as far as bytes were measured; else on
// one that has fewest of its places, so that no node that is lost takes all of them; and there in the partition whose host has most memory left.
func (f *Floor) restOne(model string) bool {
	near, weights, on := f.near(model), f.known(model).weights, f.OnNodes(model)
	var best *Part
	for _, h := range f.Hosts {
		if h.FreeBytes() < weights {
			continue // whatever else holds
		}
		for _, p := range h.Parts {
			if f.Refuse(p, model, 0) == "" && (best == nil || cmp.Or(cmp.Compare(near[h.Node], near[best.Host.Node]), cmp.Compare(on[best.Host.Node], on[h.Node]), cmp.Compare(h.FreeBytes(), best.Host.FreeBytes())) > 0) {
				best = p
			}
		}
	}
	if best != nil {
		f.Put(best, model, 0, 0)
		return true
	}
	hosts := f.Hosts
	if near != nil || on != nil {
		hosts = slices.Clone(f.Hosts)
		slices.SortStableFunc(hosts, func(a, b *Host) int {
			return cmp.Or(cmp.Compare(near[b.Node], near[a.Node]), cmp.Compare(on[a.Node], on[b.Node]))
		})
	}
	for _, empty := range []bool{true, false} {
		for _, h := range hosts {
			if free := h.FreeShare(); (len(h.Parts) == 0) == empty && h.FreeBytes() >= weights && f.RefuseNew(h, free, model, 0) == "" {
				f.Put(f.Open(h, free), model, 0, 0)
				return true
			}
		}
	}
	return false
}

// OnNodes is, by node, how many partitions hold a model; nil where none does.
func (f *Floor) OnNodes(model string) map[string]int {
	if f.counts[model] == 0 {
		return nil
	}
	on := make(map[string]int)
	for _, h := range f.Hosts {
		for _, p := range h.Parts {
			if p.Holds(model) {
				on[h.Node]++
			}
		}
	}
	return on
}

// near is, by node, how many bytes per second a model exchanges with the models there, as a step of pipelines; nil where it is none.
func (f *Floor) near(model string) map[string]float64 {
	parts := make(map[string]map[string]float64)
	f.Snapshot().Near(model, func(other string) float64 {
		if parts[other] == nil {
			parts[other] = f.partsOn(other)
		}
		return 0
	})
	if len(parts) == 0 {
		return nil
	}
	bytes := make(map[string]float64)
	for _, h := range f.Hosts {
		if _, known := bytes[h.Node]; !known {
			bytes[h.Node] = f.Snapshot().Near(model, func(other string) float64 { return parts[other][h.Node] })
		}
	}
	return bytes
}

// partsOn is, by node, which part of a model's places is there.
func (f *Floor) partsOn(model string) map[string]float64 {
	parts := make(map[string]float64)
	for node, n := range f.OnNodes(model) {
		parts[node] = float64(n) / float64(f.counts[model])
	}
	return parts
}

// Plan writes the floor down. Empty partitions are left out. The discipline of each model comes from dispatch; nil, or a nil entry, leaves
// it to the host. What has no place, or fewer than wanted, is among the unplaced with counted refusals.
func (f *Floor) Plan(name, version string, dispatch func(model string) *policy.Dispatch) *policy.Plan {
	s := f.Snapshot()
	plan := &policy.Plan{SnapshotRevision: s.GetRevision(), Policy: name, PolicyVersion: version, Reasons: f.reasons}
	for _, r := range f.recipes.GetRecipes() {
		if f.counts[r.GetName()] > 0 {
			plan.Recipes = append(plan.Recipes, r)
		}
	}
	namer := f.namer()
	for _, h := range f.Hosts {
		if !h.Used() {
			continue
		}
		plan.PredictedCostPerHour += h.CostPerHour
		for _, p := range h.Parts {
			if len(p.Instances) == 0 {
				continue
			}
			out := &policy.Partition{
				Id: namer.name(p), Node: h.Node, ThreadPercentage: p.Share, MemoryLimitBytes: p.limit, Rank: uint32(len(plan.Partitions)),
			}
			if !h.OnCPU() {
				out.Gpus = []string{h.GPU}
			}
			out.Instances = slices.Clone(p.Instances)
			slices.SortFunc(out.Instances, func(a, b *policy.Instance) int { return strings.Compare(a.GetModel(), b.GetModel()) })
			plan.Partitions = append(plan.Partitions, out)
		}
	}
	placed := make([]string, 0, len(f.counts))
	for model, n := range f.counts {
		if n > 0 {
			placed = append(placed, model)
		}
	}
	slices.Sort(placed)
	for _, model := range placed {
		if dispatch == nil {
			break
		}
		if d := dispatch(model); d != nil {
			d.Model = model
			plan.Dispatch = append(plan.Dispatch, d)
		}
	}
	alike := sync.OnceValue(func() []seats { return f.seats(true) })
	for _, m := range s.GetModels() {
		if u := f.unplaced(m, alike); u != nil {
			plan.Unplaced = append(plan.Unplaced, u)
		}
	}
	f.routes(plan)
	return plan
}

// seats are places that are alike to a model of which nothing is placed and that no rule is about: partitions, or what is left of hosts.
type seats struct {
	host *Host
	// part is nil where a partition would be new.
	part  *Part
	share uint32
	count uint32
}

// seats of the whole floor, those that are alike as one if that is asked.
func (f *Floor) seats(joined bool) (all []seats) {
	type key struct {
		kind                                             int
		share                                            uint32
		limit, memory, others, weights, working, context uint64
	}
	at := make(map[key]int)
	for _, h := range f.Hosts {
		add := func(p *Part, share uint32) {
			k := key{kind: h.kind, share: share, memory: h.Memory, others: h.bytes, context: h.Context}
			if p != nil {
				k.limit, k.others, k.weights, k.working = p.limit, h.bytes-p.bytes, p.weights, p.working
			}
			i, known := at[k]
			if !known || !joined {
				i = len(all)
				at[k], all = i, append(all, seats{host: h, part: p, share: share})
			}
			all[i].count++
		}
		for _, p := range h.Parts {
			add(p, p.Share)
		}
		if free := h.FreeShare(); free > 0 {
			add(nil, free)
		}
	}
	return all
}

// alike reports whether places that differ in nothing but their names and models are alike to a model.
func (f *Floor) alike(k *known) bool {
	_, restricted := k.rule.GPUs()
	return !restricted && k.rule.MaxInstances == 0 && f.pins[k.name] == nil && !f.exclusive && len(k.needs) == 1 && f.counts[k.name] == 0
}

func (f *Floor) unplaced(m *policy.Model, alike func() []seats) *policy.Unplaced {
	name := m.GetName()
	has, want := f.served(name), f.want(name)
	if has >= want {
		return nil
	}
	var t policy.Tally
	switch causes := f.causes[name]; {
	case len(causes) > 0:
		for _, cause := range causes {
			t.Try(cause)
		}
	case m.GetOnDemand() && has == 0 && m.GetRate() == 0:
		t.Try(policy.CauseOnDemand)
	default:
		places := alike
		if !f.alike(f.known(name)) {
			places = func() []seats { return f.seats(false) }
		}
		for _, at := range places() {
			cause := ""
			switch {
			case at.part == nil:
				cause = f.RefuseNew(at.host, at.share, name, 0)
			case !at.part.Holds(name):
				cause = f.Refuse(at.part, name, 0)
			}
			t.Add(cause, at.count)
		}
		for _, g := range f.GPUs() {
			if g.GetUnavailable() {
				t.Try(policy.CauseUnavailable)
			}
		}
	}
	u := t.Unplaced(name)
	if has > 0 {
		u.Text += fmt.Sprintf("; %d wanted", want)
	}
	return u
}

// routes sends apps to their variants that have a place, the cheapest first: a policy that counts on rates replaces the weights.
func (f *Floor) routes(plan *policy.Plan) {
	for _, app := range f.Snapshot().GetApps() {
		route := &policy.AppRoute{App: app.GetName()}
		for _, v := range app.GetVariants() {
			if f.served(v.GetModel()) > 0 {
				route.Variants = append(route.Variants, &policy.WeightedVariant{
					Model: v.GetModel(), Accuracy: v.GetAccuracy(), LatencyUs: f.Model(v.GetModel()).GetSloUs(),
				})
			}
		}
		f.CheapestFirst(app, route)
		plan.AppRoutes = append(plan.AppRoutes, route)
	}
}

// CheapestFirst puts the variants of a route in the order in which requests try them: by what an instance costs per hour, by its own word or else
// as its part of the host where it costs least; of equal cost the less accurate first, which leaves the other to requests that wish for it.
func (f *Floor) CheapestFirst(app *policy.App, route *policy.AppRoute) {
	cost := make(map[string]float64)
	for _, v := range app.GetVariants() {
		if cost[v.GetModel()] = v.GetCostPerHour(); v.GetCostPerHour() > 0 {
			continue
		}
		least := math.Inf(1)
		for _, h := range f.Hosts {
			for _, p := range h.Parts {
				if p.Holds(v.GetModel()) {
					least = min(least, h.CostPerHour*float64(p.Share)/100)
				}
			}
		}
		if !math.IsInf(least, 1) {
			cost[v.GetModel()] = least
		}
	}
	slices.SortStableFunc(route.Variants, func(a, b *policy.WeightedVariant) int {
		return cmp.Or(cmp.Compare(cost[a.GetModel()], cost[b.GetModel()]), cmp.Compare(a.GetAccuracy(), b.GetAccuracy()), strings.Compare(a.GetModel(), b.GetModel()))
	})
}

// namer gives partitions ids: that of a partition in force on the same host with the same share, the one with most models in common, else
// one that neither plan has.
type namer struct {
	inForce map[string]bool
	taken   map[string]bool
	reused  map[*Part]string
	onNodes map[string]int
}

func (f *Floor) namer() *namer {
	n := &namer{inForce: make(map[string]bool), taken: make(map[string]bool), reused: make(map[*Part]string), onNodes: make(map[string]int)}
	byHost := make(map[[2]string][]*policy.Partition)
	for _, part := range f.Snapshot().GetCurrent().GetPartitions() {
		n.inForce[part.GetId()] = true
		if len(part.GetGpus()) <= 1 {
			key := [2]string{part.GetNode(), part.GPU()}
			byHost[key] = append(byHost[key], part)
		}
	}
	for _, h := range f.Hosts {
		n.onNodes[h.GPU]++
		for _, p := range h.Parts {
			if p.id != "" {
				n.reused[p], n.taken[p.id] = p.id, true
			}
		}
	}
	for _, h := range f.Hosts {
		for _, p := range h.Parts {
			if p.id != "" || len(p.Instances) == 0 {
				continue
			}
			best, most := "", -1
			for _, old := range byHost[[2]string{h.Node, h.GPU}] {
				if n.taken[old.GetId()] || old.GetThreadPercentage() != p.Share || old.GetMemoryLimitBytes() != p.limit {
					continue
				}
				common := 0
				for _, in := range old.GetInstances() {
					if p.Holds(in.GetModel()) {
						common++
					}
				}
				if common > most {
					best, most = old.GetId(), common
				}
			}
			if best != "" {
				n.reused[p], n.taken[best] = best, true
			}
		}
	}
	return n
}

func (n *namer) name(p *Part) string {
	if id, ok := n.reused[p]; ok {
		return id
	}
	base := p.Host.GPU
	switch {
	case base == "":
		base = p.Host.Node + ".cpu"
	case n.onNodes[base] > 1:
		base = p.Host.Node + "." + base
	}
	base = FileName(base, maxBase)
	free := func(id string) bool { return !n.taken[id] && !n.inForce[id] }
	id := base
	if p.Share != 100 || !free(id) {
		for i := 0; ; i++ {
			if id = base + "." + strconv.Itoa(i); free(id) {
				break
			}
		}
	}
	n.taken[id] = true
	return id
}

// maxBase leaves room for a number in the 63 bytes of an id.
const maxBase = 52

// FileName makes an id of the contract, at most room bytes, out of whatever a GPU is called: ids become names of directories and labels of metrics.
func FileName(id string, room int) string {
	id = strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '-'
	}, id)
	id = strings.TrimLeft(id, ".-")
	if id == "" {
		return "gpu"
	}
	return id[:min(len(id), room)]
}

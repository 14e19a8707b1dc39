// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// layout is a plan as the search changes it: what lies where, by host, the discipline of models that have another than adaptive, and the derived
// models that stand for their members wherever these lie.
type layout struct {
	parts       []part
	disciplines map[string]string
	recipes     []string
}

// part is one partition: the index of its host on the floor, its share, and the models in it, sorted. Parts of a layout that is only built may share the list.
type part struct {
	host   int
	share  uint32
	models []string
}

func (l *layout) clone() *layout {
	c := &layout{parts: make([]part, len(l.parts)), disciplines: make(map[string]string, len(l.disciplines)), recipes: slices.Clone(l.recipes)}
	for i, p := range l.parts {
		c.parts[i] = part{p.host, p.share, slices.Clone(p.models)}
	}
	for model, discipline := range l.disciplines {
		c.disciplines[model] = discipline
	}
	return c
}

func (p *part) add(model string) {
	if i, found := slices.BinarySearch(p.models, model); !found {
		p.models = slices.Insert(p.models, i, model)
	}
}

func (p *part) remove(model string) {
	if i, found := slices.BinarySearch(p.models, model); found {
		p.models = slices.Delete(p.models, i, i+1)
	}
}

// read takes a plan apart. What lies on hosts that are not there any more is left out.
func (w *world) read(p *policy.Plan) *layout {
	l := &layout{disciplines: make(map[string]string), parts: make([]part, 0, len(p.GetPartitions()))}
	if w.hosts == nil {
		w.hosts = make(map[[2]string]int, len(w.empty.Hosts))
		for i, h := range w.empty.Hosts {
			w.hosts[[2]string{h.Node, h.GPU}] = i
		}
	}
	for _, q := range p.GetPartitions() {
		host, ok := w.hosts[[2]string{q.GetNode(), q.GPU()}]
		if !ok || len(q.GetGpus()) > 1 {
			continue
		}
		placed := part{host: host, share: q.GetThreadPercentage()}
		for _, in := range q.GetInstances() {
			for _, model := range p.ModelsOf(in) {
				if w.x.Model(model) != nil {
					placed.add(model)
				}
			}
		}
		l.parts = append(l.parts, placed)
	}
	for _, r := range p.GetRecipes() {
		if w.offered(r.GetName()) != nil {
			l.recipes = append(l.recipes, r.GetName())
		}
	}
	for _, d := range p.GetDispatch() {
		if d.GetDiscipline() != "adaptive" && slices.Contains(disciplines(), d.GetDiscipline()) && len(d.GetParameters()) == 0 {
			l.disciplines[d.GetModel()] = d.GetDiscipline()
		}
	}
	return l
}

// disciplines are those that the search tries.
func disciplines() []string { return []string{"adaptive", "deferred", "eager"} }

// build makes a plan of a layout: what the rules forbid is left out, and a model without a place gets one where there is room.
func (w *world) build(l *layout) *policy.Plan {
	f := w.floor()
	w.budget.spend(len(f.Hosts))
	memberOf := make(map[string]string)
	taken := make(map[offer][]string)
	for _, name := range l.recipes {
		d := w.offered(name)
		f.Want(d.GetRecipe())
		for _, member := range d.GetRecipe().GetMembers() {
			memberOf[member] = name
		}
	}
	for _, q := range l.parts {
		h := f.Hosts[q.host]
		p := pinnedLike(h, q.share)
		if p == nil {
			if q.share < 1 || q.share > h.FreeShare() {
				continue
			}
			p = f.Open(h, q.share)
		}
		w.fill(f, p, q.models, memberOf, taken)
	}
	f.Rest()
	return f.Plan(Name, version, func(model string) *policy.Dispatch {
		return &policy.Dispatch{Discipline: cmp.Or(l.disciplines[model], "adaptive")}
	})
}

// offer is a list of models for a place: what the place takes of it depends on nothing else where no rule says where models may lie.
type offer struct {
	models       *string
	count        int
	hostType     string
	share        uint32
	memory, free uint64
	context      uint64
}

// fill puts the models of a list that the rules allow into an empty partition. What places took is remembered: a cluster has thousands that are alike, and the
// layouts that it begins with have the same list for all of them.
func (w *world) fill(f *pack.Floor, p *pack.Part, models []string, memberOf map[string]string, taken map[offer][]string) {
	if len(models) == 0 {
		return
	}
	h := p.Host
	like := offer{&models[0], len(models), h.Type, p.Share, h.Memory, h.FreeBytes(), h.Context}
	if known, ok := taken[like]; ok && !w.ruled {
		w.budget.spend(len(known))
		for _, model := range known {
			f.Put(p, model, 0, 0)
		}
		return
	}
	w.budget.spend(len(models))
	var put []string
	for _, model := range models {
		model = cmp.Or(memberOf[model], model)
		if f.Refuse(p, model, 0) == "" {
			f.Put(p, model, 0, 0)
			put = append(put, model)
		}
	}
	if !w.ruled {
		taken[like] = put
	}
}

// offered is a merge group that may be asked for and whose latency is known; nil where the name is none.
func (w *world) offered(name string) *policy.DerivedModel {
	d := w.x.Derived(name)
	r := d.GetRecipe()
	if r.GetKind() != policy.RecipeKind_RECIPE_KIND_MERGE || r.GetMode() != policy.MergeMode_MERGE_MODE_BACKBONE || d.GetRefusal() != "" || len(d.GetProfiles()) == 0 || len(r.GetMembers()) < 2 {
		return nil
	}
	for _, member := range r.GetMembers() {
		if w.x.Model(member) == nil || w.x.Rule(member).NeverMerge || w.x.Rule(member).Pinned {
			return nil
		}
	}
	return d
}

// merged puts a derived model in the place of its members, or the members in its place; false where others have a member already.
func (w *world) merged(l *layout, name string) bool {
	if i := slices.Index(l.recipes, name); i >= 0 {
		l.recipes = slices.Delete(l.recipes, i, i+1)
		return true
	}
	members := w.offered(name).GetRecipe().GetMembers()
	for _, other := range l.recipes {
		for _, member := range w.offered(other).GetRecipe().GetMembers() {
			if slices.Contains(members, member) {
				return false
			}
		}
	}
	l.recipes = append(l.recipes, name)
	slices.Sort(l.recipes)
	return true
}

// free is what the layout leaves of a host, in percent.
func (l *layout) free(host int) uint32 {
	free := uint32(100)
	for _, p := range l.parts {
		if p.host == host {
			free -= min(free, p.share)
		}
	}
	return free
}

// pinnedLike is a partition of the share that a pinned model keeps on the host; nil where there is none.
func pinnedLike(h *pack.Host, share uint32) *pack.Part {
	for _, p := range h.Parts {
		if p.Pinned() && p.Share == share {
			return p
		}
	}
	return nil
}

// units are the GPUs, each cut into so many equal partitions, GPU by GPU.
func (w *world) units(cut uint32) (all []part) {
	for i, h := range w.empty.Hosts {
		for range cut {
			if !h.OnCPU() {
				all = append(all, part{host: i, share: 100 / cut})
			}
		}
	}
	return all
}

// everywhere has every model on every GPU, whole or cut into equal partitions.
func (w *world) everywhere(cut uint32) *layout {
	all := part{models: make([]string, 0, len(w.s.GetModels()))}
	for _, m := range w.s.GetModels() {
		all.add(m.GetName())
	}
	l := &layout{disciplines: make(map[string]string), parts: w.units(cut)}
	for i := range l.parts {
		l.parts[i].models = all.models
	}
	return l
}

// blocks is how long a batch of the model keeps others waiting at the least, and load what of a GPU its rate needs in the batches that its SLO
// allows; both on the first type of GPU that it has a profile for.
func (w *world) blocks(m *policy.Model) (us, load float64, ok bool) {
	for _, g := range w.x.GPUs() {
		if g.GetUnavailable() {
			continue
		}
		if us, load, ok = w.on(m, g.GetType()); ok {
			return us, load, true
		}
	}
	return 0, 0, false
}

// on is blocks on a type of GPU; false where the model has no profile for it.
func (w *world) on(m *policy.Model, gpuType string) (us, load float64, ok bool) {
	p := w.x.UsableProfile(m.GetName(), gpuType)
	if p == nil {
		return 0, 0, false
	}
	us, _ = p.Latency(1, 100)
	batch := max(1, m.GetMaxBatchSize())
	if slo := float64(m.GetSloUs()); slo > 0 {
		batch = max(1, p.MaxBatch(100, batch, slo/2))
	}
	l, _ := p.Latency(batch, 100)
	return us, math.Max(m.GetRowRate(), m.GetRate()) * l / float64(batch) / 1e6, true
}

// groups are layouts in which models that block long and models that cannot wait have GPUs of their own: the models in the order of their
// SLO over what they block, cut in two at every place, the GPUs in proportion to the load of the two sides, and one more or less. A heavy
// model beside tight ones is where a shared GPU serves neither. Of halves of GPUs, which keep the two apart on one GPU, there are fewer: the models in the
// order of their SLO alone, and the halves as the load has it.
func (w *world) groups() []*layout {
	type known struct {
		name       string
		slack, use float64
	}
	var models []known
	var others []string
	total := 0.0
	for _, m := range w.s.GetModels() {
		us, load, ok := w.blocks(m)
		if !ok || m.GetRate() <= 0 {
			others = append(others, m.GetName())
			continue
		}
		models = append(models, known{m.GetName(), us / math.Max(1, float64(m.GetSloUs())), load})
		total += load
	}
	if len(models) < 2 || total <= 0 {
		return nil
	}
	var all []*layout
	bySLO := func(k known) float64 { return float64(w.x.Model(k.name).GetSloUs()) }
	byBlock := func(k known) float64 { us, _, _ := w.blocks(w.x.Model(k.name)); return us }
	for _, way := range []struct {
		key     func(known) float64
		cut     uint32
		further []int
	}{{bySLO, 1, []int{0, -1, 1}}, {byBlock, 1, []int{0, -1, 1}}, {bySLO, 2, []int{0}}} {
		units := w.units(way.cut)
		slices.SortStableFunc(models, func(a, b known) int {
			return cmp.Or(cmp.Compare(way.key(a), way.key(b)), strings.Compare(a.name, b.name))
		})
		before := 0.0
		for cut := 1; cut < len(models); cut++ {
			before += models[cut-1].use
			if way.key(models[cut]) < 1.3*way.key(models[cut-1]) {
				// They are of one kind.
				continue
			}
			share := int(math.Round(before / total * float64(len(units))))
			for _, more := range way.further {
				n := share + more
				if n < 1 || n >= len(units) {
					continue
				}
				var sides [2]part
				for i, k := range models {
					if i < cut {
						sides[0].add(k.name)
					} else {
						sides[1].add(k.name)
					}
				}
				for _, name := range others {
					sides[0].add(name)
					sides[1].add(name)
				}
				l := &layout{disciplines: make(map[string]string), parts: slices.Clone(units)}
				for i := range l.parts {
					l.parts[i].models = sides[0].models
					if i >= n {
						l.parts[i].models = sides[1].models
					}
				}
				all = append(all, l)
			}
		}
	}
	return all
}

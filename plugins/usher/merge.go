// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package usher

import (
	"math"
	"slices"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
)

// merge puts merged models on a GPU in the place of those of their members that lie there, the largest groups first, and returns the replicas
// that are left. A group's share is the sum of its members' (section 3.1), and it is merged if its weights are similar by at least omega
// (sections 2.4 and 3.4.2), and if it carries its members' loads within the tightest SLO by its own profile.
func (r *run) merge(g *gpu, here []placed, load func(placed) float64) []placed {
	offers := slices.Clone(r.f.Snapshot().GetDerived())
	offers = slices.DeleteFunc(offers, func(d *policy.DerivedModel) bool {
		return d.GetRecipe().GetKind() != policy.RecipeKind_RECIPE_KIND_MERGE || d.GetRefusal() != "" || len(d.GetRecipe().GetMembers()) < 2
	})
	slices.SortStableFunc(offers, func(a, b *policy.DerivedModel) int {
		if n := len(b.GetRecipe().GetMembers()) - len(a.GetRecipe().GetMembers()); n != 0 {
			return n
		}
		return strings.Compare(a.GetRecipe().GetName(), b.GetRecipe().GetName())
	})
	for _, d := range offers {
		var members []placed
		rest := slices.Clone(here)
		for _, name := range d.GetRecipe().GetMembers() {
			if i := slices.IndexFunc(rest, func(x placed) bool { return x.model.name == name }); i >= 0 {
				members, rest = append(members, rest[i]), slices.Delete(rest, i, i+1)
			}
		}
		if len(members) == len(d.GetRecipe().GetMembers()) && r.merged(g, d, members, load) {
			here = rest
		}
	}
	return here
}

func (r *run) merged(g *gpu, d *policy.DerivedModel, members []placed, load func(placed) float64) bool {
	var share uint32
	var weights uint64
	batch, slo, rows := uint32(math.MaxUint32), math.Inf(1), 0.0
	for _, x := range members {
		m := r.f.Model(x.model.name)
		share, weights = share+uint32(x.need(r).share), weights+m.GetMemoryBytes()
		batch, slo = min(batch, x.option.batch), math.Min(slo, float64(m.GetSloUs()))
		rows += load(x)
	}
	name := d.GetRecipe().GetName()
	similarity := float64(len(members)) * float64(d.GetSharedBytes()) / math.Max(1, float64(weights))
	if similarity < r.set.similarity {
		r.f.Why(members[0].model.name, "%s is not merged: its members' weights are similar by %.0f%%", name, 100*similarity)
		return false
	}
	i := slices.IndexFunc(d.GetProfiles(), func(p *policy.Profile) bool { return p.GetGpuType() == r.kinds[g.kind].gpuType })
	if i < 0 {
		r.f.Why(members[0].model.name, "%s is not merged: it has no profile on a %s", name, r.kinds[g.kind].gpuType)
		return false
	}
	latency := func(b uint32) (float64, bool) { return d.GetProfiles()[i].Upper(b, share) }
	if achieved := goodput(latency, batch, rows, slo); achieved < rows {
		r.f.Why(members[0].model.name, "%s is not merged: at %d%% it would carry %.4g of %.4g rows/s", name, share, achieved, rows)
		return false
	}
	if !slices.Contains(r.wanted, name) {
		r.f.Want(d.GetRecipe())
		r.wanted = append(r.wanted, name)
	}
	if cause := r.f.RefuseNew(g.host, share, name, batch); cause != "" {
		r.f.Why(members[0].model.name, "%s is not merged on %s: %s", name, g.host.GPU, cause)
		return false
	}
	r.f.Put(r.f.Open(g.host, share), name, batch, rows)
	for _, x := range members {
		r.f.Why(x.model.name, "merged into %s on %d%% of %s", name, share, g.host.GPU)
	}
	return true
}

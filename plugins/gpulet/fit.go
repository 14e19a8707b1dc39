// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package gpulet

import (
	"math"
	"slices"
	"strconv"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// findBestFit is FINDBESTFIT: the smallest piece that is left and large enough (lines 14 to 18: the whole of an empty GPU, or the rest of one that is cut), cut to the
// ideal size where its GPU is whole, if a batch meets the SLO there beside what else runs on the GPU, and what else runs still meets its own. It returns the rows per
// second that are served.
func (r *run) findBestFit(model, gpuType string, ideal uint32, left float64) float64 {
	// Of GPUs on which the same runs one alone is tried, where nothing but what runs there decides.
	tried := make(map[string]*glet)
	var alike []byte
	for free := max(1, ideal); free <= 100; free++ {
		for _, at := range r.pieces[free] {
			g := r.gpus[at]
			if g.host.Type != gpuType || len(g.glets) >= r.set.most {
				continue
			}
			size := free
			if len(g.glets) < r.set.most-1 {
				// More pieces may follow, so that this one is cut to size. The last piece of a GPU gets all that is left.
				size = ideal
			}
			alike = g.runs(alike[:0], size)
			fits, known := tried[string(alike)]
			if !known {
				fits = r.fits(g, size, model, left)
				tried[string(alike)] = fits
			}
			if fits == nil {
				continue
			}
			if r.forbids(&glet{gpu: g, size: size}, model) {
				continue
			}
			l := *fits
			l.gpu = g
			g.glets = append(g.glets, &l)
			r.cut(at, free)
			r.placed[model]++
			return l.cycle.Jobs[0].Rate
		}
	}
	return 0
}

// cut files a GPU by what is left of it, which was so much.
func (r *run) cut(at int, was uint32) {
	if n, found := slices.BinarySearch(r.pieces[was], at); found {
		r.pieces[was] = slices.Delete(r.pieces[was], n, n+1)
	}
	free := r.gpus[at].free()
	n, _ := slices.BinarySearch(r.pieces[free], at)
	r.pieces[free] = slices.Insert(r.pieces[free], n, at)
}

// runs appends what runs on a GPU, and the size of a glet that is to be beside it: two GPUs of a type of which it says the same differ in nothing that profiles
// know.
func (g *gpu) runs(text []byte, size uint32) []byte {
	text = strconv.AppendUint(text, uint64(size), 10)
	for _, l := range g.glets {
		text = strconv.AppendUint(append(text, ' '), uint64(l.size), 10)
		text = strconv.AppendBool(append(text, '/'), l.saturated)
		for i, j := range l.jobs {
			batch := uint32(1)
			if i < len(l.cycle.Batches) {
				batch = l.cycle.Batches[i]
			}
			text = strconv.AppendQuote(append(text, ' '), j.Model)
			text = strconv.AppendUint(append(text, ' '), uint64(batch), 10)
			text = strconv.AppendUint(append(text, ' '), math.Float64bits(j.Rate), 16)
		}
	}
	return text
}

// fits is a new glet with the model, if everything on the GPU meets its SLO then; else nil.
func (r *run) fits(g *gpu, size uint32, model string, left float64) *glet {
	l := &glet{gpu: g, size: size}
	job := r.job(model, g.host.Type, size, left, r.slowdown(l, model, 1))
	l.jobs = []pack.Job{job}
	if cycle, ok := pack.Merge(l.jobs, r.set.wait); ok {
		l.cycle = cycle
	} else {
		batch, most, ok := job.Saturated()
		if !ok {
			return nil
		}
		job.Rate = math.Min(most, left)
		took, _ := job.Latency(batch)
		l.jobs = []pack.Job{job}
		l.saturated, l.cycle = true, pack.Cycle{Jobs: l.jobs, Batches: []uint32{batch}, Length: took, Occupancy: 1}
	}
	if !(l.cycle.Jobs[0].Rate > 0) || !r.othersHold(g, l) {
		return nil
	}
	return l
}

// forbids reports that memory or the operator's constraints forbid the model on the glet, which may be new to its GPU.
func (r *run) forbids(l *glet, model string) bool {
	host, all := l.gpu.host, l.gpu.glets
	if !slices.Contains(all, l) {
		all = append(slices.Clip(all), l)
	}
	// It is tried on the floor itself and taken back: a copy of the floor for each try is what a cluster of thousands of GPUs has no time for.
	var part *pack.Part
	for _, glet := range all {
		p := r.f.Open(host, glet.size)
		defer r.f.Close(p)
		for _, j := range glet.jobs {
			r.f.Put(p, j.Model, 0, 0)
		}
		if glet == l {
			part = p
		}
	}
	if r.f.Refuse(part, model, 0) != "" {
		return true
	}
	r.f.Put(part, model, 0, 0)
	contexts := r.set.context * uint64(len(all))
	return host.Memory > 0 && float64(host.Memory-host.FreeBytes()+contexts) > r.set.memory*float64(host.Memory)
}

// slowdown of the model on the glet by the worst of the other glets of its GPU (section 4.4, rule 8 of the artifact: the largest counts).
func (r *run) slowdown(l *glet, model string, batch uint32) float64 {
	if !r.set.interference {
		return 1
	}
	self, ok := r.load(model, l.gpu.host.Type, l.size, batch)
	if !ok {
		return 1
	}
	worst := 1.0
	for _, other := range l.gpu.glets {
		if other == l {
			continue
		}
		for i, j := range other.jobs {
			batch := uint32(1)
			if i < len(other.cycle.Batches) {
				batch = other.cycle.Batches[i]
			}
			if load, ok := r.load(j.Model, l.gpu.host.Type, other.size, batch); ok {
				worst = math.Max(worst, r.f.Interference(l.gpu.host.Type).Slowdown(self, load))
			}
		}
	}
	return worst
}

// load is what a batch takes of L2 and bandwidth on a share: what it takes alone on the whole GPU, times the share.
func (r *run) load(model, gpuType string, size, batch uint32) (policy.Load, bool) {
	key := loadKey{model, gpuType, batch}
	whole, asked := r.loads[key]
	if !asked {
		whole.Load, whole.known = r.f.UsableProfile(model, gpuType).Load(batch, 100)
		r.loads[key] = whole
	}
	part := float64(size) / 100
	return policy.Load{L2: whole.L2 * part, Bandwidth: whole.Bandwidth * part}, whole.known
}

// othersHold reports whether what runs on the other glets of the GPU still meets its SLO beside the new one.
func (r *run) othersHold(g *gpu, next *glet) bool {
	if !r.set.interference {
		return true
	}
	was := g.glets
	defer func() { g.glets = was }()
	if !slices.Contains(g.glets, next) {
		g.glets = append(slices.Clip(was), next)
	}
	for _, l := range g.glets {
		if l == next {
			continue
		}
		if _, ok := r.again(l); !ok {
			return false
		}
	}
	return true
}

// again makes the glet's round anew with what runs beside it now; false where it no longer holds.
func (r *run) again(l *glet) (pack.Cycle, bool) {
	jobs := make([]pack.Job, len(l.jobs))
	for i, j := range l.jobs {
		batch := uint32(1)
		if i < len(l.cycle.Batches) {
			batch = l.cycle.Batches[i]
		}
		jobs[i] = r.job(j.Model, l.gpu.host.Type, l.size, j.Rate, r.slowdown(l, j.Model, batch))
	}
	if !l.saturated {
		return pack.Merge(jobs, r.set.wait)
	}
	_, most, ok := jobs[0].Saturated()
	return l.cycle, ok && most >= .999*jobs[0].Rate
}

// share is temporal scheduling (line 22): the model joins a glet that is there, the one that is fullest with it.
func (r *run) share(model string, left float64) float64 {
	var best *glet
	var round pack.Cycle
	for _, g := range r.gpus {
		if g.closed || r.f.UsableProfile(model, g.host.Type) == nil {
			continue
		}
		for _, l := range g.glets {
			if l.saturated || len(l.jobs) >= r.set.models || slices.ContainsFunc(l.jobs, func(j pack.Job) bool { return j.Model == model }) {
				continue
			}
			merged, ok := pack.Merge(append(slices.Clip(l.jobs), r.job(model, g.host.Type, l.size, left, r.slowdown(l, model, 1))), r.set.wait)
			if ok && (best == nil || merged.Occupancy > round.Occupancy) && !r.forbids(l, model) {
				best, round = l, merged
			}
		}
	}
	if best == nil {
		return 0
	}
	best.jobs, best.cycle = round.Jobs, round
	r.placed[model]++
	return left
}

// mergeResidues frees glets: what lies on one that is not busy all the time joins another, the emptiest first. GPUs that become whole again
// serve models that found no place.
func (r *run) mergeResidues() {
	for at, g := range slices.Backward(r.gpus) {
		for _, l := range slices.Clone(g.glets) {
			if l.saturated || len(l.jobs) != 1 || !r.moved(l) {
				continue
			}
			was := g.free()
			g.glets = slices.DeleteFunc(g.glets, func(other *glet) bool { return other == l })
			r.cut(at, was)
		}
	}
	for _, m := range r.models() {
		name := m.GetName()
		for r.left[name] > 0 {
			served := r.step(name, r.left[name])
			if served <= 0 {
				break
			}
			if r.left[name] -= served; r.left[name] <= 1e-9 || r.left[name] <= r.set.residue {
				delete(r.left, name)
			}
		}
	}
}

// moved puts the one job of a glet on another glet where that holds.
func (r *run) moved(l *glet) bool {
	j := l.jobs[0]
	for _, g := range r.gpus {
		if g.closed || g.host.Type != l.gpu.host.Type {
			continue
		}
		for _, other := range g.glets {
			if other == l || other.saturated || len(other.jobs) >= r.set.models || slices.ContainsFunc(other.jobs, func(o pack.Job) bool { return o.Model == j.Model }) {
				continue
			}
			merged, ok := pack.Merge(append(slices.Clip(other.jobs), r.job(j.Model, g.host.Type, other.size, j.Rate, r.slowdown(other, j.Model, 1))), r.set.wait)
			if !ok || r.forbids(other, j.Model) {
				continue
			}
			other.jobs, other.cycle = merged.Jobs, merged
			return true
		}
	}
	return false
}

// put brings the glets onto the floor, and says why.
func (r *run) put() {
	for _, g := range r.gpus {
		for _, l := range g.glets {
			part := r.f.Open(g.host, l.size)
			for i, j := range l.jobs {
				batch := uint32(0)
				if r.set.rounds {
					batch = l.cycle.Batches[i]
				}
				if in := part.Instance(j.Model); in != nil {
					in.Rate += j.Rate / r.peak(j.Model) // an ensemble brought it along
				} else {
					if r.f.Refuse(part, j.Model, batch) != "" {
						continue
					}
					r.f.Put(part, j.Model, batch, j.Rate/r.peak(j.Model))
				}
				text := "%d%% of %s: %.4g rows/s (planned for) in batches of %d, which keep it busy"
				if !l.saturated {
					text = "%d%% of %s: %.4g rows/s (planned for) in batches of %d of its round"
				}
				r.f.Why(j.Model, text, l.size, g.host.GPU, j.Rate, l.cycle.Batches[i])
			}
		}
	}
}

// peak is by what factor the rate that was planned for exceeds the mean: an instance promises its part of the mean.
func (r *run) peak(model string) float64 {
	mean := rate(r.f.Model(model))
	return max(1, r.inflated(mean)/mean)
}

// cycles are the shortest rounds that models are in, in microseconds.
func (r *run) cycles() map[string]float64 {
	all := make(map[string]float64)
	for _, g := range r.gpus {
		for _, l := range g.glets {
			for _, j := range l.jobs {
				if was, ok := all[j.Model]; !ok || l.cycle.Length < was {
					all[j.Model] = math.Max(1, l.cycle.Length)
				}
			}
		}
	}
	return all
}

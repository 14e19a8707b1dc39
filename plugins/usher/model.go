// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package usher

import (
	"math"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
)

// kind is a sort of GPU: what a replica needs of a GPU depends on no more than this.
type kind struct {
	gpuType string
	memory  uint64
	// cost per hour; 1 where it is unknown, so that the number of GPUs counts.
	cost float64
}

// need is what one replica takes of a GPU of one kind, and what it achieves there.
type need struct {
	fits bool
	// share in percent is Creq, memory is Mreq as a fraction of the GPU.
	share  int
	memory float64
	// goodput in rows per second.
	goodput float64
}

func (n need) size() float64 { return float64(n.share)/100 + n.memory }

// option is one configuration {BS, RD} of one model.
type option struct {
	batch    uint32
	replicas int
	// needs by kind.
	needs []need
	// lost are rows per second that the replicas cannot carry, wherever they are placed.
	lost float64
	// demand is the least that all replicas take together, Creq and Mreq added up over GPUs.
	demand float64
	// compute and memory are the mean Creq and Mreq over the kinds of GPU.
	compute, memory float64
}

// model is a model of the plan with its configurations.
type model struct {
	name     string
	workload float64
	options  []option
	// compute and memory are the mean Creq and Mreq over batch sizes and kinds of GPU (section 3.3.1).
	compute, memory float64
	// allowed by the operator's constraints, by GPU; nil: every GPU.
	allowed []bool
}

// busiest is the utilisation at which a replica completes as many batches as come, the wait in its queue included (see [goodput]).
var busiest = 2 - math.Sqrt2

// goodput is what a replica achieves: the batch size over the expected time to complete a batch, the wait in its queue included (section
// 3.3.2). The wait is that of an M/D/1 queue of batches at that very goodput: W = u l / (2 (1-u)) at a utilisation u, so that b/(l+W) = u b/l
// holds up to u = 2 - sqrt 2; less where the wait would break the SLO. A batch that does not fill in time is halved: the first row waits for
// the others, (b-1)/rate, then W, then l(b). 0 where nothing makes the SLO.
func goodput(latency func(uint32) (float64, bool), batch uint32, rate, slo float64) float64 {
	best := 0.0
	for b := batch; b >= 1; b /= 2 {
		l, known := latency(b)
		if !known || l <= 0 || l > slo {
			continue
		}
		slack := (slo - l) / l
		u := math.Min(busiest, 2*slack/(1+2*slack))
		achieved := u * 1e6 * float64(b) / l
		wait := u * l / (2 * (1 - u))
		collect := 1e6 * float64(b-1) / math.Min(rate, achieved)
		if collect+wait+l <= slo*(1+1e-9) {
			best = math.Max(best, achieved)
		}
	}
	return best
}

func rate(m *policy.Model) float64 { return math.Max(m.GetRowRate(), m.GetRate()) }

// model reads one model: false where it cannot be planned, because of no load, no SLO, a pin, or no profile that knows its requirements.
func (r *run) model(m *policy.Model) (*model, bool) {
	out := &model{name: m.GetName(), workload: rate(m)}
	rule := r.f.Rule(m.GetName())
	if out.workload <= 0 || m.GetSloUs() <= 0 || rule.Pinned {
		return nil, false
	}
	most := len(r.gpus)
	if rule.MaxInstances > 0 {
		most = min(most, int(rule.MaxInstances))
	}
	var single []option
	for _, batch := range r.batches(m) {
		if o, ok := r.option(m, batch); ok {
			out.compute, out.memory = out.compute+o.compute, out.memory+o.memory
			single = append(single, o)
		}
	}
	if len(single) == 0 || most == 0 {
		return nil, false
	}
	out.compute, out.memory = out.compute/float64(len(single)), out.memory/float64(len(single))
	fewest := r.fewest(m, single[len(single)-1], out.workload, most)
	for multiple := 1; multiple <= r.set.multiples && multiple*fewest <= most; multiple++ {
		for _, o := range single {
			o.replicas = multiple * fewest
			if o = r.replicated(m, o, out.workload); o.demand < math.Inf(1) {
				out.options = append(out.options, o)
			}
		}
	}
	if ids, restricted := rule.GPUs(); restricted {
		out.allowed = make([]bool, len(r.gpus))
		for i, g := range r.gpus {
			out.allowed[i] = g.host != nil && slices.Contains(ids, g.host.GPU)
		}
	}
	return out, len(out.options) > 0
}

// fewest is c of section 3.3.2: the fewest replicas that carry the workload at the largest batch size on the best kind of GPU; most where they
// do not.
func (r *run) fewest(m *policy.Model, largest option, workload float64, most int) int {
	for count := 1; count < most; {
		largest.replicas = count
		best := 0.0
		for _, n := range r.replicated(m, largest, workload).needs {
			best = math.Max(best, n.goodput)
		}
		if float64(count)*best >= workload {
			return count
		}
		if best == 0 {
			break
		}
		count = max(count+1, int(math.Ceil(workload/best-1e-9)))
	}
	return most
}

// replicated is the option at its number of replicas: each gets an equal part of the workload.
func (r *run) replicated(m *policy.Model, o option, workload float64) option {
	o.needs = slices.Clone(o.needs)
	o.demand = math.Inf(1)
	best := 0.0
	for k := range o.needs {
		n := &o.needs[k]
		if !n.fits {
			continue
		}
		p := r.f.UsableProfile(m.GetName(), r.kinds[k].gpuType)
		latency := func(b uint32) (float64, bool) { return p.Upper(b, uint32(n.share)) }
		n.goodput = goodput(latency, o.batch, workload/float64(o.replicas), float64(m.GetSloUs()))
		if n.fits = n.goodput > 0; n.fits {
			best = math.Max(best, n.goodput)
			o.demand = math.Min(o.demand, float64(o.replicas)*n.size())
		}
	}
	o.lost = math.Max(0, workload-float64(o.replicas)*best)
	return o
}

// batches of the list up to the model's own maximum; that maximum where the list has none.
func (r *run) batches(m *policy.Model) []uint32 {
	var all []uint32
	for _, b := range r.set.batches {
		if b <= max(1, m.GetMaxBatchSize()) {
			all = append(all, b)
		}
	}
	if len(all) == 0 {
		all = []uint32{max(1, m.GetMaxBatchSize())}
	}
	return all
}

// option is a batch size with what one replica needs of every kind of GPU; false where it fits none (section 3.3.1: batch sizes beyond what a
// GPU has do not count).
func (r *run) option(m *policy.Model, batch uint32) (option, bool) {
	o := option{batch: batch, needs: make([]need, len(r.kinds))}
	rule := r.f.Rule(m.GetName())
	known := 0.0
	for k, kind := range r.kinds {
		p := r.f.UsableProfile(m.GetName(), kind.gpuType)
		compute, okC := p.Creq(batch, 100)
		memory, okM := p.Mreq(batch, 100)
		if !okC || !okM {
			continue
		}
		if kind.memory > 0 {
			memory = math.Max(memory, float64(r.bytes(m, batch))/float64(kind.memory))
		}
		share := max(1, uint32(math.Ceil(100*math.Min(compute, 2)-1e-9)), rule.MinShare)
		if memory > 1 || share > 100 || !rule.AllowsShare(share) {
			continue
		}
		o.needs[k] = need{fits: true, share: int(share), memory: memory}
		o.compute, o.memory, known = o.compute+compute, o.memory+memory, known+1
	}
	o.compute, o.memory = o.compute/math.Max(1, known), o.memory/math.Max(1, known)
	return o, known > 0
}

// bytes that an instance with that batch takes, with what an ensemble calls.
func (r *run) bytes(m *policy.Model, batch uint32) uint64 {
	var weights, working uint64
	for _, part := range r.f.Requires(m.GetName()) {
		in := policy.ModelInstance(part.GetName(), 0)
		if part == m {
			in.MaxBatch = batch
		}
		w, a := r.f.InstanceBytes(nil, in)
		if w > math.MaxUint64/2-weights {
			return math.MaxUint64
		}
		weights, working = weights+w, max(working, a)
	}
	if working > math.MaxUint64/2 {
		return math.MaxUint64
	}
	return weights + working
}

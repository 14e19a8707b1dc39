// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package nexus

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// Name is what the policy is called.
const Name = "nexus"

const version = "1.0.0"

const paramDiscipline = "discipline"

// Policy is Nexus' placement. The zero value is ready; it has no state.
type Policy struct{}

var _ policy.Policy = Policy{}

// New makes the policy.
func New() Policy { return Policy{} }

// Describe implements [policy.Policy].
func (Policy) Describe(context.Context) (*policy.Description, error) {
	return &policy.Description{
		Name: Name, Version: version, IntervalUs: 20e6,
		Summary:     "Squishy bin packing: models share whole GPUs in duty cycles, without shares.",
		Needs:       []string{policy.NeedProfiles},
		Disciplines: []string{"adaptive", "duty-cycle"},
		Parameters: []*policy.Parameter{
			{Name: paramDiscipline, Type: policy.TypeString, DefaultValue: "adaptive", Values: []string{"adaptive", "duty-cycle"},
				Documentation: "How batches are dispatched on the GPUs that were packed: duty-cycle is Nexus' own round."},
		},
	}, nil
}

// node is a GPU of the packing and the round that it runs.
type node struct {
	host  *pack.Host
	cycle pack.Cycle
	// whole: one model has the GPU for itself and keeps it busy.
	whole bool
}

// packer carries one plan.
type packer struct {
	f     *pack.Floor
	nodes []*node
	// taken are the hosts of nodes.
	taken map[*pack.Host]bool
	// rounds: batches are those of the rounds; otherwise the discipline decides, up to the model's own maximum.
	rounds bool
	// short are models whose load the GPUs do not carry, with the rows per second that are left.
	short map[string]float64
	// slos are what pipelines leave their models, in microseconds.
	slos map[string]float64
}

// Plan implements [policy.Policy]: for every model GPUs that it keeps busy (Nexus' ScheduleSaturate), then what is left of its rate in rounds
// that models share (ScheduleResidue), the fullest first, each into the round that it fills best.
func (Policy) Plan(ctx context.Context, s *policy.Snapshot, _ policy.Host) (*policy.Plan, error) {
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("nexus: %w", err)
	}
	discipline := cmp.Or(s.GetParameters()[paramDiscipline], "adaptive")
	if discipline != "adaptive" && discipline != "duty-cycle" {
		return nil, fmt.Errorf("nexus: parameter %s: %q is none of adaptive, duty-cycle", paramDiscipline, discipline)
	}
	p := &packer{f: pack.New(s), rounds: discipline == "duty-cycle", short: make(map[string]float64), taken: make(map[*pack.Host]bool)}
	p.split()
	for _, h := range p.f.Hosts {
		for _, part := range h.Parts {
			if part.Pinned() {
				// A GPU that holds what the operator pinned is not packed.
				p.pack(&node{host: h, whole: true})
				break
			}
		}
	}
	var residues []string
	rates := make(map[string]float64)
	for _, m := range p.models() {
		left := p.saturate(m)
		if left > 0 {
			rates[m.GetName()] = left
			residues = append(residues, m.GetName())
		}
	}
	p.residues(residues, rates)
	p.put()
	p.f.Rest()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	cycles := p.cycles()
	plan := p.f.Plan(Name, version, func(model string) *policy.Dispatch {
		d := &policy.Dispatch{Discipline: "adaptive"}
		if cycle, ok := cycles[model]; ok && discipline == "duty-cycle" {
			d.Discipline, d.Parameters = "duty-cycle", map[string]string{"cycle": strconv.FormatInt(int64(cycle), 10) + "us"}
		}
		return d
	})
	// Models with no place in the packing and nothing short of it are divided over the places that they got; the others have the packing's rates.
	pack.Divide(p.f.Index, plan, slices.Collect(maps.Keys(p.short))...)
	for _, m := range s.GetModels() {
		if left := p.short[m.GetName()]; left > 0 {
			plan.Reasons = append(plan.Reasons, policy.Short(m.GetName(), left))
		}
	}
	return plan, nil
}

// models that can be packed: with load, an SLO and a profile on some type of GPU. The others get a place at the end.
func (p *packer) models() []*policy.Model {
	var all []*policy.Model
	for _, m := range p.f.Snapshot().GetModels() {
		if rate(m) <= 0 || m.GetSloUs() <= 0 || p.f.Rule(m.GetName()).Pinned {
			continue
		}
		known := slices.ContainsFunc(p.f.Hosts, func(h *pack.Host) bool { return p.f.UsableProfile(m.GetName(), h.Type) != nil })
		if known {
			all = append(all, m)
		} else {
			p.f.Why(m.GetName(), "no usable profile on any GPU here: it is placed without being packed")
		}
	}
	return all
}

func rate(m *policy.Model) float64 { return math.Max(m.GetRowRate(), m.GetRate()) }

// job of a model on a host at a rate.
func (p *packer) job(model string, h *pack.Host, rows float64) pack.Job {
	m, profile := p.f.Model(model), p.f.UsableProfile(model, h.Type)
	return pack.Job{
		Model: model, Rate: rows, SLO: cmp.Or(p.slos[model], float64(m.GetSloUs())), Limit: max(1, m.GetMaxBatchSize()),
		Latency: func(batch uint32) (float64, bool) { return profile.Upper(batch, 100) },
	}
}

// pack adds a GPU to the packing.
func (p *packer) pack(n *node) {
	p.nodes = append(p.nodes, n)
	p.taken[n.host] = true
}

// free is the next GPU with nothing on it that the model may have; of those of its type one on a node that has fewest of the model's.
func (p *packer) free(model string) (next *pack.Host) {
	on := make(map[string]int)
	for _, n := range p.nodes {
		if slices.ContainsFunc(n.cycle.Jobs, func(j pack.Job) bool { return j.Model == model }) {
			on[n.host.Node]++
		}
	}
	for _, h := range p.f.Hosts {
		if h.OnCPU() || p.taken[h] || next != nil && (h.Type != next.Type || on[h.Node] >= on[next.Node]) {
			continue
		}
		if p.f.UsableProfile(model, h.Type) != nil && p.f.RefuseNew(h, 100, model, 0) == "" {
			next = h
		}
	}
	return next
}

// saturate gives a model whole GPUs as long as its rate keeps one busy, and returns what is left of it.
func (p *packer) saturate(m *policy.Model) float64 {
	left := rate(m)
	for left > 0 {
		h := p.free(m.GetName())
		if h == nil {
			return left
		}
		job := p.job(m.GetName(), h, left)
		batch, most, ok := job.Saturated()
		if !ok || left < most || p.count(m.GetName()) >= p.limit(m.GetName()) {
			return left
		}
		l, _ := job.Latency(batch)
		job.Rate = most
		p.pack(&node{host: h, whole: true, cycle: pack.Cycle{Jobs: []pack.Job{job}, Batches: []uint32{batch}, Length: l, Occupancy: 1}})
		left -= most
	}
	return 0
}

func (p *packer) count(model string) int {
	count := p.f.Count(model)
	for _, n := range p.nodes {
		for _, j := range n.cycle.Jobs {
			if j.Model == model {
				count++
			}
		}
	}
	return count
}

func (p *packer) limit(model string) int {
	if limit := p.f.Rule(model).MaxInstances; limit > 0 {
		return int(limit)
	}
	return math.MaxInt
}

// residues packs what saturates no GPU, by occupancy, the fullest first; each into the round that is fullest with it, else on a GPU of its
// own, else, where there is none, it stays short.
func (p *packer) residues(models []string, rates map[string]float64) {
	occupancy := func(model string) float64 {
		for _, h := range p.f.Hosts {
			if p.f.UsableProfile(model, h.Type) == nil {
				continue
			}
			if _, _, o, ok := p.job(model, h, rates[model]).Residue(); ok {
				return o
			}
		}
		return math.Inf(1)
	}
	slices.SortStableFunc(models, func(a, b string) int {
		return cmp.Or(cmp.Compare(occupancy(b), occupancy(a)), strings.Compare(a, b))
	})
	for _, model := range models {
		if p.count(model) >= p.limit(model) {
			p.short[model] = rates[model]
			continue
		}
		best, merged := p.fullest(model, rates[model])
		if best != nil {
			best.cycle = merged
			continue
		}
		h := p.free(model)
		if h == nil {
			p.short[model] = rates[model]
			continue
		}
		job := p.job(model, h, rates[model])
		if cycle, ok := pack.Merge([]pack.Job{job}, pack.ForOwn); ok {
			p.pack(&node{host: h, cycle: cycle})
			continue
		}
		// Not even alone: what it can carry of it, as a GPU that is always busy.
		if batch, most, ok := job.Saturated(); ok {
			l, _ := job.Latency(batch)
			job.Rate = math.Min(most, rates[model])
			rates[model] -= job.Rate
			p.pack(&node{host: h, whole: true, cycle: pack.Cycle{Jobs: []pack.Job{job}, Batches: []uint32{batch}, Length: l, Occupancy: 1}})
		}
		if rates[model] > 0 {
			p.short[model] = rates[model]
		}
	}
}

// fullest is the node whose round has room for the model and is fullest with it.
func (p *packer) fullest(model string, rows float64) (best *node, round pack.Cycle) {
	for _, n := range p.nodes {
		if n.whole || p.f.UsableProfile(model, n.host.Type) == nil || !p.fits(n, model) {
			continue
		}
		merged, ok := pack.Merge(append(slices.Clip(n.cycle.Jobs), p.job(model, n.host, rows)), pack.ForOwn)
		if ok && (best == nil || merged.Occupancy > round.Occupancy) {
			best, round = n, merged
		}
	}
	return best, round
}

// fits reports whether the model may lie on the node's GPU beside what is there, by memory and by the operator's constraints.
func (p *packer) fits(n *node, model string) bool {
	part := p.f.Open(n.host, 100)
	defer p.f.Close(part) // what is there lies on the floor only once all is packed
	for _, j := range n.cycle.Jobs {
		p.f.Put(part, j.Model, 0, 0)
	}
	return p.f.Refuse(part, model, 0) == ""
}

// put brings the packing onto the floor, and says why.
func (p *packer) put() {
	for _, n := range p.nodes {
		if len(n.cycle.Jobs) == 0 {
			continue
		}
		part := p.f.Open(n.host, 100)
		for i, j := range n.cycle.Jobs {
			batch := uint32(0)
			if p.rounds {
				batch = n.cycle.Batches[i]
			}
			if in := part.Instance(j.Model); in != nil {
				in.Rate += j.Rate // another job's ensemble brought it along
			} else {
				if p.f.Refuse(part, j.Model, batch) != "" {
					p.short[j.Model] += j.Rate
					continue
				}
				p.f.Put(part, j.Model, batch, j.Rate)
			}
			if n.whole {
				p.f.Why(j.Model, "%s: %.4g rows/s keep it busy, in batches of %d", n.host.GPU, j.Rate, n.cycle.Batches[i])
			} else {
				p.f.Why(j.Model, "%s: %.4g rows/s in batches of %d, in a round of %.1f ms of which %.0f%% is used", n.host.GPU, j.Rate, n.cycle.Batches[i], n.cycle.Length/1e3, 100*n.cycle.Occupancy)
			}
		}
	}
}

// cycles are the shortest rounds that models are in, in microseconds.
func (p *packer) cycles() map[string]float64 {
	all := make(map[string]float64)
	for _, n := range p.nodes {
		for _, j := range n.cycle.Jobs {
			if was, ok := all[j.Model]; !ok || n.cycle.Length < was {
				all[j.Model] = math.Max(1, n.cycle.Length)
			}
		}
	}
	return all
}

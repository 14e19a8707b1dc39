// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package symphony

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// Name is what the policy is called.
const Name = "symphony"

const version = "1.0.0"

// Policy is Symphony's partitioning. The zero value is ready; it has no state.
type Policy struct{}

var _ policy.Policy = Policy{}

// New makes the policy.
func New() Policy { return Policy{} }

// run carries one plan.
type run struct {
	s   *policy.Snapshot
	f   *pack.Floor
	set *settings
	// hosts are the GPUs that the plan uses.
	hosts []*pack.Host
	units []unit
	// names of sub-clusters, those in force first.
	names []string
	// cluster of each host that the plan uses, by the host's index.
	cluster map[int]int
}

// Plan implements [policy.Policy]: units of models into sub-clusters (appendix A), GPUs to sub-clusters by what their models keep busy, and
// every model of a sub-cluster on each of its GPUs (section 4.4).
func (Policy) Plan(ctx context.Context, s *policy.Snapshot, _ policy.Host) (*policy.Plan, error) {
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("symphony: %w", err)
	}
	set, err := read(s)
	if err != nil {
		return nil, err
	}
	r := &run{s: s, f: pack.New(s), set: set, cluster: make(map[int]int)}
	r.usable()
	r.current()
	r.read()
	if a, clusters := r.solve(); a != nil {
		r.put(a, clusters)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.f.Rest()
	plan := r.f.Plan(Name, version, func(string) *policy.Dispatch { return &policy.Dispatch{Discipline: set.discipline} })
	pack.Divide(r.f.Index, plan)
	r.subClusters(plan)
	r.rent(plan)
	return plan, nil
}

// usable are the GPUs: those that the advice gives back are left out where GPUs are to be few. A GPU with what the operator pinned is left as
// it is.
func (r *run) usable() {
	release := r.s.GetStatistics().GetAdvice().GetRelease()
	if r.s.GetObjective() != policy.Objective_OBJECTIVE_MIN_COST || r.s.GetStatistics().GetAdvice().GetReleaseGpus() <= 0 {
		release = nil
	}
	var given []*pack.Host
	for _, h := range r.f.Hosts {
		switch {
		case h.OnCPU() || len(h.Parts) > 0:
		case slices.Contains(release, h.GPU):
			given = append(given, h)
		default:
			r.hosts = append(r.hosts, h)
		}
	}
	if len(r.hosts) == 0 && len(given) > 0 {
		// Something has to serve.
		r.hosts, given = given[:1], given[1:]
	}
	// Nothing is put on what is given back.
	back := make(map[*pack.Host]bool, len(given))
	for _, h := range given {
		back[h] = true
	}
	r.f.Hosts = slices.DeleteFunc(r.f.Hosts, func(h *pack.Host) bool { return back[h] })
}

// current names the sub-clusters in force.
func (r *run) current() {
	for _, c := range r.s.GetCurrent().GetSubClusters() {
		if c.GetName() != "" && !slices.Contains(r.names, c.GetName()) {
			r.names = append(r.names, c.GetName())
		}
	}
	slices.Sort(r.names)
}

// read makes units: models that call each other lie together.
func (r *run) read() {
	of := make(map[string]string)
	find := func(name string) string {
		for of[name] != name {
			name = of[name]
		}
		return name
	}
	for _, m := range r.s.GetModels() {
		of[m.GetName()] = m.GetName()
	}
	for _, m := range r.s.GetModels() {
		for _, other := range r.f.Requires(m.GetName()) {
			of[find(other.GetName())] = find(m.GetName())
		}
	}
	groups := make(map[string]*unit)
	for _, m := range r.s.GetModels() {
		name := m.GetName()
		if r.f.Rule(name).Pinned || m.GetOnDemand() && m.GetRate() == 0 {
			continue
		}
		u := groups[find(name)]
		if u == nil {
			u = &unit{was: -1}
			groups[find(name)] = u
		}
		weights, working := r.f.InstanceBytes(nil, policy.ModelInstance(name, 0))
		u.models = append(u.models, name)
		u.rate += m.GetRate()
		u.static += float64(weights)
		u.dynamic = math.Max(u.dynamic, float64(working))
		u.cost += cmp.Or(m.GetChangeCost().GetSeconds(), m.GetLoadSeconds(), r.s.GetChangeCost().GetDefaultLoadSeconds())
		u.gpus += r.busy(m)
		for _, c := range r.s.GetCurrent().GetSubClusters() {
			if slices.Contains(c.GetModels(), name) {
				u.was = slices.Index(r.names, c.GetName())
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		r.units = append(r.units, *groups[name])
	}
}

// busy is how many GPUs the model keeps busy at the batch that saturates one; 0 where no profile says so.
func (r *run) busy(m *policy.Model) float64 {
	for _, h := range r.hosts {
		p := r.f.UsableProfile(m.GetName(), h.Type)
		if p == nil || m.GetSloUs() <= 0 {
			continue
		}
		job := pack.Job{SLO: float64(m.GetSloUs()), Limit: max(1, m.GetMaxBatchSize()), Latency: func(b uint32) (float64, bool) { return p.Upper(b, 100) }}
		if _, most, ok := job.Saturated(); ok {
			return math.Max(m.GetRowRate(), m.GetRate()) / most
		}
	}
	return 0
}

// solve finds an assignment: of the given number of sub-clusters, else of the fewest that the bounds allow. Where there is none within the bound
// on changes it goes without that bound, and then without the unit that takes most memory, which is placed where there is room.
func (r *run) solve() (assignment, int) {
	p := &problem{maxRate: r.set.rate, maxChange: r.set.change, weight: r.set.weight, maxBytes: math.Inf(1)}
	for _, h := range r.hosts {
		if h.Memory > 0 {
			p.maxBytes = math.Min(p.maxBytes, float64(h.Memory))
		}
	}
	if len(r.hosts) == 0 {
		return nil, 0
	}
	if !slices.ContainsFunc(r.units, func(u unit) bool { return u.was >= 0 }) {
		p.maxChange = math.Inf(1)
	}
	for len(r.units) > 0 {
		hopeless := slices.ContainsFunc(r.units, func(u unit) bool { return over(u.static+u.dynamic, p.maxBytes) || over(u.rate, p.maxRate) })
		if !hopeless {
			if a, clusters := r.partition(p); a != nil {
				return a, clusters
			}
		}
		if !hopeless && !math.IsInf(p.maxChange, 1) {
			p.maxChange = math.Inf(1)
			r.f.Why(r.units[0].models[0], "no partition into sub-clusters changes so little as %s allows: it is exceeded", paramChange)
			continue
		}
		largest := slices.IndexFunc(r.units, func(u unit) bool { return over(u.rate, p.maxRate) })
		if largest < 0 {
			largest = 0
			for i, u := range r.units {
				if u.static+u.dynamic > r.units[largest].static+r.units[largest].dynamic {
					largest = i
				}
			}
		}
		r.f.Why(r.units[largest].models[0], "with it the bounds on memory and rate allow no partition of the %d GPUs into sub-clusters: it is placed where there is room", len(r.hosts))
		r.units = slices.Delete(r.units, largest, largest+1)
	}
	return nil, 0
}

func (r *run) partition(p *problem) (assignment, int) {
	p.units = r.units
	from, to := r.fewest(p), min(len(r.hosts), len(r.units))
	if r.set.clusters > 0 {
		from, to = min(r.set.clusters, len(r.hosts)), min(r.set.clusters, len(r.hosts))
	}
	for p.clusters = from; p.clusters <= to; p.clusters++ {
		p.units = slices.Clone(r.units)
		for i := range p.units {
			if p.units[i].was >= p.clusters {
				// Its sub-cluster is no more; to load it anywhere is a change.
				p.units[i].was = -1
			}
		}
		if a := r.run(p); a != nil {
			return a, p.clusters
		}
	}
	return nil, 0
}

// fewest sub-clusters that the sums allow.
func (r *run) fewest(p *problem) int {
	rate, static := 0.0, 0.0
	for _, u := range p.units {
		rate, static = rate+u.rate, static+u.static
	}
	return max(1, int(math.Ceil(rate/p.maxRate-1e-9)), int(math.Ceil(static/p.maxBytes-1e-9)))
}

func (r *run) run(p *problem) assignment {
	first := p.units[0].models[0]
	switch r.set.solver {
	case byGreedy:
		a, ok := p.greedy()
		if !ok {
			return nil
		}
		r.f.Why(first, "%d sub-clusters by the greedy rule: imbalance %.4g, at least %.4g", p.clusters, p.objective(p.sums(a)), p.bound())
		return a
	case byRandom:
		a, ok := p.random(r.s.GetSeed(), r.set.steps)
		if !ok {
			return nil
		}
		r.f.Why(first, "%d sub-clusters, the best of random ones: imbalance %.4g, at least %.4g", p.clusters, p.objective(p.sums(a)), p.bound())
		return a
	}
	best, ok := p.solve(r.set.steps)
	if !ok {
		return nil
	}
	text := "within %.4g of the least"
	if best.objective-best.least <= 1e-9 {
		text = "the least there is (%.4g)"
		r.f.Why(first, "%d sub-clusters with an imbalance of %.4g, "+text, p.clusters, best.objective, best.least)
	} else {
		r.f.Why(first, "%d sub-clusters with an imbalance of %.4g, "+text, p.clusters, best.objective, best.objective-best.least)
	}
	return best.assignment
}

// put gives GPUs to sub-clusters and loads every model of a sub-cluster on each of them.
func (r *run) put(a assignment, clusters int) {
	for i := 0; len(r.names) < clusters; i++ {
		if name := fmt.Sprintf("sub%d", i); !slices.Contains(r.names, name) {
			r.names = append(r.names, name)
		}
	}
	hosts := r.divide(a, clusters)
	for j, all := range hosts {
		for _, h := range all {
			r.cluster[h.Index()] = j
			part := r.f.Open(h, 100)
			for i, u := range r.units {
				if a[i] != j {
					continue
				}
				for _, name := range u.models {
					if part.Holds(name) {
						continue
					}
					if cause := r.f.Refuse(part, name, 0); cause != "" {
						r.f.Why(name, "not on %s of sub-cluster %s: %s", h.GPU, r.names[j], cause)
						continue
					}
					// The dispatcher divides the load as it comes: what is counted on is what the GPUs of the sub-cluster carry together.
					r.f.Put(part, name, 0, 0)
				}
			}
			if len(part.Instances) == 0 {
				r.f.Close(part)
				continue
			}
		}
	}
	for i, u := range r.units {
		r.f.Why(u.models[0], "sub-cluster %s: %.4g requests/s, %.4g GiB, on %d GPUs", r.names[a[i]], u.rate, (u.static+u.dynamic)/(1<<30), len(hosts[a[i]]))
	}
}

// divide gives every sub-cluster one GPU, and each of the others to the one whose models keep its GPUs busiest. A GPU stays in its sub-cluster
// where it can.
func (r *run) divide(a assignment, clusters int) [][]*pack.Host {
	busy, count := make([]float64, clusters), make([]int, clusters)
	for i, u := range r.units {
		// Models whose latency is not known count by their rate, a little.
		busy[a[i]] += u.gpus + 1e-9*(1+u.rate)
	}
	for n := range r.hosts {
		most := n
		if n >= clusters {
			most = 0
			for j := range count {
				if busy[j]*float64(count[most]) > busy[most]*float64(count[j]) {
					most = j
				}
			}
		}
		count[most]++
	}
	hosts := make([][]*pack.Host, clusters)
	var free []*pack.Host
	was := r.was()
	for _, h := range r.hosts {
		if j, known := was[[2]string{h.Node, h.GPU}]; known && j >= 0 && j < clusters && len(hosts[j]) < count[j] {
			hosts[j] = append(hosts[j], h)
		} else {
			free = append(free, h)
		}
	}
	for j := range hosts {
		for len(hosts[j]) < count[j] {
			hosts[j], free = append(hosts[j], free[0]), free[1:]
		}
	}
	return hosts
}

// was is, by node and GPU, the sub-cluster in which the GPU's partition is, for those that are in one.
func (r *run) was() map[[2]string]int {
	of := make(map[string]int)
	for _, c := range r.s.GetCurrent().GetSubClusters() {
		for _, id := range c.GetPartitions() {
			if _, twice := of[id]; !twice {
				of[id] = slices.Index(r.names, c.GetName())
			}
		}
	}
	was := make(map[[2]string]int)
	for _, part := range r.s.GetCurrent().GetPartitions() {
		on := [2]string{part.GetNode(), part.GPU()}
		j, known := of[part.GetId()]
		if _, twice := was[on]; known && !twice {
			was[on] = j
		}
	}
	return was
}

// subClusters are what hangs together in the plan: a partition and the models that it serves are in one. Where the operator's constraints or a
// model without room link two, they are one.
func (r *run) subClusters(plan *policy.Plan) {
	names := make(map[[2]string]string)
	for _, h := range r.f.Hosts {
		if j, ok := r.cluster[h.Index()]; ok {
			names[[2]string{h.Node, h.GPU}] = r.names[j]
		}
	}
	var all []*policy.SubCluster
	of := make(map[string]*policy.SubCluster) // by model
	for _, part := range plan.GetPartitions() {
		joined := &policy.SubCluster{Partitions: []string{part.GetId()}}
		linked := make(map[*policy.SubCluster]bool)
		for _, in := range part.GetInstances() {
			joined.Models = append(joined.Models, in.GetModel())
			if c := of[in.GetModel()]; c != nil {
				linked[c] = true
			}
		}
		if !part.OnCPU() {
			joined.Name = names[[2]string{part.GetNode(), part.GPU()}]
		}
		rest := make([]*policy.SubCluster, 0, len(all)+1)
		for _, c := range all {
			if !linked[c] {
				rest = append(rest, c)
				continue
			}
			joined.Partitions = append(c.Partitions, joined.Partitions...)
			joined.Models = append(c.Models, joined.Models...)
			joined.Name = cmp.Or(c.Name, joined.Name)
		}
		slices.Sort(joined.Models)
		joined.Models = slices.Compact(joined.Models)
		for _, model := range joined.Models {
			of[model] = joined
		}
		all = append(rest, joined)
	}
	taken := make(map[string]bool)
	for i, c := range all {
		for n := i; c.Name == "" || taken[c.Name]; n++ {
			c.Name = fmt.Sprintf("sub%d", n)
		}
		taken[c.Name] = true
	}
	slices.SortFunc(all, func(a, b *policy.SubCluster) int { return strings.Compare(a.GetName(), b.GetName()) })
	plan.SubClusters = all
}

// rent follows the advice (section 3.5) where GPUs are to be few: so many of a type in all as the plan uses, and what is to be added, of the
// cheapest offer.
func (r *run) rent(plan *policy.Plan) {
	if r.s.GetObjective() != policy.Objective_OBJECTIVE_MIN_COST || len(r.s.GetOffers()) == 0 {
		return
	}
	cheapest := slices.MinFunc(r.s.GetOffers(), func(a, b *policy.GPUOffer) int { return cmp.Compare(a.GetCostPerHour(), b.GetCostPerHour()) })
	plan.WantedGpus = make(map[string]uint32)
	for _, o := range r.s.GetOffers() {
		plan.WantedGpus[o.GetType()] = 0
	}
	for _, h := range r.f.Hosts {
		if _, offered := plan.WantedGpus[h.Type]; offered && !h.OnCPU() {
			plan.WantedGpus[h.Type]++
		}
	}
	if advice := r.s.GetStatistics().GetAdvice(); advice.GetAllocateGpus() > 0 {
		plan.WantedGpus[cheapest.GetType()] += uint32(math.Ceil(math.Min(advice.GetAllocateGpus(), 1<<20)))
		for _, m := range r.s.GetModels() {
			plan.Reasons = append(plan.Reasons, &policy.Reason{
				Model: m.GetName(), Text: fmt.Sprintf("%.4g GPUs more by the advice: %s", advice.GetAllocateGpus(), advice.GetReason()),
			})
			break
		}
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package infaas

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// Name is what the policy is called.
const Name = "infaas"

const version = "1.0.0"

// Parameters.
const (
	paramSolver = "solver"
	paramSlack  = "slack"
	paramLambda = "load_unpredictability"
	paramPart   = "inference_part"
	paramShare  = "gpu_share"
	paramCores  = "cpu_cores"
	paramOnGPU  = "scale_down_ticks_gpu"
	paramOnCPU  = "scale_down_ticks_cpu"
)

const exactSteps = 200_000

// Policy is INFaaS' choice of variants. The zero value is ready; what it remembers is in the plan's policy_state.
type Policy struct{}

var _ policy.Policy = Policy{}

// New makes the policy.
func New() Policy { return Policy{} }

// Describe implements [policy.Policy].
func (Policy) Describe(context.Context) (*policy.Description, error) {
	return &policy.Description{
		Name: Name, Version: version, IntervalUs: 1e6,
		Summary:     "Runs the variants of apps that meet their accuracy and latency at the least cost.",
		Needs:       []string{policy.NeedProfiles, policy.NeedVariants},
		Disciplines: []string{"adaptive"},
		Parameters: []*policy.Parameter{
			{Name: paramSolver, Type: policy.TypeString, DefaultValue: "greedy", Values: []string{"greedy", "exact"},
				Documentation: "greedy is section 4.2.2: replicate, or switch to one other variant; exact solves the integer program of section 4.2.1."},
			{Name: paramSlack, Type: policy.TypeFloat, DefaultValue: "0.05", Documentation: "Headroom over the load, as a fraction of it."},
			{Name: paramLambda, Type: policy.TypeFloat, DefaultValue: "0.01",
				Documentation: "What a second of loading adds to the cost of a new instance, as a fraction of it (lambda of section 4.2.1)."},
			{Name: paramPart, Type: policy.TypeFloat, DefaultValue: "0.5",
				Documentation: "Part of the promised latency that a batch may run; the rest is for waiting. 1 is the paper's constraint (2), which leaves no time to wait."},
			{Name: paramShare, Type: policy.TypeInt, DefaultValue: "100", Documentation: "Percent of a GPU that an instance takes."},
			{Name: paramCores, Type: policy.TypeInt, DefaultValue: "4", Documentation: "Cores that an instance on CPUs takes."},
			{Name: paramOnGPU, Type: policy.TypeInt, DefaultValue: "20", Documentation: "Ticks in a row that an app has to need less before instances on GPUs go."},
			{Name: paramOnCPU, Type: policy.TypeInt, DefaultValue: "10", Documentation: "The same for instances on CPUs."},
		},
	}, nil
}

type settings struct {
	exact         bool
	slack, lambda float64
	part          float64
	share, cores  uint32
	onGPU, onCPU  int
}

func read(s *policy.Snapshot) (*settings, error) {
	p, err := pack.Read(Policy{}, s)
	if err != nil {
		return nil, err
	}
	return &settings{
		exact:  p.Text(paramSolver) == "exact",
		slack:  p.Float(paramSlack, pack.Between(0., 10), "from 0 to 10"),
		lambda: p.Float(paramLambda, pack.Between(0, 1e6), "0 or more"),
		part:   p.Float(paramPart, func(f float64) bool { return f > 0 && f <= 1 }, "above 0, at most 1"),
		share:  uint32(p.Int(paramShare, pack.Between(1, 100), "from 1 to 100")), //nolint:gosec // small
		cores:  uint32(p.Int(paramCores, pack.Between(1, 1<<20), "1 or more")),   //nolint:gosec // small
		onGPU:  p.Int(paramOnGPU, pack.AtLeast(0), "0 or more"),
		onCPU:  p.Int(paramOnCPU, pack.AtLeast(0), "0 or more"),
	}, p.Err()
}

// app is a name with what can serve it. A model that is in no app is one of its own.
type app struct {
	name       string
	candidates []*candidate
	wishes     []*policy.Wish
	// own: it is a model that clients ask for by its own name.
	own bool
}

// run carries one plan.
type run struct {
	s    *policy.Snapshot
	f    *pack.Floor
	set  *settings
	apps []*app
	// states of instances now, by partition and model.
	states map[string]map[string]string
	// planned rows per second by app and model.
	planned map[string]map[string]float64
}

// Plan implements [policy.Policy]: for every app, and for every wish of it, the strictest first, the counts of variants that carry the load at
// the least cost; what is less than runs now waits its ticks; then each instance on a host, where it was if it was well there.
func (Policy) Plan(ctx context.Context, s *policy.Snapshot, _ policy.Host) (*policy.Plan, error) {
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("infaas: %w", err)
	}
	set, err := read(s)
	if err != nil {
		return nil, err
	}
	r := &run{s: s, f: pack.New(s), set: set, planned: make(map[string]map[string]float64)}
	r.read()
	last := readState(s)
	r.states = r.observe(last)
	r.count()
	next := state{Instances: r.states, Ticks: make(map[string]int)}
	for _, a := range r.apps {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		target, loads := r.target(a)
		target, next.Ticks[a.name] = r.hold(a, target, last.Ticks[a.name])
		r.put(a, target, loads)
		if next.Ticks[a.name] == 0 {
			delete(next.Ticks, a.name)
		}
	}
	r.f.Rest(r.inactive()...)
	plan := r.f.Plan(Name, version, func(string) *policy.Dispatch { return &policy.Dispatch{Discipline: "adaptive"} })
	var variants []string // what each is to carry is planned, and may be nothing
	for _, a := range s.GetApps() {
		for _, v := range a.GetVariants() {
			variants = append(variants, v.GetModel())
		}
	}
	pack.Divide(r.f.Index, plan, variants...)
	r.routes(plan)
	plan.PolicyState = next.bytes()
	return plan, nil
}

// read lists the apps and what can serve them.
func (r *run) read() {
	for _, declared := range r.s.GetApps() {
		a := &app{name: declared.GetName()}
		for _, v := range declared.GetVariants() {
			a.candidates = append(a.candidates, r.candidates(v)...)
		}
		rest := declared.GetRate()
		for _, w := range declared.GetWishes() {
			rest -= w.GetRate()
			a.wishes = append(a.wishes, w)
		}
		// What wished for nothing of its own. An app always has a variant that runs.
		if rest > 0 || len(a.wishes) == 0 {
			a.wishes = append(a.wishes, &policy.Wish{MinimumAccuracy: declared.GetMinimumAccuracy(), SloUs: declared.GetSloUs(), Rate: math.Max(0, rest)})
		}
		slices.SortStableFunc(a.wishes, func(v, w *policy.Wish) int {
			return cmp.Or(cmp.Compare(w.GetMinimumAccuracy(), v.GetMinimumAccuracy()), cmp.Compare(limit(v), limit(w)))
		})
		r.apps = append(r.apps, a)
	}
	for _, m := range r.s.GetModels() {
		// What came by the names of apps is theirs.
		rows := math.Max(m.GetRowRate(), m.GetRate())
		if own := m.OwnRate(); own > 0 {
			rows *= own / m.GetRate()
			a := &app{name: m.GetName(), own: true, wishes: []*policy.Wish{{Rate: rows}}}
			if a.candidates = r.candidates(&policy.Variant{Model: m.GetName()}); len(a.candidates) > 0 {
				r.apps = append(r.apps, a)
			}
		}
	}
}

// limit is the latency of a wish; one that wishes none takes any.
func limit(w *policy.Wish) int64 {
	if w.GetSloUs() <= 0 {
		return math.MaxInt64
	}
	return w.GetSloUs()
}

// candidates of a variant: one for every type of place where it may run and that its profile knows.
func (r *run) candidates(v *policy.Variant) (all []*candidate) {
	m := r.f.Model(v.GetModel())
	if m == nil || r.f.Rule(v.GetModel()).Pinned {
		return nil
	}
	for _, h := range r.f.Hosts {
		p := r.f.UsableProfile(v.GetModel(), h.Type)
		if p == nil || slices.ContainsFunc(all, func(c *candidate) bool { return c.gpuType == h.Type }) {
			continue
		}
		if len(v.GetPlaces()) > 0 && !slices.Contains(v.GetPlaces(), h.Type) || len(v.GetPlaces()) == 0 && h.OnCPU() {
			continue
		}
		c := &candidate{
			model: v.GetModel(), gpuType: h.Type, share: r.share(h), accuracy: v.GetAccuracy(), cost: v.GetCostPerHour(),
			latency: m.GetSloUs(), load: m.GetLoadSeconds(),
		}
		if c.load <= 0 {
			c.load = r.s.GetChangeCost().GetDefaultLoadSeconds()
		}
		if c.cost <= 0 {
			c.cost = cmp.Or(h.CostPerHour, 1) * float64(c.share) / 100
		}
		if c.latency <= 0 {
			l, ok := p.Upper(max(1, m.GetMaxBatchSize()), c.share)
			if !ok {
				continue
			}
			c.latency = int64(math.Ceil(l / r.set.part))
		}
		c.batch = p.MaxBatch(c.share, max(1, m.GetMaxBatchSize()), r.set.part*float64(c.latency))
		if l, ok := p.Upper(c.batch, c.share); ok && l > 0 {
			c.rate = 1e6 * float64(c.batch) / l
			all = append(all, c)
		}
	}
	return all
}

func (r *run) share(h *pack.Host) uint32 {
	if !h.OnCPU() {
		return r.set.share
	}
	cores := max(1, r.f.CPU(h.Node).GetCores())
	return uint32(min(100, math.Ceil(100*float64(r.set.cores)/float64(cores))))
}

// count what runs. Interfered instances do not count: they are to be replaced.
func (r *run) count() {
	for _, part := range r.s.GetCurrent().GetPartitions() {
		for _, in := range part.GetInstances() {
			if c := r.running(part.GetId(), in.GetModel()); c != nil && r.states[part.GetId()][in.GetModel()] != interfered {
				c.running++
			}
		}
	}
}

// target is how many instances of each candidate the app's wishes need, and the rows per second that each candidate is to carry.
func (r *run) target(a *app) (counts, []float64) {
	target, loads, spare := make(counts, len(a.candidates)), make([]float64, len(a.candidates)), make([]float64, len(a.candidates))
	for _, w := range a.wishes {
		p := &problem{load: w.GetRate() * (1 + r.set.slack), unpredictability: r.set.lambda, slots: r.slots(), steps: exactSteps}
		if r.s.GetSteps() > 0 {
			p.steps = r.s.GetSteps()
		}
		var which []int
		for i, c := range a.candidates {
			if c.accuracy >= w.GetMinimumAccuracy()-1e-12 && c.latency <= limit(w) {
				// What stricter wishes left of their instances is there already.
				took := math.Min(spare[i], p.load)
				spare[i], p.load, loads[i] = spare[i]-took, p.load-took, loads[i]+took
				which = append(which, i)
				p.candidates = append(p.candidates, c)
				p.running = append(p.running, max(0, c.running-target[i]))
			}
		}
		if len(which) == 0 {
			r.impossible(a, w)
			continue
		}
		if p.load <= 0 && slices.ContainsFunc(which, func(i int) bool { return target[i] > 0 }) {
			continue
		}
		p.fits = func(n counts) bool {
			all := slices.Clone(target)
			for j, i := range which {
				all[i] += n[j]
			}
			return r.place(r.f.Clone(), a, all, nil) == nil
		}
		n, ok := r.solve(p)
		if !ok {
			n = p.whatever()
			for _, c := range p.candidates {
				r.f.Why(c.model, "the places that are left do not carry the %.4g rows/s that %s is asked for", w.GetRate(), a.name)
			}
		}
		left := p.load
		for j, i := range which {
			target[i] += n[j]
			room := a.candidates[i].rate * float64(n[j])
			took := math.Min(room, left)
			left, loads[i], spare[i] = left-took, loads[i]+took, spare[i]+room-took
		}
	}
	return target, loads
}

func (r *run) solve(p *problem) (counts, bool) {
	if r.set.exact {
		return p.exact()
	}
	return p.greedy()
}

// impossible says what there is for a wish that no variant meets: the closest (suggestVariant of algorithm 1).
func (r *run) impossible(a *app, w *policy.Wish) {
	var best *candidate
	for _, c := range a.candidates {
		if best == nil || c.accuracy > best.accuracy || c.accuracy == best.accuracy && c.latency < best.latency {
			best = c
		}
	}
	if best != nil {
		r.f.Why(best.model, "no variant of %s has an accuracy of %.4g within %.4g ms; the closest in accuracy is %s with %.4g within %.4g ms",
			a.name, w.GetMinimumAccuracy(), float64(w.GetSloUs())/1e3, best.model, best.accuracy, float64(best.latency)/1e3)
	}
}

// slots that are left, by type of place.
func (r *run) slots() map[string]int {
	all := make(map[string]int)
	for _, h := range r.f.Hosts {
		all[h.Type] += int(h.FreeShare() / r.share(h))
	}
	return all
}

// hold keeps what runs for as many ticks as the paper's code waits before it scales down; ticks count those in which less would do.
func (r *run) hold(a *app, target counts, ticks int) (counts, int) {
	kept := slices.Clone(target)
	less := false
	for i, c := range a.candidates {
		wait := r.set.onGPU
		if r.isCPU(c.gpuType) {
			wait = r.set.onCPU
		}
		if c.running > target[i] {
			less = true
			if ticks < wait {
				kept[i] = c.running
			}
		}
	}
	if !less {
		return target, 0
	}
	if r.place(r.f.Clone(), a, kept, nil) != nil {
		// There is no place for both: what is needed comes first.
		return target, ticks + 1
	}
	return kept, ticks + 1
}

func (r *run) isCPU(hostType string) bool {
	return slices.ContainsFunc(r.f.Hosts, func(h *pack.Host) bool { return h.OnCPU() && h.Type == hostType })
}

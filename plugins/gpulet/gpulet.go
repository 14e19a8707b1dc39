// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package gpulet

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// Name is what the policy is called.
const Name = "gpulet"

const version = "1.0.0"

// Policy is gpulet's placement. The zero value is ready; it has no state.
type Policy struct{}

var _ policy.Policy = Policy{}

// New makes the policy.
func New() Policy { return Policy{} }

// Plan implements [policy.Policy]: algorithm 1, within algorithm 2 where GPUs are to be few.
func (Policy) Plan(ctx context.Context, s *policy.Snapshot, _ policy.Host) (*policy.Plan, error) {
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("gpulet: %w", err)
	}
	set, err := read(s)
	if err != nil {
		return nil, err
	}
	var divided []*policy.Reason
	if s, divided, err = set.divide(s); err != nil {
		return nil, err
	}
	if set.interference && set.most > 1 && packable(s) {
		known := &policy.Description{Needs: []string{policy.NeedInterference, policy.NeedUtilizations}}
		for _, need := range known.Unmet(s) {
			return nil, fmt.Errorf("gpulet: the snapshot lacks %s; or set the parameter %s to off", policy.Remedy(need), paramInterference)
		}
	}
	r := schedule(ctx, s, set)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.put()
	r.f.Rest()
	cycles := r.cycles()
	plan := r.f.Plan(Name, version, func(model string) *policy.Dispatch {
		d := &policy.Dispatch{Discipline: "adaptive"}
		if cycle, ok := cycles[model]; ok && set.rounds {
			d.Discipline, d.Parameters = "duty-cycle", map[string]string{"cycle": strconv.FormatInt(int64(cycle), 10) + "us"}
		}
		return d
	})
	plan.Reasons = append(divided, plan.Reasons...)
	// Models that no share was looked for are divided over the places that they got; the others have the rates of their shares.
	var planned []string
	for _, m := range r.models() {
		planned = append(planned, m.GetName())
		promised := 0.0
		for _, part := range plan.GetPartitions() {
			for _, in := range part.GetInstances() {
				if in.GetModel() == m.GetName() {
					promised += in.GetRate()
				}
			}
		}
		if left := rate(m) - promised; left > .001*rate(m) {
			plan.Reasons = append(plan.Reasons, policy.Short(m.GetName(), left))
		}
	}
	pack.Divide(r.f.Index, plan, planned...)
	return plan, nil
}

// packable reports that there is a model to find a share for.
func packable(s *policy.Snapshot) bool {
	r := &run{f: pack.New(s)}
	for _, h := range gpus(r.f) {
		r.gpus = append(r.gpus, &gpu{host: h})
	}
	return len(r.models()) > 0
}

// schedule is algorithm 2: elastic partitioning on as many GPUs as last time, on one more until it succeeds or there are no more, and, so that
// the number also falls again, on one less while it succeeds. Where GPUs need not be few it is algorithm 1 on all of them.
func schedule(ctx context.Context, s *policy.Snapshot, set *settings) *run {
	floor := pack.New(s)
	all := gpus(floor)
	if !set.scaling || len(all) == 0 {
		return partition(floor, set, len(all))
	}
	used := make(map[[2]string]bool)
	for _, part := range s.GetCurrent().GetPartitions() {
		used[[2]string{part.GetNode(), part.GPU()}] = true
	}
	n := 0
	for _, h := range all {
		if used[[2]string{h.Node, h.GPU}] {
			n++
		}
	}
	n = min(max(1, n), len(all))
	result := partition(floor.Clone(), set, n)
	for result.short() && n < len(all) && ctx.Err() == nil {
		n++
		result = partition(floor.Clone(), set, n)
	}
	for !result.short() && n > 1 && ctx.Err() == nil {
		fewer := partition(floor.Clone(), set, n-1)
		if fewer.short() {
			break
		}
		n, result = n-1, fewer
	}
	return result
}

func gpus(f *pack.Floor) []*pack.Host {
	return slices.DeleteFunc(slices.Clone(f.Hosts), func(h *pack.Host) bool { return h.OnCPU() })
}

// glet is a partition that models share in time.
type glet struct {
	gpu  *gpu
	size uint32
	jobs []pack.Job
	// cycle is the round; saturated: one model keeps it busy.
	cycle     pack.Cycle
	saturated bool
}

// gpu is a GPU that is being cut.
type gpu struct {
	host  *pack.Host
	glets []*glet
	// closed: it holds what the operator pinned, and is not cut.
	closed bool
}

func (g *gpu) free() uint32 {
	free := uint32(100)
	for _, l := range g.glets {
		free -= l.size
	}
	return free
}

// run is algorithm 1 on some GPUs.
type run struct {
	f    *pack.Floor
	set  *settings
	gpus []*gpu
	// pieces are the GPUs that may be cut, by the percentage that is left of each, in order.
	pieces [101][]int
	// left are the rows per second (inflated) that found no place, by model.
	left map[string]float64
	// placed counts the glets that serve each model.
	placed map[string]int
	// loads that profiles say: they are asked for again and again.
	loads map[loadKey]measured
}

// loadKey is a batch of a model on a whole GPU of a type.
type loadKey struct {
	model, gpuType string
	batch          uint32
}

// measured is a load, where it is known.
type measured struct {
	policy.Load
	known bool
}

// short reports that some model's load found no place.
func (r *run) short() bool { return len(r.left) > 0 }

// partition is elastic partitioning (algorithm 1) on the first n GPUs.
func partition(f *pack.Floor, set *settings, n int) *run {
	r := &run{f: f, set: set, left: make(map[string]float64), placed: make(map[string]int), loads: make(map[loadKey]measured)}
	for i, h := range gpus(f) {
		r.gpus = append(r.gpus, &gpu{host: h, closed: i >= n || len(h.Parts) > 0})
		if !r.gpus[i].closed {
			r.pieces[100] = append(r.pieces[100], i)
		}
	}
	models := r.models()
	// Line 2. Models with little room for sharing in time choose first.
	slices.SortStableFunc(models, func(a, b *policy.Model) int {
		return cmp.Or(cmp.Compare(rate(a)*float64(a.GetSloUs()), rate(b)*float64(b.GetSloUs())), strings.Compare(a.GetName(), b.GetName()))
	})
	for _, m := range models {
		left := r.inflated(rate(m))
		for left > 0 {
			served := r.step(m.GetName(), left)
			if served <= 0 {
				break
			}
			left -= served
			if r.placed[m.GetName()] > 0 && left <= r.set.residue {
				// A place for so little costs more than it brings.
				left = 0
			}
		}
		if left > 1e-9 {
			r.left[m.GetName()] = left
		}
	}
	r.mergeResidues()
	return r
}

// models with load, an SLO and a usable profile on some GPU. The others get a place at the end.
func (r *run) models() []*policy.Model {
	var all []*policy.Model
	for _, m := range r.f.Snapshot().GetModels() {
		if rate(m) <= 0 || m.GetSloUs() <= 0 || r.f.Rule(m.GetName()).Pinned {
			continue
		}
		if slices.ContainsFunc(r.gpus, func(g *gpu) bool { return r.f.UsableProfile(m.GetName(), g.host.Type) != nil }) {
			all = append(all, m)
		}
	}
	return all
}

func rate(m *policy.Model) float64 { return math.Max(m.GetRowRate(), m.GetRate()) }

// inflated is the 99th percentile of Poisson arrivals in a second, as gpulet's scheduler has it: 100 becomes 125, 200 becomes 235, and above
// 550 it is a tenth more.
func (r *run) inflated(rate float64) float64 {
	if !r.set.inflate || rate <= 0 {
		return rate
	}
	if rate > 550 {
		return 1.1 * rate
	}
	term := math.Exp(-rate)
	sum, k := term, 0
	for sum < .99 {
		k++
		term *= rate / float64(k)
		sum += term
	}
	return float64(k + 1)
}

// step is lines 5 to 9: an ideal size for the rate that is left, and a place of that size. It returns the rows per second that the place
// serves; 0 where there is none.
func (r *run) step(model string, left float64) float64 {
	if limit := r.f.Rule(model).MaxInstances; limit > 0 && r.placed[model] >= int(limit) {
		return 0
	}
	for _, gpuType := range r.types(model) {
		ideal := r.ideal(model, gpuType, left)
		if served := r.findBestFit(model, gpuType, ideal, left); served > 0 {
			return served
		}
	}
	if served := r.share(model, left); served > 0 {
		return served
	}
	// Readjust: nothing of the ideal size is left. The largest piece that can serve some of it takes what it can.
	for _, gpuType := range r.types(model) {
		for i := len(r.set.sizes) - 1; i >= 0; i-- {
			if served := r.findBestFit(model, gpuType, r.set.sizes[i], left); served > 0 {
				return served
			}
		}
	}
	return 0
}

// types of GPU that the model has a profile for, in GPU order.
func (r *run) types(model string) []string {
	var all []string
	for _, g := range r.gpus {
		if t := g.host.Type; !g.closed && !slices.Contains(all, t) && r.f.UsableProfile(model, t) != nil {
			all = append(all, t)
		}
	}
	return all
}

// ideal is line 8: the smaller of the knee and of the least size that carries the rate.
func (r *run) ideal(model, gpuType string, left float64) uint32 {
	required := uint32(101)
	for _, size := range r.set.sizes {
		if r.serves(r.job(model, gpuType, size, left, 1)) >= left {
			required = size
			break
		}
	}
	if r.set.partitioning == bestFit {
		return min(required, 100)
	}
	return min(r.knee(model, gpuType), required)
}

// knee is the most cost-effective size: among pairs of neighbours from 20% to 80% whose larger serves at least a twentieth more, the larger of
// the pair that gains most rate per percent; the smallest size that serves anything where no pair does.
func (r *run) knee(model, gpuType string) uint32 {
	rateAt := func(size uint32) float64 {
		_, served, _ := r.job(model, gpuType, size, 0, 1).Saturated()
		return served
	}
	best, gain, smallest := uint32(0), 0.0, uint32(0)
	for i, size := range r.set.sizes {
		at := rateAt(size)
		if at > 0 && smallest == 0 {
			smallest = size
		}
		if i == 0 || size > 80 || r.set.sizes[i-1] < 20 {
			continue
		}
		below := rateAt(r.set.sizes[i-1])
		per := (at - below) / float64(size-r.set.sizes[i-1])
		if at >= 1.05*below && at > 0 && per > gain {
			best, gain = size, per
		}
	}
	if best == 0 {
		best = smallest
	}
	if best == 0 {
		best = 100
	}
	return best
}

// job of a model on a size of a type of GPU, slowed by what runs beside it.
func (r *run) job(model, gpuType string, size uint32, rows, slowdown float64) pack.Job {
	m, profile := r.f.Model(model), r.f.UsableProfile(model, gpuType)
	return pack.Job{
		Model: model, Rate: rows, SLO: float64(m.GetSloUs()), Limit: max(1, m.GetMaxBatchSize()),
		Latency: func(batch uint32) (float64, bool) {
			l, ok := profile.Latency(batch, size)
			return r.set.margin * l * slowdown, ok
		},
	}
}

// serves is how much of its rate a job's place carries: all of it as a residue, else what it carries when it is always busy.
func (r *run) serves(j pack.Job) float64 {
	if _, _, _, ok := j.Residue(); ok {
		return j.Rate
	}
	_, most, ok := j.Saturated()
	if !ok {
		return 0
	}
	return math.Min(most, j.Rate)
}

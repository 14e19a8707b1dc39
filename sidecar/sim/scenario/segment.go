// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/histogram"
	"github.com/conch-serving/conch/sidecar/sim/segment"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// segmented is the name of Abacus's discipline, which has a simulation of its own: it schedules operators of one GPU's models, not batches.
const segmented = "segment"

// mostMargin bounds what is added to a prediction, as a multiple of it: times have a largest value.
const mostMargin = 100

// controller is Abacus's with the scenario's parameters.
func (d Dispatch) controller() (segment.Controller, error) {
	c := segment.Paper()
	for _, name := range slices.Sorted(maps.Keys(d.Parameters)) {
		value := d.Parameters[name]
		var err error
		switch name {
		case "ways":
			c.Ways, err = strconv.Atoi(value)
		case "enough":
			c.Enough, err = time.ParseDuration(value)
		case "deciding":
			c.Deciding, err = time.ParseDuration(value)
		case "margin":
			c.Margin, err = strconv.ParseFloat(value, 64)
		case "whole":
			c.Whole, err = strconv.ParseBool(value)
		default:
			err = fmt.Errorf("discipline %q has no parameter %q; it has ways, enough, deciding, margin, whole", segmented, name)
		}
		if err != nil {
			return c, &fault{"parameters", fmt.Errorf("parameter %s of %s: %w", name, segmented, err)}
		}
	}
	if c.Ways < 1 || c.Enough < 0 || c.Deciding < 0 || !(c.Margin >= 0 && c.Margin <= mostMargin) {
		return c, &fault{"parameters", fmt.Errorf("discipline %q: ways is at least 1; enough and deciding are not below 0; margin is from 0 to %d", segmented, mostMargin)}
	}
	return c, nil
}

// checkSegment says why Abacus's model does not apply to a scenario that asks for it: it knows one GPU as a whole, models of which operators, their number and
// what they take of the GPU are known, queries with deadlines, and nothing else.
func (s *Scenario) checkSegment() error {
	if s.Dispatch.Discipline != segmented {
		return nil
	}
	no := func(path, what, why string) error {
		return at(path, "discipline %q cannot be simulated with %s: %s", segmented, what, why)
	}
	switch {
	case s.Snapshot != nil:
		return no("snapshot", "a snapshot", "it says nothing of models' operators; list gpus and models")
	case s.Policy != nil:
		return no("policy", "a policy", "Abacus has its models on a GPU from the start; name where they are (plan)")
	case s.Dispatch.DropPolicy != "":
		return no("dispatch.dropPolicy", "a drop policy", "Abacus drops what cannot make its deadline even alone")
	case len(s.Failures) > 0:
		return no("failures", "failures", "a group of operators is not run again")
	case s.Breakdowns != nil:
		return no("breakdowns", "breakdowns", "a group of operators is not run again")
	case len(s.Interference) > 0:
		return no("interference", "interference between partitions", "models overlap on the whole GPU, by the creq of their profiles")
	case s.LearnDelays || s.Delays != (Delays{}):
		return no("delays", "delays", "Abacus decides in the process that runs the operators")
	case s.Jitter > .3:
		return no("jitter", fmt.Sprintf("a jitter of %g", s.Jitter), "errors of predictions above .3 leave nothing of a prediction")
	}
	if _, err := s.Dispatch.controller(); err != nil {
		return under("dispatch", err)
	}
	for i, g := range s.GPUs {
		if len(g.Shares) > 1 || len(g.Shares) == 1 && g.Shares[0] != 100 {
			return no(fmt.Sprintf("gpus[%d].shares", i), "shares of GPUs", "operators of several models run at once on all of one")
		}
	}
	for i, m := range s.Models {
		path := fmt.Sprintf("models[%d]", i)
		switch {
		case m.Dispatch != nil:
			return no(path+".dispatch", "a dispatch of "+m.Name, "it decides for all models of a GPU together")
		case m.Operators == 0:
			return at(path, "discipline %q needs the operators of model %s: into how many steps of about equal length its graph can be cut (operators)", segmented, m.Name)
		}
	}
	return nil
}

// runSegment simulates a world under Abacus, GPU by GPU.
func (s *Scenario) runSegment(ctx context.Context, w *World) (*sim.Result, error) {
	c, err := s.Dispatch.controller()
	if err != nil {
		return nil, err
	}
	queries, err := arrivalsOf(ctx, w)
	if err != nil {
		return nil, err
	}
	x := policy.NewIndex(w.Snapshot)
	r := newSegmentResult(w)
	placed := make(map[string]bool)
	for i, part := range w.Plan.GetPartitions() {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if part.GetThreadPercentage() != 100 {
			return nil, fmt.Errorf("discipline %q cannot be simulated in partition %s of %d%%: operators of several models run at once on a whole GPU", segmented, part.GetId(), part.GetThreadPercentage())
		}
		g, err := s.onGPU(x, part)
		if err != nil {
			return nil, err
		}
		for name := range g.index {
			if placed[name] {
				return nil, fmt.Errorf("discipline %q cannot be simulated with %s on several GPUs: Abacus decides for one GPU; name where models are (plan.partitions), each in one place", segmented, name)
			}
			placed[name] = true
		}
		var own []segment.Query
		for _, q := range queries {
			if k, here := g.index[w.Snapshot.GetModels()[q.Model].GetName()]; here {
				q.Model = k
				own = append(own, q)
			}
		}
		g.world.Error = s.Jitter
		g.world.Ran = r.ran(i, g, own)
		run, err := g.world.Run(ctx, own, c, w.Seed+uint64(i)) //nolint:gosec // few
		if err != nil {
			return nil, err
		}
		r.add(part, g, run)
	}
	for _, q := range queries {
		if m := w.Snapshot.GetModels()[q.Model].GetName(); !placed[m] {
			r.count(q.Model, q.Arrival, func(t *sim.Totals) *uint64 { return &t.Refused })
		}
	}
	return r.finish(), nil
}

// arrivalsOf are the queries of a world by the index of the snapshot's models, in the order of arrival. A query is a request: Abacus forms no batches.
func arrivalsOf(ctx context.Context, w *World) ([]segment.Query, error) {
	var all []segment.Query
	for _, stream := range w.Streams {
		var a workload.Arrival
		for stream.Next(&a) && a.At < w.Duration {
			limit := time.Duration(w.Snapshot.GetModels()[a.Model].GetSloUs()) * time.Microsecond
			if a.Deadline > 0 && (limit == 0 || a.Deadline < limit) {
				limit = a.Deadline
			}
			if limit <= 0 {
				return nil, fmt.Errorf("discipline %q needs the slo of model %s: it drops what cannot make its deadline, and decides by headroom", segmented, w.Snapshot.GetModels()[a.Model].GetName())
			}
			if len(all)%1024 == 0 && ctx.Err() != nil {
				return nil, ctx.Err()
			}
			all = append(all, segment.Query{Model: int(a.Model), Batch: int(max(1, a.Rows)), Arrival: a.At, Deadline: a.At + limit})
		}
		if err := workload.Err(stream); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(all, func(a, b segment.Query) int { return cmp.Compare(a.Arrival, b.Arrival) })
	return all, nil
}

// segmentGPU is one GPU and the models on it.
type segmentGPU struct {
	world segment.World
	index map[string]int // of its models, by name
}

func (s *Scenario) onGPU(x *policy.Index, part *policy.Partition) (*segmentGPU, error) {
	operators := make(map[string]int)
	for _, m := range s.Models {
		for _, name := range m.names() {
			operators[name] = m.Operators
		}
	}
	g := &segmentGPU{index: make(map[string]int)}
	on := x.TypeOf(part)
	var o profiled
	for _, in := range part.GetInstances() {
		name := in.GetModel()
		p := x.UsableProfile(name, on)
		if p == nil {
			return nil, fmt.Errorf("discipline %q needs a profile of %s on %s", segmented, name, on)
		}
		if creq, known := p.Creq(1, 100); !known || creq <= 0 {
			return nil, fmt.Errorf("discipline %q needs the creq of model %s on %s: the part of the GPU that its operators keep busy says what others can overlap with them", segmented, name, on)
		}
		g.index[name] = len(o)
		g.world.Models = append(g.world.Models, segment.Model{Name: name, Operators: operators[name]})
		o = append(o, operated{p, operators[name]})
	}
	g.world.Predictor = o
	return g, nil
}

// profiled predicts groups from profiles: operators of a model take equal parts of l(b) and keep its creq of the GPU busy; a group takes as long as its
// longest slice would alone, or as the GPU has work for, whichever is longer, as in [segment.Occupancy].
type profiled []operated

type operated struct {
	profile   *policy.Profile
	operators int
}

// Latency implements segment.Predictor.
func (o profiled) Latency(group []segment.Slice) time.Duration {
	longest, work := 0.0, 0.0
	for _, slice := range group {
		m := o[slice.Model]
		us, _ := m.profile.Latency(uint32(slice.Batch), 100) //nolint:gosec // checked when it was read
		creq, _ := m.profile.Creq(uint32(slice.Batch), 100)  //nolint:gosec // as above
		alone := us * float64(slice.End-slice.Start) / float64(m.operators)
		longest = max(longest, alone)
		work += alone * creq
	}
	return time.Duration(max(longest, work) * 1e3)
}

// segmentResult collects what became of queries as the engine's result has it.
type segmentResult struct {
	w         *World
	r         *sim.Result
	latencies []histogram.Histogram
	all       histogram.Histogram
	bins      []sim.Interval
	end       time.Duration
}

func newSegmentResult(w *World) *segmentResult {
	s := &segmentResult{w: w, r: &sim.Result{Version: 1, Seed: w.Seed, Seconds: (w.Duration - w.Warmup).Seconds(), WarmupSeconds: w.Warmup.Seconds()}, end: w.Duration}
	for _, m := range w.Snapshot.GetModels() {
		s.r.Models = append(s.r.Models, sim.ModelResult{Name: m.GetName(), SLOUs: m.GetSloUs(), Batches: make([]uint64, max(1, m.GetMaxBatchSize())+1)})
	}
	s.latencies = make([]histogram.Histogram, len(s.r.Models))
	s.bins = make([]sim.Interval, cmp.Or(w.Bins, 60))
	for i := range s.bins {
		s.bins[i].FromSeconds = w.Duration.Seconds() * float64(i) / float64(len(s.bins))
	}
	return s
}

// count counts a query of a model by its outcome. Those of the warm-up are in the history alone.
func (s *segmentResult) count(model int, at time.Duration, outcome func(*sim.Totals) *uint64) {
	var of sim.Totals
	*outcome(&of)++
	bin := &s.bins[min(len(s.bins)-1, int(float64(at)/float64(s.w.Duration)*float64(len(s.bins))))]
	bin.Arrivals++
	bin.Good += of.Good
	bin.Bad += 1 - of.Good
	if at < s.w.Warmup {
		return
	}
	for _, t := range []*sim.Totals{&s.r.Models[model].Totals, &s.r.Total} {
		t.Arrivals++
		*outcome(t)++
	}
}

// ran notes the groups of a GPU that start within the timeline, one batch for each query: they run at the same time. Late is one that ends, with all of
// its operators, after its deadline. There is nothing to call where no timeline is asked for.
func (s *segmentResult) ran(partition int, g *segmentGPU, queries []segment.Query) func(segment.Decision, time.Duration, time.Duration) {
	t := s.w.Timeline
	if t.Max == 0 {
		return nil
	}
	index := s.indexOf(g)
	return func(d segment.Decision, start, end time.Duration) {
		if start < t.From || t.To != 0 && start >= t.To || len(s.r.Timeline) > (partition+1)*t.Max {
			return // each GPU has at most its own first ones
		}
		for i, slice := range d.Group {
			s.r.Timeline = append(s.r.Timeline, sim.BatchRecord{
				Partition: partition, Model: index[slice.Model], Rows: slice.Batch, Requests: 1, Start: float64(start) / 1e3, End: float64(end) / 1e3,
				Late: slice.End == g.world.Models[slice.Model].Operators && end > queries[d.Queries[i]].Deadline,
			})
		}
	}
}

// indexOf has the place in the result of a GPU's models.
func (s *segmentResult) indexOf(g *segmentGPU) []int {
	index := make([]int, len(g.world.Models))
	for i, m := range g.world.Models {
		index[i] = slices.IndexFunc(s.r.Models, func(r sim.ModelResult) bool { return r.Name == m.Name })
	}
	return index
}

// add takes what a GPU did.
func (s *segmentResult) add(part *policy.Partition, g *segmentGPU, run *segment.Result) {
	index := s.indexOf(g)
	var rows uint64
	for _, o := range run.Outcomes {
		model := index[o.Model]
		s.end = max(s.end, o.End)
		switch {
		case o.Dropped:
			s.count(model, o.Arrival, func(t *sim.Totals) *uint64 { return &t.Dropped })
			continue
		case o.Late():
			s.count(model, o.Arrival, func(t *sim.Totals) *uint64 { return &t.Late })
		default:
			s.count(model, o.Arrival, func(t *sim.Totals) *uint64 { return &t.Good })
		}
		rows += uint64(o.Batch) //nolint:gosec // rows are positive
		if m := &s.r.Models[model]; o.Arrival >= s.w.Warmup {
			m.Batches[min(o.Batch, len(m.Batches)-1)]++
			s.latencies[model].Add(o.End - o.Arrival)
			s.all.Add(o.End - o.Arrival)
		}
	}
	busy := min(1, run.Busy.Seconds()/s.w.Duration.Seconds())
	x := policy.NewIndex(s.w.Snapshot)
	gpu := x.GPUOf(part)
	name := part.GetNode() + "/" + gpu.GetId()
	s.r.Partitions = append(s.r.Partitions, sim.PartitionResult{
		ID: part.GetId(), GPU: name, ThreadPercentage: 100, UntilSeconds: s.w.Duration.Seconds(), BusyShare: busy, Batches: uint64(run.Groups), Rows: rows, //nolint:gosec // a count
	})
	s.r.GPUs = append(s.r.GPUs, sim.GPUResult{Name: name, Type: gpu.GetType(), CostPerHour: gpu.GetCostPerHour(), UntilSeconds: s.w.Duration.Seconds()})
	for i := range s.bins {
		s.bins[i].GPUs++
		s.bins[i].CostPerHour += gpu.GetCostPerHour()
		s.bins[i].Busy += busy // of the whole run: groups are not followed over time
	}
}

func (s *segmentResult) finish() *sim.Result {
	r := s.r
	r.EndSeconds, r.History, r.Plans = s.end.Seconds(), s.bins, 0
	// GPUs were run one after the other; the first batches of all stay.
	slices.SortStableFunc(r.Timeline, func(a, b sim.BatchRecord) int { return cmp.Compare(a.Start, b.Start) })
	r.Timeline = r.Timeline[:min(len(r.Timeline), s.w.Timeline.Max)]
	ratios := func(t *sim.Totals) {
		t.Rate, t.Goodput = float64(t.Arrivals)/r.Seconds, float64(t.Good)/r.Seconds
		if t.Arrivals > 0 {
			t.BadRate = 1 - float64(t.Good)/float64(t.Arrivals)
		}
	}
	ratios(&r.Total)
	r.Latency = latencyOf(&s.all)
	for i := range r.Models {
		m := &r.Models[i]
		ratios(&m.Totals)
		m.Latency = latencyOf(&s.latencies[i])
		if m.SLOUs > 0 {
			m.Latency.P99OfSLO = m.Latency.P99Us / float64(m.SLOUs)
		}
		var n, rows, seen uint64
		for b, count := range m.Batches {
			n, rows = n+count, rows+uint64(b)*count //nolint:gosec // an index
		}
		for b, count := range m.Batches {
			if seen += count; n > 0 && 2*seen >= n {
				m.MedianBatch = b
				break
			}
		}
		if n > 0 {
			m.MeanBatch = float64(rows) / float64(n)
		}
	}
	return r
}

func latencyOf(h *histogram.Histogram) sim.Latency {
	us := func(d time.Duration) float64 { return float64(d) / 1e3 }
	quantile := func(q float64) float64 { return us(h.Quantile(q)) }
	return sim.Latency{
		MeanUs: us(h.Mean()), P50Us: quantile(.5), P90Us: quantile(.9), P95Us: quantile(.95), P99Us: quantile(.99), P999Us: quantile(.999), MaxUs: us(h.Max()),
	}
}

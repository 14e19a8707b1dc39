// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package evaluate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/plan"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// ErrTooMany means that one question holds more plans than the contract allows.
var ErrTooMany = errors.New("evaluate: too many plans in one question")

// Evaluator runs plans against one snapshot and one traffic. It may be used by several goroutines; a call uses one core.
type Evaluator struct {
	snapshot *policy.Snapshot
	index    *policy.Index
	traffic  *Traffic
	checks   []plan.DispatchCheck
	// known are the models whose latency some place of the snapshot has a usable profile for. The others cannot be simulated, under no plan, and
	// are left out of every outcome.
	known map[string]bool

	mu sync.Mutex
	// drawn is the traffic of the last draw that was asked about, and its number.
	drawn *Traffic
	draw  uint32
}

// New prepares evaluations. The checks are those of plan.Validate.
func New(s *policy.Snapshot, t *Traffic, checks ...plan.DispatchCheck) *Evaluator {
	e := &Evaluator{snapshot: s, index: policy.NewIndex(s), traffic: t, checks: checks, known: make(map[string]bool)}
	for _, p := range s.GetProfiles() {
		if p.GetUsable() && len(p.GetPoints()) > 0 {
			e.known[p.GetModel()] = true
		}
	}
	return e
}

// Evaluate says what would become of the plans, in their order. A plan that Validate refuses, or that cannot be simulated, has the reasons as
// its outcome. It fails with [ErrTooMany] and when ctx ends.
func (e *Evaluator) Evaluate(ctx context.Context, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	return e.EvaluateDraw(ctx, 0, plans...)
}

// EvaluateDraw is Evaluate under other arrivals like the traffic ([Redraw]); draw 0 is the traffic itself.
func (e *Evaluator) EvaluateDraw(ctx context.Context, draw uint32, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	if len(plans) > policy.MaxEvaluatePlans {
		return nil, fmt.Errorf("%w: %d; at most %d", ErrTooMany, len(plans), policy.MaxEvaluatePlans)
	}
	if len(plans) == 0 {
		return nil, nil // a question that costs no evaluation draws nothing
	}
	t, err := e.trafficOf(draw)
	if err != nil {
		return nil, err
	}
	outcomes := make([]*policy.Outcome, len(plans))
	for i, p := range plans {
		o, err := e.evaluate(ctx, p, t)
		if err != nil {
			return nil, err
		}
		outcomes[i] = o
	}
	return outcomes, nil
}

// trafficOf is the traffic of a draw. The last one is kept: questions about it come one after the other.
func (e *Evaluator) trafficOf(draw uint32) (*Traffic, error) {
	if draw == 0 {
		return e.traffic, nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.drawn == nil || e.draw != draw {
		t, err := Redraw(e.snapshot, e.traffic, draw)
		if err != nil {
			return nil, err
		}
		e.drawn, e.draw = t, draw
	}
	return e.drawn, nil
}

// World is the world that Evaluate runs for a plan. A caller may add to it, such as delays and a warm-up, and run it ([sim.Run]) once. Requests
// for an app that no variant of the plan may serve are not among its arrivals. The plan is not validated.
func (e *Evaluator) World(p *policy.Plan) sim.World {
	w, _, _, _ := e.world(p, e.traffic)
	return w
}

func (e *Evaluator) evaluate(ctx context.Context, p *policy.Plan, t *Traffic) (*policy.Outcome, error) {
	if p.GetSnapshotRevision() == 0 {
		p = proto.CloneOf(p)
		p.SnapshotRevision = e.snapshot.GetRevision()
	}
	refused := &policy.Outcome{}
	for _, v := range plan.Validate(e.snapshot, p, e.checks...) {
		refused.Violations = append(refused.Violations, v.String())
	}
	if len(refused.Violations) > 0 {
		return refused, nil
	}
	w, served, arrivals, of := e.world(p, t)
	result, err := sim.Run(ctx, w)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return &policy.Outcome{Violations: []string{"it cannot be simulated: " + err.Error()}}, nil //nolint:nilerr // an answer about the plan
	}
	return e.outcome(p, result, served, of, arrivals.unrouted), nil
}

// world is the snapshot under the plan, with the arrivals of every name given to what serves it: a model's to itself or to the derived model
// that it is a member of, an app's to the variants of its route. Served are the names of its models. Of says which partition of the plan one of the world
// stands for, where that has another name: see AtOnce.
func (e *Evaluator) world(p *policy.Plan, t *Traffic) (w sim.World, served []string, arrivals *directed, of map[string]string) {
	s := &policy.Snapshot{
		Revision: e.snapshot.GetRevision(), Nodes: e.snapshot.GetNodes(), Profiles: e.snapshot.GetProfiles(),
		Interference: e.snapshot.GetInterference(), ChangeCost: e.snapshot.GetChangeCost(),
	}
	index := make(map[string]int32)
	for _, m := range e.snapshot.GetModels() {
		if e.known[m.GetName()] && e.snapshot.Pipeline(m.GetName()) == nil {
			index[m.GetName()] = int32(len(s.Models))
			s.Models = append(s.Models, m)
		}
	}
	simulated := proto.CloneOf(p)
	simulated.Recipes = nil
	for _, r := range p.GetRecipes() {
		d := e.index.Derived(r.GetName())
		if _, exists := index[r.GetName()]; !exists {
			if len(d.GetProfiles()) == 0 {
				// Nothing is known of it: its members are simulated in its place.
				replace(simulated, r)
				continue
			}
			s.Profiles = append(slices.Clip(s.Profiles), d.GetProfiles()...)
			index[r.GetName()] = int32(len(s.Models))
			s.Models = append(s.Models, e.merged(r))
		}
		for _, member := range r.GetMembers() {
			index[member] = index[r.GetName()]
		}
	}
	e.addPipelines(s, index)
	e.strip(simulated, s)
	of = AtOnce(s, simulated, e.index)
	for _, m := range s.GetModels() {
		served = append(served, m.GetName())
	}
	arrivals = e.direct(p, t, index)
	return sim.World{
		Snapshot: s, Plan: simulated, Seed: e.snapshot.GetSeed(), Streams: []workload.Stream{arrivals},
		Duration: max(t.Length, time.Millisecond), Drain: 10 * time.Second, Bins: 1,
	}, served, arrivals, of
}

// addPipelines adds the pipelines whose steps can all be simulated, after the last model, under the names that clients ask for. A step whose model
// is a member of a derived one is a step of that.
func (e *Evaluator) addPipelines(s *policy.Snapshot, index map[string]int32) {
	for _, p := range e.snapshot.GetPipelines() {
		if slices.ContainsFunc(p.GetSteps(), func(step *policy.PipelineStep) bool { _, ok := index[step.GetModel()]; return !ok }) {
			continue
		}
		simulated := proto.CloneOf(p)
		for _, step := range simulated.GetSteps() {
			step.Model = s.GetModels()[index[step.GetModel()]].GetName()
		}
		s.Pipelines = append(s.Pipelines, simulated)
	}
	for i, p := range s.GetPipelines() {
		index[p.GetName()] = int32(len(s.GetModels()) + i) //nolint:gosec // few
	}
}

// merged is a derived model before it exists: what its members have in common, and the tightest of their SLOs.
func (e *Evaluator) merged(r *policy.Recipe) *policy.Model {
	m := &policy.Model{Name: r.GetName(), Batchable: true, Late: policy.LatePolicy_LATE_POLICY_DROP}
	for _, name := range r.GetMembers() {
		member := e.index.Model(name)
		if slo := member.GetSloUs(); m.SloUs == 0 || slo > 0 && slo < m.SloUs {
			m.SloUs = slo
		}
		if limit := member.GetMaxBatchSize(); m.MaxBatchSize == 0 || limit < m.MaxBatchSize {
			m.MaxBatchSize = limit
		}
		if member.GetLate() != policy.LatePolicy_LATE_POLICY_DROP {
			m.Late = member.GetLate()
		}
		m.Rate += member.GetRate()
	}
	return m
}

// replace puts the members of a recipe where the plan has the derived model.
func replace(p *policy.Plan, r *policy.Recipe) {
	for _, part := range p.GetPartitions() {
		var all []*policy.Instance
		for _, in := range part.GetInstances() {
			if in.GetModel() != r.GetName() {
				all = append(all, in)
				continue
			}
			for _, member := range r.GetMembers() {
				instance := proto.CloneOf(in)
				instance.Model = member
				all = append(all, instance)
			}
		}
		part.Instances = all
	}
}

// strip takes out of a plan what cannot be simulated: instances whose latency there is not known, and entries about models that are left out.
func (e *Evaluator) strip(p *policy.Plan, s *policy.Snapshot) {
	x := policy.NewIndex(s)
	for _, part := range p.GetPartitions() {
		on := e.index.TypeOf(part)
		part.Instances = slices.DeleteFunc(part.Instances, func(in *policy.Instance) bool {
			return x.Model(in.GetModel()) == nil || x.UsableProfile(in.GetModel(), on) == nil
		})
	}
	p.Dispatch = slices.DeleteFunc(p.Dispatch, func(d *policy.Dispatch) bool { return x.Model(d.GetModel()) == nil })
	// Apps are served before the simulation (directed). The places of its models say which dispatcher serves a sub-cluster.
	p.AppRoutes, p.Predictions, p.Reasons, p.Unplaced = nil, nil, nil, nil
	for _, c := range p.GetSubClusters() {
		c.Models = slices.DeleteFunc(c.Models, func(name string) bool { return x.Model(name) == nil })
	}
}

// outcome of a run. What a derived model serves is under the derived model's name. Requests without a route are bad.
func (e *Evaluator) outcome(p *policy.Plan, r *sim.Result, served []string, of map[string]string, unrouted uint64) *policy.Outcome {
	o := &policy.Outcome{Goodput: r.Total.Goodput, BadRate: r.Total.BadRate}
	if unrouted > 0 {
		o.BadRate = 1 - float64(r.Total.Good)/float64(r.Total.Arrivals+unrouted)
	}
	for i, m := range r.Models {
		if m.Arrivals == 0 {
			continue
		}
		model := &policy.ModelOutcome{
			Model: served[i], Goodput: m.Goodput, BadRate: m.BadRate, DropRate: float64(m.Dropped) / float64(m.Arrivals),
			LatencyP50Us: m.Latency.P50Us, LatencyP99Us: m.Latency.P99Us, MeanBatch: m.MeanBatch,
		}
		o.Models = append(o.Models, model)
	}
	for _, p := range r.Pipelines {
		if p.Arrivals == 0 {
			continue
		}
		o.Models = append(o.Models, &policy.ModelOutcome{
			Model: p.Name, Goodput: p.Goodput, BadRate: p.BadRate, DropRate: float64(p.Dropped) / float64(p.Arrivals), LatencyP50Us: p.Latency.P50Us, LatencyP99Us: p.Latency.P99Us,
		})
	}
	o.Partitions = partitionsOf(r, of)
	used := make(map[*policy.GPU]bool)
	for _, part := range p.GetPartitions() {
		if g := e.index.GPUOf(part); g != nil && !used[g] {
			used[g] = true
			o.Gpus++
			o.CostPerHour += g.GetCostPerHour()
		}
	}
	return o
}

// partitionsOf is what came of the partitions of a plan, of which several in the simulation may be one.
func partitionsOf(r *sim.Result, of map[string]string) (all []*policy.PartitionOutcome) {
	type sums struct {
		*policy.PartitionOutcome
		n, batches, rows float64
	}
	known := make(map[string]*sums, len(r.Partitions))
	for _, part := range r.Partitions {
		id := cmp.Or(of[part.ID], part.ID)
		s := known[id]
		if s == nil {
			s = &sums{PartitionOutcome: &policy.PartitionOutcome{Partition: id}}
			known[id] = s
			all = append(all, s.PartitionOutcome)
		}
		s.BusyShare = (s.BusyShare*s.n + part.BusyShare) / (s.n + 1)
		s.n, s.batches, s.rows = s.n+1, s.batches+float64(part.Batches), s.rows+float64(part.Rows)
		if s.batches > 0 {
			s.MeanBatch = s.rows / s.batches
		}
	}
	return all
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/plan"
	"github.com/conch-serving/conch/sidecar/sim/discipline"
)

// planning is the state of the plan path.
type planning struct {
	// watch is true if loads are observed, because the policy may be asked again.
	watch    bool
	current  *policy.Plan
	revision uint64
	// applying is true while a plan waits for its partitions; wanted is why the policy is to be asked afterwards.
	applying bool
	wanted   string
	last     queue.Time
	rates    []float64               // that the last plan was made for, by model
	since    map[crossing]queue.Time // since when a threshold is crossed
	made     int
	failed   int
	failure  string // the first
	size     weighing
}

// crossing is a threshold of a model.
type crossing struct{ model, what int }

// tick is how often thresholds are looked at, as control does.
const tick = second / 2

// errPlan is wrapped by what is wrong with a plan.
var errPlan = errors.New("sim: no plan to begin with")

// firstPlan brings a plan into force at time 0, at no cost: the run begins with everything loaded.
func (e *engine) firstPlan() error {
	for _, m := range e.models {
		e.plans.rates = append(e.plans.rates, m.spec.GetRate())
	}
	e.plans.revision = e.w.Snapshot.GetRevision()
	e.plans.since = make(map[crossing]queue.Time)
	first := e.w.Plan
	if first == nil {
		s := e.snapshot(false)
		answer, err := e.w.Policy.Plan(e.ctx, s)
		if err != nil {
			return fmt.Errorf("%w: %w", errPlan, err)
		}
		if err := e.validate(s, answer); err != nil {
			return fmt.Errorf("%w: %w", errPlan, err)
		}
		e.plans.made++
		first = answer
	} else if err := e.check(first); err != nil {
		return fmt.Errorf("%w: %w", errPlan, err)
	}
	e.swap(first)
	return e.err
}

// validate is what the host does with any answer, and what the simulator cannot do besides.
func (e *engine) validate(s *policy.Snapshot, answer *policy.Plan) error {
	if violations := plan.Validate(s, answer); len(violations) > 0 {
		return violations
	}
	return e.check(answer)
}

// check returns an error for a plan that the simulator cannot run.
func (e *engine) check(p *policy.Plan) error {
	if len(p.GetRecipes()) > 0 {
		return fmt.Errorf("%w: the plan has derived models, which are not simulated", ErrWorld)
	}
	x := policy.NewIndex(e.w.Snapshot)
	for _, part := range p.GetPartitions() {
		g := e.gpuOf(part)
		if g == nil {
			return fmt.Errorf("%w: partition %s is on GPU %s of node %s, which there is not", ErrWorld, part.GetId(), part.GPU(), part.GetNode())
		}
		for _, in := range part.GetInstances() {
			m := x.Model(in.GetModel())
			if m == nil {
				return fmt.Errorf("%w: partition %s holds %s, which is no model of the snapshot", ErrWorld, part.GetId(), in.GetModel())
			}
			if x.UsableProfile(m.GetName(), g.spec.GetType()) == nil {
				return fmt.Errorf("%w: model %s is placed on %s, a %s, and has no usable profile for it", ErrWorld, m.GetName(), part.GetId(), g.spec.GetType())
			}
		}
	}
	for _, d := range p.GetDispatch() {
		if _, _, err := e.w.rules(d); err != nil {
			return fmt.Errorf("%w: model %s: %w", ErrWorld, d.GetModel(), err)
		}
	}
	return nil
}

func (e *engine) gpuOf(part *policy.Partition) *gpu {
	if g := e.gpuByName[part.GetNode()+"/"+part.GPU()]; g != nil && g.removed == queue.Never {
		return g
	}
	return nil
}

// rules are a discipline and a drop policy by name; nil for the queue's own choice.
func (w *World) rules(d *policy.Dispatch) (queue.Discipline, *queue.DropPolicy, error) {
	chosen, err := discipline.New(d.GetDiscipline(), d.GetParameters())
	if err != nil {
		return nil, nil, err
	}
	var drop *queue.DropPolicy
	if w.Adaptive != nil && cmp.Or(d.GetDiscipline(), queue.Names()[0]) == queue.Names()[0] {
		chosen, drop = queue.Adaptive(*w.Adaptive)
	}
	if d.GetDropPolicy() != "" {
		drop, err = queue.NewDropPolicy(d.GetDropPolicy())
	}
	return chosen, drop, err
}

// scheduleReplans starts the loop of triggers.
func (e *engine) scheduleReplans() {
	r := e.w.Replan
	if e.w.Policy == nil || r == (Replan{}) {
		return
	}
	e.plans.watch = true
	var look func()
	look = func() {
		if reason := e.due(); reason != "" {
			e.replan(reason)
		}
		if next := e.now + tick; next < e.end {
			e.at(next, look)
		}
	}
	e.at(tick, look)
	var weigh func()
	weigh = func() {
		e.weigh()
		if next := e.now + weighEvery; next < e.end {
			e.at(next, weigh)
		}
	}
	e.at(weighEvery, weigh)
}

// due says why a plan is wanted now; empty if none is. The rules are those of sidecar/control.
func (e *engine) due() string {
	p, r := &e.plans, e.w.Replan
	switch {
	case p.applying:
		return ""
	case p.wanted != "":
		return p.wanted
	case r.Every > 0 && e.now-p.last >= queue.Time(r.Every):
		return "interval of " + r.Every.String()
	}
	var held []string
	for _, m := range e.models {
		sum, covered := m.observed.total(e.now)
		rate := float64(sum.requests) / covered
		change := r.changed(p.rates[m.index], rate)
		for what, text := range [...]string{change, badText(sum.badRate(), r.BadRate)} {
			key := crossing{m.index, what}
			if text == "" {
				delete(p.since, key)
				continue
			}
			since, ok := p.since[key]
			if !ok {
				since = e.now
				p.since[key] = since
			}
			if e.now-since >= queue.Time(r.Hold) {
				held = append(held, m.spec.GetName()+": "+text)
			}
		}
	}
	if len(held) == 0 || e.now-p.last < queue.Time(r.Cooldown) {
		return ""
	}
	slices.Sort(held)
	return strings.Join(held, "; ")
}

func badText(bad, limit float64) string {
	if limit == 0 || bad <= limit {
		return ""
	}
	return fmt.Sprintf("%.1f%% of its requests are bad", 100*bad)
}

// changed is gpulet's rule for rates; empty where the plan still holds.
func (r Replan) changed(planned, rate float64) string {
	noise := 2 * math.Sqrt(max(planned, rate)/window)
	up := math.Inf(1)
	if r.RateUp > 0 {
		up = r.RateUp * planned
	}
	if r.RateUpBy > 0 {
		up = min(up, r.RateUpBy)
	}
	switch change := rate - planned; {
	case change > noise && change >= up:
		return fmt.Sprintf("its rate rose from %.1f to %.1f a second", planned, rate)
	case r.RateDown > 0 && -change > noise && -change >= r.RateDown*planned:
		return fmt.Sprintf("its rate fell from %.1f to %.1f a second", planned, rate)
	}
	return ""
}

// want asks for a plan as soon as none is being applied.
func (e *engine) want(reason string) {
	if e.plans.watch && e.w.Replan.OnFailure {
		e.plans.wanted = reason
	}
}

// replan is a turn of the plan path: snapshot, policy, validation, diff, and the swap once everything is ready.
func (e *engine) replan(reason string) {
	p := &e.plans
	p.last, p.wanted = e.now, ""
	clear(p.since)
	s := e.snapshot(true)
	for i, m := range s.GetModels() {
		p.rates[i] = m.GetRate()
	}
	answer, err := e.w.Policy.Plan(e.ctx, s)
	if err == nil {
		err = e.validate(s, answer)
	}
	if err != nil {
		e.planFailed(fmt.Sprintf("%s: %v", reason, err))
		return
	}
	p.made++
	e.rent(answer)
	d := plan.Compute(p.current, answer)
	if d.Empty() {
		e.collect.event(e, EventPlanUnchanged, reason)
		return
	}
	p.applying = true
	e.collect.event(e, EventPlan, fmt.Sprintf("%s: %d partitions start, %d stop, %d are replaced, %d loads", reason, len(d.Start), len(d.Stop), len(d.Replace), len(d.Loads)))
	e.at(e.now+queue.Time(e.w.Replan.Takes), func() {
		e.makeRoom(answer, d)
		e.at(e.now+e.cost(d), func() {
			p.applying = false
			if err := e.check(answer); err != nil {
				e.planFailed(fmt.Sprintf("when it was ready: %v", err))
				return
			}
			e.swap(answer)
			e.collect.event(e, EventSwap, fmt.Sprintf("plan for snapshot %d is in force", answer.GetSnapshotRevision()))
		})
	})
}

// cost is how long a change takes: all new processes start side by side, then each partition loads its models one by one.
func (e *engine) cost(d *plan.Diff) queue.Time {
	x := policy.NewIndex(e.w.Snapshot)
	costs := e.w.Snapshot.GetChangeCost()
	loads := make(map[string]float64)
	longest, start := 0.0, 0.0
	for _, l := range d.Loads {
		id := l.Partition.GetId()
		loads[id] += cmp.Or(x.Model(l.Instance.GetModel()).GetLoadSeconds(), costs.GetDefaultLoadSeconds())
		longest = max(longest, loads[id])
	}
	if len(d.Start)+len(d.Replace) > 0 {
		start = costs.GetPartitionStartSeconds()
	}
	return queue.Time((start + longest) * 1e9)
}

// makeRoom stops what has to go first: where a GPU has no memory for the old and the new at once, the old partitions that end take nothing
// more, and their models' requests wait.
func (e *engine) makeRoom(next *policy.Plan, d *plan.Diff) {
	x := policy.NewIndex(e.w.Snapshot)
	need := make(map[string]uint64)
	name := func(p *policy.Partition) string { return p.GetNode() + "/" + p.GPU() }
	ends := slices.Clone(d.Stop)
	for _, r := range d.Replace {
		ends = append(ends, r.Old)
	}
	for _, p := range next.GetPartitions() {
		need[name(p)] += x.HostBytes(next, p)
	}
	for _, p := range ends {
		need[name(p)] += x.HostBytes(e.plans.current, p)
	}
	for _, old := range ends {
		p := e.inUse[old.GetId()]
		if p == nil || p.gpu.spec.GetMemoryBytes() == 0 || need[name(old)] <= p.gpu.spec.GetMemoryBytes() {
			continue
		}
		e.collect.event(e, EventMakeRoom, fmt.Sprintf("partition %s stops before its successors on %s start, for their memory", old.GetId(), p.gpu.name()))
		if err := e.sched.DrainExecutor(e.now, p.id); err != nil {
			e.err = fmt.Errorf("sim: partition %s: %w", old.GetId(), err)
		}
	}
}

// snapshot is the policy's snapshot: that of the world, with the observed loads and the state of the GPUs.
func (e *engine) snapshot(observed bool) *policy.Snapshot {
	base := e.w.Snapshot
	s := proto.CloneOf(base)
	e.plans.revision++
	s.Revision, s.Current = e.plans.revision, e.plans.current
	if s.PlanningBudgetUs == 0 {
		s.PlanningBudgetUs = time.Second.Microseconds()
	}
	if e.plans.current == nil {
		s.Current = base.GetCurrent()
	}
	s.Nodes = e.nodes()
	if !observed {
		return s
	}
	s.Observations = nil // those of a recorded snapshot are of the moment at which it was recorded
	s.Statistics = &policy.DispatchStatistics{WindowSeconds: window, Advice: e.plans.size.advice}
	for i, m := range e.models {
		sum, covered := m.observed.total(e.now)
		model := s.Models[i]
		model.Rate, model.RowRate, model.Burstiness = float64(sum.requests)/covered, float64(sum.rows)/covered, m.observed.burstiness()
		stats := &policy.ModelStatistics{Model: model.GetName(), Goodput: float64(sum.good) / covered, BadRate: sum.badRate()}
		if n := sum.good + sum.bad; n > 0 {
			stats.DropRate = float64(sum.dropped) / float64(n)
		}
		queued, _ := e.sched.Queued(m.id)
		stats.QueuedRequests = uint64(queued)
		s.Statistics.Models = append(s.Statistics.Models, stats)
	}
	for i, p := range e.pipelines {
		sum, covered := p.observed.total(e.now)
		s.Pipelines[i].Rate = float64(sum.requests) / covered
	}
	for _, part := range e.plans.current.GetPartitions() {
		p := e.inUse[part.GetId()]
		s.Statistics.Partitions = append(s.Statistics.Partitions, &policy.PartitionStatistics{
			Partition: part.GetId(), Up: p.failures == 0, IdleShare: e.idleShare(p),
		})
	}
	return s
}

// idleShare of a partition since the last look.
func (e *engine) idleShare(p *partition) float64 {
	busy := p.busySoFar(e.now)
	d, since := busy-p.counts.looked, e.now-p.counts.lookedAt
	p.counts.looked, p.counts.lookedAt = busy, e.now
	if since <= 0 {
		return 1
	}
	return max(0, 1-float64(d)/float64(since))
}

// nodes are the GPUs as they are now.
func (e *engine) nodes() []*policy.Node {
	var nodes []*policy.Node
	byName := make(map[string]*policy.Node)
	for _, n := range e.w.Snapshot.GetNodes() {
		node := &policy.Node{Name: n.GetName(), Cpu: n.GetCpu()}
		nodes = append(nodes, node)
		byName[node.Name] = node
	}
	for _, g := range e.gpus {
		if g.removed != queue.Never || g.leaving || g.id == "" {
			continue
		}
		node := byName[g.node]
		if node == nil {
			node = &policy.Node{Name: g.node}
			nodes = append(nodes, node)
			byName[g.node] = node
		}
		spec := proto.CloneOf(g.spec)
		spec.Unavailable = g.failures > 0
		node.Gpus = append(node.Gpus, spec)
	}
	slices.SortStableFunc(nodes, func(a, b *policy.Node) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return nodes
}

func (e *engine) planFailed(text string) {
	if e.plans.failed++; e.plans.failed == 1 {
		e.plans.failure = fmt.Sprintf("at %.3f s, %s", seconds(e.now), text)
	}
	e.collect.event(e, EventPlanFailed, text)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
)

// Rates of a model at a moment; Poisson silence for one never heard of.
func (r *Recorder) Rates(name string, now time.Time) Rates {
	m := (*r.models.Load())[name]
	if m == nil {
		return Rates{Burstiness: 1}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.arrivals.rates(r.steady(now))
}

// Statistics of a model over the Window that ends at now. QueuedRequests is
// left to the caller.
func (r *Recorder) Statistics(name string, now time.Time) *policy.ModelStatistics {
	s := &policy.ModelStatistics{Model: name}
	m := (*r.models.Load())[name]
	if m == nil {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var ok, late, dropped, batches, rows uint64
	var latency histogramSum
	covered := m.requests.each(r.steady(now), Window, func(c *requestCounts) {
		ok, late, dropped = ok+uint64(c.ok), late+uint64(c.late), dropped+uint64(c.dropped)
		batches, rows = batches+uint64(c.batches), rows+uint64(c.batchRows)
		latency.add(&c.latency)
	})
	s.Goodput = float64(ok) / covered
	if all := float64(ok + late + dropped); all > 0 {
		s.BadRate, s.DropRate = float64(late+dropped)/all, float64(dropped)/all
	}
	if batches > 0 {
		s.MeanBatch = float64(rows) / float64(batches)
	}
	s.LatencyP50Us = microseconds(latency.quantile(.5))
	s.LatencyP99Us = microseconds(latency.quantile(.99))
	return s
}

// Bad is the part of a model's requests that are bad, of those that were over in the Window that ends at now. The bad rate of Statistics is of the late and
// the dropped alone: another plan mends nothing of the others.
func (r *Recorder) Bad(name string, now time.Time) float64 {
	m := (*r.models.Load())[name]
	if m == nil {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var ok, bad uint64
	m.requests.each(r.steady(now), Window, func(c *requestCounts) {
		ok, bad = ok+uint64(c.ok), bad+uint64(c.late)+uint64(c.dropped)+uint64(c.unserved)
	})
	if bad == 0 {
		return 0
	}
	return float64(bad) / float64(ok+bad)
}

// PartitionStatistics of a partition over the Window that ends at now; a
// partition never heard of is idle. Up is left to the caller.
func (r *Recorder) PartitionStatistics(id string, now time.Time) *policy.PartitionStatistics {
	s := &policy.PartitionStatistics{Partition: id, IdleShare: 1}
	p := (*r.partitions.Load())[id]
	if p == nil {
		return s
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var busy time.Duration
	var batches, rows uint64
	covered := p.slots.each(r.steady(now), Window, func(c *partitionCounts) {
		busy += c.busy
		batches, rows = batches+uint64(c.batches), rows+uint64(c.rows)
	})
	s.IdleShare = min(1, max(0, 1-busy.Seconds()/covered))
	s.BatchesPerSecond = float64(batches) / covered
	if batches > 0 {
		s.MeanBatch = float64(rows) / float64(batches)
	}
	return s
}

// World is what a snapshot needs besides what was observed. Its messages
// become part of the snapshot and must not be changed afterwards.
type World struct {
	Revision, Seed uint64
	Budget         time.Duration
	Objective      policy.Objective
	Nodes          []*policy.Node
	// Models without rate and burstiness, which are filled in.
	Models      []*policy.Model
	Constraints []*policy.Constraint
	Current     *policy.Plan
	ChangeCost  *policy.ChangeCost
	Parameters  map[string]string
	// Queued says how many requests of a model wait, Up whether a partition of
	// the current plan is up; both may be nil.
	Queued func(model string) int
	Up     func(partition string) bool
	// Ready says whether a partition serves a model of the current plan, and if not
	// why; it may be nil.
	Ready func(partition, model string) (is bool, why string)
	// Advice is what the windows so far say about the number of GPUs; nil: nothing.
	Advice *policy.Advice
}

// Judged counts the requests of a model that were over in the Window that ends at
// now and that count for or against its SLO, and the late and dropped ones among
// them.
func (r *Recorder) Judged(name string, now time.Time) (all, bad uint64) {
	m := (*r.models.Load())[name]
	if m == nil {
		return 0, 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests.each(r.steady(now), Window, func(c *requestCounts) {
		bad += uint64(c.late + c.dropped)
		all += uint64(c.ok + c.late + c.dropped)
	})
	return all, bad
}

// Snapshot completes the world with what was observed up to now.
func (r *Recorder) Snapshot(now time.Time, w World) *policy.Snapshot {
	s := &policy.Snapshot{
		Revision: w.Revision, Seed: w.Seed, PlanningBudgetUs: w.Budget.Microseconds(), Objective: w.Objective,
		Nodes: w.Nodes, Models: w.Models, Current: w.Current, ChangeCost: w.ChangeCost,
		Constraints: w.Constraints, Parameters: w.Parameters,
	}
	types := gpuTypes(w.Nodes)
	known := map[string]bool{}
	statistics := &policy.DispatchStatistics{WindowSeconds: Window.Seconds(), Advice: w.Advice}
	for _, m := range w.Models {
		known[m.GetName()] = true
		rates := r.Rates(m.GetName(), now)
		m.Rate, m.RowRate, m.Burstiness, m.RoutedRowRate = rates.Window, rates.Rows, rates.Burstiness, r.routedRate(m.GetName(), now)
		for _, t := range types {
			r.DeclareOn(m.GetName(), t)
		}
		model := r.Statistics(m.GetName(), now)
		if w.Queued != nil {
			model.QueuedRequests = uint64(max(0, w.Queued(m.GetName())))
		}
		statistics.Models = append(statistics.Models, model)
	}
	for _, p := range r.Profiles() {
		if known[p.GetModel()] && slices.Contains(types, p.GetGpuType()) {
			s.Profiles = append(s.Profiles, p)
		}
	}
	for _, t := range types {
		s.Interference = append(s.Interference, policy.GpuletInterference(t))
	}
	for _, p := range w.Current.GetPartitions() {
		partition := r.PartitionStatistics(p.GetId(), now)
		partition.Up = w.Up == nil || w.Up(p.GetId())
		statistics.Partitions = append(statistics.Partitions, partition)
	}
	s.Observations = r.observations(now, w)
	slices.SortFunc(statistics.Partitions, func(a, b *policy.PartitionStatistics) int { return cmp.Compare(a.GetPartition(), b.GetPartition()) })
	s.Statistics = statistics
	return s
}

func gpuTypes(nodes []*policy.Node) []string {
	var types []string
	for _, n := range nodes {
		for _, g := range n.GetGpus() {
			types = append(types, g.GetType())
		}
	}
	slices.Sort(types)
	return slices.Compact(types)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

type profileKey struct{ model, gpuType string }

// class is a profile class: partitions of one GPU type and share have the same
// l(b).
type class struct {
	gpuType string
	share   uint32
}

// class returns the queue's index for a partition's class, a new one for a
// class that is new.
func (m *model) class(p *partition) int32 {
	c := class{p.spec.GPUType, share(p.spec)}
	if i := slices.Index(m.classes, c); i >= 0 {
		return int32(i)
	}
	m.classes = append(m.classes, c)
	return int32(len(m.classes) - 1)
}

func share(p *Partition) uint32 {
	if p.ThreadPercentage == 0 {
		return 100
	}
	return p.ThreadPercentage
}

// SetProfile replaces what is known about l(b) of one model on one GPU type.
// Requests that are queued are planned with it from now on. A profile that is
// not usable means that the model is still being learnt: then requests are
// forwarded at once.
func (d *Dispatcher) SetProfile(p *policy.Profile) {
	d.mu.Lock()
	defer d.unlock()
	d.profiles[profileKey{p.GetModel(), p.GetGpuType()}] = p
	if m := d.models[p.GetModel()]; m != nil {
		d.refresh(m)
	}
}

// refresh gives the scheduler new tables for a model. Guarded by mu.
func (d *Dispatcher) refresh(m *model) {
	if d.broken.Load() {
		return
	}
	m.queueSpec.Classes = d.tables(m)
	if err := d.sched.SetModel(d.now(), m.id, m.queueSpec); err != nil {
		d.o.Logger.Error("updating a model's profile", "model", m.name, "error", err)
	}
}

func (d *Dispatcher) modelSpec(m *model) queue.ModelSpec {
	return queue.ModelSpec{
		Name: m.name, Classes: d.tables(m), MaxBatch: max(1, m.spec.maxBatch()),
		// A request that was queued under the table before must not wait for a batch
		// that nobody makes any more.
		Closed: m.spec.maxBatch() == 0,
		SLO:    queue.Time(m.spec.SLO), Late: late(m.spec.Late),
	}
}

// tables makes one latency table for each class of a model: the upper quantile
// of the profile at the partition's share, and Conch's own time on top.
func (d *Dispatcher) tables(m *model) []queue.Table {
	tables := make([]queue.Table, len(m.classes))
	n := max(1, m.spec.maxBatch())
	for i, c := range m.classes {
		p := d.profiles[profileKey{m.name, c.gpuType}]
		if p.GetUsable() {
			tables[i] = table(p, c.share, n, queue.Time(d.budget.current()))
		}
	}
	m.margin.sets(tables)
	return tables
}

// table reads l(b) for 1..n+1 rows out of a profile's grid, and makes it
// monotone. Between points it interpolates; beyond the largest batch it goes on
// along the last slope; below the smallest share time grows as the share
// shrinks, which is the worst that a share can do.
func table(p *policy.Profile, share uint32, n int, extra queue.Time) queue.Table {
	columns := byShare(p)
	if len(columns) == 0 {
		return nil
	}
	t := make(queue.Table, n+2)
	for b := 1; b < len(t); b++ {
		us := atShare(columns, share, float64(b))
		t[b] = max(queue.Time(us*float64(time.Microsecond))+extra, t[b-1], 1)
	}
	return t
}

// column is the profile at one share.
type column struct {
	share   uint32
	batches []float64
	us      []float64
}

func byShare(p *policy.Profile) []column {
	var columns []column
	points := slices.Clone(p.GetPoints())
	slices.SortStableFunc(points, func(a, b *policy.ProfilePoint) int {
		if a.GetThreadPercentage() != b.GetThreadPercentage() {
			return int(a.GetThreadPercentage()) - int(b.GetThreadPercentage())
		}
		return int(a.GetBatch()) - int(b.GetBatch())
	})
	for _, q := range points {
		us := q.GetLatencyUpperUs()
		if us <= 0 {
			us = q.GetLatencyUs().GetValue() + q.GetLatencyUs().GetErrorBound()
		}
		if us <= 0 || math.IsNaN(us) || math.IsInf(us, 0) || q.GetBatch() == 0 {
			continue
		}
		if len(columns) == 0 || columns[len(columns)-1].share != q.GetThreadPercentage() {
			columns = append(columns, column{share: q.GetThreadPercentage()})
		}
		c := &columns[len(columns)-1]
		c.batches = append(c.batches, float64(q.GetBatch()))
		c.us = append(c.us, us)
	}
	return columns
}

func atShare(columns []column, share uint32, b float64) float64 {
	first, last := columns[0], columns[len(columns)-1]
	switch {
	case share <= first.share || len(columns) == 1 && share <= last.share:
		scale := 1.0
		if share > 0 && share < first.share {
			scale = float64(first.share) / float64(share)
		}
		return scale * first.at(b)
	case share >= last.share:
		return last.at(b)
	}
	i := slices.IndexFunc(columns, func(c column) bool { return c.share >= share })
	low, high := columns[i-1], columns[i]
	w := float64(share-low.share) / float64(high.share-low.share)
	return low.at(b)*(1-w) + high.at(b)*w
}

func (c column) at(b float64) float64 {
	n := len(c.batches)
	if n == 1 {
		// One point says nothing about the slope: in proportion is the worst case
		// above it, and the point itself below.
		return c.us[0] * max(1, b/c.batches[0])
	}
	i := max(1, min(n-1, slices.IndexFunc(c.batches, func(x float64) bool { return x >= b })))
	if b > c.batches[n-1] {
		i = n - 1
	}
	if b < c.batches[0] {
		return c.us[0]
	}
	slope := (c.us[i] - c.us[i-1]) / (c.batches[i] - c.batches[i-1])
	if b > c.batches[n-1] {
		slope = max(0, slope)
	}
	return c.us[i-1] + slope*(b-c.batches[i-1])
}

// budget is what Conch adds to an execution between the decision and the call,
// mean plus one deviation, learnt as it runs. What it adds on the way back is
// ResponseBudget; what the connection adds is part of the measured latencies.
type budget struct {
	mean, deviation atomic.Int64 // nanoseconds
	used            atomic.Int64 // what the tables were made with
}

// quantum is the change of the budget that is worth new tables.
const quantum = 50 * time.Microsecond

func (b *budget) current() time.Duration {
	v := time.Duration(b.mean.Load() + b.deviation.Load())
	v = (v + quantum - 1) / quantum * quantum
	b.used.Store(int64(v))
	return v
}

// add counts one measurement and reports whether the tables are out of date.
// Updates that race lose a measurement, which does not matter.
func (b *budget) add(d time.Duration) bool {
	const weight = 32
	// One stall of the machine is not what the next batch will see.
	d = min(d, 5*time.Millisecond)
	mean := b.mean.Load()
	off := int64(d) - mean
	b.mean.Store(mean + off/weight)
	if off < 0 {
		off = -off
	}
	dev := b.deviation.Load()
	dev += (off - dev) / weight
	b.deviation.Store(dev)
	now, used := b.mean.Load()+dev, b.used.Load()
	return now > used+int64(quantum) || now < used-3*int64(quantum)
}

// learn counts the time that a batch took from the decision to the call.
func (d *Dispatcher) learn(delay queue.Time) {
	if !d.budget.add(delay.Duration()) {
		return
	}
	d.mu.Lock()
	defer d.unlock()
	d.budget.current()
	for _, m := range d.models {
		d.refresh(m)
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// trialPause is the shortest time between two executions of a model only to see whether its
// profile, by which its requests cannot be served in time, is true; it grows to 8 s while
// the profile is.
const trialPause = queue.Time(500 * time.Millisecond)

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

func share(p *router.Partition) uint32 {
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
		Name: m.name, Classes: d.tables(m), MaxBatch: max(1, m.spec.RowLimit()),
		// A request that was queued under the table before must not wait for a batch
		// that nobody makes any more.
		Closed: m.spec.RowLimit() == 0,
		SLO:    queue.Time(m.spec.SLO), Late: late(m.spec.Late),
	}
}

// tables makes one latency table for each class of a model: the upper quantile
// of the profile at the partition's share, and Conch's own time on top.
func (d *Dispatcher) tables(m *model) []queue.Table {
	tables := make([]queue.Table, len(m.classes))
	n := max(1, m.spec.RowLimit())
	for i, c := range m.classes {
		p := d.profiles[profileKey{m.name, c.gpuType}]
		if p.GetUsable() {
			tables[i] = forecast.Table(p, c.share, n, queue.Time(d.budget.Current()))
		}
	}
	m.margin.Sets(tables)
	return tables
}

// learn counts the time that a batch took from the decision to the call.
func (d *Dispatcher) learn(delay queue.Time) {
	if !d.budget.Add(delay.Duration()) {
		return
	}
	d.mu.Lock()
	defer d.unlock()
	d.budget.Current()
	for _, m := range d.models {
		d.refresh(m)
	}
}

// overdue counts how much later than predicted the last answer of a batch is
// given.
func (d *Dispatcher) overdue(c *call, a *answer, now time.Time) {
	if a.promised > 0 {
		c.model.margin.Add((d.queueTime(now)-a.promised).Duration()-d.o.ResponseBudget, d.queueTime(now))
	}
}

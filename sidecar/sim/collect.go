// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/sim/histogram"
)

// outcome is how a request ended.
type outcome uint8

const (
	good    outcome = iota
	tooLate         // answered after its deadline
	failed          // two partitions were lost under it
	refused         // no partition served its model
	dropped         // plus the queue.DropReason
)

// counts are a model's, of the requests that count.
type counts struct {
	arrivals, requeued uint64
	waiting            uint64 // arrived and without an answer
	outcomes           []uint64
	latency            histogram.Histogram
	batches            []uint64 // by rows
}

// partitionCounts are of the time between warm-up and the end of arrivals.
type partitionCounts struct {
	added, removed queue.Time
	busy           queue.Time
	wasted         queue.Time // the part of busy that was preempted
	total          queue.Time // busy since it was added
	looked         queue.Time // total at the last snapshot, lookedAt
	weighed        queue.Time // total when the load was last weighed
	lookedAt       queue.Time
	batches, rows  uint64
}

// bin is an interval of the history.
type bin struct {
	arrivals, good, bad uint64
	busy                float64 // partition nanoseconds, weighted by share
	compute, memory     float64 // GPU nanoseconds of Creq and Mreq
	latency             histogram.Histogram
}

// collector counts while the run goes on; everything in it has its size from the start or grows to a bound.
type collector struct {
	bins     []bin
	width    queue.Time
	now      int        // the bin of the present
	until    queue.Time // its end
	timeline []BatchRecord
	events   []Event
}

func (c *collector) init(e *engine) {
	n := e.w.Bins
	if n == 0 {
		n = 60
	}
	c.width = max(1, (e.end+queue.Time(n)-1)/queue.Time(n))
	c.bins = make([]bin, n)
	c.until = c.width
	c.timeline = make([]BatchRecord, 0, min(e.w.Timeline.Max, 1<<12))
	for _, m := range e.models {
		m.counts.outcomes = make([]uint64, int(dropped)+len(queue.DropReasons()))
		m.counts.batches = make([]uint64, m.maxBatch()+1)
	}
}

// bin of the present; what happens after the last arrival falls into the last.
func (c *collector) bin(e *engine) *bin {
	for e.now >= c.until && c.now < len(c.bins)-1 {
		c.now++
		c.until += c.width
	}
	return &c.bins[c.now]
}

func (c *collector) arrived(e *engine, r *request) {
	c.bin(e).arrivals++
	if r.sent >= e.counted {
		r.model.counts.arrivals++
		r.model.counts.waiting++
	}
}

func (c *collector) answered(e *engine, r *request, o outcome) {
	// Where it arrived: what was late because of a burst is counted there, and not where it was answered long after.
	b := &c.bins[min(int(r.Arrival/c.width), len(c.bins)-1)]
	if o == good {
		b.good++
	} else {
		b.bad++
	}
	took := (e.now + queue.Time(e.w.Delays.Reply) - r.sent).Duration()
	if o <= tooLate {
		b.latency.Add(took)
	}
	m := r.model
	if e.plans.watch {
		m.observed.answered(e.now, o)
		e.plans.size.answered(o)
	}
	if r.sent < e.counted {
		return
	}
	m.counts.outcomes[o]++
	m.counts.waiting--
	if o <= tooLate {
		m.counts.latency.Add(took)
	}
}

func (c *collector) requeued(e *engine, r *request) {
	if r.sent >= e.counted {
		r.model.counts.requeued++
	}
}

// executed counts an execution that ends now, whole or cut off.
func (c *collector) executed(e *engine, p *partition) {
	from, to, rows := p.start, e.now, p.batch.Rows
	if from >= e.counted && from < e.end {
		e.byID[p.batch.Model].counts.batches[min(rows, len(e.byID[p.batch.Model].counts.batches)-1)]++
		p.counts.batches++
		p.counts.rows += uint64(rows)
	}
	p.counts.total += to - from
	p.counts.busy += max(0, min(to, e.end)-max(from, e.counted))
	share := float64(p.spec.GetThreadPercentage()) / 100
	creq, mreq := p.kernel.creq[rows], p.kernel.mreq[rows]
	for t := from; t < min(to, e.end); {
		i := int(t / c.width)
		stop := min(to, queue.Time(i+1)*c.width, e.end)
		b, d := &c.bins[min(i, len(c.bins)-1)], float64(stop-t)
		b.busy += d * share
		b.compute += d * creq
		b.memory += d * mreq
		t = stop
	}
	if t := e.w.Timeline; len(c.timeline) < t.Max && from >= queue.Time(t.From) && (t.To == 0 || from < queue.Time(t.To)) {
		c.timeline = append(c.timeline, BatchRecord{
			Partition: p.index, Model: e.byID[p.batch.Model].index, Rows: rows, Requests: len(p.batch.Requests),
			Start: micros(from), End: micros(to), Late: p.batch.Late,
		})
	}
}

// wasted counts an execution that a larger batch cuts off now.
func (c *collector) wasted(e *engine, p *partition) {
	p.counts.wasted += max(0, min(e.now, e.end)-max(p.start, e.counted))
}

func (c *collector) event(e *engine, kind EventKind, text string) {
	if len(c.events) < maxEvents {
		c.events = append(c.events, Event{At: seconds(e.now), Kind: kind, Text: text})
	}
}

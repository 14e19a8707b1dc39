// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/observe/curve"
)

// instance is what one model did on one partition. The model's lock guards it.
type instance struct {
	slots     ring[instanceCounts]
	latencies latencies
	// class is where pace was judged.
	class class
	pace  curve.Pace
}

// instanceCounts is one slot: how long executions ran, and the batches and rows of
// those that were answered.
type instanceCounts struct {
	busy          time.Duration
	batches, rows uint32
}

// instance finds or makes that of a partition. The model's lock is held.
func (m *model) instance(partition string) *instance {
	in := m.instances[partition]
	if in == nil {
		in = &instance{}
		m.instances[partition] = in
	}
	return in
}

// executed counts an execution.
func (in *instance) executed(e Execution) {
	slot := in.slots.at(e.End)
	if slotOf(e.Start) == slotOf(e.End) { // most are short
		slot.busy += e.End.Sub(e.Start)
	} else {
		for at, part := range spread(e.Start, e.End) {
			in.slots.at(at).busy += part
		}
	}
	if e.Err != nil {
		return // an error comes fast, and answers no row
	}
	slot.batches++
	slot.rows += uint32(max(0, e.Rows))
	in.latencies.add(e.End, e.End.Sub(e.Start))
}

// judge holds an execution against what is known of its class.
func (in *instance) judge(where class, known *curve.Curve, e Execution) {
	if in.class != where {
		in.class, in.pace = where, curve.Pace{}
	}
	in.pace.Judge(known, e.Rows, e.End.Sub(e.Start), e.End)
}

// latencySlots of a second cover the Window, the one that has begun included.
const latencySlots = int64(Window/time.Second) + 1

// latencies are those of the last seconds: coarser than a ring of slots, as a
// histogram is much larger than what else is counted of an instance.
type latencies struct {
	slot  [latencySlots]histogram
	index [latencySlots]int64
}

func (l *latencies) add(at time.Time, took time.Duration) {
	s := at.Unix()
	i := ((s % latencySlots) + latencySlots) % latencySlots
	if l.index[i] < s {
		l.index[i], l.slot[i] = s, histogram{}
	}
	l.slot[i].add(took)
}

// sum of the Window that ends at now, to the second.
func (l *latencies) sum(now time.Time) (all histogramSum) {
	last := now.Unix()
	for i, s := range l.index {
		if s > last-latencySlots && s <= last {
			all.add(&l.slot[i])
		}
	}
	return all
}

// Instance is what was observed of a model on a partition over the Window that ends at
// now: its executions, without requests that passed through beside others. Whether it is
// ready is left to the caller.
func (r *Recorder) Instance(partition, model string, now time.Time) *policy.InstanceObservation {
	o := &policy.InstanceObservation{Partition: partition, Model: model}
	m := (*r.models.Load())[model]
	if m == nil {
		return o
	}
	now = r.steady(now)
	m.mu.Lock()
	defer m.mu.Unlock()
	in := m.instances[partition]
	if in == nil {
		return o
	}
	var busy time.Duration
	var batches, rows uint64
	covered := in.slots.each(now, Window, func(c *instanceCounts) {
		busy += c.busy
		batches, rows = batches+uint64(c.batches), rows+uint64(c.rows)
	})
	o.RowRate, o.BusyShare = float64(rows)/covered, min(1, busy.Seconds()/covered)
	if batches > 0 {
		o.MeanBatch = float64(rows) / float64(batches)
	}
	all := in.latencies.sum(now)
	o.LatencyP50Us, o.LatencyP99Us = microseconds(all.quantile(.5)), microseconds(all.quantile(.99))
	o.Interfered = in.pace.Interfered()
	return o
}

// observations are those of every instance in force, by partition and model.
func (r *Recorder) observations(now time.Time, w World) (all []*policy.InstanceObservation) {
	for _, p := range w.Current.GetPartitions() {
		for _, i := range p.GetInstances() {
			o := r.Instance(p.GetId(), i.GetModel(), now)
			if o.Ready = true; w.Ready != nil {
				o.Ready, o.Condition = w.Ready(p.GetId(), i.GetModel())
			}
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b *policy.InstanceObservation) int {
		return cmp.Or(cmp.Compare(a.GetPartition(), b.GetPartition()), cmp.Compare(a.GetModel(), b.GetModel()))
	})
	return all
}

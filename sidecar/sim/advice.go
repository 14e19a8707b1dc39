// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/advice"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// weighEvery is how often the load is held against the GPUs, as sidecar/control does.
const weighEvery = 5 * second

// weighing is what the advice of snapshots is made from.
type weighing struct {
	state         advice.State
	advice        *policy.Advice
	requests, bad uint64 // since the last look
	swaps, seen   int    // of plans, now and at the last look
}

// answered counts what counts for or against the SLO.
func (w *weighing) answered(o outcome) {
	if o == failed || o == refused {
		return
	}
	w.requests++
	if o != good {
		w.bad++
	}
}

// weigh judges one more window; one in which another plan came into force is left out.
func (e *engine) weigh() {
	w := &e.plans.size
	window := advice.Window{Seconds: seconds(weighEvery), Requests: w.requests, Bad: w.bad}
	w.requests, w.bad = 0, 0
	var measured []*policy.PartitionStatistics
	for _, part := range e.plans.current.GetPartitions() {
		p := e.inUse[part.GetId()]
		busy := p.busySoFar(e.now)
		measured = append(measured, &policy.PartitionStatistics{
			Partition: part.GetId(), Up: p.failures == 0, IdleShare: 1 - seconds(busy-p.counts.weighed)/window.Seconds,
		})
		p.counts.weighed = busy
	}
	if w.swaps != w.seen {
		w.seen = w.swaps
		return
	}
	window.GPUs, window.Spare = advice.GPUs(e.nodes(), e.plans.current, measured)
	w.state, w.advice = advice.Rule{BadRate: e.w.Replan.BadRate}.Next(w.state, window)
}

// busySoFar is the time since it was added for which a partition has executed.
func (p *partition) busySoFar(now queue.Time) queue.Time {
	if p.stage == executing {
		return p.counts.total + now - p.start
	}
	return p.counts.total
}

// Window is the whole run as one window of package advice, for runs whose plan and GPUs stay: every GPU with its first partition's place in the
// plan as its rank.
func (r *Result) Window() advice.Window {
	t := &r.Total
	w := advice.Window{Seconds: r.Seconds, Requests: t.Good + t.Late + t.Dropped, Bad: t.Late + t.Dropped}
	var shares []float64
	for i, p := range r.Partitions {
		at := slices.IndexFunc(w.GPUs, func(g advice.GPU) bool { return g.ID == p.GPU })
		if at < 0 {
			at = len(w.GPUs)
			w.GPUs = append(w.GPUs, advice.GPU{ID: p.GPU, Rank: uint32(i)})
			shares = append(shares, 0)
		}
		share := float64(max(1, p.ThreadPercentage))
		g := &w.GPUs[at]
		g.IdleShare = (g.IdleShare*shares[at] + (1-p.BusyShare)*share) / (shares[at] + share)
		shares[at] += share
	}
	for _, g := range r.GPUs {
		if !slices.ContainsFunc(w.GPUs, func(o advice.GPU) bool { return o.ID == g.Name }) {
			w.Spare = append(w.Spare, g.Name)
		}
	}
	return w
}

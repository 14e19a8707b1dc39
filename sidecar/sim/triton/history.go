// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package triton

import (
	"time"

	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/histogram"
)

// bins is how many intervals the history has.
const bins = 60

// bin is an interval of the history.
type bin struct {
	arrivals, good uint64
	busy           float64 // nanoseconds of GPUs
	latency        histogram.Histogram
}

// width of an interval, in nanoseconds.
func (r *run) width() int64 { return max(1, (int64(r.w.Duration)+bins-1)/bins) }

func (r *run) binOf(at int64) *bin { return &r.bins[min(bins-1, at/r.width())] }

// executed counts what a GPU does from now on until an execution ends.
func (r *run) executed(server int, until int64) {
	s := &r.servers[server]
	from, end := r.now, min(until, int64(r.w.Duration))
	s.worked += max(0, end-max(from, int64(r.w.Warmup)))
	for from < end {
		stop := min(end, (from/r.width()+1)*r.width())
		r.binOf(from).busy += float64(stop - from)
		from = stop
	}
}

// history are the intervals of the arrivals' time.
func (r *run) history() []sim.Interval {
	all := make([]sim.Interval, 0, bins)
	gpus := 0
	for _, s := range r.w.Servers {
		gpus += s.gpus()
	}
	for i := range r.bins {
		b := &r.bins[i]
		from := int64(i) * r.width()
		length := min(r.width(), int64(r.w.Duration)-from)
		if length <= 0 {
			break
		}
		all = append(all, sim.Interval{
			FromSeconds: time.Duration(from).Seconds(), Arrivals: b.arrivals, Good: b.good, Bad: b.arrivals - b.good,
			LatencyP50Us: float64(b.latency.Quantile(.5)) / 1e3, LatencyP99Us: float64(b.latency.Quantile(.99)) / 1e3,
			GPUs: float64(gpus), Busy: b.busy / float64(length),
		})
	}
	return all
}

// partitions are the servers.
func (r *run) partitions() (all []sim.PartitionResult) {
	for i, s := range r.servers {
		all = append(all, sim.PartitionResult{
			ID: r.w.Servers[i].ID, GPU: r.w.Servers[i].GPU, ThreadPercentage: 100, UntilSeconds: r.w.Duration.Seconds(),
			BusyShare: float64(s.worked) / float64(len(s.gpus)) / float64(r.w.Duration-r.w.Warmup), Batches: s.batches, Rows: s.rows,
		})
	}
	return all
}

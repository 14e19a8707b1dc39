// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/histogram"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// comparison is one scenario, live and simulated.
type comparison struct {
	name      string
	stage     stage
	slo       time.Duration
	delays    delays
	log       []loadgen.Entry
	start     time.Time     // of the log
	lateness  time.Duration // of sleeps, 99th percentile
	jitter    float64       // of executions, as a fraction
	live      side
	simulated side
	// partitions of the plan that served, and executions a second (policies-live).
	partitions int
	executions float64
}

// side is what one of the two made of the arrivals that count.
type side struct {
	seconds       float64 // that count
	good, arrived int
	p99           time.Duration // of those that were answered, in time or late
	batch         float64       // rows per execution, the warm-up's too
}

func (s side) bad() float64 { return 1 - float64(s.good)/float64(s.arrived) }

// count takes the requests that were sent after the warm-up.
func (s *side) count(log []loadgen.Entry, models []loadgen.Model, warmup time.Duration) {
	log = slices.DeleteFunc(slices.Clone(log), func(e loadgen.Entry) bool { return e.Sent < warmup })
	s.arrived = len(log)
	for _, e := range log {
		if e.Err == nil && e.Latency <= models[e.Model].SLO {
			s.good++
		}
	}
	var h histogram.Histogram // the simulator's, so that both are rounded alike
	for _, d := range latencies(log) {
		h.Add(d)
	}
	s.p99 = h.Quantile(.99)
}

// simulate runs what conch was by its snapshot: its models, GPUs and plan. Of executions it knows what the emulation declares, and nothing that conch learnt
// while it ran; the delays around them are those that were measured of requests that were alone, and the arrivals come when they were really sent: first
// those that were alone, so that both have the same past.
func (c *comparison) simulate(ctx context.Context, raw []byte, models rig.Models, lost, restored time.Duration, seed uint64) error {
	learnt, err := scenario.FromSnapshot(raw, nil)
	if err != nil {
		return err
	}
	w, err := learnt.World(scenario.Options{Seed: seed})
	if err != nil {
		return err
	}
	c.jitter = spread(&w.World)
	if err := w.Close(); err != nil {
		return err
	}
	if raw, err = declared(raw, models); err != nil {
		return err
	}
	s, err := scenario.FromSnapshot(raw, nil)
	if err != nil {
		return err
	}
	names := models.Names()
	index := make([]int32, len(names))
	c.delays.restored = restored
	shift := c.start.Sub(c.delays.start)
	run := func(seed uint64, warmup time.Duration) (*sim.Result, error) {
		w, err := s.World(scenario.Options{Seed: seed})
		if err != nil {
			return nil, err
		}
		for k, m := range w.Snapshot.GetModels() {
			if at := slices.Index(names, m.GetName()); at >= 0 {
				index[at] = int32(k)
			}
		}
		var arrivals []workload.Arrival
		for _, e := range c.delays.lone {
			arrivals = append(arrivals, workload.Arrival{At: e.Sent, Model: index[e.Model], Rows: 1})
		}
		for _, e := range c.log {
			arrivals = append(arrivals, workload.Arrival{At: shift + e.Sent, Model: index[e.Model], Rows: 1})
		}
		w.Streams = []workload.Stream{workload.Slice(arrivals...)}
		w.Warmup, w.Duration = shift+warmup, max(shift+fidelityWarmup+c.stage.measure(), arrivals[len(arrivals)-1].At+1)
		w.Delays = sim.Delays{Request: c.delays.request, Control: c.delays.control, Response: max(0, c.delays.call-c.delays.emulated), Reply: c.delays.reply}
		if lost > 0 {
			w.Failures = []sim.Failure{{At: shift + lost, For: restored, Partition: lostPartition}}
		}
		r, err := sim.Run(ctx, w.World)
		return r, errors.Join(err, w.Close())
	}
	r, err := run(seed, fidelityWarmup)
	if err != nil {
		return err
	}
	all, err := run(seed, 0)
	if err != nil {
		return err
	}
	c.simulated = side{
		seconds: r.Seconds, good: int(r.Total.Good), arrived: int(r.Total.Arrivals), p99: time.Duration(r.Latency.P99Us * 1e3), batch: meanBatch(all),
	}
	return nil
}

// declared is a snapshot with profiles that say what the emulation of equal models takes, at every twentieth of a GPU.
func declared(raw []byte, models rig.Models) ([]byte, error) {
	var s policy.Snapshot
	if err := protojson.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	for _, p := range s.GetProfiles() {
		p.Points, p.Source = nil, policy.ProfileSource_PROFILE_SOURCE_DECLARED
		for share := uint32(5); share <= 100; share += 5 {
			for batch := 1; batch <= 32; batch++ {
				us := float64(models.Latency(batch)) / float64(time.Microsecond) * 100 / float64(share)
				p.Points = append(p.Points, &policy.ProfilePoint{
					Batch: uint32(batch), ThreadPercentage: share, LatencyUs: &policy.Estimate{Value: us}, LatencyUpperUs: us,
				})
			}
		}
	}
	return protojson.Marshal(&s)
}

// meanBatch is rows per execution over all models.
func meanBatch(r *sim.Result) float64 {
	var batches, rows uint64
	for _, p := range r.Partitions {
		batches, rows = batches+p.Batches, rows+p.Rows
	}
	return float64(rows) / float64(batches)
}

// spread is the standard deviation of executions as a fraction of their mean, by the learnt profiles: an upper latency is one deviation above
// the mean. Every batch size counts as often as it was observed.
func spread(w *sim.World) float64 {
	var sum, weight float64
	for _, p := range w.Snapshot.GetProfiles() {
		for _, q := range p.GetPoints() {
			if n, mean := float64(q.GetObservations()), q.GetLatencyUs().GetValue(); n > 0 && mean > 0 {
				sum += n * max(0, q.GetLatencyUpperUs()-mean) / mean
				weight += n
			}
		}
	}
	if weight == 0 {
		return 0
	}
	return sum / weight
}

// over is by value what live was over what the simulator says.
func (c *comparison) over(value func(side) float64) float64 {
	return value(c.live) / value(c.simulated)
}

func goodput(s side) float64 { return float64(s.good) / s.seconds }
func tail(s side) float64    { return float64(s.p99) / 1e6 }

// sendLateness is how much later than they were to be requests were sent, 99th percentile.
func (c *comparison) sendLateness() time.Duration {
	all := make([]time.Duration, len(c.log))
	for i, e := range c.log {
		all[i] = e.Sent - e.At
	}
	slices.Sort(all)
	return quantile(all, .99)
}

// disturbance is by how much the machine delayed what wanted to run, 99th percentile, as a part of the SLO.
func (c *comparison) disturbance() float64 {
	return float64(max(c.lateness, c.sendLateness())) / float64(c.slo)
}

// disturbed is where the machine was too busy to tell: its own delays are above a fiftieth of the SLO.
func (c *comparison) disturbed() string {
	if c.disturbance() > .02 {
		return "; DISTURBED"
	}
	return ""
}

func (c *comparison) lines() []string {
	s := c.simulated
	return []string{
		fmt.Sprintf("%s: goodput %.1f req/s live, %.1f simulated, ratio %.3f; p99 %.1f ms live, %.1f simulated, ratio %.3f",
			c.name, goodput(c.live), goodput(s), c.over(goodput), tail(c.live), tail(s), c.over(tail)),
		fmt.Sprintf("%s: bad %.2f%% live, %.2f%% simulated; mean batch %.2f live, %.2f simulated; request %v, control %v, call %v + %v, reply %v, execution jitter %.2f%%",
			c.name, 100*c.live.bad(), 100*s.bad(), c.live.batch, s.batch, round(c.delays.request), round(c.delays.control), c.delays.emulated,
			round(c.delays.call-c.delays.emulated), round(c.delays.reply), 100*c.jitter),
		fmt.Sprintf("%s: sleeps ended %v late, requests were sent %v late (99th percentile), machine load %.1f%s",
			c.name, round(c.lateness), round(c.sendLateness()), c.delays.machineLoad, c.disturbed()),
	}
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// addComparisons writes the figures of one scenario on one kind of Triton.
func addComparisons(r *figure.Report, name string, runs []comparison) {
	var note string
	values := map[string][]float64{}
	for _, c := range runs {
		values["goodput_ratio"] = append(values["goodput_ratio"], c.over(goodput))
		values["p99_ratio"] = append(values["p99_ratio"], c.over(tail))
		values["batch_ratio"] = append(values["batch_ratio"], c.over(func(s side) float64 { return s.batch }))
		values["goodput"] = append(values["goodput"], goodput(c.live))
		values["p99_ms"] = append(values["p99_ms"], tail(c.live))
		values["bad"] = append(values["bad"], 100*c.live.bad())
		note = fmt.Sprintf("the simulator has declared profiles; sleeps ended %v late, machine load %.1f%s",
			round(c.lateness), c.delays.machineLoad, c.disturbed())
	}
	r.AddRuns(name+".goodput_ratio", values["goodput_ratio"], "ratio", "live over simulated, same arrivals; "+note)
	r.AddRuns(name+".p99_ratio", values["p99_ratio"], "ratio", "live over simulated, same arrivals; "+note)
	r.AddRuns(name+".batch_ratio", values["batch_ratio"], "ratio", "rows per execution, live over simulated")
	r.AddRuns(name+".goodput", values["goodput"], "req/s", "live")
	r.AddRuns(name+".p99_ms", values["p99_ms"], "ms", "live, of answered requests")
	r.AddRuns(name+".bad", values["bad"], "%", "live, late or dropped")
}

// latencies of the requests that were answered, sorted.
func latencies(log []loadgen.Entry) []time.Duration {
	var all []time.Duration
	for _, e := range log {
		if e.Err == nil {
			all = append(all, e.Latency)
		}
	}
	slices.Sort(all)
	return all
}

// mean of a list that is not empty.
func mean(list []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range list {
		sum += d
	}
	return sum / time.Duration(len(list))
}

// quantile of a sorted list; 0 of an empty one.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// deviation is the standard deviation of a sorted list, after the outermost twentieth on each side was pulled in, as profiles have it.
func deviation(sorted []time.Duration) time.Duration {
	cut := len(sorted) / 20
	var sum, squares float64
	for i := range sorted {
		v := float64(sorted[min(max(i, cut), len(sorted)-1-cut)])
		sum += v
		squares += v * v
	}
	n := float64(len(sorted))
	return time.Duration(math.Sqrt(max(0, squares/n-sum*sum/n/n)))
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// ModelCounts are a model's requests of clients at present. VersionCounts has those that were answered.
type ModelCounts struct {
	// Waiting counts requests that wait for a partition now, UnderWay those that
	// are accepted and not answered.
	Waiting, UnderWay int
	// LastArrival is when the last request came; zero: never.
	LastArrival time.Time
	// Margin is by how much answers come later than predicted, and what is kept
	// back from deadlines for it, where they are far enough.
	Margin time.Duration
}

// counts of a model: what is under way, when the last request came, in Unix nanoseconds, and the queue's executions, with the sum of their times.
type counts struct {
	underWay, arrival     atomic.Int64
	executions, execution atomic.Int64
}

// arrive counts a request in, leave counts it out.
func (c *counts) arrive(now time.Time) {
	c.underWay.Add(1)
	c.arrival.Store(now.UnixNano())
}

func (c *counts) leave() { c.underWay.Add(-1) }

func (c *counts) executed(took time.Duration) {
	c.executions.Add(1)
	c.execution.Add(int64(took))
}

// Counts returns the counters of a model of the table in force.
func (d *Dispatcher) Counts(model string) (ModelCounts, bool) {
	r, err := d.route(model)
	if err != nil {
		return ModelCounts{}, false
	}
	m := ModelCounts{Waiting: d.queues.waiting(r.model), UnderWay: int(r.counts.underWay.Load()), Margin: r.executes.margin.Held()}
	if ns := r.counts.arrival.Load(); ns != 0 {
		m.LastArrival = time.Unix(0, ns)
	}
	return m, true
}

// VersionCounts are the requests of clients to one version of a model, counted
// as Triton counts: a request that is refused at validation is not counted, and
// one that a model of the python backend answers with an error is a success.
// Durations are sums over requests.
type VersionCounts struct {
	Version               string
	Success, Failed       uint64
	SuccessTime, FailTime time.Duration
	QueueTime             time.Duration
	// Ran counts successful requests by the rows that ran together with them,
	// their own included; 0 stands for more rows than a batch may have.
	Ran map[int]uint64
	// Executions are those that servers have answered; the servers' own statistics
	// show them a moment later. Requests that were passed through on streams are
	// not counted.
	Executions uint64
	// Rows of successful requests.
	Rows uint64
	// Walked counts the successful requests of an ensemble whose steps Conch executed, by their rows. Servers know nothing of them. LastWalk is when
	// the last one ended.
	Walked   map[int]uint64
	LastWalk time.Time
	// Asked are the requests that Conch sent to servers, and that the servers
	// count as successes. Further successes in the servers' statistics are
	// requests of other models.
	Asked uint64
}

// tally is what VersionCounts are taken from. It begins with a load of the model.
type tally struct {
	version                          string
	success, failed                  atomic.Uint64
	executions, asked, rows          atomic.Uint64
	successTime, failTime, queueTime atomic.Int64
	ran, walks                       []atomic.Uint64 // by rows
	lastWalk                         atomic.Int64
}

// walked counts a request of an ensemble whose steps were executed one by one.
func (t *tally) walked(rows int, now time.Time) {
	t.walks[min(rows, len(t.walks)-1)].Add(1)
	t.lastWalk.Store(now.UnixNano())
}

// answered counts a server's answer to one request of Conch's. A server whose
// caller has cancelled completes the request, and counts a success.
func (t *tally) answered(err error, backend string) {
	if err == nil {
		t.executions.Add(1)
	}
	if err == nil || status.Code(err) == codes.Canceled || verdictOfError(err, backend) == succeeded {
		t.asked.Add(1)
	}
}

func newTally(version string, maxBatch int) *tally {
	return &tally{version: version, ran: make([]atomic.Uint64, max(1, maxBatch)+1), walks: make([]atomic.Uint64, max(1, maxBatch)+1)}
}

// talliesOf returns one tally for each served version of a model that a table specifies, and a last one for requests of any other. Those of versions that the
// model has served since its files are these are kept: kept has them all.
func (m *model) talliesOf(spec *router.Model) (kept map[string]*tally, all []*tally) {
	kept = map[string]*tally{}
	if m.revision == spec.Revision {
		maps.Copy(kept, m.tallies)
	}
	all = make([]*tally, 0, len(spec.Versions)+1)
	for _, version := range append(spec.Versions[:len(spec.Versions):len(spec.Versions)], "") {
		t := kept[version]
		if t == nil {
			t = newTally(version, int(spec.Config.GetMaxBatchSize()))
			kept[version] = t
		}
		all = append(all, t)
	}
	return kept, all
}

// tallyOf finds the counters of the version that a request asks for; the latest
// is meant if it names none.
func (r *route) tallyOf(version string) *tally {
	others := len(r.tallies) - 1
	if version == "" && others > 0 {
		return r.tallies[others-1]
	}
	for _, t := range r.tallies[:others] {
		if t.version == version {
			return t
		}
	}
	return r.tallies[others]
}

// count counts a request as Triton would. Partition has the series of the
// partition that it ran on last; nil: it never ran.
func (m *model) count(t *tally, partition *partitionSeries, o *Outcome, v verdict) {
	s := &m.series
	if partition != nil {
		s = &partition.seriesSet
	}
	switch v {
	case uncounted:
		return
	case succeeded:
		t.success.Add(1)
		t.rows.Add(uint64(o.Rows)) //nolint:gosec // not negative
		t.successTime.Add(int64(o.Latency))
		t.queueTime.Add(int64(o.Queued))
		rows := o.Batch
		if rows >= len(t.ran) {
			rows = 0
		}
		t.ran[rows].Add(1)
		versioned := s.of(t.version)
		versioned.success.Add(1)
		versioned.successTime.Add(int64(o.Latency))
		versioned.queueTime.Add(int64(o.Queued))
	default:
		t.failed.Add(1)
		t.failTime.Add(int64(o.Latency))
		s.of(t.version).failed[v].Add(1)
	}
}

// VersionCounts returns the counters of the served versions of a model, in their
// order. They begin with the last load of the model.
func (d *Dispatcher) VersionCounts(model string) []VersionCounts {
	r, err := d.route(model)
	if err != nil {
		return nil
	}
	all := make([]VersionCounts, 0, len(r.tallies)-1)
	for _, t := range r.tallies[:len(r.tallies)-1] {
		counts := VersionCounts{
			Version: t.version, Success: t.success.Load(), Failed: t.failed.Load(),
			SuccessTime: time.Duration(t.successTime.Load()), FailTime: time.Duration(t.failTime.Load()), QueueTime: time.Duration(t.queueTime.Load()),
			Ran: map[int]uint64{}, Walked: map[int]uint64{}, Executions: t.executions.Load(), Rows: t.rows.Load(), Asked: t.asked.Load(),
		}
		for rows := range t.ran {
			if n := t.ran[rows].Load(); n > 0 {
				counts.Ran[rows] = n
			}
			if n := t.walks[rows].Load(); n > 0 {
				counts.Walked[rows] = n
			}
		}
		if ns := t.lastWalk.Load(); ns != 0 {
			counts.LastWalk = time.Unix(0, ns)
		}
		all = append(all, counts)
	}
	return all
}

// Series is what a partition did for clients with one version of a model since it
// began to serve, in the units of Triton's metrics: it only grows. Requests that
// never reached a partition are in a Series without a Partition.
type Series struct {
	Model, Version, Partition string
	Success                   uint64
	SuccessTime, QueueTime    time.Duration
	// Failed is by Triton's reasons of nv_inference_request_failure.
	Failed map[string]uint64
	// Waiting counts requests that wait in Conch now; only without a Partition,
	// and under the latest version.
	Waiting int
}

type series struct {
	version                string
	success                atomic.Uint64
	successTime, queueTime atomic.Int64
	failed                 [verdicts]atomic.Uint64
}

// partitionSeries are those of a model on a partition.
type partitionSeries struct {
	partition string
	seriesSet
}

// seriesSet holds series by version; it never shrinks.
type seriesSet struct {
	adding sync.Mutex
	list   atomic.Pointer[[]*series]
}

func (s *seriesSet) of(version string) *series {
	if known := s.find(version); known != nil {
		return known
	}
	s.adding.Lock()
	defer s.adding.Unlock()
	if known := s.find(version); known != nil {
		return known
	}
	added := &series{version: version}
	var all []*series
	if old := s.list.Load(); old != nil {
		all = append(all, *old...)
	}
	all = append(all, added)
	s.list.Store(&all)
	return added
}

func (s *seriesSet) find(version string) *series {
	if all := s.list.Load(); all != nil {
		for _, known := range *all {
			if known.version == version {
				return known
			}
		}
	}
	return nil
}

func (s *series) read(model, partition string) Series {
	out := Series{
		Model: model, Version: s.version, Partition: partition, Success: s.success.Load(),
		SuccessTime: time.Duration(s.successTime.Load()), QueueTime: time.Duration(s.queueTime.Load()), Failed: map[string]uint64{},
	}
	for v := range verdicts {
		if reason := v.reason(); reason != "" {
			out.Failed[reason] += s.failed[v].Load()
		}
	}
	return out
}

// Series lists the series of the table in force: for every version of every model,
// one for each partition that has it, and one without a partition.
func (d *Dispatcher) Series() []Series {
	t := d.routes.Load()
	if t == nil {
		return nil
	}
	var all []Series
	for name, r := range t.models {
		if r.spec.Internal {
			continue // its requests are its members'
		}
		for i, version := range r.spec.Versions {
			for _, attached := range d.router.Attached(name) {
				partition := attached.(*partitionSeries)
				all = append(all, partition.of(version).read(name, partition.partition))
			}
			nowhere := r.model.series.of(version).read(name, "")
			if i == len(r.spec.Versions)-1 {
				counts, _ := d.Counts(name)
				nowhere.Waiting = counts.Waiting
			}
			all = append(all, nowhere)
		}
	}
	return all
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package segment

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Query is a batch that one model executes.
type Query struct {
	// Model is an index into the world's models.
	Model int
	// Batch is the number of rows; SeqLen their length for a model that reads sequences, 0 for others.
	Batch, SeqLen int
	// Arrival and Deadline are moments since the start of the run.
	Arrival, Deadline time.Duration
}

// Slice is the operators from Start to End, which is not included, of a query.
type Slice struct {
	Model, Start, End, Batch, SeqLen int
}

// Predictor says how long a group of slices takes that run at once, at most one of each model, on a GPU that runs nothing else. The order is that
// in which the slices were added, and only the last one of a group may be open for more. A predictor is exact about order: a group takes no less
// time with an operator more in its last slice, and no less than without that slice. An empty group takes no time.
//
// A predictor may remember what it was asked, and is then for one goroutine.
type Predictor interface {
	Latency(group []Slice) time.Duration
}

// task is a query that is not finished: its operators before next are done.
type task struct {
	id, next int
	Query
}

// rest is what is left of a task, up to an operator.
func (t task) rest(end int) Slice {
	return Slice{Model: t.Model, Start: t.next, End: end, Batch: t.Batch, SeqLen: t.SeqLen}
}

// urgent orders tasks by headroom. All have waited until the same moment, so the order is that of deadlines (equation 2); ties go by arrival, then
// by number.
func urgent(a, b task) int {
	return cmp.Or(cmp.Compare(a.Deadline, b.Deadline), cmp.Compare(a.Arrival, b.Arrival), cmp.Compare(a.id, b.id))
}

// Outcome is how a query ended.
type Outcome struct {
	Query
	// Dropped queries were given up at End; others were answered then.
	Dropped bool
	End     time.Duration
}

// Late reports whether the answer came after the deadline.
func (o Outcome) Late() bool { return !o.Dropped && o.End > o.Deadline }

// Outcomes of a run, in the order of the queries.
type Outcomes []Outcome

// Violations is the share of queries that were late or dropped (figure 15 of the paper counts both).
func (all Outcomes) Violations() float64 {
	return 1 - float64(all.inTime())/math.Max(1, float64(len(all)))
}

// Throughput is queries answered in time per second of the span in which they arrived.
func (all Outcomes) Throughput() float64 { return all.perSecond(all.inTime()) }

// Answered is queries answered, late or not, per second of the span in which they arrived.
func (all Outcomes) Answered() float64 {
	n := 0
	for _, o := range all {
		if !o.Dropped {
			n++
		}
	}
	return all.perSecond(n)
}

func (all Outcomes) perSecond(n int) float64 {
	if len(all) == 0 || all[len(all)-1].Arrival <= 0 {
		return 0
	}
	return float64(n) / all[len(all)-1].Arrival.Seconds()
}

func (all Outcomes) inTime() (n int) {
	for _, o := range all {
		if !o.Dropped && !o.Late() {
			n++
		}
	}
	return n
}

// Percentile is the latency that a share q of the answered queries does not exceed, by nearest rank; dropped ones have none and do not count (section
// 7.1). Zero where nothing was answered.
func (all Outcomes) Percentile(q float64) time.Duration {
	var latencies []time.Duration
	for _, o := range all {
		if !o.Dropped {
			latencies = append(latencies, o.End-o.Arrival)
		}
	}
	if len(latencies) == 0 {
		return 0
	}
	slices.Sort(latencies)
	return latencies[min(len(latencies)-1, max(0, int(math.Ceil(q*float64(len(latencies))))-1))]
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package adaptive

import "github.com/conch-serving/conch/sidecar/dispatch/queue/latency"

type (
	// Time is a moment or a duration: see package latency.
	Time = latency.Time
	// Table is l(b): see package latency.
	Table = latency.Table
)

// Load is the input of a decision: a batch that could start, the load of its model,
// and the state of the pool of executors that the batch competes for.
type Load struct {
	Batch
	Model *Model
	Pool  *Pool
}

// Batch is what could start next on one profile class (Symphony, Algorithm 1).
type Batch struct {
	// Rows is |B|, Requests how many requests it is made of.
	Rows, Requests int
	// Waiting is how many rows wait that may share batches with B, B's included.
	Waiting int
	// Full is true if no request can join any more: the row limit is reached, or
	// the next queued request does not fit into the batch or its deadline.
	Full bool
	// Arrival is the earliest arrival in B, Newest that of its last request.
	Arrival, Newest Time
	// Deadline is d, the earliest deadline in B.
	Deadline Time
	// Frontrun is d - l(|B|+1): from here on a further row would be too late.
	Frontrun Time
	// Latest is d - l(|B|): a later start misses the deadline.
	Latest Time
}

// Model is the load of a model on the executors of one profile class, as of the
// last renewal of the rates.
type Model struct {
	// Table is l(b), nil without a usable profile; MaxBatch the limit of rows.
	Table    Table
	MaxBatch int
	SLO      Time
	// Slack is how long a lone request of the model can wait for an executor: its
	// SLO less l of the rows that requests usually have.
	Slack Time
	// Usual is how many rows requests have on average, one at least; Alone is l of these.
	Usual int
	Alone Time
	// Capacity is how many rows an executor executes within one SLO at most; zero
	// without an SLO.
	Capacity int
	// Known is true once the rate is known. Rate is in rows per second.
	Known bool
	Rate  float64
	// Dispersion is the variance of the model's rows that arrive within one SLO
	// over their mean: 1 for Poisson arrivals, more where they come in bursts.
	Dispersion float64
	// Executors counts those that serve the model and are up.
	Executors int
	// Reach is the largest batch that can be gathered at the rate and then run
	// within the SLO: l(b) + b/rate <= SLO.
	Reach int
	// Need is how many executors the model keeps busy with batches of that reach
	// (Symphony's n), zero while the rate is not known.
	Need float64
	// Saved is the part of l(1) that a row saves which joins a batch: 1 less what a
	// further row takes over l(1), the mean up to Reach.
	Saved float64
	// Worth is Params.Worth, as of the last renewal of the load.
	Worth int
}

// Share is a model's part of the sums of its pool: the means over the profile classes
// that serve it.
type Share struct {
	Need, Crowd, Flow, Urgency float64
	// Alone is l of the rows that requests usually have, Long that of a batch of Reach,
	// on the slowest class.
	Alone, Long Time
	// Burst is the time of a burst of Dispersion rows in batches, on the slowest class, over
	// the time of a single row: 1 for Poisson arrivals, and where a row that joins a batch
	// costs nothing; Dispersion for a model that cannot batch.
	Burst float64
	// Executors is how many executors can serve a request that has just come in time; one on
	// which the slack is shorter counts as that part of one.
	Executors float64
}

// Burst is Share.Burst of a model with that latency, which takes so many rows a batch, on one class.
func Burst(table latency.Table, maxBatch int, dispersion float64) float64 {
	rows := max(1, dispersion)
	b := min(int(rows), maxBatch)
	return rows / float64(b) * float64(table.At(b)) / float64(table.At(1))
}

// Pool is the load of all models that share executors, and the batches that run on
// these.
type Pool struct {
	// Free counts the idle executors, Usable those that are idle or busy.
	Free, Usable int
	// Need is the sum of the models' Need, and Crowd the part of it of models that
	// need less than one executor each.
	Need, Crowd float64
	// Flow is the sum of the models' rates in rows per second, and Urgency the sum of
	// their rates over their SLOs.
	Flow, Urgency float64
	// Running is the work of the batches that run on the executors.
	Running Running
	// Kept is how many executors batches must leave to models that could not wait
	// for them.
	Kept Kept
}

// Load is how many executors the models need, per executor that there is.
func (p *Pool) Load() float64 { return p.Need / float64(max(1, p.Usable)) }

// Around is the mean SLO of the requests that share the executors, the harmonic
// one, without the models of less slack than that; zero while no rate is known.
func (p *Pool) Around(slack Time) Time {
	flow, urgency := p.Kept.below(slack)
	if p.Urgency-urgency <= 0 || p.Flow-flow <= 0 {
		return 0
	}
	return Time((p.Flow - flow) / (p.Urgency - urgency))
}

// Left returns how much work is left at now, in batches, and by how much that
// falls per nanosecond: a batch that runs counts with the time that it has left
// as a share of l(reach) of its model.
func (p *Pool) Left(now Time) (left, ebb float64) { return p.Running.left(now) }

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"strings"
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/ensemble"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
	"github.com/conch-serving/conch/sidecar/dispatch/spans"
)

// Observer receives the events of the request path. Its methods are called on the
// request path itself, concurrently and possibly under a lock: they must be fast,
// must not block and must not call the Dispatcher.
type Observer interface {
	// Arrived reports one request that has arrived at a served model.
	Arrived(model string, rows int, at time.Time)
	// Asked reports one request for a name that other models serve. Arrived is
	// called too, for the model that serves the request. If no such model runs
	// yet, only Asked is called.
	Asked(Asked)
	// Executed reports one execution that the queue dispatched, or one of a
	// request outside it that had its partition to itself. Other executions are
	// not reported, because their times do not show l(b).
	Executed(Execution)
	// Busy reports that a partition worked on requests from one moment to another,
	// in or outside the queue, on one or on several at once. The reported times of
	// a partition do not overlap.
	Busy(partition string, from, to time.Time)
	// Finished reports the outcome of a request. It is called for every request that Arrived was called for, and for every request that was
	// refused before it arrived at a model (Outcome.Early).
	Finished(Outcome)
	// Walked reports a request of an ensemble whose steps Conch executed, all of them and with success. Finished is called for it besides, unless it
	// is itself a step of another one.
	Walked(Walk)
}

// Walk is where the time of a request of an ensemble went, step by step.
type Walk struct {
	Ensemble string
	Rows     int
	Ended    time.Time
	Took     time.Duration
	// Steps are in the order of Dispatcher.Pipeline.
	Steps []ensemble.Passed
}

// Recorder receives every request that arrives for a served model, refused
// requests included, while Recording returns true. Its methods are called as those
// of Observer are.
type Recorder interface {
	// Recording is called for every request: it must cost no more than an atomic
	// load.
	Recording() bool
	Record(Arrival)
}

// Arrival is a request as a trace needs it.
type Arrival struct {
	Model string
	At    time.Time
	Rows  int
	// Bytes of its tensors.
	Bytes int64
	// SLO of the model; 0 means none. Deadline is how long after At the caller wants
	// the answer where that is sooner than the SLO, else 0.
	SLO, Deadline time.Duration
}

// Execution is one batch on one partition.
type Execution struct {
	Model, Partition, GPUType string
	ThreadPercentage          uint32
	Rows, Requests            int
	// Start is when the batch was handed to the connection, End when its answer
	// was complete: what l(b) predicts, without Conch's own part.
	Start, End time.Time
	// Err is nil when Triton answered the batch. Profiles must not be learnt from
	// an execution with an error.
	Err error
	// Deadline is the earliest of its requests; zero: none has one.
	Deadline time.Time
	// Lent is how many bytes of tensors went through shared memory, both ways.
	Lent int
	// Between are the bytes of the tensors that it has taken from steps of ensembles.
	Between Between
	// Shared: requests outside the queue ran on the partition meanwhile.
	Shared bool
}

// Between are bytes of tensors between steps, by their way from one execution to the next: kept in the shared memory that the first has written, copied to other shared
// memory, or sent through the socket.
type Between struct{ Kept, Copied, Sent int }

// Asked is a request for a name that other models serve.
type Asked struct {
	// Name that was asked for, and the Model that serves it; empty: none runs.
	Name, Model string
	Wish        names.Wish
	Rows        int
	At          time.Time
	// Again: the request was reported before, without a Model.
	Again bool
}

// Outcome is what became of one request.
type Outcome struct {
	// Model that served the request. Of Early ones it is the model that was asked for, if it is served; else empty.
	Model string
	// Early: the request was refused, or its caller's context ended, before it arrived at a model. Arrived was not
	// called for it.
	Early bool
	// Name that the caller asked for, if it is not Model. A name that is not in the route table is left out, because clients may send any text.
	Name   string
	Result Result
	// Latency is the time from Arrived to the answer, Queued the part of it
	// before the (last) execution started.
	Latency, Queued time.Duration
	// Wait, Gather and Execute are parts of Latency; the rest is Conch's own time. In Wait no partition that it may run on was free, or its model was
	// being loaded. In Gather its partition was free, and its batch was gathered. Execute is its last execution. A first attempt that was lost is in
	// Wait.
	Wait, Gather, Execute time.Duration
	// Ended is when it ended. Deadline is when it was due, from its arrival; zero: never.
	Ended    time.Time
	Deadline time.Duration
	// Partition of the last execution; empty: it never ran.
	Partition string
	// Identity is valid until Finished returns.
	Identity Identity
	Rows     int
	// Batch is the number of rows that ran together; zero if it never ran.
	Batch int
	// PassedThrough: the request ran outside the queue.
	PassedThrough bool
	// Retried: a first attempt was lost with its partition.
	Retried bool
	// Loading is the part of Queued in which its model was loaded.
	Loading time.Duration
	// Reason is why a request was Dropped, Refused or Cancelled: a short metric
	// label. Of Cancelled it is one of the Gone reasons.
	Reason string
}

// Identity is how a client finds a request again.
type Identity struct{ of *ticket }

// ID is the request's id as the client gave it; empty: it gave none.
func (i Identity) ID() string {
	if i.of == nil {
		return ""
	}
	return strings.Clone(i.of.id)
}

// TraceID is that of the request's trace; empty: it has none.
func (i Identity) TraceID() string {
	if i.of == nil {
		return ""
	}
	if of := spans.Context(i.of.ctx); of.IsValid() {
		return of.TraceID().String()
	}
	return i.of.span.TraceID()
}

// Result classifies an Outcome; String is its metric label.
type Result uint8

const (
	// OK is answered within its deadline.
	OK Result = iota
	// Late is answered, but after its deadline.
	Late
	// Dropped is dropped from the queue because it could not be in time (late:
	// drop).
	Dropped
	// Refused is refused before it was queued: a limit, a drain, a request that
	// would crash a server, a name or a wish that nothing serves.
	Refused
	// Cancelled means that the caller went away or its own deadline passed.
	Cancelled
	// Failed means that Triton answered with an error, or no partition could.
	Failed
	// Cold is answered, after it waited for its model to be loaded on demand.
	Cold
)

// String returns the metric label.
func (r Result) String() string {
	switch r {
	case OK:
		return "ok"
	case Late:
		return "late"
	case Dropped:
		return "dropped"
	case Refused:
		return "refused"
	case Cancelled:
		return "cancelled"
	case Failed:
		return "failed"
	case Cold:
		return "cold"
	}
	return "unknown"
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"

	"github.com/conch-serving/conch/sidecar/dispatch/queue/latency"
)

type (
	// Time is a moment or a duration in nanoseconds on the caller's clock.
	Time = latency.Time
	// Table is a latency profile.
	Table = latency.Table
)

// Never is later than every moment: the deadline of a request without one, and
// what Next returns when nothing is due.
const Never = latency.Never

// Linear returns the table of l(b) = alpha*b + beta for 1..largest+1 rows.
func Linear(alpha, beta Time, largest int) Table { return latency.Linear(alpha, beta, largest) }

// ModelID names a model within one Scheduler. Identifiers are never reused.
type ModelID int32

// ExecutorID names an executor within one Scheduler. Identifiers start at 1
// and are never reused.
type ExecutorID int32

// NoExecutor is the zero ExecutorID: no executor has it.
const NoExecutor ExecutorID = 0

// Request is one queued inference request. The caller allocates it, fills the
// exported fields and leaves them alone while the request is queued. It may be
// reused once it was dropped, cancelled, or its batch was completed.
type Request struct {
	// Arrival is when the caller received the request.
	Arrival Time
	// Deadline is when the response must be ready. Zero means Arrival plus the
	// SLO of the model; Never, or zero for a model without an SLO, means that
	// the request has no deadline and is never deferred or dropped.
	Deadline Time
	// Rows is the request's share of a batch; values below 1 count as 1.
	Rows int32
	// Avoid is an executor that must not run the request unless no other one
	// that is up serves its model: where a first attempt failed. It stands for all
	// executors of its server (ExecutorSpec.Server).
	Avoid  ExecutorID
	listed listed // beside the fields that Enqueue reads first, for the cache
	// Expired says what happens to the request after its Expiry: LateDrop hands it to Sink.Drop with DropExpired, LateServe keeps it and serves it behind the
	// requests that are in time, as one that was given up (Triton's timeout_action REJECT and DELAY).
	Expired Late
	// Level is the request's priority level within its model: 1 goes first, then 2 and so on, under the bound that levelShare sets; zero is before 1, for
	// models without levels.
	Level int32
	// MaxQueue is how many requests of its level may be queued, itself included: more are dropped by Enqueue with DropFull. Below 1 means any number.
	MaxQueue int32
	// Expiry is the last moment at which the request may start, however long it then takes. Zero and Never mean that it may start at any time. Where the
	// Deadline says nothing of the kind, requests are in the order of their expiries.
	Expiry Time
	// Key is equal for requests that may share a batch.
	Key uint64
	// Tag is for the caller; the queue does not read it.
	Tag any

	prev, next *Request
	lane       *lane
}

// listed says on which list of its lane a request is.
type listed uint8

const (
	listedNowhere listed = iota
	listedWaiting
	listedLate
)

// Late says what happens to a request that a drop policy gives up.
type Late uint8

const (
	// LateServe keeps it and serves it behind the requests that can still meet
	// their deadlines, on executors that these leave over. The default.
	LateServe Late = iota
	// LateDrop hands it to Sink.Drop at once, but for a few that are tried (see
	// Options.Trial).
	LateDrop
)

func (l Late) String() string {
	if l == LateDrop {
		return "drop"
	}
	return "serve"
}

// ModelSpec describes a model's queue.
type ModelSpec struct {
	// Name is used in messages only.
	Name string
	// Classes holds one latency table per profile class (GPU type, share and
	// co-runners that make a difference). An empty list, or an empty table for
	// one class, means that no usable profile exists yet: there, requests are
	// forwarded at once in batches of whatever is queued, and never dropped.
	Classes []Table
	// Optimistic holds for each class the least that l(b) may be, where that is not
	// well known: batches that only this table allows are tried at a bounded rate
	// (see trial.go). An empty list or table means that nothing is to be tried.
	Optimistic []Table
	// MaxBatch is the largest number of rows in a batch; below 1 counts as 1.
	MaxBatch int
	// Closed makes the queue drop all requests of the model, those that wait and
	// those to come, with DropClosed.
	Closed bool
	// SLO is the target latency: the default deadline, and the length that the
	// window drop's target batch is derived from.
	SLO Time
	// Late says what happens to requests that are given up.
	Late Late
	// Discipline chooses when batches may start; nil means adaptive.
	Discipline Discipline
	// Drop chooses which requests are given up; nil means the discipline's own.
	Drop *DropPolicy
}

// Service says that an executor serves a model.
type Service struct {
	Model ModelID
	// Class is the index of the executor's profile class in ModelSpec.Classes;
	// outside the list means that there is no usable profile for it yet.
	Class int32
	// MaxBatch limits batches of this model on this executor; below 1 means
	// that only the model's own limit counts.
	MaxBatch int
}

// ExecutorSpec describes an executor.
type ExecutorSpec struct {
	// Rank orders free executors: the smallest is used first, so that high
	// ranks stay idle and can be released. Equal ranks are ordered by identifier.
	Rank int32
	// Serves lists the models that are loaded. Unknown models are ignored.
	Serves []Service
	// Server is the first of the executors that are executions at once of one server;
	// NoExecutor: the executor is the first, or the only one. A request that avoids the
	// first avoids them all.
	Server ExecutorID
}

// Batch is a decision to run requests together on an executor. The Scheduler
// owns it: it is valid from Sink.Dispatch until Complete for its executor.
type Batch struct {
	Model    ModelID
	Executor ExecutorID
	// Requests all have the same Key and are in deadline order. Those of other priority levels that fill the batch come last, level by level.
	Requests []*Request
	Rows     int
	// Start is when the batch was dispatched, Finish when the profile predicts
	// its end; they are equal where there is no usable profile.
	Start, Finish Time
	// Free is since when the executor was free, at most Start.
	Free Time
	// Late is true for requests that were given up and are served on an executor
	// that was left over.
	Late bool
	// Hurried is true if the batch started before its exec, because its
	// discipline preferred a free executor to waiting, or a lower priority level
	// would have taken the executor.
	Hurried bool
}

// DropReason says why a request was given up. Its String is a metric label.
type DropReason uint8

const (
	// DropLate means that the request could not have finished in time even alone.
	DropLate DropReason = iota
	// DropWindow means that the request's deadline would have limited a batch below the target size.
	DropWindow
	// DropTooLarge means that the request has more rows than any batch of the model may have.
	DropTooLarge
	// DropModelRemoved means that the request's model was removed or never existed.
	DropModelRemoved
	// DropClosed means that the request's model's queue was closed.
	DropClosed
	// DropOutage means that the request's model's queue was emptied because no executor serves it.
	DropOutage
	// DropExpired means that the request's Expiry has passed.
	DropExpired
	// DropFull means that MaxQueue requests of the request's level were queued already.
	DropFull

	dropReasons = iota
)

func (r DropReason) String() string {
	switch r {
	case DropLate:
		return "late"
	case DropWindow:
		return "window"
	case DropTooLarge:
		return "too_large"
	case DropModelRemoved:
		return "model_removed"
	case DropClosed:
		return "closed"
	case DropOutage:
		return "outage"
	case DropExpired:
		return "expired"
	case DropFull:
		return "full"
	}
	return fmt.Sprintf("reason_%d", uint8(r))
}

// DropReasons lists every reason, for callers that register metrics.
func DropReasons() []DropReason {
	all := make([]DropReason, dropReasons)
	for i := range all {
		all[i] = DropReason(i)
	}
	return all
}

// Sink receives decisions, synchronously, within the call that caused them. It
// must not call the Scheduler back.
type Sink interface {
	// Dispatch hands over a batch to run now. The caller must answer every
	// Dispatch with exactly one Complete, whatever becomes of the batch.
	Dispatch(*Batch)
	// Drop returns a request that will not be served.
	Drop(*Request, DropReason)
}

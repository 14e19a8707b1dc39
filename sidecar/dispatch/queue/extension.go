// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// Optional interfaces of a Discipline, beside choosing exec. Each is found by a type
// assertion when a model is specified, so that it costs nothing per request.

// Sizer is a Discipline with a limit of its own for batches. A request that alone
// has more rows than that runs alone.
type Sizer interface {
	Discipline
	// MaxRows returns the largest number of rows in a batch. It is called when the
	// rate or the load is renewed.
	MaxRows(l *Load) int
}

// Stepper is a Sizer whose batches have only some sizes up to its limit, or whose
// limit holds at once for what has gathered already.
type Stepper interface {
	Sizer
	// Size returns the most rows of a batch for which so many rows are gathered. It
	// is called whenever a candidate is gathered.
	Size(rows int) int
}

// Ranker is a Discipline that has its own order of candidates which wait for
// the same executors: the smallest rank goes first. Others are ordered by
// Latest. Where models under a Ranker and others share executors, both numbers
// are compared as they are.
type Ranker interface {
	Discipline
	Rank(l *Load) Time
}

// Cycler is a Discipline under which the models of an executor take turns on it.
// Where other models share the executor, candidates are ordered by Latest.
type Cycler interface {
	Discipline
	cycles()
}

// Preempter is a Discipline whose batches may take a running batch's place, if
// that is under a Preempter too and the Sink is a Preemptor.
type Preempter interface {
	Discipline
	// Preempts reports whether a batch of so many waiting rows takes the place
	// of one of so many running rows. It must be false unless more rows wait
	// than run.
	Preempts(waiting, running int) bool
}

// Preemptor is a Sink that can end a batch before it is complete. Triton cannot
// abort an execution, so a live sink is none; a simulator can be.
type Preemptor interface {
	Sink
	// Preempt ends a running batch; its work is lost. Its requests are queued
	// again when the call returns, and the next Dispatch is for its executor:
	// Complete must not be called for the batch that ended.
	Preempt(*Batch)
}

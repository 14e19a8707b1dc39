// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package queue decides which requests run together, when, and on which
// executor.
//
// It is pure: it never reads a clock, starts a goroutine or does I/O. Every
// call carries the caller's time, every decision comes back through a Sink
// before the call returns, and the same calls always give the same decisions.
// The live sidecar and the simulator therefore run the same code.
//
// One Scheduler holds one queue per model over all executors that serve it
// (Symphony, section 3.2). Requests of a model that may share a batch form a
// lane, ordered by deadline. For every lane and every profile class that
// serves it there is a candidate: the batch B that could start now, the moment
// exec from which it may start and the moment latest after which it cannot
// finish in time. A discipline chooses exec; a drop policy chooses which
// requests are given up so that the others can run in a larger batch.
//
// Requests may have priority levels, a limit of how many of a level wait, and a
// moment until which they may start: the queue policies of Triton's model
// configuration ("Dynamic Batcher"), in levels.go.
//
// A request read top-down: Scheduler.Enqueue (scheduler.go), match, grant and
// freed (match.go), lane and gather (lane.go), then the discipline and the
// drop policy, a page each.
package queue

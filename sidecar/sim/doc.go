// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package sim runs Conch on virtual time: the queue of sidecar/dispatch/queue and the policies of plugins, unchanged, over emulated GPUs.
//
// A [World] goes in: a policy.Snapshot (GPUs, models, profiles, interference, what changes cost), a plan or a policy, streams of arrivals,
// delays and failures. [Run] returns a [Result]. The same world gives the same result, byte for byte: one goroutine, no clock, one random
// generator per model and purpose. [Goodput] searches for the highest rate that a world holds.
//
// A run top-down: Run (engine.go) takes the next of an arrival, an event and a moment at which the queue has something to do; partition.go
// is a batch's way through a partition, interference.go what co-runners do to it, replan.go the plan path, failure.go what breaks, and
// collect.go what is counted. README.md has the model of time and what is not modelled; package scenario is the file format.
package sim

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package queuetest measures queue disciplines on virtual time: Poisson
// or bursty arrivals, partitions that take l(b) for a batch, or nearly. Tests and
// benchmarks of the queue use it.
//
// sidecar/sim is the simulator for users, and can do all of this too. It is not
// used here because it stands above the queue: it brings the snapshot, plans, the
// forecast and the policies along, whose faults would then fail the queue's tests,
// and the queue may not import any of them (internal/depcheck). Two independent
// harnesses that agree, about the goodput of Symphony's table 2 in both packages'
// tests, are worth more than one.
package queuetest

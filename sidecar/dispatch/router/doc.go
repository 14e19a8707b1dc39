// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package router owns the partitions: which there are, what each serves, whether
// it is up, and who uses it. It is the only way to a partition, for batches of
// the queue, requests that pass through, streams and the HTTP proxy alike.
//
// A partition is used by a Lease. Every lease is taken on the table that is in
// force at that moment, under the lock that also guards the table and the state
// of every process, so that none is ever given on a place that was taken away:
// what Drained says is idle stays idle.
//
// # The states of a process
//
//	          Lost            Set(down)
//	    up ----------> lost ------------+
//	    |  <---------- (probe)          v
//	    +---------- Set(down) -----> down
//	    ^                               |
//	    +---------- Set(up) ------------+
//
//	up, lost, down --- Swap names it no more ---> retired --- last lease ---> closed
//
// Only a process that is up gets leases. One that the request path saw fail is
// lost: it is asked until it has all its models ready again. One whose driver
// says that it is down stays down until its driver says otherwise.
//
// # Waiting
//
// Acquire waits while no process of a model is up, for Options.OutageWait at
// most. Who waits is woken by what concerns his model alone: a process of it
// comes up, the table in force changes where it is served, or the wait is over.
package router

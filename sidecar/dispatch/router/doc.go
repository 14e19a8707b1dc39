// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package router owns the partitions: which partitions exist, which models each
// serves, whether it is up, and which leases it has. Batches of the queue,
// requests that pass through, streams and the HTTP proxy all reach a partition
// through a lease of this package.
//
// Every lease is taken on the route table that is in force at that moment. One
// lock guards the table, the state of every partition and the leases. No lease is
// therefore granted on a place that the table in force does not have: such a place
// stays idle once Drained reports it as idle.
//
// # The states of a partition
//
//	          Lost            Set(down)
//	    up ----------> lost ------------+
//	    |  <---------- (probe)          v
//	    +---------- Set(down) -----> down
//	    ^                               |
//	    +---------- Set(up) ------------+
//
//	up, lost, down --- not in a new table ---> retired --- last lease ---> closed
//
// Only a partition that is up gets leases. A partition whose connection failed under a
// lease is lost: the router probes it until all its models are ready again. A
// partition that its driver has set down stays down until the driver sets it up.
//
// # Waiting
//
// A call that asks for a lease while no partition of its model is up may wait. When a model has been without
// one for Options.OutageWait, its outage is declared and waiting calls fail; at
// once, if a table takes its last place away and it is not loaded on demand. A
// waiting call is woken when a partition of its model comes up, when a new table
// comes into force, when the outage is declared and when the router is closed. A
// change of another model's partitions does not wake it.
package router

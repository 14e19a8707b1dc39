// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

// BreakScheduler makes the scheduler's next use panic, as a fault of ours
// would.
func BreakScheduler(d *Dispatcher) {
	d.queues.mu.Lock()
	defer d.queues.mu.Unlock()
	d.queues.sched = nil
}

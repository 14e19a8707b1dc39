// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package forecast

import (
	"sync/atomic"
	"time"
)

// ResponseBudget is the time that the dispatcher keeps back from
// every deadline, to pass the answer to the caller.
const ResponseBudget = 300 * time.Microsecond

// Budget is what Conch adds to an execution between the decision and the call,
// mean plus one deviation, learnt as it runs. What it adds on the way back is
// [ResponseBudget]; what the connection adds is part of the measured latencies.
type Budget struct {
	mean, deviation atomic.Int64 // nanoseconds
	used            atomic.Int64 // the budget that the tables were made with
}

// quantum is the change of the budget that is worth new tables.
const quantum = 50 * time.Microsecond

// Current is the budget, rounded up to a quantum, for tables that are made now.
func (b *Budget) Current() time.Duration {
	v := time.Duration(b.mean.Load() + b.deviation.Load())
	v = (v + quantum - 1) / quantum * quantum
	b.used.Store(int64(v))
	return v
}

// Add counts one measurement and reports whether the tables are out of date.
// Updates that race lose a measurement, which does not matter.
func (b *Budget) Add(d time.Duration) bool {
	const weight = 32
	// One stall of the machine says little about the next batch.
	d = min(d, 5*time.Millisecond)
	mean := b.mean.Load()
	off := int64(d) - mean
	b.mean.Store(mean + off/weight)
	if off < 0 {
		off = -off
	}
	dev := b.deviation.Load()
	dev += (off - dev) / weight
	b.deviation.Store(dev)
	now, used := b.mean.Load()+dev, b.used.Load()
	return now > used+int64(quantum) || now < used-3*int64(quantum)
}

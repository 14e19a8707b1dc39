// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"log/slog"
	"time"
)

// guarded is an Observer whose methods recover their panics. The request path calls the Observer while a request holds resources, and under
// locks: a panic of the Observer must not cost an answer, a slot of admission or a lease.
type guarded struct {
	observer Observer
	log      *slog.Logger
}

func (g guarded) Arrived(model string, rows int, at time.Time) {
	defer func() { recovered(g.log, "observing a request", recover()) }()
	g.observer.Arrived(model, rows, at)
}

func (g guarded) Asked(a Asked) {
	defer func() { recovered(g.log, "observing a request", recover()) }()
	g.observer.Asked(a)
}

func (g guarded) Executed(e Execution) {
	defer func() { recovered(g.log, "observing an execution", recover()) }()
	g.observer.Executed(e)
}

func (g guarded) Busy(partition string, from, to time.Time) {
	defer func() { recovered(g.log, "observing a partition", recover()) }()
	g.observer.Busy(partition, from, to)
}

func (g guarded) Walked(w Walk) {
	defer func() { recovered(g.log, "observing a request", recover()) }()
	g.observer.Walked(w)
}

func (g guarded) Finished(o Outcome) {
	defer func() { recovered(g.log, "observing an outcome", recover()) }()
	g.observer.Finished(o)
}

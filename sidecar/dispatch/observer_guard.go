// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"log/slog"
	"time"
)

// guarded is an Observer whose panics end where they began. The request path tells it of a request between taking and giving back what the
// request holds, and under locks: a fault of the Observer's must cost neither an answer, nor a slot of admission, nor a lease.
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

func (g guarded) Finished(o Outcome) {
	defer func() { recovered(g.log, "observing an outcome", recover()) }()
	g.observer.Finished(o)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// alarm rings at the scheduler's next event. To set it is a system call, which is done after queues.mu is released: several goroutines may then be about to
// set it, each for another event. It may ring too early, which does no harm, and is never left set to ring too late.
type alarm struct {
	clock clock.Alarm
	next  atomic.Int64 // the scheduler's next event, a queue.Time. Written with queues.mu held

	mu  sync.Mutex   // held while the alarm is set
	set atomic.Int64 // what it is set to; queue.Never: it has rung, or is not set. Written with mu held
}

func (a *alarm) init(c clock.Alarm) {
	a.clock = c
	a.next.Store(int64(queue.Never))
	a.set.Store(int64(queue.Never))
}

// follow sets the alarm to the next event, unless it is set to that. Call it after next was written.
func (a *alarm) follow(origin time.Time) {
	if a.set.Load() == a.next.Load() {
		return // who is about to set it to another event looks at next once more
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for next := a.next.Load(); next != a.set.Load(); next = a.next.Load() {
		if next == int64(queue.Never) {
			a.clock.Set(time.Time{})
		} else {
			a.clock.Set(origin.Add(time.Duration(next)))
		}
		a.set.Store(next)
	}
}

// rung notes that the alarm has rung.
func (a *alarm) rung() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.set.Store(int64(queue.Never))
}

// stop ends the alarm, and waits for its ringing.
func (a *alarm) stop() { a.clock.Stop() }

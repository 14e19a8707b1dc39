// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Execution is whether who has led may execute requests, and whose they are else.
type Execution uint8

const (
	// Executes: this conch executes, though it may not know at the moment whether it leads: who is cut off from the API server goes on.
	Executes Execution = iota
	// Unsure: this process has not run for longer than its lease lasts, so that another conch may lead. It is known once the API server was asked.
	Unsure
	// Anothers: another conch leads.
	Anothers
)

// execution is the right to execute. A process that was paused does not know that for how long, when it goes on: whatever runs first finds that the time has passed until which a
// process that runs has been sure.
type execution struct {
	// until is for how long this conch is sure, as it was known when it ran last; nil: it has just begun, or has given the lease back.
	until atomic.Pointer[moment]

	mu sync.Mutex
	// beaten is when this process was seen to run the last time, and woke when it was seen to go on after a pause that has outlasted the lease; zero: it knows what became of that.
	beaten *moment
	woke   time.Time
	// anothers: another one leads. changed is closed with the next change.
	anothers bool
	changed  chan struct{}
}

// beatsPerLook is how often this process is seen to run, for each look at the lease.
const beatsPerLook = 2

// past is when nobody executes any more.
var past = &moment{}

// Executes says whether this conch, which has led, executes. Where that is not Executes, the channel is closed once it may be otherwise.
func (l *Lease) Executes() (Execution, <-chan struct{}) {
	if l.sure() {
		return Executes, nil
	}
	x := &l.executing
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.anothers:
		return Anothers, x.changed
	case l.sure():
		return Executes, nil
	}
	return Unsure, x.changed
}

func (l *Lease) sure() bool {
	until := l.executing.until.Load()
	return until == nil || !time.Now().After(until.running) && !l.wall().After(until.wall)
}

// since is how long ago a moment was, by the clock that says longer: for others time has gone on while this machine was suspended.
func (m *moment) since(earlier *moment) time.Duration {
	return max(m.wall.Sub(earlier.wall), m.running.Sub(earlier.running))
}

func (m *moment) after(d time.Duration) *moment { return &moment{m.wall.Add(d), m.running.Add(d)} }

// isSure has this conch execute until so long after a moment.
func (l *Lease) isSure(from *moment, d time.Duration) {
	if until := from.after(d); l.now().since(until) > 0 {
		return // the answer came after a pause, and says nothing of now
	}
	x := &l.executing
	x.mu.Lock()
	defer x.mu.Unlock()
	l.isSureLocked(from, d)
}

func (l *Lease) isSureLocked(from *moment, d time.Duration) {
	x := &l.executing
	if x.anothers {
		return
	}
	x.woke = time.Time{}
	x.until.Store(from.after(d))
	close(x.changed)
	x.changed = make(chan struct{})
}

// beat notes that this process runs. Who runs and cannot renew the lease is cut off, and executes. Who has not run meanwhile asks the API server first.
func (l *Lease) beat() {
	x, now := &l.executing, l.now()
	x.mu.Lock()
	defer x.mu.Unlock()
	before := x.beaten
	x.beaten = now
	switch {
	case x.anothers, l.age() <= l.deadline, before == nil:
	case !l.sure() && now.since(before) > l.duration-l.deadline:
		x.woke = now.running
	case x.woke.IsZero():
		l.isSureLocked(now, l.deadline)
	}
}

// beats beats until life ends.
func (l *Lease) beats(life context.Context) {
	tick := time.NewTicker(l.look / beatsPerLook)
	defer tick.Stop()
	for {
		l.beat()
		select {
		case <-life.Done():
			return
		case <-tick.C:
		}
	}
}

// isCutOff takes in that an attempt to renew the lease has failed. After a pause that is all that can be known.
func (l *Lease) isCutOff(asked *moment, err error) {
	if err == nil || apierrors.IsConflict(err) {
		return // of a conflict it knows more when it has asked whose the lease is
	}
	x := &l.executing
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.woke.IsZero() && asked.running.After(x.woke) {
		l.isSureLocked(l.now(), l.deadline)
	}
}

// isAnothers takes in that another conch leads.
func (l *Lease) isAnothers() {
	x := &l.executing
	x.mu.Lock()
	defer x.mu.Unlock()
	x.anothers = true
	x.until.Store(past)
	close(x.changed)
	x.changed = make(chan struct{})
}

// finishes has a conch that has given the lease back, and asks for it no more, execute what it has accepted, unless it is known or possible that another one does by then.
func (l *Lease) finishes() {
	l.reporting.Lock() // until it has taken in who leads
	defer l.reporting.Unlock()
	x := &l.executing
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.anothers && l.sure() {
		x.until.Store(nil)
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"context"
	"sync"
	"time"
)

// Clock is time.
type Clock interface {
	Now() time.Time
	// Sleep returns once so much time has passed.
	Sleep(d time.Duration)
	// Alarm returns an alarm that calls ring on a goroutine of its own.
	Alarm(ring func()) Alarm
	// After calls ring once, on a goroutine of its own, when so much time has
	// passed. It is cheap, and meant for calls that need not be exact. A caller
	// that no longer needs the call stops the Timer.
	After(wait time.Duration, ring func()) Timer
}

// Timer is a pending call of After.
type Timer interface {
	// Stop cancels the call, and reports whether it was in time.
	Stop() bool
}

// Alarm calls its function at or soon after the moment it was last set to. A
// moment that has passed rings at once.
type Alarm interface {
	// Set replaces the moment; the zero time means never.
	Set(at time.Time)
	// Stop ends the alarm and waits for a call under way.
	Stop()
}

// Timers is real time with time.Timer, which is about a millisecond coarse on
// Linux but follows the virtual time of testing/synctest.
func Timers() Clock { return timerClock{} }

type timerClock struct{}

func (timerClock) Now() time.Time { return time.Now() }

func (timerClock) Sleep(d time.Duration) { time.Sleep(d) }

func (timerClock) After(wait time.Duration, ring func()) Timer { return time.AfterFunc(wait, ring) }

func (timerClock) Alarm(ring func()) Alarm { return newTimerAlarm(ring) }

type timerAlarm struct {
	timer *time.Timer
	stop  chan struct{}
	ended chan struct{}
	once  sync.Once
}

func newTimerAlarm(ring func()) *timerAlarm {
	a := &timerAlarm{timer: time.NewTimer(time.Hour), stop: make(chan struct{}), ended: make(chan struct{})}
	a.timer.Stop()
	go func() {
		defer close(a.ended)
		for {
			select {
			case <-a.timer.C:
				ring()
			case <-a.stop:
				a.timer.Stop()
				return
			}
		}
	}()
	return a
}

func (a *timerAlarm) Set(at time.Time) {
	if at.IsZero() {
		a.timer.Stop()
		return
	}
	a.timer.Reset(time.Until(at))
}

func (a *timerAlarm) Stop() {
	a.once.Do(func() { close(a.stop) })
	<-a.ended
}

// Interruptible is real time whose sleeps end with a context.
type Interruptible struct{}

// Now is the present time.
func (Interruptible) Now() time.Time { return time.Now() }

// Sleep returns once so much time has passed, or with the context's error.
func (Interruptible) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

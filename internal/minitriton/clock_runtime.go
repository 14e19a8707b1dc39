// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"sync"
	"time"
)

// RuntimeClock is the Go runtime's time: up to a millisecond late on Linux, but under testing/synctest it is virtual.
func RuntimeClock() Clock { return runtimeClock{} }

type runtimeClock struct{}

func (runtimeClock) Now() time.Time             { return time.Now() }
func (runtimeClock) Sleep(d time.Duration)      { time.Sleep(d) }
func (runtimeClock) NewAlarm(ring func()) Alarm { return newRuntimeAlarm(ring) }

// runtimeAlarm rings under its lock, so that Close can promise that ring is over.
type runtimeAlarm struct {
	mu     sync.Mutex
	closed bool
	timer  *time.Timer
}

func newRuntimeAlarm(ring func()) *runtimeAlarm {
	a := &runtimeAlarm{}
	a.timer = time.AfterFunc(time.Hour, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if !a.closed {
			ring()
		}
	})
	a.timer.Stop()
	return a
}

// Set does not take the lock: ring may set its own alarm.
func (a *runtimeAlarm) Set(d time.Duration) { a.timer.Reset(d) }

func (a *runtimeAlarm) Close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	a.timer.Stop()
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// System is real time. Its alarm is a timer descriptor that the runtime's
// poller waits for: Go's own timers are rounded up to a millisecond when nothing
// else runs, and a thread of its own that sleeps in the kernel has to win a
// processor back when it wakes, which on a busy machine takes longer than the
// poller does.
func System() Clock { return systemClock{} }

type systemClock struct{ timerClock }

func (systemClock) Alarm(ring func()) Alarm {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil { // out of descriptors: less accurate, but an alarm
		return newTimerAlarm(ring)
	}
	a := &fileAlarm{file: os.NewFile(uintptr(fd), "timerfd"), fd: fd, ended: make(chan struct{})}
	go a.run(ring)
	return a
}

type fileAlarm struct {
	mu      sync.Mutex
	stopped bool
	file    *os.File
	fd      int
	ended   chan struct{}
}

func (a *fileAlarm) run(ring func()) {
	defer close(a.ended)
	var expirations [8]byte
	for {
		if _, err := a.file.Read(expirations[:]); err != nil {
			return
		}
		ring()
	}
}

func (a *fileAlarm) Set(at time.Time) {
	var spec unix.ItimerSpec // zero: never
	if !at.IsZero() {
		spec.Value = unix.NsecToTimespec(max(1, int64(time.Until(at))))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.stopped { // the number of a closed descriptor may be that of another file by now
		_ = unix.TimerfdSettime(a.fd, 0, &spec, nil) // fails only for arguments that are not valid
	}
}

func (a *fileAlarm) Stop() {
	a.mu.Lock()
	if !a.stopped {
		a.stopped = true
		_ = a.file.Close() // ends the pending read
	}
	a.mu.Unlock()
	<-a.ended
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// System is real time. Its alarms and sleeps are timer descriptors that the
// runtime's poller waits for: Go's own timers are rounded up to a millisecond when
// nothing else runs, and a thread of its own that sleeps in the kernel has to win a
// processor back when it wakes, which on a busy machine takes longer than the
// poller does. On two cores under load the thread was up to three milliseconds
// late, a timer descriptor .2 ms.
func System() Clock { return &systemClock{} }

type systemClock struct {
	timerClock
	idle sync.Pool // of *timerFile, for sleeps
}

// timerFile is one timer descriptor. The finalizer of os.File closes it when the pool drops it.
type timerFile struct {
	file *os.File
	fd   int
	buf  [8]byte
}

func newTimerFile() (*timerFile, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	return &timerFile{file: os.NewFile(uintptr(fd), "timerfd"), fd: fd}, nil
}

// set sets the timer, which would never go off if it were set to zero.
func (t *timerFile) set(d time.Duration) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(1, int64(d)))}
	return os.NewSyscallError("timerfd_settime", unix.TimerfdSettime(t.fd, 0, &spec, nil))
}

func (t *timerFile) wait() error {
	_, err := t.file.Read(t.buf[:])
	return err
}

func (c *systemClock) Sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	t, _ := c.idle.Get().(*timerFile)
	if t == nil {
		var err error
		if t, err = newTimerFile(); err != nil { // out of descriptors: later than asked, but asleep
			time.Sleep(d)
			return
		}
	}
	until := time.Now().Add(d)
	if t.set(d) != nil || t.wait() != nil {
		_ = t.file.Close()
		time.Sleep(time.Until(until))
		return
	}
	c.idle.Put(t)
}

func (c *systemClock) Alarm(ring func()) Alarm {
	t, err := newTimerFile()
	if err != nil { // out of descriptors: less accurate, but an alarm
		return newTimerAlarm(ring)
	}
	a := &fileAlarm{timer: t, ended: make(chan struct{})}
	go func() {
		defer close(a.ended)
		for t.wait() == nil {
			ring()
		}
	}()
	return a
}

type fileAlarm struct {
	mu      sync.Mutex
	stopped bool
	timer   *timerFile
	ended   chan struct{}
}

func (a *fileAlarm) Set(at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch { // what fails does so only for a descriptor or a time that is not valid
	case a.stopped: // the number of a closed descriptor may be that of another file by now
	case at.IsZero():
		_ = unix.TimerfdSettime(a.timer.fd, 0, &unix.ItimerSpec{}, nil)
	default:
		_ = a.timer.set(time.Until(at))
	}
}

func (a *fileAlarm) Stop() {
	a.mu.Lock()
	if !a.stopped {
		a.stopped = true
		_ = a.timer.file.Close() // ends the pending read
	}
	a.mu.Unlock()
	<-a.ended
}

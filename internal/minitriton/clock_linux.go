// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// SystemClock is real time. It sleeps on timer descriptors that the runtime's poller waits for: time.Sleep is up to a millisecond late
// when nothing else runs, and a blocking clock_nanosleep keeps its processor until the runtime's monitor takes it away, which on two
// cores under load costs up to three milliseconds; a timer descriptor was within 0.2 ms in all these cases.
func SystemClock() Clock { return &systemClock{} }

type systemClock struct{ idle sync.Pool } // of *timerFile

// timerFile is one timer descriptor. Its finalizer (that of os.File) closes it when the pool drops it.
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

// set arms the timer; a timer set to zero would be disarmed, so at least a nanosecond is asked for.
func (t *timerFile) set(d time.Duration) error {
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(1, int64(d)))}
	return os.NewSyscallError("timerfd_settime", unix.TimerfdSettime(t.fd, 0, &spec, nil))
}

func (t *timerFile) wait() error {
	_, err := t.file.Read(t.buf[:])
	return err
}

func (c *systemClock) Now() time.Time { return time.Now() }

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

func (c *systemClock) NewAlarm(ring func()) Alarm {
	t, err := newTimerFile()
	if err != nil { // out of descriptors: less accurate, but an alarm
		return newRuntimeAlarm(ring)
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
	mu     sync.Mutex
	closed bool
	timer  *timerFile
	ended  chan struct{}
}

func (a *fileAlarm) Set(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed { // the number of a closed descriptor may belong to someone else by now
		_ = a.timer.set(d) // fails only for a descriptor or a time that is not valid
	}
}

func (a *fileAlarm) Close() {
	a.mu.Lock()
	if !a.closed {
		a.closed = true
		_ = a.timer.file.Close() // ends the pending read
	}
	a.mu.Unlock()
	<-a.ended
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package reaper

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options say what to run.
type Options struct {
	// Program is the path of the program, Arguments what it gets. It inherits environment, directory and standard files.
	Program   string
	Arguments []string
	// Settled is how long the program has to have run for an end by itself to count as a crash. One that a signal ended has crashed in any
	// case.
	Settled time.Duration
	// Pause is the time before the next start.
	Pause time.Duration
	Log   *slog.Logger
}

// Run keeps the program running. It returns once the program has ended for good, with the exit status that it had: 128 and the
// signal's number if a signal ended it. Run waits for every child of the process: there may be no other exec.Cmd in it.
func Run(o Options) (status int, err error) {
	// As process 1 the orphans come here by themselves; elsewhere Linux has to be asked.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("become the reaper: %w", err)
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGQUIT)
	defer signal.Stop(signals)
	ended := make(chan child)
	for {
		born := time.Now()
		pid, err := start(o)
		if err != nil {
			return 0, fmt.Errorf("start %s: %w", o.Program, err)
		}
		go reap(pid, ended)
		end, stopping := attend(pid, signals, ended)
		status = exitStatus(end)
		if stopping || !end.Signaled() && (status == 0 || time.Since(born) < o.Settled) {
			return status, nil
		}
		o.Log.Error("conch crashed and is started again", "status", status, "after", time.Since(born).String(), "pause", o.Pause.String())
		if interrupted(signals, o.Pause) {
			return status, nil
		}
	}
}

// child is a process that ended.
type child struct{ status syscall.WaitStatus }

func start(o Options) (pid int, err error) {
	p, err := os.StartProcess(o.Program, append([]string{o.Program}, o.Arguments...), &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return 0, err
	}
	pid = p.Pid
	return pid, p.Release() // reap waits for it
}

// reap waits for whatever ends, until it is the process pid.
func reap(pid int, ended chan<- child) {
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || got == pid {
			// Without children there is nothing to wait for, so that pid has ended too.
			ended <- child{status}
			return
		}
	}
}

// attend hands signals on until the process has ended, and says whether it was asked to.
func attend(pid int, signals <-chan os.Signal, ended <-chan child) (status syscall.WaitStatus, stopping bool) {
	for {
		select {
		case s := <-signals:
			if s == syscall.SIGTERM || s == syscall.SIGINT {
				stopping = true
			}
			if number, ok := s.(syscall.Signal); ok {
				// Between the end of the process and its report no process receives it.
				_ = syscall.Kill(pid, number)
			}
		case c := <-ended:
			return c.status, stopping
		}
	}
}

// interrupted waits, and says whether it was asked to end meanwhile. What orphans end meanwhile are reaped after the next start.
func interrupted(signals <-chan os.Signal, pause time.Duration) bool {
	for timer := time.NewTimer(pause); ; {
		select {
		case s := <-signals:
			if s == syscall.SIGTERM || s == syscall.SIGINT {
				return true
			}
		case <-timer.C:
			return false
		}
	}
}

func exitStatus(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}

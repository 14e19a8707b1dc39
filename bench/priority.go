// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// runsFirst gives every thread of this process real-time priority (SCHED_RR) until the returned function is called; the processes that it
// starts keep the usual one. Load that comes from other machines does not wait for a processor of this one, load that is drawn here does.
// It needs the right to do so (CAP_SYS_NICE).
func runsFirst() (stop func(), err error) {
	if err := schedule(unix.SCHED_RR, 1); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		again := time.NewTicker(50 * time.Millisecond) // a thread that starts later has the usual priority, as a process has
		defer again.Stop()
		for {
			select {
			case <-again.C:
				_ = schedule(unix.SCHED_RR, 1) // was allowed before
			case <-ended:
				return
			}
		}
	})
	return func() {
		close(ended)
		group.Wait()
		_ = schedule(unix.SCHED_NORMAL, 0) // lowering is always allowed
	}, nil
}

// schedule sets the scheduling policy of this process's threads.
func schedule(policy, priority uint32) error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("threads of this process: %w", err)
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			return fmt.Errorf("threads of this process: %w", err)
		}
		err = unix.SchedSetAttr(id, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: policy, Priority: priority, Flags: unix.SCHED_FLAG_RESET_ON_FORK}, 0)
		if err != nil && err != unix.ESRCH { //nolint:errorlint // an errno; ESRCH: the thread has ended
			return fmt.Errorf("scheduling policy of a thread: %w", err)
		}
	}
	return nil
}

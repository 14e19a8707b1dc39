// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"os/exec"
	"runtime"
	"sync"
)

// spawner starts every child from one operating-system thread that lives as
// long as the driver. Linux sends a child its parent-death signal when the
// thread that made it ends, not the process, and Go's threads come and go.
type spawner struct {
	requests chan spawnRequest
	ended    chan struct{}
	once     sync.Once
}

type spawnRequest struct {
	cmd    *exec.Cmd
	result chan error
}

func newSpawner() *spawner {
	s := &spawner{requests: make(chan spawnRequest), ended: make(chan struct{})}
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this function
		for {
			select {
			case r := <-s.requests:
				r.result <- r.cmd.Start()
			case <-s.ended:
				return
			}
		}
	}()
	return s
}

func (s *spawner) start(cmd *exec.Cmd) error {
	r := spawnRequest{cmd, make(chan error, 1)}
	select {
	case s.requests <- r:
		return <-r.result
	case <-s.ended:
		return ErrStopped
	}
}

// close ends the thread; children that still live get the signal.
func (s *spawner) close() { s.once.Do(func() { close(s.ended) }) }

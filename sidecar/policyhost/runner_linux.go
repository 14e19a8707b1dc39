// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// processAttributes puts a policy into a process group of its own, so that a
// Ctrl-C on the terminal is the host's to handle, and lets the kernel end it
// should the host be killed. (The kernel watches the thread that started the
// policy. Should that thread end before the host, the policy dies between two
// calls, and the next call starts it again.)
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// ended waits for the end of a process without reaping it, and reports whether it could.
func ended(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}

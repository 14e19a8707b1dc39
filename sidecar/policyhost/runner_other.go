// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package policyhost

import "syscall"

// processAttributes puts a policy into a process group of its own, so that a
// Ctrl-C on the terminal is the host's to handle.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// ended reports whether it waited for the end of a process without reaping it: only Linux can.
func ended(int) bool { return false }

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package evaluations

import (
	"fmt"
	"syscall"
)

// lowestPriority makes every thread of this process yield to everything else.
func lowestPriority() error {
	// A process group of its own is what setpriority can name whole: on Linux a process id is one thread's.
	if err := syscall.Setpriority(syscall.PRIO_PGRP, 0, 19); err != nil {
		return fmt.Errorf("evaluate: lowering the priority: %w", err)
	}
	return nil
}

// ownGroup lets lowestPriority name the child alone. It ends when its input does, which is when conch dies.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

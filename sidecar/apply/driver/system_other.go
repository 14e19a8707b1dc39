// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package driver

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// ownGroup makes a child the head of a process group. Triton itself runs on
// Linux only; elsewhere this serves a launcher that runs it some other way.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// killGroup kills a process group.
func killGroup(group int) error {
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err := syscall.Kill(-group, syscall.SIGKILL); errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EPERM) {
			return nil
		} else if err != nil {
			return fmt.Errorf("kill process group %d: %w", group, err)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process group %d survives SIGKILL", group)
		}
	}
}

func killOwned(string) (int, error)   { return 0, nil }
func removeSharedMemory(string) error { return nil }
func listensIn(group, port int) bool  { return true }

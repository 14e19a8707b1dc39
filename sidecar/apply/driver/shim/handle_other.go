// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package shim

import (
	"context"
	"errors"
	"strconv"
	"syscall"
	"time"
)

// errSystem: a shim needs what only Linux has (parent-death signals, reapers).
var errSystem = errors.New("servers of conch's own run on Linux only; use driver attach or embedded")

// Main refuses.
func Main(string) int { return 1 }

// Handle has no instance here: Start refuses and Find finds none.
type Handle struct{}

// Start refuses.
func Start(context.Context, []string, string, Spec) (*Handle, error) { return nil, errSystem }

// Find finds none.
func Find(string) ([]*Handle, func() error, error) {
	return nil, func() error { return nil }, nil
}

// RemoveSharedMemory has none to remove.
func RemoveSharedMemory(string) error { return nil }

// Identity is the id alone.
func Identity(pid int) (string, error) { return strconv.Itoa(pid), nil }

// Signal goes by the id alone.
func Signal(identity string, s syscall.Signal) error {
	pid, err := strconv.Atoi(identity)
	if err != nil {
		return err
	}
	return syscall.Kill(pid, s)
}

func (*Handle) Label() map[string]string   { return nil }
func (*Handle) Name() string               { return "" }
func (*Handle) Log() string                { return "" }
func (*Handle) Begin() time.Time           { return time.Time{} }
func (*Handle) ServerPID() int             { return 0 }
func (*Handle) ShimPID() int               { return 0 }
func (*Handle) Done() <-chan struct{}      { return nil }
func (*Handle) Death() string              { return "" }
func (*Handle) LetGo() bool                { return false }
func (*Handle) Terminate() error           { return errSystem }
func (*Handle) Kill(context.Context) error { return errSystem }
func (*Handle) Close() error               { return nil }

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/conch-serving/conch/sidecar/apply/driver/shim"
)

// LeaveSignal stops conch and leaves its servers to the next one.
const LeaveSignal = syscall.SIGUSR1

// RunningFile says in the state directory which process works on it.
const RunningFile = "conch.pid"

// stopPoll is how often Stop looks whether the process has ended.
const stopPoll = 20 * time.Millisecond

// writeRunning writes down that this process works on a state directory.
func writeRunning(state string) (remove func() error, err error) {
	identity, err := shim.Identity(os.Getpid())
	if err != nil {
		return nil, err
	}
	path := filepath.Join(state, RunningFile)
	if err := os.WriteFile(path, []byte(identity+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("directory: %w", err)
	}
	return func() error { return os.Remove(path) }, nil
}

// Stop signals the process that works on a state directory, to leave its servers or
// to end them too, and waits until it has ended. It returns the process's id.
func Stop(ctx context.Context, state string, leave bool) (int, error) {
	text, err := os.ReadFile(filepath.Join(state, RunningFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("no conch runs on %s", state)
	}
	if err != nil {
		return 0, err
	}
	identity := strings.TrimSpace(string(text))
	number, _, _ := strings.Cut(identity, " ")
	pid, err := strconv.Atoi(number)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is no process", filepath.Join(state, RunningFile), identity)
	}
	runs := func() bool {
		now, err := shim.Identity(pid)
		return err == nil && now == identity
	}
	if !runs() {
		return 0, fmt.Errorf("no conch runs on %s: process %d has ended without cleaning up", state, pid)
	}
	signal := syscall.SIGTERM
	if leave {
		signal = LeaveSignal
	}
	if err := shim.Signal(identity, signal); err != nil {
		return 0, fmt.Errorf("stop process %d: %w", pid, err)
	}
	ticker := time.NewTicker(stopPoll)
	defer ticker.Stop()
	for {
		if _, err := os.Stat(filepath.Join(state, RunningFile)); !runs() || errors.Is(err, fs.ErrNotExist) {
			return pid, nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return 0, fmt.Errorf("conch, process %d, has not ended: %w", pid, ctx.Err())
		}
	}
}

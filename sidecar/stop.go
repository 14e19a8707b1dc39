// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

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

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/apply/driver/shim"
)

// leaveSignal stops conch and leaves its servers to the next one.
const leaveSignal = syscall.SIGUSR1

// runningFile says in the state directory which process works on it.
const runningFile = "conch.pid"

// writeRunning writes down that this process works on a state directory.
func writeRunning(state string) (remove func() error, err error) {
	identity, err := shim.Identity(os.Getpid())
	if err != nil {
		return nil, err
	}
	path := filepath.Join(state, runningFile)
	if err := os.WriteFile(path, []byte(identity+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	return func() error { return os.Remove(path) }, nil
}

// stopCommand stops the conch of a state directory.
func stopCommand(p process, f *flags) *cobra.Command {
	var leave bool
	var patience time.Duration
	command := &cobra.Command{
		Use:   "stop",
		Short: "Stop the conch that runs on a state directory, and wait for its end",
		Long: `Stop the conch that runs on a state directory (that of --config, or --state), and
wait for its end. Accepted requests are answered first.

With --leave its Triton servers go on, for driver.orphanGrace at most: the next
conch on the same state takes them over without loading a model.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			state := f.state // which is enough: the rest of a configuration is not looked at
			if state == "" {
				settings, err := f.load()
				if err != nil {
					return err
				}
				state = settings.State
			}
			ctx, cancel := context.WithTimeout(c.Context(), patience)
			defer cancel()
			pid, err := stopRunning(ctx, state, leave)
			if err == nil {
				_, err = fmt.Fprintf(p.stdout, "conch, process %d, has stopped\n", pid)
			}
			return err
		},
	}
	command.Flags().BoolVar(&leave, "leave", false, "leave its Triton servers running for the next conch")
	command.Flags().DurationVar(&patience, "timeout", 2*time.Minute, "how long to wait for its end")
	command.Flags().StringVarP(&f.file, "config", "c", "", "conch.yaml")
	command.Flags().StringVar(&f.state, "state", "", "directory of conch's own state")
	return command
}

// stopRunning signals the process that works on a state directory and waits until
// it has ended.
func stopRunning(ctx context.Context, state string, leave bool) (int, error) {
	text, err := os.ReadFile(filepath.Join(state, runningFile))
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
		return 0, fmt.Errorf("%s: %q is no process", filepath.Join(state, runningFile), identity)
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
		signal = leaveSignal
	}
	if err := shim.Signal(identity, signal); err != nil {
		return 0, fmt.Errorf("stop process %d: %w", pid, err)
	}
	if !await(ctx, func() bool {
		_, err := os.Stat(filepath.Join(state, runningFile))
		return !runs() || errors.Is(err, fs.ErrNotExist)
	}) {
		return 0, fmt.Errorf("conch, process %d, has not ended: %w", pid, ctx.Err())
	}
	return pid, nil
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Command conch is the daemon: Triton's protocol in front, Triton processes
// behind, a scheduling policy beside. This package is wiring only: main.go is the
// process, wire.go the list of components; the command line is in command, the
// components are in component.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/conch-serving/conch/sidecar/command"
	"github.com/conch-serving/conch/sidecar/component/state"
)

func main() {
	// The first signal drains, the second one kills: signals are given up after the
	// first.
	ctx, stop := context.WithCancel(context.Background())
	leave := &atomic.Bool{}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, state.LeaveSignal)
	go func() {
		leave.Store(<-signals == state.LeaveSignal)
		stop()
		signal.Stop(signals)
	}()
	serve := func(ctx context.Context, d command.Daemon) error {
		c := newConch(d, leave.Load)
		opened, err := c.components().Open(ctx)
		if err != nil && ctx.Err() != nil {
			d.Log.Info("stopped before everything was there", "error", err)
			return nil
		}
		if err != nil {
			return err
		}
		return c.run(ctx, opened)
	}
	process := command.Process{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Serve: serve}
	if err := command.New(process).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "conch:", err)
		os.Exit(command.ExitStatus(err))
	}
}

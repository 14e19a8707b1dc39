// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Command conch is the daemon: Triton's protocol in front, Triton processes
// behind, a scheduling policy beside. This package is wiring only: command.go
// is the command line, server.go puts the parts together and takes them apart
// again, adapters.go joins parts that may not know each other.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
)

func main() {
	// The first signal drains, the second one kills: signals are given up after the
	// first.
	ctx, stop := context.WithCancel(context.Background())
	leave := &atomic.Bool{}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, leaveSignal)
	go func() {
		leave.Store(<-signals == leaveSignal)
		stop()
		signal.Stop(signals)
	}()
	if err := newCommand(process{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, leave: leave}).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "conch:", err)
		os.Exit(1)
	}
}

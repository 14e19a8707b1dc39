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
	"syscall"
)

func main() {
	// The first signal drains, the second one kills: signal.NotifyContext gives up
	// the signal once stop is called.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-ctx.Done()
		stop()
	}()
	if err := newCommand(process{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "conch:", err)
		os.Exit(1)
	}
}

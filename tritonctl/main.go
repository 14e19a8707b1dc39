// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Command tritonctl shows and steers a running conch.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/conch-serving/conch/tritonctl/cmd"
	"github.com/conch-serving/conch/tritonctl/factory"
)

// grace is how long a command may take to end by itself once it is interrupted.
const grace = 3 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A system call that waits, such as the opening of a pipe, does not see the context. A second signal ends the process at once.
	context.AfterFunc(ctx, func() {
		stop()
		time.AfterFunc(grace, func() {
			fmt.Fprintln(os.Stderr, "tritonctl: interrupted while the system waited for a file or a device; there is no result")
			os.Exit(cmd.ExitFailed)
		})
	})
	os.Exit(cmd.Run(ctx, factory.New(), os.Args[1:]))
}

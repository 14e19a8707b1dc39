// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Command tritonctl shows and steers a running conch.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/conch-serving/conch/tritonctl/cmd"
	"github.com/conch-serving/conch/tritonctl/factory"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(cmd.Run(ctx, factory.New(), os.Args[1:]))
}

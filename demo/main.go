// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command().ExecuteContext(ctx)
	switch {
	case err == nil:
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "demo: interrupted")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	d := &demo{out: os.Stdout, progress: os.Stderr}
	var triton, server string
	var seconds int
	c := &cobra.Command{
		Use:           "conch-demo",
		Short:         "Triton's dynamic batching against Conch on four emulated GPUs, then a Conch to try",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := scenarioOf(triton, server)
			if err != nil {
				return err
			}
			d.scenario, d.stay = s, time.Duration(seconds)*time.Second
			return d.run(cmd.Context())
		},
	}
	program, err := os.Executable()
	if err != nil {
		program = "bin/conch-demo"
	}
	c.Flags().StringVar(&triton, "triton", "embedded", "embedded: minitriton; real: tritonserver processes")
	c.Flags().StringVar(&server, "tritonserver", os.Getenv("CONCH_TRITONSERVER"), "path of tritonserver, for --triton=real")
	c.Flags().StringVar(&d.bin, "bin", filepath.Dir(program), "directory of conch, conch-policies and tritonctl")
	c.Flags().StringVar(&d.results, "results", "", "directory to keep the figures in, such as results; empty: they are only printed")
	c.Flags().IntVar(&seconds, "seconds", 0, "how long to leave conch running at the end; 0 means until Ctrl-C")
	return c
}

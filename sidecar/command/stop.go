// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/component/state"
)

// stopCommand stops the conch of a state directory.
func stopCommand(p Process, f *flags) *cobra.Command {
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
			dir := f.state // which is enough: the rest of a configuration is not looked at
			if dir == "" && f.file == "" {
				return fmt.Errorf("%w: which conch? name its conch.yaml with --config, or its state directory with --state", ErrUsage)
			}
			if dir == "" {
				settings, err := f.load()
				if err != nil {
					return err
				}
				dir = settings.State
			}
			ctx, cancel := context.WithTimeout(c.Context(), patience)
			defer cancel()
			pid, err := state.Stop(ctx, dir, leave)
			if err == nil {
				_, err = fmt.Fprintf(p.Stdout, "conch, process %d, has stopped\n", pid)
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

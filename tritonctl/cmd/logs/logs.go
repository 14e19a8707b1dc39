// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package logs is `tritonctl logs`.
package logs

import (
	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/tritonctl/factory"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	var follow bool
	var lines int
	c := &cobra.Command{
		Use:   "logs PARTITION",
		Short: "Show what the Triton server of a partition says",
		Long: `logs shows the log of a partition's server, that of its last one while it has none.
Each server has one log, which is moved aside when it is full; -f goes on over that,
and over restarts of the server. In a cluster the log is that of the server's Pod, with
which -f ends.`,
		Example: `  tritonctl logs gpu0 --tail 50
  tritonctl logs -f gpu0`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: factory.PartitionNames(f),
		RunE: func(c *cobra.Command, args []string) error {
			conch, err := f.Client()
			if err != nil {
				return err
			}
			return conch.Log(c.Context(), args[0], lines, follow, f.Out)
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on as the server says more, until interrupted or --timeout")
	c.Flags().IntVar(&lines, "tail", -1, "only this many of the last lines (default: all of the present file)")
	return c
}

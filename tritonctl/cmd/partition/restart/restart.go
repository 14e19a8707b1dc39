// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package restart is `tritonctl partition restart`.
package restart

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/conditions"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use:   "restart PARTITION",
		Short: "Start the server of a partition anew",
		Long: `restart ends the server of a partition once it has answered what it has in flight (after
30 s at the latest), and starts another with the same models. New requests go to other
places of their models meanwhile, or wait where there are none. It returns once the new
server serves.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: factory.PartitionNames(f),
		RunE: func(c *cobra.Command, args []string) error {
			find := func(conch *client.Client, ctx context.Context) (api.Partition, error) {
				return conch.Partition(ctx, args[0])
			}
			if err := factory.ConfirmFound(c.Context(), f, "restarting the server of partition "+args[0], find); err != nil {
				return err
			}
			f.Begin("the server starts and loads its models")
			return factory.Show(c.Context(), f, func(conch *client.Client, ctx context.Context) (api.Partition, error) {
				return conch.Restart(ctx, api.RestartRequest{Partition: args[0], Author: f.Author, Reason: reason})
			}, draw)
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the event log")
	return c
}

func draw(t *output.Table, p api.Partition) {
	if conditions.Ready(p.Conditions) == "yes" {
		t.Line("partition " + p.ID + " serves again")
		return
	}
	t.Line("partition " + p.ID + " was started anew and does not serve all yet: " + conditions.Status(p.Conditions))
}

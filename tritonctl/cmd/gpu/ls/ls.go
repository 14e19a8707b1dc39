// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package ls is `tritonctl gpu ls`.
package ls

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	return factory.Watchable(f, &cobra.Command{
		Use:   "ls",
		Short: "List the GPUs with their partitions",
		Args:  cobra.NoArgs,
	}, func([]string) factory.Ask[[]api.GPU] { return (*client.Client).GPUs }, draw)
}

func draw(t *output.Table, gpus []api.GPU) {
	t.Row("GPU", "TYPE", "MEMORY", "PARTITION", "SHARE", "ENFORCED", "UP", "BUSY", "MODELS", "GRPC")
	for _, g := range gpus {
		if len(g.Partitions) == 0 {
			t.Row(g.ID, kind(g), output.Bytes(g.MemoryBytes), "", "", "", "", "", "", "")
		}
		for _, p := range g.Partitions {
			up := "yes"
			if !p.Up {
				up = "no: " + p.Reason
			}
			enforced := "no"
			if g.SharesEnforced {
				enforced = "yes"
			}
			t.Row(g.ID, kind(g), output.Bytes(g.MemoryBytes), p.ID, strconv.Itoa(p.ThreadPercentage)+"%", enforced, up, output.Percent(p.BusyShare), strings.Join(p.Models, ","), p.GRPC)
		}
	}
}

func kind(g api.GPU) string {
	if g.Emulated {
		return g.Type + " (emulated)"
	}
	return g.Type
}

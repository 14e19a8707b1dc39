// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package ls is `tritonctl gpu ls`.
package ls

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/conditions"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	return factory.Watchable(f, &cobra.Command{
		Use:   "ls",
		Short: "List the GPUs with their partitions",
		Long:  "ls lists the GPUs with their partitions, and with their nodes where there are several.",
		Args:  cobra.NoArgs,
	}, func([]string) factory.Ask[[]api.GPU] { return (*client.Client).GPUs }, func([]string) factory.Live[[]api.GPU] {
		return factory.Live[[]api.GPU]{
			Topics: []api.Topic{api.TopicGPUs}, Answer: func(s client.State) ([]api.GPU, bool) { return s.GPUs, true },
		}
	}, draw)
}

func draw(t *output.Table, gpus []api.GPU) {
	several := slices.ContainsFunc(gpus, func(g api.GPU) bool { return g.Node != gpus[0].Node })
	row := func(node string, cells ...any) {
		if several {
			cells = append([]any{node}, cells...)
		}
		t.Row(cells...)
	}
	row("NODE", "GPU", "TYPE", "MEMORY", "STATE", "PARTITION", "SHARE", "ENFORCED", "READY", "BUSY", "MODELS", "STATUS", "GRPC")
	for _, g := range gpus {
		if len(g.Partitions) == 0 {
			row(g.Node, g.ID, kind(g), output.Bytes(g.MemoryBytes), conditions.GPU(g), "", "", "", "", "", "", "", "")
		}
		for _, p := range g.Partitions {
			enforced := "no"
			if p.SharesEnforced {
				enforced = "yes"
			}
			row(g.Node, g.ID, kind(g), output.Bytes(g.MemoryBytes), conditions.GPU(g), p.ID, conditions.Share(p), enforced, conditions.Ready(p.Conditions),
				output.Percent(p.BusyShare), strings.Join(p.Models, ","), conditions.Status(p.Conditions), p.GRPC)
		}
	}
}

func kind(g api.GPU) string {
	if g.Emulated {
		return g.Type + " (emulated)"
	}
	return g.Type
}

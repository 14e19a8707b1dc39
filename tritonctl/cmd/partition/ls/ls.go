// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package ls is `tritonctl partition ls`.
package ls

import (
	"strings"
	"time"

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
		Short: "List the partitions with their conditions",
		Long: `ls shows the partitions of the plan in force and, until they have gone, the old
servers that a plan has replaced. READY is whether a partition serves as the plan
asks, STATUS what is amiss or under way.`,
		Args: cobra.NoArgs,
	}, func([]string) factory.Ask[[]api.Partition] { return (*client.Client).Partitions }, func([]string) factory.Live[[]api.Partition] {
		return factory.Live[[]api.Partition]{
			Topics: []api.Topic{api.TopicPartitions}, Answer: func(s client.State) ([]api.Partition, bool) { return s.Partitions, true },
		}
	}, draw)
}

func draw(t *output.Table, all []api.Partition) {
	const narrow = 7
	t.WideRow(narrow, "PARTITION", "GPU", "SHARE", "READY", "BUSY", "MODELS", "STATUS", "RANK", "MEMORY", "ENFORCED", "RESTARTS", "STARTED", "GRPC", "LOG")
	for _, p := range all {
		ready, status, share := conditions.Ready(p.Conditions), conditions.Status(p.Conditions), conditions.Share(p)
		if p.Retiring {
			status, share = "retiring: serves until what replaces it is ready", ""
		}
		started := ""
		if !p.Started.IsZero() {
			started = p.Started.Format(time.RFC3339)
		}
		enforced := "yes"
		if !p.SharesEnforced {
			enforced = strings.TrimSuffix("no: "+p.ShareReason, ": ")
		}
		t.WideRow(narrow, p.ID, p.GPU, share, ready, output.Percent(p.BusyShare), strings.Join(p.Models, ","), status,
			p.Rank, output.Bytes(p.MemoryLimitBytes), enforced, p.Restarts, started, p.GRPC, p.Log)
	}
}

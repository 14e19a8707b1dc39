// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package get is `tritonctl partition get`.
package get

import (
	"context"
	"fmt"
	"slices"
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
		Use:               "get PARTITION",
		Short:             "Show one partition with its conditions",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: factory.PartitionNames(f),
	}, func(args []string) factory.Ask[api.Partition] {
		return func(conch *client.Client, ctx context.Context) (api.Partition, error) {
			return conch.Partition(ctx, args[0])
		}
	}, func(args []string) factory.Live[api.Partition] {
		return factory.Live[api.Partition]{Topics: []api.Topic{api.TopicPartitions}, Answer: func(s client.State) (p api.Partition, known bool) {
			i := slices.IndexFunc(s.Partitions, func(p api.Partition) bool { return p.Key() == args[0] })
			if i < 0 {
				return p, false
			}
			return s.Partitions[i], true
		}}
	}, draw)
}

func draw(t *output.Table, p api.Partition) {
	t.Row("partition", p.ID)
	t.Row("GPU", p.GPU)
	t.Row("share", fmt.Sprintf("%s, rank %d", conditions.Share(p), p.Rank))
	if p.SharesEnforced {
		t.Row("enforced", "yes")
	} else {
		t.Row("enforced", strings.TrimSuffix("no: "+p.ShareReason, ": "))
	}
	t.Row("memory", output.Bytes(p.MemoryLimitBytes))
	t.Row("models", strings.Join(p.Models, ", "))
	t.Row("serving", strings.Join(p.Serving, ", "))
	t.Row("busy", output.Percent(p.BusyShare))
	if !p.Started.IsZero() {
		t.Row("server started", fmt.Sprintf("%s, %d restarts", p.Started.Format(time.RFC3339), p.Restarts))
	}
	t.Row("gRPC", p.GRPC)
	t.Row("HTTP", p.HTTP)
	t.Row("log", p.Log)
	conditions.Draw(t, p.Conditions)
}

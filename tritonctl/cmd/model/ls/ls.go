// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package ls is `tritonctl model ls`.
package ls

import (
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
		Short: "List the models with their load and latency",
		Long: `ls lists the models of the repository with their load and latency over the statistics
window. -o json has the profiles and estimates of each too, but not with --watch.`,
		Args: cobra.NoArgs,
	}, func([]string) factory.Ask[[]api.Model] { return (*client.Client).Models }, func([]string) factory.Live[[]api.Model] {
		return factory.Live[[]api.Model]{
			Topics: []api.Topic{api.TopicModels}, Answer: func(s client.State) ([]api.Model, bool) { return s.Models, true },
		}
	}, draw)
}

func draw(t *output.Table, models []api.Model) {
	t.Row("MODEL", "STATE", "SLO", "P50", "P99", "REQ/S", "GOOD/S", "BAD", "BATCH", "QUEUED", "DISCIPLINE", "PARTITIONS")
	for _, m := range models {
		discipline := m.Discipline
		if !m.Batchable {
			discipline = "pass-through"
		}
		t.Row(m.Name, m.State, output.Milliseconds(m.SLOSeconds), output.Milliseconds(m.LatencyP50Seconds), output.Milliseconds(m.LatencyP99Seconds),
			output.Number(m.Rate), output.Number(m.Goodput), output.Percent(m.BadRate), output.Mean(m.MeanBatch), m.Queued, discipline, strings.Join(m.Partitions, ","))
	}
}

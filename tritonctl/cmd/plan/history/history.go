// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package history is `tritonctl plan history`.
package history

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	return factory.Watchable(f, &cobra.Command{
		Use:   "history",
		Short: "List the plans that served: who, when, why, what changed",
		Long: `history lists the last 100 plans, newest first, and the last 100
that did nothing but load and unload models on demand. -o json has each plan itself and its
diff; tritonctl plan rollback goes back to one.`,
		Args: cobra.NoArgs,
	}, func([]string) factory.Ask[[]api.PlanRecord] { return (*client.Client).History }, func([]string) factory.Live[[]api.PlanRecord] {
		return factory.Live[[]api.PlanRecord]{Topics: []api.Topic{api.TopicPlan}, Basis: func(s client.State) any { return s.Plan }}
	}, draw)
}

func draw(t *output.Table, all []api.PlanRecord) {
	const narrow = 7
	t.WideRow(narrow, "PLAN", "STATE", "APPLIED", "AUTHOR", "POLICY", "CHANGED", "REASON", "REPOSITORY")
	for _, r := range all {
		state := ""
		switch {
		case r.Pin != nil:
			state = "pinned"
		case r.Current:
			state = "serves"
		}
		t.WideRow(narrow, r.Revision, state, r.AppliedAt.Format(time.RFC3339), r.AppliedBy, r.Policy, r.Summary, r.Reason, r.Repository)
	}
}

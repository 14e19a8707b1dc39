// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package ls is `tritonctl repo ls`.
package ls

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
	return &cobra.Command{
		Use:   "ls",
		Short: "List the revisions of the model repository",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return factory.Show(c.Context(), f, (*client.Client).Revisions, draw)
		},
	}
}

func draw(t *output.Table, revisions []api.RepositoryRevision) {
	t.Row("REVISION", "CURRENT", "TIME", "AUTHOR", "MODELS", "ADDED", "CHANGED", "REMOVED", "REASON")
	for _, r := range revisions {
		current := ""
		if r.Current {
			current = "*"
		}
		t.Row(r.ID, current, r.Time.Format(time.RFC3339), r.Author, len(r.Models), len(r.Added), len(r.Changed), len(r.Removed), r.Reason)
	}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package ls is `tritonctl repo ls`.
package ls

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Options are the command's inputs.
type Options struct {
	*factory.Factory
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:   "ls",
		Short: "List the revisions of the model repository",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c.Context())
		},
	}
	return c
}

func (o *Options) run(ctx context.Context) error {
	api, err := o.Client()
	if err != nil {
		return err
	}
	revisions, err := api.Revisions(ctx)
	if err != nil {
		return err
	}
	return o.Print(revisions, func(t *output.Table) {
		t.Row("REVISION", "CURRENT", "TIME", "AUTHOR", "MODELS", "ADDED", "CHANGED", "REMOVED", "REASON")
		for _, r := range revisions {
			current := ""
			if r.Current {
				current = "*"
			}
			t.Row(r.ID, current, r.Time.Format(time.RFC3339), r.Author, len(r.Models), len(r.Added), len(r.Changed), len(r.Removed), r.Reason)
		}
	})
}

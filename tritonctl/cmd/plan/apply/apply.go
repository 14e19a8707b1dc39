// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package apply is `tritonctl plan apply`.
package apply

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/cmd/plan/diff"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	var order api.ApplyRequest
	var dryRun bool
	c := &cobra.Command{
		Use:   "apply",
		Short: "Make a plan and apply it",
		Long: `apply asks the policy for a plan of what is observed now and applies it, in the
modes advise and control. tritonctl plan diff shows it before.`,
		Example: `  tritonctl plan apply --dry-run
  tritonctl plan apply --if-revision 7 --reason 'more load'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if dryRun {
				return factory.Show(c.Context(), f, (*client.Client).Diff, diff.Draw)
			}
			f.Progress("planning and applying; the plan that serves keeps serving until the new one is ready")
			order.Author = f.Author
			return factory.Show(c.Context(), f, func(conch *client.Client, ctx context.Context) (api.ApplyResult, error) {
				return conch.Apply(ctx, order)
			}, draw)
		},
	}
	c.Flags().Uint64Var(&order.IfRevision, "if-revision", 0, "apply only while this plan serves (from_revision of plan diff)")
	c.Flags().StringVar(&order.Reason, "reason", "", "why, for the event log")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "show the difference, change nothing")
	return c
}

func draw(t *output.Table, r api.ApplyResult) {
	diff.Draw(t, r.Diff)
	if r.Changed {
		t.Line(fmt.Sprintf("plan %d serves, after %.1f s", r.Plan.Revision, r.Seconds))
	}
}

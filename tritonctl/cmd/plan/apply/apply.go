// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package apply is `tritonctl plan apply`.
package apply

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/cmd/plan/diff"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Options are the command's inputs.
type Options struct {
	*factory.Factory
	ifRevision uint64
	reason     string
	dryRun     bool
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:   "apply",
		Short: "Make a plan and apply it",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c.Context())
		},
	}
	c.Flags().Uint64Var(&o.ifRevision, "if-revision", 0, "apply only while this plan serves (from_revision of plan diff)")
	c.Flags().StringVar(&o.reason, "reason", "", "why, for the event log")
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show the difference, change nothing")
	return c
}

func (o *Options) run(ctx context.Context) error {
	api, err := o.Client()
	if err != nil {
		return err
	}
	if o.dryRun {
		d, err := api.Diff(ctx)
		if err != nil {
			return err
		}
		return o.Print(d, func(t *output.Table) { diff.Draw(t, d) })
	}
	o.Progress("planning and applying; the plan that serves keeps serving until the new one is ready")
	r, err := api.Apply(ctx, client.ApplyRequest{IfRevision: o.ifRevision, Reason: o.reason, Author: o.Author})
	if err != nil {
		return err
	}
	return o.Print(r, func(t *output.Table) {
		diff.Draw(t, r.Diff)
		if r.Changed {
			t.Line(fmt.Sprintf("plan %d serves, after %.1f s", r.Plan.Revision, r.Seconds))
		}
	})
}

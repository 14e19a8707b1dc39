// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package release is `tritonctl release`.
package release

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Options are the command's inputs.
type Options struct {
	*factory.Factory
	dryRun, undo bool
	reason       string
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:   "release",
		Short: "Give attached servers back to those who run them",
		Long: `release restores on every attached server what conch has changed: models get
the dynamic_batching back that they had, and those that conch brought stay loaded,
with dynamic batching of their own. Conch only observes from then on, over
restarts too, until conch.yaml is read again (SIGHUP) or release --undo. Clients
notice nothing; afterwards they may go to the servers themselves.

Released twice is released once. A server that is down is released when it is
back, or by another release. It asks for confirmation, and shows what would change; --yes
confirms beforehand.`,
		Example: `tritonctl release --dry-run`,
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return o.run(c.Context()) },
	}
	c.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would change, change nothing")
	c.Flags().BoolVar(&o.undo, "undo", false, "take the servers again, in the mode of conch.yaml")
	c.Flags().StringVar(&o.reason, "reason", "", "why, for the event log")
	return c
}

func (o *Options) run(ctx context.Context) error {
	conch, err := o.Client()
	if err != nil {
		return err
	}
	if !o.dryRun && !o.undo {
		if err := o.confirmed(ctx, conch); err != nil {
			return err
		}
		o.Begin("giving the servers back; requests go on meanwhile")
	}
	r, err := conch.Release(ctx, api.ReleaseRequest{DryRun: o.dryRun, Undo: o.undo, Author: o.Author, Reason: o.reason})
	if err != nil {
		return err
	}
	if err := o.Print(r, func(t *output.Table) { o.draw(t, r) }); err != nil {
		return err
	}
	failed := 0
	for _, c := range r.Changes {
		if c.Error != "" {
			failed++
		}
	}
	if failed > 0 && !o.dryRun {
		return fmt.Errorf("%d of %d models were not given back; order it again once the reason is gone", failed, len(r.Changes))
	}
	return nil
}

// confirmed shows the person what would change on the servers, and has it confirmed.
func (o *Options) confirmed(ctx context.Context, conch *client.Client) error {
	if o.InTerminal && !o.Yes {
		would, err := conch.Release(ctx, api.ReleaseRequest{DryRun: true, Author: o.Author, Reason: o.reason})
		if err != nil {
			return err
		}
		if err := output.Print(o.Err, "table", would, func(t *output.Table) { o.draw(t, would) }); err != nil {
			return err
		}
	}
	return o.Confirm("giving the servers back")
}

func (o *Options) draw(t *output.Table, r api.ReleaseResult) {
	if len(r.Changes) > 0 {
		t.Row("SERVER", "MODEL", "CHANGE")
		for _, c := range r.Changes {
			change := c.Change
			if c.Error != "" {
				change = "not given back: " + c.Error
			}
			t.Row(c.Endpoint, c.Model, change)
		}
	} else if !o.undo {
		t.Line("nothing of conch's is on the servers")
	}
	switch {
	case r.DryRun && o.undo:
		t.Line("the mode would be " + r.Mode)
	case r.DryRun:
		t.Line("nothing was changed; mode is " + r.Mode)
	default:
		t.Line("mode is " + r.Mode)
	}
}

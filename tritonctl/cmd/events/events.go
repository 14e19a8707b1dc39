// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package events is `tritonctl events`.
package events

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Options are the command's inputs.
type Options struct {
	*factory.Factory
	follow bool
	since  uint64
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:   "events",
		Short: "Show what happened: who, when, why",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			return o.run(c.Context())
		},
	}
	c.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on as events happen")
	c.Flags().Uint64Var(&o.since, "since", 0, "only events after this id")
	return c
}

func (o *Options) run(ctx context.Context) error {
	api, err := o.Client()
	if err != nil {
		return err
	}
	if o.follow {
		return api.Follow(ctx, o.since, func(e client.Event) error {
			return o.Print(e, func(t *output.Table) { row(t, e) })
		})
	}
	events, err := api.Events(ctx, o.since)
	if err != nil {
		return err
	}
	return o.Print(events, func(t *output.Table) {
		t.Row("ID", "TIME", "KIND", "AUTHOR", "TOOK", "MESSAGE", "REASON")
		for _, e := range events {
			row(t, e)
		}
	})
}

func row(t *output.Table, e client.Event) {
	took := ""
	if e.Seconds > 0 {
		took = fmt.Sprintf("%.2fs", e.Seconds)
	}
	t.Row(e.ID, e.Time.Format(time.RFC3339), e.Kind, e.Author, took, e.Message, e.Reason)
}

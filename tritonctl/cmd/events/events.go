// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package events is `tritonctl events`.
package events

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	var follow bool
	var since uint64
	c := &cobra.Command{
		Use:   "events",
		Short: "Show what happened: who, when, why",
		Long: `events shows what conch and its operators did, oldest first. -o json has the fields
of each event, such as what a plan changed and how long each of its steps took.`,
		Example: `  tritonctl events --follow
  tritonctl events --since 40 -o json | jq '.[] | select(.kind == "plan_applied").fields.diff'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if follow {
				return following(c.Context(), f, since)
			}
			return factory.Show(c.Context(), f, func(conch *client.Client, ctx context.Context) ([]api.Event, error) {
				return conch.Events(ctx, since)
			}, draw)
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on as events happen")
	c.Flags().Uint64Var(&since, "since", 0, "only events after this id")
	return c
}

// following shows events until ctx ends.
func following(ctx context.Context, f *factory.Factory, since uint64) error {
	conch, err := f.Client()
	if err != nil {
		return err
	}
	return conch.Follow(ctx, since, func(e api.Event) error {
		return f.Print(e, func(t *output.Table) { row(t, e) })
	})
}

func draw(t *output.Table, events []api.Event) {
	t.Row("ID", "TIME", "KIND", "AUTHOR", "TOOK", "MESSAGE", "REASON")
	for _, e := range events {
		row(t, e)
	}
}

func row(t *output.Table, e api.Event) {
	took := ""
	if e.Seconds > 0 {
		took = fmt.Sprintf("%.2fs", e.Seconds)
	}
	t.Row(e.ID, e.Time.Format(time.RFC3339), e.Kind, e.Author, took, e.Message, e.Reason)
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package top is `tritonctl top`.
package top

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/top"
)

// mostEvents are shown, the last ones.
const mostEvents = 20

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	var once bool
	c := &cobra.Command{
		Use:   "top --once",
		Short: "Show models, GPUs, what waits and the last events together",
		Long: `top prints the state of conch: models with their rates, bad requests and latencies;
GPUs with their partitions; models for which requests wait or that have no place, with the
reason; the last events. -o json has all of it for programs.`,
		Example: `  tritonctl top --once
  tritonctl top --once -o json | jq '.models[] | select(.bad_rate > 0.01).name'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !once {
				// What goes on changing is to come from one stream of changes, and not from asking again and again.
				return fmt.Errorf("%w: top: the admin API has no stream of changes that a screen could follow; say --once", factory.ErrUsage)
			}
			return factory.Show(c.Context(), f, func(conch *client.Client, ctx context.Context) (*top.State, error) {
				s, err := read(ctx, conch)
				if err == nil {
					s.Time = f.Now()
				}
				return s, err
			}, top.Draw)
		},
	}
	c.Flags().BoolVar(&once, "once", false, "print the state once, and end")
	return c
}

// read asks for the state.
func read(ctx context.Context, conch *client.Client) (*top.State, error) {
	s := &top.State{}
	var err error
	if s.Version, err = conch.Version(ctx); err != nil {
		return nil, err
	}
	if s.Models, err = conch.Models(ctx); err != nil {
		return nil, err
	}
	if s.GPUs, err = conch.GPUs(ctx); err != nil {
		return nil, err
	}
	if s.Events, err = conch.Events(ctx, 0); err != nil {
		return nil, err
	}
	s.Events = s.Events[max(0, len(s.Events)-mostEvents):]
	return s, nil
}

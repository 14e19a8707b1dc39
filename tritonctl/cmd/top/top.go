// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package top is `tritonctl top`.
package top

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/top"
)

// mostEvents are printed by --once, the last ones.
const mostEvents = 20

// topics are what the screens show.
var topics = [...]api.Topic{api.TopicConch, api.TopicModels, api.TopicGPUs, api.TopicRequests, api.TopicMinutes, api.TopicWaiting, api.TopicEvents}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	var once bool
	c := &cobra.Command{
		Use:   "top",
		Short: "Show models, GPUs, what waits and what happens, as they change",
		Long: `top shows the state of conch in the terminal, as it changes: models with their rates,
bad requests and latencies; GPUs with their partitions; what waits, for how long and why;
events. Enter shows all about a row, ? the keys. A connection that is lost is made again.

With --once the state is printed once, as tables or with -o json for programs.`,
		Example: `  tritonctl top
  tritonctl top --once
  tritonctl top --once -o json | jq '.models[] | select(.bad_rate > 0.01).name'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if once {
				return factory.Show(c.Context(), f, read, top.Draw)
			}
			switch {
			case f.Format != "table":
				return fmt.Errorf("%w: top: -o is for --once", factory.ErrUsage)
			case !f.InTerminal || !f.OutTerminal:
				return fmt.Errorf("%w: top needs a terminal; --once prints the state", factory.ErrUsage)
			}
			conch, err := f.Client()
			if err != nil {
				return err
			}
			return top.Run(c.Context(), func(ctx context.Context, yield func(*top.State), lost func(error)) error {
				return conch.Follow(ctx, topics[:], func(s client.State) error {
					yield(stateOf(s))
					return nil
				}, func(err error) error {
					lost(err)
					return nil
				})
			}, top.Terminal{In: f.In, Out: f.Out, Environment: os.Environ()})
		},
	}
	c.Flags().BoolVar(&once, "once", false, "print the state once, and end")
	return c
}

// stateOf is what the screens show of the stream of state.
func stateOf(s client.State) *top.State {
	out := &top.State{Time: s.Time, Models: s.Models, GPUs: s.GPUs, Requests: s.Requests, Minutes: s.Minutes, Waiting: s.Waiting, Events: s.Events}
	if s.Conch != nil {
		out.Version, out.Health = s.Conch.Version, s.Conch.Health
	}
	return out
}

var errEnough = errors.New("the state is known")

// read is the state at one moment.
func read(conch *client.Client, ctx context.Context) (out *top.State, err error) {
	err = conch.Follow(ctx, topics[:], func(s client.State) error {
		out = stateOf(s)
		return errEnough
	}, func(err error) error { return err })
	switch {
	case errors.Is(err, errEnough):
		out.Events = out.Events[max(0, len(out.Events)-mostEvents):]
		return out, nil
	case err == nil:
		err = ctx.Err()
	}
	return nil, err
}

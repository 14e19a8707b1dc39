// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package pin is `tritonctl plan pin` and `tritonctl plan unpin`.
package pin

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds plan pin.
func New(f *factory.Factory) *cobra.Command {
	return build(f, false, &cobra.Command{
		Use:   "pin",
		Short: "Have the plan that serves stay, whatever the policy says",
		Long: `pin has the plan in force stay until tritonctl plan unpin, over restarts of conch too.
The policy is still asked, and tritonctl plan diff shows what it would do. New files of
models are loaded where the plan has them; a model that is new has no place.`,
		Args: cobra.NoArgs,
	})
}

// NewUnpin builds plan unpin.
func NewUnpin(f *factory.Factory) *cobra.Command {
	return build(f, true, &cobra.Command{Use: "unpin", Short: "Let the policy decide again", Args: cobra.NoArgs})
}

func build(f *factory.Factory, unpin bool, c *cobra.Command) *cobra.Command {
	var reason string
	c.RunE = func(c *cobra.Command, _ []string) error {
		return factory.Show(c.Context(), f, func(conch *client.Client, ctx context.Context) (api.Plan, error) {
			return conch.Pin(ctx, api.PinRequest{Unpin: unpin, Author: f.Author, Reason: reason})
		}, draw)
	}
	c.Flags().StringVar(&reason, "reason", "", "the reason, for the event log and other operators")
	return c
}

func draw(t *output.Table, p api.Plan) {
	if p.Pin != nil {
		t.Line(fmt.Sprintf("plan %d is pinned", p.Revision))
		return
	}
	t.Line(fmt.Sprintf("plan %d serves until the policy has a better one", p.Revision))
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package order is `tritonctl model load` and `tritonctl model unload`.
package order

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds model load.
func New(f *factory.Factory) *cobra.Command {
	return build(f, false, &cobra.Command{
		Use:   "load MODEL",
		Short: "Read a model's files again and serve it",
		Long: `load reads one model of the repository again and serves it, wherever the policy places
it; a model that was unloaded, or that failed, is served again. It returns once the
model serves, or says why it cannot: what served before serves on then.`,
	})
}

// NewUnload builds model unload.
func NewUnload(f *factory.Factory) *cobra.Command {
	return build(f, true, &cobra.Command{
		Use:   "unload MODEL",
		Short: "Take a model out of service, until it is loaded again",
		Long: `unload takes a model out of service, over restarts of conch too. Ensembles that call
it go with it. Accepted requests are answered; new ones are refused.`,
	})
}

func build(f *factory.Factory, unload bool, c *cobra.Command) *cobra.Command {
	r := api.ModelRequest{Unload: unload}
	c.Args = cobra.ExactArgs(1)
	c.ValidArgsFunction = factory.ModelNames(f)
	c.RunE = func(c *cobra.Command, args []string) error {
		r.Model, r.Author = args[0], f.Author
		if unload {
			find := func(conch *client.Client, ctx context.Context) (api.Model, error) { return conch.Model(ctx, r.Model) }
			if err := factory.ConfirmFound(c.Context(), f, "unloading model "+r.Model, find); err != nil {
				return err
			}
		}
		return factory.Show(c.Context(), f, func(conch *client.Client, ctx context.Context) (api.Model, error) {
			return conch.OrderModel(ctx, r)
		}, draw)
	}
	if unload {
		c.Flags().BoolVar(&r.Dependents, "dependents", false, "also unload the models that an ensemble calls and that were loaded only for its sake")
	}
	c.Flags().StringVar(&r.Reason, "reason", "", "why, for the event log")
	return c
}

func draw(t *output.Table, m api.Model) {
	t.Line(strings.TrimSuffix("model "+m.Name+" is "+string(m.State)+": "+m.StateReason, ": "))
}

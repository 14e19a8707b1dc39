// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package describe is `tritonctl policy describe`.
package describe

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:               "describe [POLICY]",
		Short:             "Show a policy and its parameters",
		Long:              `describe shows a policy, by default the one in use, its parameters and their values.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: factory.PolicyNames(f),
		RunE: func(c *cobra.Command, args []string) error {
			return factory.Show(c.Context(), f, func(conch *client.Client, ctx context.Context) (api.Policy, error) {
				if len(args) == 1 {
					return conch.Policy(ctx, args[0])
				}
				return inUse(ctx, conch)
			}, draw)
		},
	}
}

func draw(t *output.Table, p api.Policy) {
	t.Line(p.Name + " " + p.Version + ": " + p.Summary)
	t.Row("PARAMETER", "TYPE", "DEFAULT", "VALUE", "MEANING")
	for _, q := range p.Parameters {
		t.Row(q.Name, q.Type, q.Default, q.Value, q.Documentation)
	}
}

func inUse(ctx context.Context, conch *client.Client) (api.Policy, error) {
	policies, err := conch.Policies(ctx)
	if err != nil {
		return api.Policy{}, err
	}
	for _, p := range policies {
		if p.InUse {
			return conch.Policy(ctx, p.Name)
		}
	}
	return api.Policy{}, errors.New("no policy is in use; name one of `tritonctl policy ls`")
}

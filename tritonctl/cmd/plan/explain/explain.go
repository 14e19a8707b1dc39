// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package explain is `tritonctl plan explain`.
package explain

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:               "explain MODEL",
		Short:             "Say why a model is where it is, and where the time of an ensemble's requests goes",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: factory.ModelNames(f),
		RunE: func(c *cobra.Command, args []string) error {
			ask := func(conch *client.Client, ctx context.Context) (api.Explanation, error) {
				return conch.Explain(ctx, args[0])
			}
			return factory.Show(c.Context(), f, ask, draw)
		},
	}
}

func draw(t *output.Table, e api.Explanation) { t.Line(strings.TrimRight(e.Text, "\n")) }

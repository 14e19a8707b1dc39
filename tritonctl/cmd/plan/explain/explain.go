// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package explain is `tritonctl plan explain`.
package explain

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Options are the command's inputs.
type Options struct {
	*factory.Factory
	model string
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:   "explain MODEL",
		Short: "Say why a model is where it is",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			o.model = args[0]
			return o.run(c.Context())
		},
	}
	return c
}

func (o *Options) run(ctx context.Context) error {
	api, err := o.Client()
	if err != nil {
		return err
	}
	e, err := api.Explain(ctx, o.model)
	if err != nil {
		return err
	}
	return o.Print(e, func(t *output.Table) { t.Line(strings.TrimRight(e.Text, "\n")) })
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package ls is `tritonctl policy ls`.
package ls

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Options are the command's inputs.
type Options struct {
	*factory.Factory
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:   "ls",
		Short: "List the policies that this conch can run",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
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
	policies, err := api.Policies(ctx)
	if err != nil {
		return err
	}
	return o.Print(policies, func(t *output.Table) {
		t.Row("POLICY", "IN USE", "VERSION", "STATE", "SUMMARY", "LAST ERROR")
		for _, p := range policies {
			inUse := ""
			if p.InUse {
				inUse = "*"
			}
			t.Row(p.Name, inUse, p.Version, p.State, p.Summary, p.LastError)
		}
	})
}

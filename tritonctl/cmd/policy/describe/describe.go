// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package describe is `tritonctl policy describe`.
package describe

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Options are the command's inputs.
type Options struct {
	*factory.Factory
	policy string
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:               "describe [POLICY]",
		Short:             "Show a policy and its parameters",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: factory.PolicyNames(f),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.policy = args[0]
			}
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
	name, err := o.name(ctx, api)
	if err != nil {
		return err
	}
	p, err := api.Policy(ctx, name)
	if err != nil {
		return err
	}
	return o.Print(p, func(t *output.Table) {
		t.Line(p.Name + " " + p.Version + ": " + p.Summary)
		t.Row("PARAMETER", "TYPE", "DEFAULT", "VALUE", "MEANING")
		for _, q := range p.Parameters {
			t.Row(q.Name, q.Type, q.Default, q.Value, q.Documentation)
		}
	})
}

// name is the policy asked for, else the one in use.
func (o *Options) name(ctx context.Context, api *client.Client) (string, error) {
	if o.policy != "" {
		return o.policy, nil
	}
	policies, err := api.Policies(ctx)
	if err != nil {
		return "", err
	}
	for _, p := range policies {
		if p.InUse {
			return p.Name, nil
		}
	}
	return "", errors.New("no policy is in use; name one of `tritonctl policy ls`")
}

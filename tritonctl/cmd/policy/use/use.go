// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package use is `tritonctl policy use`.
package use

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	var set []string
	var reason string
	c := &cobra.Command{
		Use:   "use POLICY",
		Short: "Swap the policy while serving",
		Long: `use puts a policy, or the same one with other parameters, in the place of the one
in use. Parameters that are not set have their defaults. What the policy cannot
read is refused, and the policy in use goes on. What serves changes with the next
plan, if the mode applies plans.

The choice survives restarts of conch. It ends when conch.yaml names another policy,
or the same with other parameters, than it does now; or when the policy of conch.yaml
is put in use again.`,
		Example: `  tritonctl policy use static --set discipline=deferred
  tritonctl policy use static --set 'placement=resnet50 = gpu0; bert = gpu1'
  tritonctl policy describe static   # its parameters`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: factory.PolicyNames(f),
		RunE: func(c *cobra.Command, args []string) error {
			parameters, err := parse(set)
			if err != nil {
				return err
			}
			return factory.Show(c.Context(), f, func(conch *client.Client, ctx context.Context) (api.Policy, error) {
				return conch.UsePolicy(ctx, api.UsePolicyRequest{Name: args[0], Parameters: parameters, Author: f.Author, Reason: reason})
			}, draw)
		},
	}
	c.Flags().StringArrayVarP(&set, "set", "s", nil, "a parameter of the policy, NAME=VALUE (repeatable)")
	_ = c.RegisterFlagCompletionFunc("set", factory.PolicyParameters(f))
	c.Flags().StringVar(&reason, "reason", "", "why, for the event log")
	return c
}

func draw(t *output.Table, p api.Policy) {
	t.Line("policy " + p.Name + " " + p.Version + " decides from the next plan on")
}

func parse(set []string) (map[string]string, error) {
	parameters := map[string]string{}
	for _, s := range set {
		name, value, found := strings.Cut(s, "=")
		if !found || name == "" {
			return nil, fmt.Errorf("%w: --set %q is not NAME=VALUE", factory.ErrUsage, s)
		}
		parameters[strings.TrimSpace(name)] = value
	}
	return parameters, nil
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package use is `tritonctl policy use`.
package use

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Options are the command's inputs.
type Options struct {
	*factory.Factory
	policy, reason string
	set            []string
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:               "use POLICY",
		Short:             "Swap the policy while serving",
		Example:           `tritonctl policy use static --set discipline=deferred`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: factory.PolicyNames(f),
		RunE: func(c *cobra.Command, args []string) error {
			o.policy = args[0]
			return o.run(c.Context())
		},
	}
	c.Flags().StringArrayVarP(&o.set, "set", "s", nil, "a parameter of the policy, NAME=VALUE (repeatable)")
	_ = c.RegisterFlagCompletionFunc("set", factory.PolicyParameters(f))
	c.Flags().StringVar(&o.reason, "reason", "", "why, for the event log")
	return c
}

func (o *Options) run(ctx context.Context) error {
	parameters := map[string]string{}
	for _, s := range o.set {
		name, value, found := strings.Cut(s, "=")
		if !found || name == "" {
			return &client.Error{Code: client.CodeInvalid, Message: fmt.Sprintf("--set %q is not NAME=VALUE", s)}
		}
		parameters[name] = value
	}
	api, err := o.Client()
	if err != nil {
		return err
	}
	p, err := api.UsePolicy(ctx, client.UsePolicyRequest{Name: o.policy, Parameters: parameters, Author: o.Author, Reason: o.reason})
	if err != nil {
		return err
	}
	return o.Print(p, func(t *output.Table) { t.Line("policy " + p.Name + " " + p.Version + " decides from the next plan on") })
}

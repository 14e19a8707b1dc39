// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package factory

import (
	"strings"

	"github.com/spf13/cobra"
)

// PolicyParameters completes NAME=VALUE for the policy that is the command's
// argument: the names of its parameters, and their values where the policy lists
// them. Completion starts no process, so only the policy in use has them to offer.
func PolicyParameters(f *Factory) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		conch, err := f.Client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		p, err := conch.KnownPolicy(c.Context(), args[0])
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var offers []cobra.Completion
		if name, _, valued := strings.Cut(text, "="); valued {
			for _, parameter := range p.Parameters {
				if parameter.Name != name {
					continue
				}
				for _, value := range parameter.Values {
					offers = append(offers, name+"="+value)
				}
			}
			return offers, cobra.ShellCompDirectiveNoFileComp
		}
		for _, parameter := range p.Parameters {
			offers = append(offers, parameter.Name+"=")
		}
		return offers, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

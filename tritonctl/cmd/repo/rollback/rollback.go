// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package rollback is `tritonctl repo rollback`.
package rollback

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/cmd/repo/importing"
	"github.com/conch-serving/conch/tritonctl/factory"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use:   "rollback REVISION",
		Short: "Go back to the models of an earlier revision",
		Long: `rollback makes a new revision with the models of an earlier one (tritonctl repo
history; tritonctl repo diff REVISION says what that changes). In mode control the next
plan serves it. The directory of conch.yaml is not touched, and not read again before
the next tritonctl repo import: the rollback holds over restarts of conch.`,
		Example:           `tritonctl repo rollback r3 --reason 'bert 2 is slower'`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: factory.Complete(f, (*client.Client).Revisions, func(r api.RepositoryRevision) string { return r.ID }),
		RunE: func(c *cobra.Command, args []string) error {
			return factory.Show(c.Context(), f, func(conch *client.Client, ctx context.Context) (api.RepositoryRevision, error) {
				return conch.Rollback(ctx, api.RollbackRequest{Revision: args[0], Author: f.Author, Reason: reason})
			}, importing.Draw)
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the revision's log")
	return c
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package repo groups the commands `tritonctl repo ...`.
package repo

import (
	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/tritonctl/cmd/repo/diff"
	"github.com/conch-serving/conch/tritonctl/cmd/repo/gc"
	"github.com/conch-serving/conch/tritonctl/cmd/repo/history"
	"github.com/conch-serving/conch/tritonctl/cmd/repo/importing"
	"github.com/conch-serving/conch/tritonctl/cmd/repo/rollback"
	"github.com/conch-serving/conch/tritonctl/cmd/repo/validate"
	"github.com/conch-serving/conch/tritonctl/cmd/repo/verify"
	"github.com/conch-serving/conch/tritonctl/factory"
)

// New builds `tritonctl repo`.
func New(f *factory.Factory) *cobra.Command {
	c := &cobra.Command{Use: "repo", Short: "The model repository and its revisions"}
	c.AddCommand(diff.New(f), gc.New(f), history.New(f), importing.New(f), rollback.New(f), validate.New(f), verify.New(f))
	return c
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package plan groups the commands `tritonctl plan ...`.
package plan

import (
	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/tritonctl/cmd/plan/apply"
	"github.com/conch-serving/conch/tritonctl/cmd/plan/diff"
	"github.com/conch-serving/conch/tritonctl/cmd/plan/explain"
	"github.com/conch-serving/conch/tritonctl/cmd/plan/history"
	"github.com/conch-serving/conch/tritonctl/cmd/plan/pin"
	"github.com/conch-serving/conch/tritonctl/cmd/plan/rollback"
	"github.com/conch-serving/conch/tritonctl/cmd/plan/show"
	"github.com/conch-serving/conch/tritonctl/factory"
)

// New builds `tritonctl plan`.
func New(f *factory.Factory) *cobra.Command {
	c := &cobra.Command{Use: "plan", Short: "The plan that serves, and the next one"}
	c.AddCommand(apply.New(f), diff.New(f), explain.New(f), history.New(f), pin.New(f), rollback.New(f), show.New(f), pin.NewUnpin(f))
	return c
}

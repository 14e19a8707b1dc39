// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package policy groups the commands `tritonctl policy ...`.
package policy

import (
	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/tritonctl/cmd/policy/describe"
	"github.com/conch-serving/conch/tritonctl/cmd/policy/ls"
	"github.com/conch-serving/conch/tritonctl/cmd/policy/try"
	"github.com/conch-serving/conch/tritonctl/cmd/policy/use"
	"github.com/conch-serving/conch/tritonctl/factory"
)

// New builds `tritonctl policy`.
func New(f *factory.Factory) *cobra.Command {
	c := &cobra.Command{Use: "policy", Short: "Scheduling policies"}
	c.AddCommand(describe.New(f), ls.New(f), try.New(f), use.New(f))
	return c
}

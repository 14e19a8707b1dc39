// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package partition groups the commands `tritonctl partition ...`.
package partition

import (
	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/tritonctl/cmd/partition/get"
	"github.com/conch-serving/conch/tritonctl/cmd/partition/ls"
	"github.com/conch-serving/conch/tritonctl/cmd/partition/restart"
	"github.com/conch-serving/conch/tritonctl/factory"
)

// New builds `tritonctl partition`.
func New(f *factory.Factory) *cobra.Command {
	c := &cobra.Command{Use: "partition", Short: "Partitions, their servers and whether they are as the plan asks"}
	c.AddCommand(ls.New(f), get.New(f), restart.New(f))
	return c
}

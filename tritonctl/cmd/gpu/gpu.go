// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package gpu groups the commands `tritonctl gpu ...`.
package gpu

import (
	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/tritonctl/cmd/gpu/advise"
	"github.com/conch-serving/conch/tritonctl/cmd/gpu/cordon"
	"github.com/conch-serving/conch/tritonctl/cmd/gpu/ls"
	"github.com/conch-serving/conch/tritonctl/factory"
)

// New builds `tritonctl gpu`.
func New(f *factory.Factory) *cobra.Command {
	c := &cobra.Command{Use: "gpu", Short: "GPUs and the partitions on them"}
	c.AddCommand(ls.New(f), advise.New(f), cordon.New(f), cordon.NewDrain(f), cordon.NewUndo(f))
	return c
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package merge groups the commands `tritonctl merge ...`.
package merge

import (
	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/tritonctl/cmd/merge/analyze"
	"github.com/conch-serving/conch/tritonctl/cmd/merge/emit"
	"github.com/conch-serving/conch/tritonctl/cmd/merge/explain"
	"github.com/conch-serving/conch/tritonctl/cmd/merge/verify"
	"github.com/conch-serving/conch/tritonctl/factory"
)

// New builds `tritonctl merge`.
func New(f *factory.Factory) *cobra.Command {
	c := &cobra.Command{Use: "merge", Short: "One set of graphs for models that share weights"}
	c.AddCommand(analyze.New(f), emit.New(f), verify.New(f), explain.New(f))
	return c
}

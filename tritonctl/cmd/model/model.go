// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package model groups the commands `tritonctl model ...`.
package model

import (
	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/tritonctl/cmd/model/get"
	"github.com/conch-serving/conch/tritonctl/cmd/model/ls"
	"github.com/conch-serving/conch/tritonctl/cmd/model/order"
	"github.com/conch-serving/conch/tritonctl/factory"
)

// New builds `tritonctl model`.
func New(f *factory.Factory) *cobra.Command {
	c := &cobra.Command{Use: "model", Short: "Models as they are served"}
	c.AddCommand(get.New(f), ls.New(f), order.New(f), order.NewUnload(f))
	return c
}

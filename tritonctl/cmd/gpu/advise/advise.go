// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package advise is `tritonctl gpu advise`.
package advise

import (
	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:   "advise",
		Short: "Say whether the load wants more or fewer GPUs",
		Long: `advise says how many GPUs to allocate or to release for the load of the last
minute: more while more than the tolerated share of requests is bad
(triggers.badRate), fewer while whole GPUs are idle. A surplus counts after a
minute, a shortage after ten seconds. The GPUs are listed in the order in which
requests are given to them, so that the last ones are the idlest.

tritonctl advise answers another question: what Conch would gain over Triton's
own batching.`,
		Example: `  tritonctl gpu advise
  tritonctl gpu advise -o json | jq '.number, .release'`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return factory.Show(c.Context(), f, (*client.Client).GPUAdvice, draw)
		},
	}
}

func draw(t *output.Table, a api.GPUAdvice) {
	t.Line(a.Reason)
	if len(a.GPUs) == 0 {
		return
	}
	t.Row("GPU", "RANK", "IDLE", "RELEASE")
	for _, g := range a.GPUs {
		var rank, release any = "", ""
		if g.Rank != nil {
			rank = *g.Rank
		}
		if g.Release {
			release = "yes"
		}
		t.Row(g.ID, rank, output.Percent(g.IdleShare), release)
	}
}

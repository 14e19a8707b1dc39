// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/conch-serving/conch/internal/figure"
)

// ablationTable has a row for each rule of adaptive.
func ablationTable(f byName) string {
	var b strings.Builder
	b.WriteString("| without | mean | most | least |\n|---|---|---|---|\n")
	for _, p := range parts() {
		mean, ok := f["ablation."+p.name+".mean"]
		if !ok {
			continue
		}
		most, least := f["ablation."+p.name+".most"], f["ablation."+p.name+".least"]
		fmt.Fprintf(&b, "| *%s* | %.3f | %.3f | %.3f |\n", p.name, mean.Value, most.Value, least.Value)
	}
	return b.String()
}

// ablationRemarks say what the loads are.
func ablationRemarks() []figure.Remark {
	return []figure.Remark{{
		About: "The loads",
		Text: "A ratio is goodput with a rule over goodput without it, under the same arrivals: the geometric mean over the seeds of arrivals on one load, and over all loads for `mean`. The loads are those that the development seed of " +
			"`make bench BENCH=unseen` draws. [The queue's page](../sidecar/dispatch/queue/README.md#measured) says what each rule is.",
	}}
}

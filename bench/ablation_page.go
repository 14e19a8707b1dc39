// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
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

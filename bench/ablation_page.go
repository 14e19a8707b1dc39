// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/conch-serving/conch/internal/figure"
)

// The part of the queue's page that holds what ablation measured lies between these.
const tableBegins, tableEnds = "<!-- ablation: written by `make results` -->\n", "<!-- /ablation -->"

// withTable is a page with the figures of ablation in their place.
func withTable(page string, r *figure.Report) (string, error) {
	before, rest, begins := strings.Cut(page, tableBegins)
	_, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		return "", fmt.Errorf("the page has no place for the figures of ablation: lines %q and %q", strings.TrimSpace(tableBegins), tableEnds)
	}
	return before + tableBegins + ablationTable(r) + tableEnds + after, nil
}

// rewriteTable puts the figures into a page that is there.
func rewriteTable(path string, r *figure.Report) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := withTable(string(page), r)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(text), 0o644)
}

// ablationTable has a row for each rule of adaptive.
func ablationTable(r *figure.Report) string {
	var b strings.Builder
	b.WriteString("| without | mean | most | least |\n|---|---|---|---|\n")
	value := map[string]figure.Figure{}
	for _, f := range r.Figures {
		value[f.Name] = f
	}
	for _, p := range parts() {
		mean, ok := value["ablation."+p.name+".mean"]
		if !ok {
			continue
		}
		most, least := value["ablation."+p.name+".most"], value["ablation."+p.name+".least"]
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

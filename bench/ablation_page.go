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

// ablationTable has a row for each part of adaptive, with the figures of its loads.
func ablationTable(r *figure.Report) string {
	var b strings.Builder
	b.WriteString("| without | goodput with it over without it |\n|---|---|\n")
	names, _ := parts()
	for _, name := range names {
		var loads []string
		for _, f := range r.Figures {
			if load, ok := strings.CutPrefix(f.Name, "ablation."+name+"."); ok {
				loads = append(loads, fmt.Sprintf("`%s` %.3f", strings.TrimSuffix(load, ".ratio"), f.Value))
			}
		}
		if len(loads) > 0 {
			fmt.Fprintf(&b, "| *%s* | %s |\n", name, strings.Join(loads, ", "))
		}
	}
	return b.String()
}

// ablationRemarks say how the loads were chosen.
func ablationRemarks() []figure.Remark {
	return []figure.Remark{{
		About: "How the loads were chosen",
		Text: "A row is goodput with a rule over goodput without it: the geometric mean over the seeds, under the same arrivals with the same seed; beside it both goodputs, and the 95% interval of the ratio. " +
			"[The queue's page](../sidecar/dispatch/queue/README.md#measured) says what each rule is. For each, short runs of the matrix's loads without it, at about the goodput of `adaptive` and on other seeds, showed where it matters most. " +
			"So these are not what a rule brings on average: on most loads it changes little or nothing. The last row of each rule is a load where those runs said that it costs something, or brings nothing.",
	}}
}

// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// few figures of a report are all shown; of more, those that pages name.
const few = 12

// Render writes the reports as a Markdown page. Of a report with many figures it shows those that one of the pages names, in backquotes or in
// the comment of a citation; the others stay in the report's file.
func Render(w io.Writer, reports []*Report, pages ...string) error {
	named := func(f Figure) bool {
		return slices.ContainsFunc(pages, func(page string) bool {
			return strings.Contains(page, "`"+f.Name+"`") || strings.Contains(page, "<!-- "+f.Name+" -->")
		})
	}
	var b strings.Builder
	b.WriteString("# Results\n\nWritten by `make results` from results/*.json: edit those by running the commands again, not this page.\n" +
		"Of commands with many figures it shows those that other pages name; the files have all of them.\n" +
		"A value measured more than once is the median; from five runs on, the least and the greatest stand beside it.\n" +
		"[Remarks](remarks.md) says where figures differ from what others print, and why.\n" +
		"A section ends with the commit that was measured, and -dirty where there were changes that no commit has; `make figures` says for which of them what the command runs has changed since.\n")
	for _, r := range reports {
		fmt.Fprintf(&b, "\n## %s\n\n", r.Command)
		if r.Emulated != "" {
			fmt.Fprintf(&b, "**Emulated:** %s\n\n", r.Emulated)
		}
		shown := r.Figures
		if len(shown) > few {
			shown = slices.DeleteFunc(slices.Clone(shown), func(f Figure) bool { return !named(f) })
		}
		if len(shown) > 0 {
			table(&b, shown)
		}
		if left := len(r.Figures) - len(shown); left > 0 {
			fmt.Fprintf(&b, "\nresults/%s.json has %d figures more.\n", r.File, left)
		}
		var versions []string
		for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
			versions = append(versions, name+" "+r.Versions[name])
		}
		fmt.Fprintf(&b, "\nCommit %s, %s, seed %d; %d cores (%s), %s, %s, Linux %s; %s.\n", r.Commit, r.When.UTC().Format("2006-01-02"), r.Seed,
			r.Machine.Cores, r.Machine.CPU, r.Machine.Memory, r.Machine.OS, r.Machine.Kernel, strings.Join(versions, ", "))
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("results page: %w", err)
	}
	return nil
}

// table renders one figure a row.
func table(b *strings.Builder, figures []Figure) {
	b.WriteString("| figure | value | unit | spread | |\n|---|---:|---|---|---|\n")
	for _, f := range figures {
		spread := ""
		if f.Runs > 0 {
			spread = fmt.Sprintf("%d runs", f.Runs)
		}
		if f.Runs >= SpreadRuns {
			spread = fmt.Sprintf("%s to %s, %d runs", Number(f.Low), Number(f.High), f.Runs)
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", f.Name, Number(f.Value), f.Unit, spread, strings.ReplaceAll(f.Note, "|", "\\|"))
	}
}

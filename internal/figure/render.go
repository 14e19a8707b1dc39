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

// Render writes the reports as a Markdown page.
func Render(w io.Writer, reports []*Report) error {
	var b strings.Builder
	b.WriteString("# Results\n\nWritten by `make results` from results/*.json: edit those by running the commands again, not this page.\n" +
		"A value measured more than once is the median, with the least and the greatest beside it.\n")
	for _, r := range reports {
		fmt.Fprintf(&b, "\n## %s\n\n", r.Command)
		if r.Emulated != "" {
			fmt.Fprintf(&b, "**Emulated:** %s\n\n", r.Emulated)
		}
		if r.Matrix && len(r.Figures) > 0 {
			r.matrix(&b)
		} else {
			r.table(&b)
		}
		for _, m := range r.Remarks {
			fmt.Fprintf(&b, "\n**%s.** %s\n", m.About, m.Text)
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
func (r *Report) table(b *strings.Builder) {
	b.WriteString("| figure | value | unit | spread | |\n|---|---:|---|---|---|\n")
	for _, f := range r.Figures {
		spread := ""
		if f.Runs > 0 {
			spread = fmt.Sprintf("%s to %s, %d runs", Number(f.Low), Number(f.High), f.Runs)
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", f.Name, Number(f.Value), f.Unit, spread, strings.ReplaceAll(f.Note, "|", "\\|"))
	}
}

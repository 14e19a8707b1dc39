// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package diff is `tritonctl repo diff`.
package diff

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:   "diff [FROM [TO]]",
		Short: "Say what differs between two revisions: models, files, fields of config.pbtxt",
		Long: `diff compares the revision FROM with TO, which is the current one unless it is named.
Without arguments it compares the current one with the one before; where that is kept no
more (tritonctl repo gc), it says what the current one noted down of it. Files show with
their sizes, and of a config.pbtxt each field that differs, with its comments. Before a
rollback to r3, tritonctl repo diff r3 says what it would undo: read it from right to
left.`,
		Example: `tritonctl repo diff
tritonctl repo diff r3
tritonctl repo diff r3 r5 -o json`,
		Args:              cobra.MaximumNArgs(2),
		ValidArgsFunction: factory.Complete(f, (*client.Client).Revisions, func(r api.RepositoryRevision) string { return r.ID }),
		RunE: func(c *cobra.Command, args []string) error {
			args = append(args, "", "")
			return factory.Show(c.Context(), f, func(conch *client.Client, ctx context.Context) (api.RepositoryDiff, error) {
				return conch.CompareRevisions(ctx, args[0], args[1])
			}, draw)
		},
	}
}

// mark is how a change shows.
func mark(change string) string {
	switch change {
	case "added":
		return "+"
	case "removed":
		return "-"
	}
	return "~"
}

func draw(t *output.Table, d api.RepositoryDiff) {
	from := d.From
	if from == "" {
		from = "nothing"
	}
	t.Line(fmt.Sprintf("%s -> %s", from, d.To))
	if d.Partial {
		t.Line(fmt.Sprintf("%s is kept no more: this is what %s noted down when it was made", d.From, d.To))
	}
	if len(d.Models) == 0 {
		t.Line("no difference")
	}
	for _, m := range d.Models {
		line := mark(m.Change) + " " + m.Model
		if len(m.Notes) > 0 {
			line += " (" + strings.Join(m.Notes, ", ") + ")"
		}
		t.Line(line)
		for _, file := range m.Files {
			size := fmt.Sprintf(", %d bytes", file.AfterBytes)
			switch {
			case file.Change == "removed" && d.Partial:
				size = ""
			case file.Change == "removed":
				size = fmt.Sprintf(", %d bytes", file.BeforeBytes)
			case file.Change == "changed" && !d.Partial:
				size = fmt.Sprintf(", %d -> %d bytes", file.BeforeBytes, file.AfterBytes)
			}
			t.Line(fmt.Sprintf("    %s %s%s", mark(file.Change), file.Path, size))
			if file.Path == "config.pbtxt" && file.Change == "changed" {
				fields(t, m)
			}
		}
	}
}

func fields(t *output.Table, m api.ModelDiff) {
	if m.Text != "" {
		t.Line("        " + m.Text)
	}
	for _, f := range m.Fields {
		t.Line(fmt.Sprintf("        %s %s, line %d", mark(f.Change), f.Field, f.Line))
		for _, side := range []struct{ sign, text string }{{"-", f.Before}, {"+", f.After}} {
			if side.text == "" {
				continue
			}
			for _, line := range strings.Split(side.text, "\n") {
				t.Line("            " + side.sign + " " + line)
			}
		}
	}
}

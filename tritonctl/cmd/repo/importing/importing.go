// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package importing is `tritonctl repo import`; the word itself is Go's.
package importing

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use:   "import [DIRECTORY]",
		Short: "Read a model repository into a new revision",
		Long: `import reads DIRECTORY (default: the repository of conch.yaml), as conch's machine
sees it, into a new revision. The directory itself is only read. In mode control
the next plan serves it; tritonctl repo rollback goes back. A model that cannot be
served, or of which a file cannot be read, is shown and holds up no other: what
cannot be read stays as it was imported before. Where Triton would refuse a model that
serves, the import is refused and changes nothing.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			directory := ""
			if len(args) == 1 {
				var err error
				if directory, err = filepath.Abs(args[0]); err != nil {
					return err
				}
			}
			task := f.Begin("reading the repository")
			return factory.Show(c.Context(), f, func(conch *client.Client, ctx context.Context) (api.RepositoryRevision, error) {
				return conch.Import(ctx, api.ImportRequest{Directory: directory, Author: f.Author, Reason: reason}, func(p api.ImportProgress) {
					task.At(float64(p.DoneBytes), float64(p.AllBytes), p.Model)
				})
			}, Draw)
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for the revision's log")
	return c
}

// Draw shows a revision that was made, to a person.
func Draw(t *output.Table, r api.RepositoryRevision) {
	models := "models"
	if len(r.Models) == 1 {
		models = "model"
	}
	unchanged := ""
	if r.Unchanged {
		unchanged = "; nothing has changed since"
	}
	t.Line(fmt.Sprintf("revision %s: %d %s%s", r.ID, len(r.Models), models, unchanged))
	for _, change := range []struct {
		what   string
		models []string
	}{{"added", r.Added}, {"changed", r.Changed}, {"removed", r.Removed}} {
		if len(change.models) > 0 {
			t.Line("  " + change.what + ": " + strings.Join(change.models, ", "))
		}
	}
	for _, p := range r.Problems {
		what := "warning"
		if p.Refused {
			what = "not served"
		}
		t.Line("  " + what + ": " + p.Text)
	}
	if r.Held {
		t.Line("  it holds, over restarts too, until tritonctl repo import")
	}
}

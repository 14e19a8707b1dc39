// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package importing is `tritonctl repo import`.
package importing

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Options are the command's inputs.
type Options struct {
	*factory.Factory
	directory, reason string
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:   "import [DIRECTORY]",
		Short: "Read a model repository into a new revision",
		Long: `import reads DIRECTORY (default: the repository of conch.yaml) into a new revision.
The directory itself is only read. In mode control the next plan serves it.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				o.directory = args[0]
			}
			return o.run(c.Context())
		},
	}
	c.Flags().StringVar(&o.reason, "reason", "", "why, for the revision's log")
	return c
}

func (o *Options) run(ctx context.Context) error {
	directory := o.directory
	if directory != "" {
		absolute, err := filepath.Abs(directory)
		if err != nil {
			return err
		}
		directory = absolute
	}
	api, err := o.Client()
	if err != nil {
		return err
	}
	o.Progress("reading the repository; unchanged files are not copied again")
	r, err := api.Import(ctx, client.ImportRequest{Directory: directory, Author: o.Author, Reason: o.reason})
	if err != nil {
		return err
	}
	return o.Print(r, func(t *output.Table) {
		t.Line(fmt.Sprintf("revision %s: %d models", r.ID, len(r.Models)))
		for _, change := range []struct {
			what   string
			models []string
		}{{"added", r.Added}, {"changed", r.Changed}, {"removed", r.Removed}} {
			if len(change.models) > 0 {
				t.Line("  " + change.what + ": " + strings.Join(change.models, ", "))
			}
		}
	})
}

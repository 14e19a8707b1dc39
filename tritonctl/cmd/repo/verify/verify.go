// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package verify is `tritonctl repo verify`.
package verify

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// ErrDamaged is the failure of a repository whose content is not what was imported.
var ErrDamaged = errors.New("content is damaged")

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	var r api.VerifyRequest
	c := &cobra.Command{
		Use:   "verify",
		Short: "Read all content of the revisions again and say which model of which is damaged",
		Long: `verify reads every file that a revision has out of conch's store, compares it with the
digest of its import, and says which files of which model and revision are damaged. It
exits 1 where one is. What servers have loaded are copies, and not concerned; a damaged
model of the current revision is not to be loaded anew before it is mended.

With --mend, damaged content is taken out. tritonctl repo import then writes it anew as
far as the operator's directory still has it, without a new revision. An older revision
whose content is nowhere else stays damaged: do not go back to it; tritonctl repo gc
forgets it in time. Imports and orders go on while verify reads.`,
		Example: `tritonctl repo verify
tritonctl repo verify --mend && tritonctl repo import`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			conch, err := f.Client()
			if err != nil {
				return err
			}
			f.Begin("reading all content of the repository's revisions")
			r.Author = f.Author
			found, err := conch.Verify(c.Context(), r)
			if err != nil {
				return err
			}
			if err := f.Print(found, func(t *output.Table) { draw(t, found) }); err != nil {
				return err
			}
			if len(found.Damaged) > 0 {
				return ErrDamaged
			}
			return nil
		},
	}
	c.Flags().BoolVar(&r.Mend, "mend", false, "take damaged content out, so that the next import writes it anew")
	c.Flags().StringVar(&r.Reason, "reason", "", "why, for the events")
	return c
}

func draw(t *output.Table, found api.Verified) {
	taken := false
	for _, d := range found.Damaged {
		current := ""
		if d.Current {
			current = " (current)"
		}
		t.Line(fmt.Sprintf("%s%s: %s/%s %s", d.Revision, current, d.Model, d.File, d.Text))
		taken = taken || d.Taken
	}
	size := output.Bytes(uint64(max(found.Bytes, 0)))
	if size == "" {
		size = "0 bytes"
	}
	switch {
	case len(found.Damaged) == 0:
		t.Line(fmt.Sprintf("%d files (%s) are as they were imported", found.Files, size))
	case taken:
		t.Line("what was damaged is taken out; tritonctl repo import writes it anew as far as the directory has it")
	default:
		t.Line("to mend it: tritonctl repo verify --mend, then tritonctl repo import")
	}
}

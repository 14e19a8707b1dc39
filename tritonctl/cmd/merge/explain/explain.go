// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package explain is `tritonctl merge explain`.
package explain

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/merger"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	return &cobra.Command{
		Use:   "explain MERGE",
		Short: "Say what a merge is made of, and why its rows stay apart",
		Long: `explain prints the manifest of a merge: its parts, how tensors cross between them,
the proof for each node that runs on rows of several members, what was refused and
why, and whether it is verified, its files being those that were.`,
		Example: `tritonctl merge explain /var/tmp/bert`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			m, err := merger.Read(args[0])
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return fmt.Errorf("%w: %s is no merge's directory on this machine, which tritonctl merge emit writes: %w", factory.ErrUsage, args[0], err)
			case err != nil:
				return err
			}
			_, serving := merger.Load(c.Context(), args[0])
			return f.Print(m, func(t *output.Table) { draw(t, m, serving) })
		},
	}
}

func draw(t *output.Table, m *merger.Manifest, serving error) {
	t.Line(fmt.Sprintf("%s: mode %s, digest %.16s", m.Name, m.Mode, m.Digest))
	t.Row("PART", "ROLE")
	for _, p := range m.Parts {
		t.Row(p.Name, p.Role)
	}
	for i, member := range m.Members {
		for _, out := range member.Outputs {
			if as := member.As[out.Name]; as != "" {
				t.Line(fmt.Sprintf("%s: rows of member %d; output %s is %s of the group", member.Name, i, out.Name, as))
			}
		}
	}
	switch {
	case m.Mode != merger.Backbone:
	case m.HeadsTogether:
		t.Line("heads: as one, with the weights in which they differ looked up per row")
	default:
		t.Line("heads: one by one, each on its own rows, those without rows left out")
	}
	t.Line(fmt.Sprintf("\nweights: %s shared, %s instead of %s", output.Bytes(uint64(m.SharedBytes)), output.Bytes(uint64(m.MergedBytes)), output.Bytes(uint64(m.SeparateBytes)))) //nolint:gosec // sizes
	t.Line("\nnodes that run on rows of several members, and what is known of them:")
	t.Row("NODE", "OPERATOR", "FACT")
	for _, p := range m.Proof {
		t.Row(p.Node, p.Op, p.Fact)
	}
	for _, s := range m.SuperOperators {
		t.Line(fmt.Sprintf("super-operator (%s): %s and %s share %s", s.Op, s.Nodes[0], s.Nodes[1], s.Shared))
	}
	for _, r := range m.Refusals {
		t.Line(fmt.Sprintf("not shared: %s: %s (%s): %s", r.Member, r.Node, r.Op, r.Reason))
	}
	switch {
	case serving != nil:
		t.Line("\nmust not serve: " + serving.Error())
	case m.Mode != merger.Backbone:
		t.Line("\nverified; " + merger.NotServed)
	default:
		t.Line(fmt.Sprintf("\nverified by %d runs on %s: largest difference %.2g of %.2g allowed", m.Verification.Runs, m.Verification.Runner, m.Verification.MaxDifference, m.Verification.Bound))
	}
}
